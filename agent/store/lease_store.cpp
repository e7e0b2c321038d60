#include "store/lease_store.h"

#include <algorithm>
#include <map>
#include <utility>

#include "store/redis/store_connection.h"

namespace mycojobs {

Result<std::vector<Lease>> LeaseStore::leases(Id context) {
  std::vector<Lease> out;
  // Index in `out` by job key. A lease that is renewed between two pages is in both pages.
  std::map<std::string, std::size_t> positions;
  std::string cursor;
  do {
    MJ_TRY(page, connection_.run(context, scripts::leases, Arguments{cursor}));
    cursor = page.at(0).text();
    for (std::size_t i = 1; i < page.size(); ++i) {
      const Reply entry = page.at(i);
      Lease lease{std::string(entry.at(0).text()), entry.at(1).number(), entry.at(2).number()};
      const auto [position, is_new] = positions.try_emplace(lease.job_key, out.size());
      if (is_new)
        out.push_back(std::move(lease));
      else
        out[position->second] = std::move(lease);
    }
  } while (!cursor.empty());
  return out;
}

Result<bool> LeaseStore::expire(Id context, const Lease& lease) {
  Arguments arguments;
  MJ_TRY(reply, connection_.run(context, scripts::expire, arguments.add(lease.job_key).add(lease.until_ms)));
  if (reply.number() == 1) connection_.metrics().add(Metric::leases_expired, {context});
  return reply.number() == 1;
}

Result<std::vector<std::string>> LeaseStore::expire_instance(Id context, Id runner, const std::string& instance) {
  std::vector<std::string> jobs;
  std::string cursor;
  do {
    MJ_TRY(page, connection_.run(context, scripts::expire_instance,
                                 Arguments{}.add(std::uint64_t{runner}).add(instance).add(std::string_view(cursor))));
    cursor = page.at(0).text();
    for (std::size_t i = 1; i < page.size(); ++i) jobs.emplace_back(page.at(i).text());
  } while (!cursor.empty());
  if (!jobs.empty()) connection_.metrics().add(Metric::leases_expired, {context}, static_cast<double>(jobs.size()));
  return jobs;
}

Result<TickReply> LeaseStore::tick(Id context, const TickRequest& request) {
  Arguments arguments;
  const Retention& retention = request.retention;
  arguments.add(std::uint64_t{request.missing_wait_ms});
  arguments.add(retention.succeeded_ms).add(retention.failed_ms).add(retention.flow_ms);
  arguments.add(request.retention_count).add(std::uint64_t{std::max(request.max_entries, 1U)});
  connection_.add_quota(arguments);
  MJ_TRY(reply, connection_.run(context, scripts::tick, arguments));
  TickReply out;
  out.queued = static_cast<std::uint32_t>(reply.at(0).number());
  out.woken_dependents = static_cast<std::uint32_t>(reply.at(1).number());
  out.missing_records = static_cast<std::uint32_t>(reply.at(2).number());
  out.timed_out = static_cast<std::uint32_t>(reply.at(3).number());
  out.retired = static_cast<std::uint32_t>(reply.at(4).number());
  out.has_more = reply.at(5).number() == 1;
  out.next_due_ms = reply.at(6).number();
  out.lease_count = reply.at(7).number();
  out.prerequisite_count = reply.at(8).number();
  count_tick(connection_.metrics(), context, out);
  return out;
}

Result<std::map<Id, TimedWork>> LeaseStore::find_timed_work(Id context, const std::vector<Id>& contexts,
                                                            std::uint64_t within_ms) {
  // Contexts with a server of their own are asked one at a time.
  const bool is_on_default_server = connection_.address(context).is_on_default_server;
  std::vector<Id> asked;
  for (const Id each : contexts) {
    if (each == context || (is_on_default_server && connection_.address(each).is_on_default_server))
      asked.push_back(each);
  }
  Arguments arguments;
  arguments.add(within_ms).add(std::uint64_t{asked.size()});
  for (const Id each : asked) arguments.add(std::uint64_t{connection_.address(each).database});
  MJ_TRY(reply, connection_.run(context, scripts::timed_work, arguments));
  std::map<Id, TimedWork> out;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    TimedWork& work = out[asked[i]];
    work.is_due = reply.at(3 * i).number() == 1;
    work.has_leases = reply.at(3 * i + 1).number() == 1;
    if (!reply.at(3 * i + 2).is_nil()) work.last_search_ms = reply.at(3 * i + 2).number();
  }
  return out;
}

}  // namespace mycojobs
