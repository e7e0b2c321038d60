#include "store/runner_store.h"

#include <map>
#include <set>

#include "base/parse.h"
#include "model/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/lease_store.h"
#include "store/record_store.h"
#include "store/redis/store_connection.h"
#include "store/redis/store_metrics.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxRunnerNames = 100000;
constexpr std::uint64_t kRecordScanIntervalMs =
    600000;  // interval between two scans of all keys for records of runners

// Returns runner ids from the index mj:runners. The index contains each runner that was ever held. Records of other
// clients are added by a scan of all keys, which the first caller makes after kRecordScanIntervalMs for all clients.
Result<std::set<Id>> runner_ids(StoreConnection& connection, Id context, std::uint64_t now_ms) {
  std::set<Id> ids;
  const auto add = [&ids](std::string_view text) {
    std::uint64_t id = 0;
    if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX || std::to_string(id) != text) return false;
    ids.insert(static_cast<Id>(id));
    return true;
  };
  MJ_TRY(index_ids, connection.command(context, {"ZRANGE", kRunnersKey, "0", "-1"}));
  for (std::size_t i = 0; i < index_ids.size(); ++i) add(index_ids.at(i).text());
  MJ_TRY(last_scan, connection.command(context, {"ZSCORE", kRunnersKey, "*"}));
  std::uint64_t checked_ms = 0;
  parse_u64(last_scan.text(), checked_ms);
  if (checked_ms <= now_ms && now_ms - checked_ms < kRecordScanIntervalMs) return ids;
  Arguments index{"ZADD", kRunnersKey};
  index.add(now_ms).add("*");
  MJ_TRY(names, connection.scan_keys(context, {"MATCH", "runner:*"}, kMaxRunnerNames));
  for (const std::string& name : names) {
    const std::string_view id = std::string_view(name).substr(7);
    if (add(id)) index.add("0").add(id);
  }
  MJ_CHECK(connection.command(context, index));
  return ids;
}

}  // namespace

Result<std::vector<RunnerInfo>> RunnerStore::runners(Id context) {
  StoreConnection& connection = connection_;
  MJ_TRY(time, connection.command(context, {"TIME"}));
  const std::uint64_t now = time.at(0).number() * 1000 + time.at(1).number() / 1000;
  MJ_TRY(ids, runner_ids(connection, context, now));
  MJ_TRY(live_leases, LeaseStore(connection).leases(context));
  std::map<std::string, std::uint32_t> claim_counts;  // by runner id
  for (const Lease& lease : live_leases) {
    MJ_TRY(runner, connection.command(context, {"HGET", kClaimKey + lease.job_key, "runner"}));
    ++claim_counts[std::string(runner.text())];
  }
  std::vector<RunnerInfo> out;
  for (const Id id : ids) {
    auto record = RecordStore(connection).load(context, "runner:" + std::to_string(id));
    if (!record && record.error().code == Code::unavailable) return tl::unexpected(record.error());
    if (!record) {  // the record was deleted, or the key is not a hash
      if (record.error().code == Code::not_found) {
        const std::string id_text = std::to_string(id);
        MJ_CHECK(connection.command(context, {"ZREM", kRunnersKey, id_text}));
        // Another client may have written the record again before ZREM; then the index must keep it.
        const std::string key = "runner:" + id_text;
        MJ_TRY(record_exists, connection.command(context, {"EXISTS", key}));
        if (record_exists.number() > 0)
          MJ_CHECK(connection.command(context, {"ZADD", kRunnersKey, "NX", "0", id_text}));
      }
      continue;
    }
    RunnerInfo info;
    info.runner = decode<Runner>(*record).record;
    info.runner.id = id;
    info.live_claim_count = claim_counts[std::to_string(id)];
    MJ_TRY(hold, connection.command(context, {"HGETALL", kRunnerOwnerKey + std::to_string(id)}));
    std::uint64_t until = 0;
    for (const auto& [field, value] : hold.fields()) {
      if (field == "instance") info.holder.instance = value;
      if (field == "host") info.holder.host = value;
      if (field == "boot_id") info.holder.boot_id = value;
      std::uint64_t pid = 0;
      if (field == "pid" && parse_u64(value, pid)) info.holder.pid = static_cast<std::int64_t>(pid);
      if (field == "until_ms") parse_u64(value, until);
    }
    info.hold_remaining_ms = until > now ? until - now : 0;
    out.push_back(std::move(info));
  }
  return out;
}

Result<SilentRunners> RunnerStore::silent_runners(Id context, std::string_view lost_detail) {
  MJ_TRY(reply, connection_.run(context, scripts::silent_runners, Arguments{lost_detail}));
  SilentRunners out;
  out.live_count = reply.at(0).number();
  const Reply rows = reply.at(1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Reply row = rows.at(i);
    SilentRunners::Entry& entry = out.entries.emplace_back();
    entry.id = static_cast<Id>(row.at(0).number());
    entry.holder.instance = row.at(1).text();
    entry.holder.host = row.at(2).text();
    entry.holder.pid = static_cast<std::int64_t>(row.at(3).number());
  }
  return out;
}

Result<void> RunnerStore::hold_runner(Id context, const Runner& runner, const RunnerHolder& self, std::uint32_t ttl_ms,
                                      const std::string& replaces, RunnerHolder& held_by) {
  Fields fields = runner_fields(runner);
  std::erase_if(fields, [](const auto& field) { return field.first == "topic" || field.first == "local"; });
  const Fields initial_fields{{"topic", runner.topic}, {"local", runner.local ? "true" : "false"}};
  Arguments arguments;
  arguments.add(std::uint64_t{runner.id}).add(self.instance).add(self.host).add(self.boot_id);
  arguments.add(static_cast<std::uint64_t>(self.pid)).add(replaces).add(std::uint64_t{ttl_ms}).add(runner.pubkey);
  arguments.add_list(fields).add_list(initial_fields);
  MJ_TRY(answer, connection_.run(context, scripts::hold_runner, arguments));
  const std::string_view status = answer.at(0).text();
  if (status == "held") {
    initialize_series(connection_.metrics(), context, runner.executors);
    return {};
  }
  if (status == "key") {
    const std::string key = "runner:" + std::to_string(runner.id), registered(answer.at(1).text());
    held_by = {};
    return fail(
        Code::conflict,
        key + " of context " + std::to_string(context) + " has the public key " + registered +
            (runner.pubkey.empty() ? ", and this agent has no key" : ", and this agent has the key " + runner.pubkey) +
            ": name the registered key by runner_key, or replace it with `mycojobs runner update " +
            std::to_string(runner.id) + " --pubkey KEY`");
  }
  held_by.instance = answer.at(1).text();
  held_by.host = answer.at(2).text();
  held_by.boot_id = answer.at(3).text();
  held_by.pid = static_cast<std::int64_t>(answer.at(4).number());
  return fail(Code::conflict, "runner " + std::to_string(runner.id) + " is held by process " +
                                  std::to_string(held_by.pid) + " on " + held_by.host +
                                  "; choose another runner id or end that agent");
}

Result<void> RunnerStore::release_runner(Id context, Id runner, const RunnerHolder& self) {
  MJ_CHECK(
      connection_.run(context, scripts::release_runner, Arguments{}.add(std::uint64_t{runner}).add(self.instance)));
  return {};
}

}  // namespace mycojobs
