#include "store/redis/redis_flows.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "model/codec.h"
#include "model/submitted_files.h"
#include "store/flow_store.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/redis/store_metrics.h"
#include "store/redis/store_spans.h"
#include "text/utf8.h"

namespace mycojobs {

class RedisFlows final : public FlowStore, private ContextLinks {
 public:
  RedisFlows(OpenLink open, StoreInstrumentation instrumentation)
      : ContextLinks(std::move(open), std::move(instrumentation)) {}

  Result<FlowIds> create(const FlowDraft&) override;
  Result<bool> adopt(Id context, Id flow, Id caller) override;
  Result<void> put_jobs(Id context, Id flow, std::span<const Job>) override;
  Result<void> put_flow(const Flow&, const std::string& definition) override;
  Result<std::string> definition(Id context, const std::string& hash) override;

  Result<FlowReadResult> read(Id context, Id flow, std::optional<std::uint64_t> after) override;
  Result<std::uint64_t> commit(const FlowCommit&) override;
  Result<std::vector<FlowJobView>> job_views(Id context, std::span<const std::string> job_keys) override;
  Result<void> await_flow(Id context, Id flow, Id awaited_flow) override;

  Result<std::pair<std::vector<Id>, std::uint64_t>> due_flows(Id context, std::uint32_t max) override;
  Result<std::vector<Id>> active_flows(Id context, Id after, std::uint32_t max) override;
  Result<void> mark_due(Id context, Id flow) override;
  Result<bool> acquire_leadership(Id context, const std::string& instance, const std::string& location,
                                  std::uint32_t ttl_ms) override;
  Result<void> release_leadership(Id context, const std::string& instance) override;
  Result<std::pair<std::string, std::string>> leader(Id context) override;

  Result<std::vector<FlowSummary>> list(Id context, const std::string& name, Id before, std::uint32_t max,
                                        std::vector<std::string>* malformed) override;
  Result<std::uint32_t> retire(Id context, std::uint64_t retention_ms, std::uint32_t max) override;
  Result<void> remove(Id context, Id flow) override;

  Result<FlowIndexEntries> read_index_entries(Id context, Id flow) override;
  Result<void> repair(Id context, Id flow, const FlowRepair&) override;
  Result<std::vector<FlowWait>> flow_waits(Id context, Id flow, std::span<const Id> awaited_flows) override;
  Result<std::vector<CatalogEntry>> catalog(Id context, const std::string& name, const std::string& after,
                                            std::uint32_t max) override;
  Result<void> drop_entry(Id context, const std::string& name, const CatalogEntry&) override;

  Result<void> put_schedule(Id context, const Schedule&, const std::string& definition,
                            std::uint64_t expected_revision) override;
  Result<std::vector<Schedule>> schedules(Id context) override;
  Result<void> remove_schedule(Id context, const std::string& name) override;
  Result<std::vector<ScheduleIndexEntries>> schedule_states(Id context, std::span<const std::string> names) override;
  Result<void> repair_schedule(Id context, const std::string& name) override;

  Result<std::uint64_t> now_ms(Id context) override;

 private:
  Result<std::string> reserve_job_ids(Id context, Id caller, std::uint32_t count);
  Result<void> put_job_batch(Id context, Id flow, std::span<const Job>);
  // Deletes a flow that ended before this time, or any ended flow if `is_requested`. Returns the result of the script:
  // "gone", "missing" or "not_ended".
  Result<std::string> delete_flow(Id context, Id flow, bool is_requested, std::uint64_t before_ms);

  // Number of events that were applied to a flow when it was read. A commit with events and no facts does not change
  // the revision; without this number, its repetition would remove other events.
  std::map<std::pair<Id, Id>, std::uint64_t> applied_events_;
};

// Creation of flows, leadership, due flows.

namespace {

constexpr std::size_t kMaxJobsBatch = 200;
constexpr std::size_t kMaxBytesBatch = 4U << 20;
constexpr std::size_t kMaxIdsBatch = 500;

tl::unexpected<Error> flow_not_found(Id context, Id flow) {
  const std::string id = std::to_string(flow);
  return fail(Code::not_found, "flow:" + id + " does not exist in context " + std::to_string(context) +
                                   ", or its key " + kFlowKey + id +
                                   " was lost: `mycojobs doctor --rebuild` restores it");
}

}  // namespace

std::unique_ptr<FlowStore> make_redis_flows(OpenLink open, StoreInstrumentation instrumentation) {
  return std::make_unique<RedisFlows>(std::move(open), std::move(instrumentation));
}

Result<FlowIds> RedisFlows::create(const FlowDraft& draft) {
  if (draft.caller == 0) return fail(Code::invalid, "caller_id: is missing: give the id of the flow's owner");
  std::string first_job = "0";
  while (true) {
    Arguments arguments;
    arguments.add(std::uint64_t{draft.context}).add(std::uint64_t{draft.caller}).add(std::uint64_t{draft.job_count});
    arguments.add(first_job).add(draft.idempotency_key).add(draft.fingerprint);
    MJ_TRY(reply, run(draft.context, scripts::flow_create, arguments));
    if (reply.size() > 0) {
      return FlowIds{static_cast<Id>(reply.at(0).number()), static_cast<Id>(reply.at(1).number()),
                     reply.at(2).number() == 1};
    }
    MJ_TRY(first, reserve_job_ids(draft.context, draft.caller, draft.job_count));
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

// Returns the first of `count` consecutive unused job ids. The ids are reserved before they are checked, so that no
// other call can get them in between. Other clients may use any ids; if some are in use, the next attempt skips ids,
// twice as many as the attempt before.
Result<std::string> RedisFlows::reserve_job_ids(Id context, Id caller, std::uint32_t count) {
  for (std::uint64_t skip = 0;; skip = skip == 0 ? count : skip * 2) {
    Arguments arguments;
    arguments.add(std::uint64_t{caller}).add(std::uint64_t{count}).add(skip);
    MJ_TRY(reply, run(context, scripts::flow_reserve, arguments));
    const std::uint64_t first = reply.number();
    bool has_used_id = false;
    for (std::uint64_t offset = 0; offset < count && !has_used_id; offset += kMaxIdsBatch) {
      std::vector<std::string> keys;
      for (std::uint64_t id = first + offset; id < first + std::min<std::uint64_t>(count, offset + kMaxIdsBatch);
           ++id) {
        keys.push_back(job_key(caller, static_cast<Id>(id)));
        keys.push_back(kClaimKey + keys.back());
      }
      Arguments query{"EXISTS"};
      for (const std::string& key : keys) query.add(key);
      MJ_TRY(existing, command(context, query));
      has_used_id = existing.number() > 0;
    }
    if (!has_used_id) return std::to_string(first);
  }
}

Result<void> RedisFlows::put_jobs(Id context, Id flow, std::span<const Job> jobs) {
  while (!jobs.empty()) {
    std::size_t count = 0;
    for (std::size_t bytes = 0; count < std::min(jobs.size(), kMaxJobsBatch) && bytes < kMaxBytesBatch; ++count) {
      bytes += jobs[count].script.size() + 1000;
      for (const auto& [name, value] : jobs[count].env_vars) bytes += name.size() + value.size();
      bytes += count_submitted_bytes(jobs[count]);
    }
    MJ_CHECK(put_job_batch(context, flow, jobs.first(count)));
    jobs = jobs.subspan(count);
  }
  return {};
}

Result<void> RedisFlows::put_job_batch(Id context, Id flow, std::span<const Job> jobs) {
  struct SentJob {
    std::string key, queue;
    Fields fields, files;
    bool accepted = false;
  };
  std::vector<SentJob> sent_jobs;
  for (const Job& job : jobs) {
    Job planned_job = job;
    planned_job.context_id = context;
    planned_job.flow_id = flow;
    MJ_TRY(fields, planned_fields(planned_job));
    const std::string queue = dispatch_queue(job);
    sent_jobs.push_back({redis_key(job), queue, std::move(fields), new_job_files(job)});
  }
  while (true) {
    Arguments arguments;
    arguments.add(std::uint64_t{context}).add(std::uint64_t{flow}).add(std::uint64_t{sent_jobs.size()});
    add_quota(arguments);
    for (const SentJob& sent_job : sent_jobs) {
      arguments.add(sent_job.key)
          .add(sent_job.queue)
          .add(sent_job.accepted ? "1" : "0")
          .add_list(sent_job.fields)
          .add_list(sent_job.files);
    }
    MJ_TRY(reply, run(context, scripts::flow_put_jobs, arguments));
    if (reply.text() == "missing") return flow_not_found(context, flow);
    if (!reply.text().empty()) return fail(Code::conflict, std::string(reply.text()));
    if (reply.size() == 0) return {};
    // The reply contains existing records of other clients. A record with the same content is accepted.
    for (std::size_t i = 0; i < reply.size(); ++i) {
      const std::size_t index = reply.at(i).at(0).number() - 1;
      if (index >= sent_jobs.size() || sent_jobs[index].accepted)
        return fail(Code::internal, "redis: put_jobs names no job of it");
      if (!same_content(decode<Job>(reply.at(i).at(1).fields()).record, jobs[index])) {
        return fail(Code::conflict, sent_jobs[index].key + " exists with other content; use another id");
      }
      sent_jobs[index].accepted = true;
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
  auto span = begin_submission(traces(), fields);
  Arguments arguments;
  arguments.add(std::uint64_t{flow.id}).add(flow.definition_hash).add(definition).add(flow.name).add_list(fields);
  add_quota(arguments);
  MJ_TRY(reply, run(flow.context_id, scripts::flow_put, arguments));
  if (reply.text() == "missing") return flow_not_found(flow.context_id, flow.id);
  end_submission(traces(), span, redis_key(flow));
  return {};
}

Result<std::string> RedisFlows::definition(Id context, const std::string& hash) {
  MJ_TRY(reply, command(context, {"HGET", kDefinitionKey + hash, "text"}));
  if (reply.is_nil()) {
    return fail(Code::not_found, "definition " + hash + " does not exist in context " + std::to_string(context));
  }
  return std::string(reply.text());
}

Result<std::pair<std::vector<Id>, std::uint64_t>> RedisFlows::due_flows(Id context, std::uint32_t max) {
  MJ_TRY(reply, run(context, scripts::flow_due, Arguments{}.add(std::uint64_t{std::clamp(max, 1U, 1000U)})));
  std::vector<Id> flows;
  for (std::size_t i = 1; i < reply.size(); ++i) flows.push_back(static_cast<Id>(reply.at(i).number()));
  return std::pair(std::move(flows), reply.at(0).number());
}

Result<std::vector<Id>> RedisFlows::active_flows(Id context, Id after, std::uint32_t max) {
  const std::string from = "(" + std::to_string(after);
  Arguments arguments{"ZRANGEBYSCORE", kFlowsActiveKey, from, "4294967295", "LIMIT", "0"};
  MJ_TRY(reply, command(context, arguments.add(std::uint64_t{std::max(max, 1U)})));
  std::vector<Id> flows;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    std::uint64_t id = 0;  // ignores malformed members of other clients, which `verify` reports
    if (parse_u64(reply.at(i).text(), id) && id > after && id <= UINT32_MAX) flows.push_back(static_cast<Id>(id));
  }
  return flows;
}

Result<void> RedisFlows::mark_due(Id context, Id flow) {
  MJ_CHECK(run(context, scripts::flow_raise, Arguments{}.add(std::uint64_t{context}).add(std::uint64_t{flow})));
  return {};
}

Result<bool> RedisFlows::acquire_leadership(Id context, const std::string& instance, const std::string& location,
                                            std::uint32_t ttl_ms) {
  MJ_TRY(reply, run(context, scripts::flow_lead, Arguments{instance, location}.add(std::uint64_t{ttl_ms})));
  return reply.number() == 1;
}

Result<void> RedisFlows::release_leadership(Id context, const std::string& instance) {
  MJ_CHECK(run(context, scripts::flow_stop_leading, Arguments{instance}));
  return {};
}

Result<std::pair<std::string, std::string>> RedisFlows::leader(Id context) {
  MJ_TRY(now, now_ms(context));
  MJ_TRY(reply, command(context, {"HMGET", kCoordinatorKey, "instance", "where", "until_ms"}));
  if (reply.at(2).number() < now) return std::pair<std::string, std::string>();
  return std::pair(std::string(reply.at(0).text()), std::string(reply.at(1).text()));
}

Result<std::uint64_t> RedisFlows::now_ms(Id context) {
  MJ_TRY(reply, command(context, {"TIME"}));
  return reply.at(0).number() * 1000 + reply.at(1).number() / 1000;
}

// Catalogs, retention, schedules.

namespace {

Id parse_id(const std::string& text) {
  const std::uint64_t number = parse_whole_number(text);
  return number <= UINT32_MAX ? static_cast<Id>(number) : 0;
}

// A field of mj:schedule:<name> and its member of Schedule.
struct ScheduleField {
  const char* name;
  std::string (*write)(const Schedule&);
  void (*read)(Schedule&, const std::string&);
};
constexpr ScheduleField kScheduleFields[] = {
    {"caller", [](const Schedule& s) { return std::to_string(s.caller); },
     [](Schedule& s, const std::string& t) { s.caller = parse_id(t); }},
    {"cron", [](const Schedule& s) { return s.cron; }, [](Schedule& s, const std::string& t) { s.cron = t; }},
    {"zone", [](const Schedule& s) { return s.zone; }, [](Schedule& s, const std::string& t) { s.zone = t; }},
    {"overlap", [](const Schedule& s) { return s.overlap; }, [](Schedule& s, const std::string& t) { s.overlap = t; }},
    {"missed", [](const Schedule& s) { return s.missed; }, [](Schedule& s, const std::string& t) { s.missed = t; }},
    {"definition_hash", [](const Schedule& s) { return s.definition_hash; },
     [](Schedule& s, const std::string& t) { s.definition_hash = t; }},
    {"next_ms", [](const Schedule& s) { return std::to_string(s.next_start_ms); },
     [](Schedule& s, const std::string& t) { s.next_start_ms = parse_whole_number(t); }},
    {"last_ms", [](const Schedule& s) { return std::to_string(s.last_start_ms); },
     [](Schedule& s, const std::string& t) { s.last_start_ms = parse_whole_number(t); }},
    {"last_flow", [](const Schedule& s) { return std::to_string(s.last_flow); },
     [](Schedule& s, const std::string& t) { s.last_flow = parse_id(t); }},
    {"paused", [](const Schedule& s) { return std::string(s.paused ? "true" : "false"); },
     [](Schedule& s, const std::string& t) { s.paused = t == "true"; }},
    {"note", [](const Schedule& s) { return s.skip_reason; },
     [](Schedule& s, const std::string& t) { s.skip_reason = t; }},
};

bool is_schedule_name(std::string_view name) {
  const auto is_start = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 64 && is_start(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_start(c) || c == '.' || c == '_' || c == '-'; });
}
Result<void> check_name(const std::string& name) {
  if (is_schedule_name(name)) return {};
  return fail(Code::invalid,
              "name: is not a valid name of a schedule: use 1 to 64 of a-z, 0-9, '.', '_' and '-', with a letter or "
              "digit first");
}

}  // namespace

Result<std::vector<FlowSummary>> RedisFlows::list(Id context, const std::string& name, Id before, std::uint32_t max,
                                                  std::vector<std::string>* malformed) {
  const std::string key = flow_catalog_key(name);
  const std::uint64_t limit = std::clamp(max, 1U, 1000U);
  std::vector<FlowSummary> out;
  std::string last_row;
  while (out.size() < limit) {
    Arguments arguments{key};
    arguments.add(std::uint64_t{before}).add(last_row).add(limit - out.size());
    MJ_TRY(reply, run(context, scripts::flow_list, arguments));
    for (std::size_t i = 1; i < reply.size() && out.size() < limit; ++i) {
      const Reply row = reply.at(i);
      if (row.size() == 1) {
        if (malformed != nullptr) malformed->emplace_back(row.at(0).text());
        continue;
      }
      FlowSummary flow;
      flow.flow = static_cast<Id>(row.at(0).number());
      flow.at_ms = row.at(1).number();
      flow.name = row.at(2).text();
      flow.record = row.at(3).fields();
      out.push_back(std::move(flow));
    }
    if (reply.at(0).text().empty() || reply.at(0).text() == last_row) break;
    last_row = reply.at(0).text();
  }
  return out;
}

Result<std::string> RedisFlows::delete_flow(Id context, Id flow, bool is_requested, std::uint64_t before_ms) {
  while (true) {
    Arguments arguments;
    arguments.add(std::uint64_t{flow}).add(is_requested ? "1" : "0").add(before_ms);
    MJ_TRY(reply, run(context, scripts::flow_retire, arguments));
    if (!reply.text().empty()) return std::string(reply.text());
    if (reply.number() == 1) return std::string("gone");
  }
}

Result<std::uint32_t> RedisFlows::retire(Id context, std::uint64_t retention_ms, std::uint32_t max) {
  if (retention_ms == 0) return 0U;
  MJ_TRY(now, now_ms(context));
  const std::uint64_t before = now - std::min(now, retention_ms);
  Arguments arguments{"ZRANGEBYSCORE", kFlowsEndedKey, "-inf"};
  arguments.add(before).add("LIMIT").add("0").add(std::uint64_t{std::clamp(max, 1U, 1000U)});
  MJ_TRY(reply, command(context, arguments));
  std::uint32_t deleted = 0;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const std::string member(reply.at(i).text());
    const Id flow = parse_id(member);
    if (flow == 0 || std::to_string(flow) != member) {
      MJ_CHECK(command(context, {"ZREM", kFlowsEndedKey, member}));  // written by another client
      continue;
    }
    MJ_TRY(outcome, delete_flow(context, flow, false, before));
    deleted += outcome == "gone" ? 1 : 0;
  }
  return deleted;
}

Result<void> RedisFlows::remove(Id context, Id flow) {
  MJ_TRY(outcome, delete_flow(context, flow, true, 0));
  const std::string name = "flow:" + std::to_string(flow);
  if (outcome == "not_ended") return fail(Code::conflict, name + " has not ended: cancel it first");
  if (outcome == "missing")
    return fail(Code::not_found, name + " does not exist in context " + std::to_string(context));
  return {};
}

Result<void> RedisFlows::put_schedule(Id context, const Schedule& schedule, const std::string& definition,
                                      std::uint64_t expected_revision) {
  MJ_CHECK(check_name(schedule.name));
  if (schedule.definition_hash.empty()) return fail(Code::invalid, "definition_hash: is missing");
  Fields fields;
  for (const ScheduleField& field : kScheduleFields) fields.emplace_back(field.name, field.write(schedule));
  Arguments arguments{schedule.name};
  arguments.add(expected_revision).add(schedule.definition_hash).add(definition).add_list(fields);
  add_quota(arguments);
  MJ_TRY(reply, run(context, scripts::flow_schedule_put, arguments));
  if (reply.text() == "missing") {
    return fail(Code::not_found, "definition " + schedule.definition_hash + " does not exist: give its text");
  }
  if (reply.size() == 0) {
    // Wakes the coordinator, which also reads the schedules without this hint, but later.
    const std::string hint = std::to_string(context) + " 0";
    (void)command(context, {"PUBLISH", kFlowDueChannel, hint});
    return {};
  }
  const std::uint64_t current = reply.at(1).number();
  if (expected_revision == 0)
    return fail(Code::conflict, "schedule " + schedule.name + " exists: give it another name");
  if (current == 0) return fail(Code::conflict, "schedule " + schedule.name + " was removed in the meantime");
  return fail(Code::conflict, "schedule " + schedule.name + " is at revision " + std::to_string(current) + ", and " +
                                  std::to_string(expected_revision) + " was expected: read it again");
}

Result<std::vector<Schedule>> RedisFlows::schedules(Id context) {
  MJ_TRY(names, command(context, {"SMEMBERS", kSchedulesKey}));
  std::vector<Schedule> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Schedule schedule;
    schedule.name = names.at(i).text();
    if (!is_schedule_name(schedule.name)) continue;  // written by another client, as keys that are not hashes
    const std::string key = kScheduleKey + schedule.name;
    MJ_TRY(type, command(context, {"TYPE", key}));
    if (type.text() != "hash") continue;
    MJ_TRY(reply, command(context, {"HGETALL", key}));
    for (const auto& [name, value] : reply.fields()) {
      if (name == "revision") schedule.revision = parse_whole_number(value);
      for (const ScheduleField& field : kScheduleFields) {
        if (name == field.name) field.read(schedule, value);
      }
    }
    if (schedule.revision > 0) out.push_back(std::move(schedule));
  }
  std::sort(out.begin(), out.end(), [](const Schedule& a, const Schedule& b) { return a.name < b.name; });
  return out;
}

Result<void> RedisFlows::remove_schedule(Id context, const std::string& name) {
  MJ_CHECK(check_name(name));
  MJ_TRY(reply, run(context, scripts::flow_schedule_remove, Arguments{name}));
  if (reply.text() == "missing") return fail(Code::not_found, "schedule " + name + " does not exist");
  return {};
}

// Reading runs and committing changes.

namespace {

constexpr std::uint32_t kMaxFactsBatch = 1000;
constexpr std::size_t kMaxReadBatch = 200;
constexpr std::size_t kMaxCommitSize = 2000;
constexpr std::size_t kMaxRememberedFlows = 100000;

// Parses an entry of a run's journal. Returns false if it is not a fact, that is, another client has written it.
bool parse_fact(const Reply& entry, RunFact& fact) {
  const std::string id(entry.at(0).text());
  const auto dash = id.find('-');
  if (!parse_u64(id.substr(0, dash), fact.revision) || id.substr(std::min(dash, id.size())) != "-0") return false;
  bool has_time = false, has_node = true;
  for (auto& [name, value] : entry.at(1).fields()) {
    if (name == "f")
      fact.kind = std::move(value);
    else if (name == "at")
      has_time = parse_u64(value, fact.at_ms);
    else if (name == "m")
      fact.data_json = std::move(value);
    else if (name == "n") {
      std::uint64_t node = 0;
      has_node = parse_u64(value, node) && node <= UINT32_MAX;
      fact.node = static_cast<std::uint32_t>(node);
    }
  }
  return !fact.kind.empty() && has_time && has_node;
}

void parse_entries(const Reply& entries, std::uint64_t after, FlowReadResult& run) {
  std::uint64_t previous_revision = after;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    RunFact fact;
    const bool is_fact = parse_fact(entries.at(i), fact);
    if (!is_fact) {
      run.anomalies.push_back("entry " + to_ascii(entries.at(i).at(0).text(), 80) +
                              " of the run's journal is not a fact");
    }
    if (fact.revision > previous_revision + 1) {
      run.anomalies.push_back(
          "the run's journal lacks revision " + std::to_string(previous_revision + 1) +
          (fact.revision > previous_revision + 2 ? " to " + std::to_string(fact.revision - 1) : ""));
    }
    previous_revision = std::max(previous_revision, fact.revision);
    if (is_fact) run.facts.push_back(std::move(fact));
  }
}

std::uint64_t get_last_revision(const Reply& entries) {
  const std::string_view id = entries.at(entries.size() - 1).at(0).text();
  std::uint64_t revision = 0;
  parse_u64(id.substr(0, id.find('-')), revision);
  return revision;
}

// Replaces the identifying fields of the record by the values from the creation of the flow, since any client may
// change the record.
void set_identity(const Fields& identity, FlowReadResult& run) {
  for (const auto& [name, value] : identity) {
    const auto match = std::find_if(run.record.begin(), run.record.end(),
                                    [&, &key = name](const auto& field) { return field.first == key; });
    if (match == run.record.end()) {
      run.record.emplace_back(name, value);
    } else {
      match->second = value;
    }
  }
}

FlowJobView parse_job_view(std::string key, const Reply& row) {
  FlowJobView job;
  job.job_key = std::move(key);
  job.state = row.at(0).text();
  job.attempt = static_cast<std::uint32_t>(std::min<std::uint64_t>(row.at(1).number(), UINT32_MAX));
  job.status = row.at(2).text();
  job.detail = row.at(3).text();
  job.error = row.at(4).text();
  job.result = row.at(5).text();
  job.started_ms = row.at(6).number();
  job.ended_ms = row.at(7).number();
  job.runner = static_cast<Id>(std::min<std::uint64_t>(row.at(8).number(), UINT32_MAX));
  job.result_json = row.at(9).text();
  return job;
}

FlowEventText parse_event(std::string_view text) {
  const auto blank = text.find(' ');
  if (blank == std::string_view::npos) return {"", std::string(text)};
  return {std::string(text.substr(0, blank)), std::string(text.substr(blank + 1))};
}

void add_job_keys(Arguments& arguments, const std::vector<std::string>& keys) {
  arguments.add(std::uint64_t{keys.size()});
  for (const std::string& key : keys) arguments.add(key);
}

Result<void> check_commit(const FlowCommit& commit) {
  const std::size_t size = commit.facts.size() + commit.dispatches.size() + commit.ends.size() +
                           commit.cancelled_jobs.size() + commit.requeued_jobs.size() + commit.replanned_jobs.size();
  if (size > kMaxCommitSize) {
    return fail(Code::too_large, "a commit of " + std::to_string(size) +
                                     " facts and jobs exceed the limit of a step, " + std::to_string(kMaxCommitSize) +
                                     ", commit them one part after the other");
  }
  const auto bad_end = std::find_if(commit.ends.begin(), commit.ends.end(), [](const FlowEnd& end) {
    return end.fields.empty() || end.fields[0].first != "status";
  });
  if (bad_end != commit.ends.end()) {
    return fail(Code::invalid, bad_end->job_key + ": fields of an end begin with its status");
  }
  return {};
}

}  // namespace

Result<FlowReadResult> RedisFlows::read(Id context, Id flow, std::optional<std::uint64_t> after) {
  FlowReadResult result;
  std::optional<std::uint64_t> position = after;
  bool is_first_page = true;
  do {
    Arguments arguments;
    arguments.add(std::uint64_t{flow});
    position ? arguments.add(*position) : arguments.add("");
    arguments.add(std::uint64_t{kMaxFactsBatch});
    MJ_TRY(reply, run(context, scripts::flow_read, arguments));
    result.record = reply.at(0).fields();
    set_identity(reply.at(10).fields(), result);
    result.revision = reply.at(1).number();
    if (is_first_page) {
      result.checkpoint = reply.at(2).text();
      result.checkpoint_revision = reply.at(3).number();
    }
    const Reply entries = reply.at(4);
    parse_entries(entries, position.value_or(result.checkpoint_revision), result);
    result.has_more = reply.at(5).number() == 1;
    result.events.clear();
    const Reply events = reply.at(6);
    for (std::size_t i = 0; i < events.size(); ++i) result.events.push_back(parse_event(events.at(i).text()));
    const Reply anomalies = reply.at(7);
    for (std::size_t i = 0; is_first_page && i < anomalies.size(); ++i)
      result.anomalies.emplace_back(anomalies.at(i).text());
    result.now_ms = reply.at(8).number();
    if (applied_events_.size() > kMaxRememberedFlows) applied_events_.clear();
    applied_events_[{context, flow}] = reply.at(9).number();
    result.jobs.clear();
    const Reply jobs = reply.at(11);
    for (std::size_t i = 0; i < jobs.size(); ++i)
      result.jobs.push_back(parse_job_view(std::string(jobs.at(i).at(0).text()), jobs.at(i).at(1)));
    if (entries.size() > 0) position = get_last_revision(entries);
    is_first_page = false;
    // The caller continues after the last fact, so a page must not be returned without facts while there are more
    // entries.
  } while (result.has_more && result.facts.empty());
  return result;
}

namespace {

Fields add_traceparent(Fields fields, const std::string& traceparent) {
  fields.emplace_back("traceparent", traceparent);
  return fields;
}

// Returns the error that a reply of the script reports, if it reports one.
Result<void> check_commit_reply(const FlowCommit& commit, const Reply& reply) {
  const std::string flow = "flow:" + std::to_string(commit.flow);
  const std::string_view status = reply.at(0).text();
  if (status == "missing") return flow_not_found(commit.context, commit.flow);
  if (status == "conflict") {
    return fail(Code::conflict, flow + " is at revision " + std::string(reply.at(1).text()) + ", and " +
                                    std::to_string(commit.expected_revision) + " was expected: read it again");
  }
  if (status == "taken") return fail(Code::conflict, flow + ": these events were applied already: read it again");
  return {};
}

}  // namespace

Result<std::uint64_t> RedisFlows::commit(const FlowCommit& commit) {
  MJ_CHECK(check_commit(commit));
  const auto applied = applied_events_.find({commit.context, commit.flow});
  const bool has_event_count = commit.applied_events > 0 && applied != applied_events_.end();
  Arguments arguments;
  arguments.add(std::uint64_t{commit.context}).add(std::uint64_t{commit.flow}).add(commit.expected_revision);
  arguments.add(std::uint64_t{commit.applied_events});
  has_event_count ? arguments.add(applied->second) : arguments.add("");
  commit.due_ms ? arguments.add(*commit.due_ms) : arguments.add("");
  arguments.add(commit.checkpoint).add(commit.ended ? "1" : "0").add(std::uint64_t{commit.parent});
  arguments.add(std::uint64_t{commit.facts.size()});
  for (const RunFact& fact : commit.facts) {
    arguments.add(fact.kind);
    fact.node ? arguments.add(std::uint64_t{*fact.node}) : arguments.add("");
    arguments.add(fact.data_json);
  }
  arguments.add_list(commit.record_fields);
  add_quota(arguments);
  arguments.add(std::uint64_t{commit.dispatches.size()});
  // These own texts of which `arguments` has views: the queues, records and files of new nodes, and record fields.
  struct NewNode {
    std::string queue;
    Fields record, files;
  };
  std::deque<NewNode> new_records;
  std::deque<Fields> traced_fields;
  const std::string traceparent = step_traceparent(traces(), commit);
  const std::uint64_t started_us = unix_us();
  for (const FlowDispatch& dispatch : commit.dispatches) {
    arguments.add(dispatch.job_key)
        .add_list(traceparent.empty()
                      ? dispatch.record_fields
                      : traced_fields.emplace_back(add_traceparent(dispatch.record_fields, traceparent)));
    auto& [queue, record, files] = new_records.emplace_back();
    if (dispatch.new_node_job) {
      Job planned_job = *dispatch.new_node_job;
      planned_job.context_id = commit.context;
      planned_job.flow_id = commit.flow;
      queue = dispatch_queue(planned_job);
      MJ_TRY(fields, planned_fields(planned_job));
      record = std::move(fields);
      files = new_job_files(planned_job);
    }
    arguments.add(queue).add_list(record).add_list(files);
  }
  arguments.add(std::uint64_t{commit.ends.size()});
  for (const FlowEnd& end : commit.ends) arguments.add(end.job_key).add_list(end.fields);
  add_job_keys(arguments, commit.cancelled_jobs);
  add_job_keys(arguments, commit.requeued_jobs);
  add_job_keys(arguments, commit.replanned_jobs);
  MJ_TRY(reply, run(commit.context, scripts::flow_commit, arguments));
  const std::string_view status = reply.at(0).text();
  if (status == "conflict" || status == "taken") metrics().add(Metric::flow_commits, {commit.context, "conflict"});
  MJ_CHECK(check_commit_reply(commit, reply));
  count_commit(metrics(), commit);
  trace_commit(traces(), commit, {started_us, unix_us()});
  if (has_event_count) applied->second += commit.applied_events;
  if (commit.ended) applied_events_.erase({commit.context, commit.flow});
  return reply.at(0).number();
}

Result<std::vector<FlowJobView>> RedisFlows::job_views(Id context, std::span<const std::string> job_keys) {
  std::vector<FlowJobView> out;
  while (out.size() < job_keys.size()) {
    const auto batch = job_keys.subspan(out.size(), std::min(kMaxReadBatch, job_keys.size() - out.size()));
    Arguments arguments;
    arguments.add(std::uint64_t{batch.size()});
    for (const std::string& key : batch) arguments.add(key);
    MJ_TRY(reply, run(context, scripts::flow_jobs, arguments));
    if (reply.size() == 0) return fail(Code::internal, "redis: jobs were requested, but the answer has none");
    for (std::size_t i = 0; i < std::min(reply.size(), batch.size()); ++i) {
      out.push_back(parse_job_view(batch[i], reply.at(i)));
    }
  }
  return out;
}

Result<FlowIndexEntries> RedisFlows::read_index_entries(Id context, Id flow) {
  MJ_TRY(reply, run(context, scripts::flow_places, Arguments{}.add(std::uint64_t{flow})));
  FlowIndexEntries out;
  out.state = reply.at(0).text();
  out.in_active_index = reply.at(1).number() == 1;
  if (!reply.at(2).text().empty()) out.due_ms = reply.at(2).number();
  out.in_ended_index = reply.at(3).number() == 1;
  out.in_catalog = reply.at(4).number() == 1;
  out.revision = reply.at(5).number();
  out.event_count = reply.at(6).number();
  out.now_ms = reply.at(7).number();
  out.has_checkpoint = reply.at(8).number() == 1;
  out.has_invalid_event_key = reply.at(9).number() == 1;
  out.identity = reply.at(10).fields();
  out.in_name_catalog = reply.at(11).number() == 1;
  out.in_definition_users = reply.at(12).number() == 1;
  out.has_idempotency_entry = reply.at(13).number() == 1;
  out.catalog_row = reply.at(14).number();
  out.name_catalog_row = reply.at(15).number();
  return out;
}

Result<std::vector<FlowWait>> RedisFlows::flow_waits(Id context, Id flow, std::span<const Id> awaited_flows) {
  Arguments arguments;
  arguments.add(std::uint64_t{flow}).add(std::uint64_t{awaited_flows.size()});
  for (const Id awaited_flow : awaited_flows) arguments.add(std::uint64_t{awaited_flow});
  MJ_TRY(reply, run(context, scripts::flow_waits, arguments));
  std::vector<FlowWait> out;
  for (std::size_t i = 0; i < std::min(reply.size(), awaited_flows.size()); ++i)
    out.push_back({awaited_flows[i], std::string(reply.at(i).at(0).text()), reply.at(i).at(1).number() == 1});
  return out;
}

Result<std::vector<CatalogEntry>> RedisFlows::catalog(Id context, const std::string& name, const std::string& after,
                                                      std::uint32_t max) {
  const std::string key = flow_catalog_key(name);
  MJ_TRY(reply, run(context, scripts::flow_catalog, Arguments{key, after}.add(std::uint64_t{max})));
  std::vector<CatalogEntry> out;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    CatalogEntry entry;
    entry.id = reply.at(i).at(0).text();
    const Fields fields = reply.at(i).at(1).fields();
    entry.flow_text = field_of(fields, "flow");
    std::uint64_t at_ms = 0;
    const bool is_valid = is_flow_key("flow:" + entry.flow_text) && parse_u64(field_of(fields, "at"), at_ms);
    if (is_valid) entry.flow = static_cast<Id>(std::stoul(entry.flow_text));
    out.push_back(std::move(entry));
  }
  return out;
}

Result<void> RedisFlows::drop_entry(Id context, const std::string& name, const CatalogEntry& entry) {
  MJ_CHECK(run(context, scripts::flow_catalog_drop, Arguments{flow_catalog_key(name), entry.id, entry.flow_text}));
  return {};
}

Result<std::vector<ScheduleIndexEntries>> RedisFlows::schedule_states(Id context, std::span<const std::string> names) {
  std::set<std::string> all_names(names.begin(), names.end());
  MJ_TRY(schedule_names, command(context, {"SMEMBERS", kSchedulesKey}));
  for (std::size_t i = 0; i < schedule_names.size(); ++i) all_names.emplace(schedule_names.at(i).text());
  std::vector<ScheduleIndexEntries> out;
  for (const std::string& name : all_names) {
    MJ_TRY(reply, run(context, scripts::flow_schedule_places, Arguments{name}));
    out.push_back({name, reply.at(0).number() == 1, reply.at(1).number() == 1, reply.at(2).number() == 1,
                   std::string(reply.at(3).text())});
  }
  return out;
}

Result<void> RedisFlows::repair_schedule(Id context, const std::string& name) {
  MJ_CHECK(run(context, scripts::flow_schedule_repair, Arguments{name}));
  return {};
}

Result<void> RedisFlows::repair(Id context, Id flow, const FlowRepair& repair) {
  // Names in store/scripts/flow_repair.lua, in the order of the enums.
  static constexpr std::string_view kKinds[] = {"set_mark", "set_record", "enter", "leave", "dispatch", "await"};
  static constexpr std::string_view kIndexes[] = {"",       "active",     "ended", "due",   "catalog",
                                                  "events", "checkpoint", "index", "users", "keys"};
  Arguments arguments;
  arguments.add(std::uint64_t{flow}).add(repair.revision).add(repair.state).add(std::uint64_t{repair.fixes.size()});
  for (const FlowFix& fix : repair.fixes) {
    arguments.add(kKinds[static_cast<std::size_t>(fix.kind)]).add(kIndexes[static_cast<std::size_t>(fix.index)]);
    arguments.add_list(fix.fields);
  }
  MJ_TRY(reply, run(context, scripts::flow_repair, arguments));
  if (reply.text() == "moved") {
    return fail(Code::conflict, "flow:" + std::to_string(flow) + " has changed in the meantime: read it again");
  }
  return {};
}

Result<void> RedisFlows::await_flow(Id context, Id flow, Id awaited_flow) {
  Arguments arguments;
  arguments.add(std::uint64_t{context}).add(std::uint64_t{flow}).add(std::uint64_t{awaited_flow});
  MJ_CHECK(run(context, scripts::flow_await, arguments));
  return {};
}

}  // namespace mycojobs
