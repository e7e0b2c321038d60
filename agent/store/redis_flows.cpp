// Creating flows, leading, what is due.
#include "store/redis_flows.h"

#include <algorithm>

#include "base/ids.h"
#include "domain/codec.h"
#include "store/job_fields.h"
#include "store/redis_flow_store.h"

namespace mycojobs {
namespace {

constexpr std::size_t kJobsAtOnce = 200;
constexpr std::size_t kBytesAtOnce = 4U << 20;
constexpr std::size_t kIdsAtOnce = 500;

tl::unexpected<Error> no_flow(Id context, Id flow) {
  return fail(Code::not_found, "flow:" + std::to_string(flow) + " does not exist in context " +
                                   std::to_string(context) + " (or was not created as a flow that is run)");
}

}  // namespace

Result<std::unique_ptr<FlowStore>> make_redis_flows(OpenLink open) {
  return std::make_unique<RedisFlows>(std::move(open));
}

Result<FlowPlace> RedisFlows::create(const FlowDraft& draft) {
  if (draft.caller == 0) return fail(Code::invalid, "caller_id: is missing: give the actor whose flow it is");
  std::string first_job = "0";
  while (true) {
    Arguments arguments;
    arguments.add(std::uint64_t{draft.context}).add(std::uint64_t{draft.caller}).add(std::uint64_t{draft.jobs});
    arguments.add(first_job).add(draft.idempotency_key).add(draft.fingerprint);
    MJ_TRY(reply, run(draft.context, scripts::flow_create, arguments));
    if (reply.size() > 0) {
      return FlowPlace{static_cast<Id>(reply.at(0).number()), static_cast<Id>(reply.at(1).number()),
                       reply.at(2).number() == 1};
    }
    MJ_TRY(first, free_job_ids(draft.context, draft.caller, draft.jobs));
    first_job = std::move(first);
  }
}

Result<bool> RedisFlows::adopt(Id context, Id flow, Id caller) {
  Arguments arguments;
  arguments.add(std::uint64_t{flow}).add(std::uint64_t{caller});
  MJ_TRY(reply, run(context, scripts::flow_adopt, arguments));
  if (reply.text() == "missing") return fail(Code::not_found, "flow " + std::to_string(flow) + " does not exist");
  return reply.text().empty();
}

Result<bool> adopt_flow_record(FlowStore& store, Id context, Id flow, Id caller) {
  auto* redis = dynamic_cast<RedisFlows*>(&store);
  if (redis == nullptr) return fail(Code::unsupported, "this store takes no records of other clients over");
  return redis->adopt(context, flow, caller);
}

// Reserved first and looked at afterwards: nobody else is given them meanwhile. Other clients choose ids as they like,
// so where some are taken, the next attempt leaves twice as many out.
Result<std::string> RedisFlows::free_job_ids(Id context, Id caller, std::uint32_t count) {
  for (std::uint64_t skip = 0;; skip = skip == 0 ? count : skip * 2) {
    Arguments arguments;
    arguments.add(std::uint64_t{caller}).add(std::uint64_t{count}).add(skip);
    MJ_TRY(reply, run(context, scripts::flow_reserve, arguments));
    const std::uint64_t first = reply.number();
    bool taken = false;
    for (std::uint64_t at = 0; at < count && !taken; at += kIdsAtOnce) {
      std::vector<std::string> keys;
      for (std::uint64_t id = first + at; id < first + std::min<std::uint64_t>(count, at + kIdsAtOnce); ++id) {
        keys.push_back(job_key(caller, static_cast<Id>(id)));
        keys.push_back("mj:claim:" + keys.back());
      }
      Arguments exist{"EXISTS"};
      for (const std::string& key : keys) exist.add(key);
      MJ_TRY(there, command(context, exist));
      taken = there.number() > 0;
    }
    if (!taken) return std::to_string(first);
  }
}

Result<void> RedisFlows::put_jobs(Id context, Id flow, std::span<const Job> jobs) {
  while (!jobs.empty()) {
    std::size_t count = 0;
    for (std::size_t bytes = 0; count < std::min(jobs.size(), kJobsAtOnce) && bytes < kBytesAtOnce; ++count) {
      bytes += jobs[count].script.size() + 1000;
      for (const auto& [name, value] : jobs[count].env_vars) bytes += name.size() + value.size();
    }
    MJ_CHECK(put_some_jobs(context, flow, jobs.first(count)));
    jobs = jobs.subspan(count);
  }
  return {};
}

Result<void> RedisFlows::put_some_jobs(Id context, Id flow, std::span<const Job> jobs) {
  struct Sent {
    std::string key, queue;
    Fields fields;
    bool accepted = false;
  };
  std::vector<Sent> all;
  for (const Job& job : jobs) {
    Job own = job;
    own.context_id = context;
    own.flow_id = flow;
    MJ_TRY(fields, planned_fields(own));
    const std::string queue = queue_of_planned(job);
    all.push_back({redis_key(job), queue, std::move(fields)});
  }
  while (true) {
    Arguments arguments;
    arguments.add(std::uint64_t{context}).add(std::uint64_t{flow}).add(std::uint64_t{all.size()});
    for (const Sent& each : all)
      arguments.add(each.key).add(each.queue).add(each.accepted ? "1" : "0").add_list(each.fields);
    MJ_TRY(reply, run(context, scripts::flow_put_jobs, arguments));
    if (reply.text() == "missing") return no_flow(context, flow);
    if (!reply.text().empty()) return fail(Code::conflict, std::string(reply.text()));
    if (reply.size() == 0) return {};
    // Records that another client has written: theirs, if they say the same.
    for (std::size_t i = 0; i < reply.size(); ++i) {
      const std::size_t index = reply.at(i).at(0).number() - 1;
      if (index >= all.size() || all[index].accepted) return fail(Code::internal, "redis: put_jobs names no job of it");
      if (!same_content(decode<Job>(reply.at(i).at(1).fields()).record, jobs[index])) {
        return fail(Code::conflict, all[index].key + " exists with other content; use another id");
      }
      all[index].accepted = true;
    }
  }
}

Result<void> RedisFlows::put_flow(const Flow& flow, const std::string& definition) {
  if (flow.definition_hash.empty()) return fail(Code::invalid, "definition_hash: is missing");
  Fields fields = encode(flow);
  std::erase_if(fields, [](const auto& field) {
    return field.first == "id" || field.first == "status" || field.first == "detail" || field.first == "created_at" ||
           field.first == "updated_at";
  });
  Arguments arguments;
  arguments.add(std::uint64_t{flow.id}).add(flow.definition_hash).add(definition).add(flow.name).add_list(fields);
  MJ_TRY(reply, run(flow.context_id, scripts::flow_put, arguments));
  if (reply.text() == "missing") return no_flow(flow.context_id, flow.id);
  return {};
}

Result<std::string> RedisFlows::definition(Id context, const std::string& hash) {
  MJ_TRY(reply, command(context, {"HGET", "mj:definition:" + hash, "text"}));
  if (reply.nil()) {
    return fail(Code::not_found, "definition " + hash + " does not exist in context " + std::to_string(context));
  }
  return std::string(reply.text());
}

Result<std::pair<std::vector<Id>, std::uint64_t>> RedisFlows::due(Id context, std::uint32_t max) {
  MJ_TRY(reply, run(context, scripts::flow_due, Arguments{}.add(std::uint64_t{std::clamp(max, 1U, 1000U)})));
  std::vector<Id> flows;
  for (std::size_t i = 1; i < reply.size(); ++i) flows.push_back(static_cast<Id>(reply.at(i).number()));
  return std::pair(std::move(flows), reply.at(0).number());
}

Result<std::vector<Id>> RedisFlows::active(Id context, Id after, std::uint32_t max) {
  const std::string from = "(" + std::to_string(after);
  Arguments arguments{"ZRANGEBYSCORE", "mj:flows:active", from, "4294967295", "LIMIT", "0"};
  MJ_TRY(reply, command(context, arguments.add(std::uint64_t{std::max(max, 1U)})));
  std::vector<Id> flows;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    std::uint64_t id = 0;  // what another client has put there is passed over; verify tells of it
    if (parse_u64(reply.at(i).text(), id) && id > after && id <= UINT32_MAX) flows.push_back(static_cast<Id>(id));
  }
  return flows;
}

Result<void> RedisFlows::raise(Id context, Id flow) {
  MJ_CHECK(run(context, scripts::flow_raise, Arguments{}.add(std::uint64_t{context}).add(std::uint64_t{flow})));
  return {};
}

Result<bool> RedisFlows::lead(Id context, const std::string& instance, const std::string& where, std::uint32_t ttl_ms) {
  MJ_TRY(reply, run(context, scripts::flow_lead, Arguments{instance, where}.add(std::uint64_t{ttl_ms})));
  return reply.number() == 1;
}

Result<void> RedisFlows::stop_leading(Id context, const std::string& instance) {
  MJ_CHECK(run(context, scripts::flow_stop_leading, Arguments{instance}));
  return {};
}

Result<std::pair<std::string, std::string>> RedisFlows::leader(Id context) {
  MJ_TRY(now, now_ms(context));
  MJ_TRY(reply, command(context, {"HMGET", "mj:coordinator", "instance", "where", "until_ms"}));
  if (reply.at(2).number() < now) return std::pair<std::string, std::string>();
  return std::pair(std::string(reply.at(0).text()), std::string(reply.at(1).text()));
}

Result<std::uint64_t> RedisFlows::now_ms(Id context) {
  MJ_TRY(reply, command(context, {"TIME"}));
  return reply.at(0).number() * 1000 + reply.at(1).number() / 1000;
}

}  // namespace mycojobs
