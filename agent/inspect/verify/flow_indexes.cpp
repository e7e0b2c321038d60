#include "inspect/verify/flow_indexes.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "base/parse.h"
#include "jobs/state_machines.h"
#include "model/codec.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxIndexKeys = 1000000;
constexpr std::uint32_t kMaxCatalogBatch = 500;
constexpr std::chrono::milliseconds kIndexCheckInterval{100};

Result<std::vector<CatalogEntry>> read_catalog(FlowStore& flows, Id context, const std::string& name) {
  std::vector<CatalogEntry> entries;
  for (std::string after;;) {
    MJ_TRY(page, flows.catalog(context, name, after, kMaxCatalogBatch));
    if (page.empty()) return entries;
    after = page.back().id;
    std::move(page.begin(), page.end(), std::back_inserter(entries));
  }
}

// Scans all indexes once.
class FlowIndexScan {
 public:
  FlowIndexScan(FlowStore& flows, Store& store, Id context, const std::set<Id>& flow_ids)
      : flows_(flows), store_(store), context_(context), flow_ids_(flow_ids) {}

  Result<std::vector<FlowIndexProblem>> run() {
    MJ_CHECK(check_catalog(""));
    constexpr std::string_view kPrefix = kFlowNameCatalogKey;
    MJ_TRY(keys, store_.keys(context_, kPrefix, kMaxIndexKeys));
    for (const std::string& key : keys) MJ_CHECK(check_catalog(key.substr(kPrefix.size())));
    MJ_CHECK(check_schedules());
    return std::move(problems_);
  }

 private:
  Result<void> check_catalog(const std::string& name) {
    auto catalog = read_catalog(flows_, context_, name);
    const std::string key = flow_catalog_key(name);
    if (!catalog && catalog.error().code == Code::invalid) {
      problems_.push_back(
          {make_finding("flow-catalog", key, key + " cannot be read: " + catalog.error().message), true});
      return {};
    }
    MJ_CHECK(catalog);
    std::map<Id, std::vector<const CatalogEntry*>> entries_by_flow;
    for (const CatalogEntry& entry : *catalog) {
      if (entry.flow == 0)
        add_entry_problem(name, entry, "which names no flow");
      else if (!flow_ids_.contains(entry.flow))
        add_entry_problem(name, entry, "whose flow:" + entry.flow_text + " does not exist");
      else
        entries_by_flow[entry.flow].push_back(&entry);
    }
    for (const auto& [flow, entries] : entries_by_flow) {
      if (entries.size() > 1) MJ_CHECK(check_duplicates(name, flow, entries));
    }
    return {};
  }
  // Adds a problem for each entry of the flow except the one that its mark names. Without a mark, the correct entry is
  // unknown.
  Result<void> check_duplicates(const std::string& name, Id flow, const std::vector<const CatalogEntry*>& entries) {
    MJ_TRY(index_entries, flows_.read_index_entries(context_, flow));
    if (index_entries.state.empty()) return {};
    const std::string expected_id =
        std::to_string(name.empty() ? index_entries.catalog_row : index_entries.name_catalog_row) + "-0";
    const bool has_expected = std::any_of(entries.begin(), entries.end(),
                                          [&](const CatalogEntry* entry) { return entry->id == expected_id; });
    for (const CatalogEntry* entry : entries) {
      if (has_expected && entry->id != expected_id)
        add_entry_problem(name, *entry, "a second one of flow:" + entry->flow_text);
    }
    return {};
  }
  void add_entry_problem(const std::string& name, const CatalogEntry& entry, const std::string& description) {
    const std::string key = flow_catalog_key(name);
    FlowIndexProblem problem{make_finding("flow-catalog", key, key + " holds entry " + entry.id + ", " + description)};
    problem.catalog = name;
    problem.entry = entry;
    problems_.push_back(std::move(problem));
  }

  Result<void> check_schedules() {
    constexpr std::string_view kPrefix = kScheduleKey;
    MJ_TRY(names, store_.keys(context_, kPrefix, kMaxIndexKeys));
    for (std::string& name : names) name.erase(0, kPrefix.size());
    auto schedules = flows_.schedule_states(context_, names);
    if (!schedules && schedules.error().code == Code::invalid) {
      problems_.push_back(
          {make_finding("schedule-index", kSchedulesKey, "schedules cannot be read: " + schedules.error().message),
           true});
      return {};
    }
    MJ_CHECK(schedules);
    for (const ScheduleIndexEntries& schedule : *schedules) {
      const std::string key = "schedule " + schedule.name;
      std::string defect;
      if (!schedule.exists)
        defect = " is listed, but its key is missing: create it again with `mycojobs flow schedule add`";
      if (schedule.exists && !schedule.is_listed) defect = " is not listed, so it starts no flow";
      if (schedule.exists && schedule.is_listed && !schedule.in_definition_users)
        defect = " is not named as a user of its definition";
      if (defect.empty()) continue;
      FlowIndexProblem problem{make_finding("schedule-index", key, key + defect), !schedule.exists};
      problem.schedule = schedule.name;
      problems_.push_back(std::move(problem));
    }
    return {};
  }

  FlowStore& flows_;
  Store& store_;
  const Id context_;
  const std::set<Id>& flow_ids_;
  std::vector<FlowIndexProblem> problems_;
};

// Returns the idempotency key of the flow's creation and the fingerprint of the request.
Result<Fields> find_idempotency_fields(Store& store, Id context, Id flow, Id caller) {
  auto names = store.load(context, kFlowIdempotencyKey + std::to_string(caller));
  if (!names && names.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(names).error());
  const std::string prefix = std::to_string(flow) + ' ';
  for (const auto& [key, value] : names ? *names : Fields()) {
    if (value.starts_with(prefix)) return Fields{{"key", key}, {"print", value.substr(prefix.size())}};
  }
  return Fields();
}

// Returns the message from which the flow was created, or an empty text.
Result<std::string> find_source_message(Store& store, Id context, Id flow) {
  constexpr std::string_view kPrefix = kMessageKey;
  static constexpr std::array<std::string_view, 1> kFlowField{"flow"};
  MJ_TRY(keys, store.keys(context, kPrefix, kMaxIndexKeys));
  for (const std::string& key : keys) {
    auto fields = store.load_fields(context, key, kFlowField);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
    if (fields && field_of(*fields, "flow") == std::to_string(flow)) return key.substr(kPrefix.size());
  }
  return std::string();
}

// Returns the row of a flow in a catalog, or 0 if the catalog lacks the flow.
Result<std::uint64_t> find_catalog_row(FlowStore& flows, Id context, const std::string& name, Id flow) {
  MJ_TRY(entries, read_catalog(flows, context, name));
  for (const CatalogEntry& entry : entries) {
    std::uint64_t row = 0;
    const bool is_row = entry.id.ends_with("-0") && parse_u64(entry.id.substr(0, entry.id.size() - 2), row);
    if (entry.flow == flow && is_row) return row;
  }
  return std::uint64_t{0};
}

// Returns the ids of the caller's jobs with claims that name the flow. A flow that is being created does not list its
// jobs.
Result<std::set<Id>> find_claimed_jobs(Store& store, const FlowInspection& inspection, Id caller) {
  static constexpr std::array<std::string_view, 1> kFlowField{"flow"};
  const std::string prefix = job_claims_prefix() + std::to_string(caller) + ':';
  const std::string flow_reference = std::to_string(inspection.context) + ' ' + std::to_string(inspection.flow);
  MJ_TRY(claims, store.keys(inspection.context, prefix, kMaxIndexKeys));
  std::set<Id> jobs;
  for (const std::string& key : claims) {
    std::uint64_t id = 0;
    if (!parse_u64(std::string_view(key).substr(prefix.size()), id) || id > UINT32_MAX) continue;
    auto claim = store.load_fields(inspection.context, key, kFlowField);
    if (!claim && claim.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(claim).error());
    if (claim && field_of(*claim, "flow") == flow_reference) jobs.insert(static_cast<Id>(id));
  }
  return jobs;
}

}  // namespace

Result<std::vector<FlowIndexProblem>> find_flow_index_problems(FlowStore& flows, Store& store, Id context,
                                                               const std::set<Id>& flow_ids) {
  MJ_TRY(first_problems, FlowIndexScan(flows, store, context, flow_ids).run());
  if (first_problems.empty()) return std::move(first_problems);
  std::this_thread::sleep_for(kIndexCheckInterval);
  MJ_TRY(second_problems, FlowIndexScan(flows, store, context, flow_ids).run());
  std::erase_if(second_problems, [&](const FlowIndexProblem& candidate) {
    return std::none_of(first_problems.begin(), first_problems.end(), [&](const FlowIndexProblem& earlier) {
      return earlier.finding.text == candidate.finding.text;
    });
  });
  return std::move(second_problems);
}

Result<void> repair_flow_index(FlowStore& flows, Id context, const FlowIndexProblem& problem) {
  if (problem.entry) return flows.drop_entry(context, problem.catalog, *problem.entry);
  if (!problem.schedule.empty()) return flows.repair_schedule(context, problem.schedule);
  return {};
}

Result<std::optional<DerivedFlowMark>> derive_flow_mark(FlowStore& flows, Store& store,
                                                        const FlowInspection& inspection, const Flow& record) {
  MJ_TRY(row, find_catalog_row(flows, inspection.context, "", inspection.flow));
  MJ_TRY(index_row, record.name.empty() ? Result<std::uint64_t>(0)
                                        : find_catalog_row(flows, inspection.context, record.name, inspection.flow));
  std::vector<Id> jobs = record.jobs;
  if (inspection.revision == 0 && row == 0 && index_row == 0) {
    MJ_TRY(claimed_jobs, find_claimed_jobs(store, inspection, record.caller_id));
    if (claimed_jobs.empty()) return std::optional<DerivedFlowMark>();
    if (jobs.empty()) jobs.assign(claimed_jobs.begin(), claimed_jobs.end());
  }
  DerivedFlowMark derived_mark;
  MJ_TRY(key, find_idempotency_fields(store, inspection.context, inspection.flow, record.caller_id));
  MJ_TRY(message, find_source_message(store, inspection.context, inspection.flow));
  derived_mark.fields = {{"caller", std::to_string(record.caller_id)},
                         {"first_job", std::to_string(jobs.empty() ? 0 : jobs.front())},
                         {"jobs", std::to_string(jobs.empty() ? 0 : jobs.back() - jobs.front() + 1)},
                         {"created_ms", std::to_string(std::uint64_t{record.created_at} * 1000)},
                         {"definition", record.definition_hash},
                         {"name", record.name},
                         {"ids", std::string(field_of(*inspection.record, "jobs"))},
                         {"parent", record.parent},
                         {"row", std::to_string(row)},
                         {"index_row", std::to_string(index_row)}};
  if (key.empty()) key = {{"key", ""}};
  derived_mark.fields.insert(derived_mark.fields.end(), key.begin(), key.end());
  if (!message.empty()) derived_mark.fields.emplace_back("message", message);
  if (is_terminal(record.status)) {
    const std::uint64_t ended_ms = inspection.facts.empty() ? record.ended_ms : inspection.facts.back().at_ms;
    derived_mark.fields.emplace_back("ended_ms", std::to_string(ended_ms));
  }
  derived_mark.in_catalog = row > 0;
  derived_mark.in_name_catalog = record.name.empty() || index_row > 0;
  return std::optional(std::move(derived_mark));
}

}  // namespace mycojobs
