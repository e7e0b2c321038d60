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

namespace mycojobs {
namespace {

constexpr std::size_t kMaxIndexKeys = 1000000;
constexpr std::uint32_t kMaxEntriesBatch = 500;
constexpr std::chrono::milliseconds kIndexPause{100};

std::string key_of_catalog(const std::string& name) { return name.empty() ? "mj:catalog" : "mj:catalog:" + name; }

Result<std::vector<CatalogEntry>> read_catalog(FlowStore& flows, Id context, const std::string& name) {
  std::vector<CatalogEntry> all;
  for (std::string after;;) {
    MJ_TRY(page, flows.catalog(context, name, after, kMaxEntriesBatch));
    if (page.empty()) return all;
    after = page.back().id;
    std::move(page.begin(), page.end(), std::back_inserter(all));
  }
}

// Scans all indexes once.
class FlowIndexScan {
 public:
  FlowIndexScan(FlowStore& flows, Store& store, Id context, const std::set<Id>& all)
      : flows_(flows), store_(store), context_(context), all_(all) {}

  Result<std::vector<FlowIndexProblem>> run() {
    MJ_CHECK(check_catalog(""));
    constexpr std::string_view kPrefix = "mj:catalog:";
    MJ_TRY(keys, store_.keys(context_, kPrefix, kMaxIndexKeys));
    for (const std::string& key : keys) MJ_CHECK(check_catalog(key.substr(kPrefix.size())));
    MJ_CHECK(check_schedules());
    return std::move(found_);
  }

 private:
  Result<void> check_catalog(const std::string& name) {
    auto read = read_catalog(flows_, context_, name);
    const std::string key = key_of_catalog(name);
    if (!read && read.error().code == Code::invalid) {
      found_.push_back({finding("flow-catalog", key, key + " cannot be read: " + read.error().message), true});
      return {};
    }
    MJ_CHECK(read);
    std::map<Id, std::vector<const CatalogEntry*>> by_flow;
    for (const CatalogEntry& entry : *read) {
      if (entry.flow == 0)
        add(name, entry, "which names no flow");
      else if (!all_.contains(entry.flow))
        add(name, entry, "whose flow:" + entry.flow_text + " does not exist");
      else
        by_flow[entry.flow].push_back(&entry);
    }
    for (const auto& [flow, entries] : by_flow) {
      if (entries.size() > 1) MJ_CHECK(check_second(name, flow, entries));
    }
    return {};
  }
  // The entry that the mark names is correct. Without a mark the correct entry is unknown.
  Result<void> check_second(const std::string& name, Id flow, const std::vector<const CatalogEntry*>& entries) {
    MJ_TRY(places, flows_.places(context_, flow));
    if (places.state.empty()) return {};
    const std::string own = std::to_string(name.empty() ? places.row : places.index_row) + "-0";
    const bool has_own =
        std::any_of(entries.begin(), entries.end(), [&](const CatalogEntry* entry) { return entry->id == own; });
    for (const CatalogEntry* entry : entries) {
      if (has_own && entry->id != own) add(name, *entry, "a second one of flow:" + entry->flow_text);
    }
    return {};
  }
  void add(const std::string& name, const CatalogEntry& entry, const std::string& what) {
    const std::string key = key_of_catalog(name);
    FlowIndexProblem trouble{finding("flow-catalog", key, key + " holds entry " + entry.id + ", " + what)};
    trouble.catalog = name;
    trouble.entry = entry;
    found_.push_back(std::move(trouble));
  }

  Result<void> check_schedules() {
    constexpr std::string_view kPrefix = "mj:schedule:";
    MJ_TRY(names, store_.keys(context_, kPrefix, kMaxIndexKeys));
    for (std::string& name : names) name.erase(0, kPrefix.size());
    auto all = flows_.schedule_states(context_, names);
    if (!all && all.error().code == Code::invalid) {
      found_.push_back(
          {finding("schedule-index", "mj:schedules", "schedules cannot be read: " + all.error().message), true});
      return {};
    }
    MJ_CHECK(all);
    for (const ScheduleIndexEntries& each : *all) {
      const std::string key = "schedule " + each.name;
      std::string wrong;
      if (!each.exists) wrong = " is listed, but its key is missing: create it again with `mycojobs flow schedule add`";
      if (each.exists && !each.listed) wrong = " is not listed, so it starts no flow";
      if (each.exists && each.listed && !each.used) wrong = " is not named as a user of its definition";
      if (wrong.empty()) continue;
      FlowIndexProblem trouble{finding("schedule-index", key, key + wrong), !each.exists};
      trouble.schedule = each.name;
      found_.push_back(std::move(trouble));
    }
    return {};
  }

  FlowStore& flows_;
  Store& store_;
  const Id context_;
  const std::set<Id>& all_;
  std::vector<FlowIndexProblem> found_;
};

// Returns the idempotency key of the flow's creation and the fingerprint of the request.
Result<Fields> idempotency_of(Store& store, Id context, Id flow, Id caller) {
  auto names = store.load(context, "mj:flow-keys:" + std::to_string(caller));
  if (!names && names.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(names).error());
  const std::string begins = std::to_string(flow) + ' ';
  for (const auto& [key, value] : names ? *names : Fields()) {
    if (value.starts_with(begins)) return Fields{{"key", key}, {"print", value.substr(begins.size())}};
  }
  return Fields();
}

// Returns the message from which the flow was created; empty: there is none.
Result<std::string> message_of(Store& store, Id context, Id flow) {
  constexpr std::string_view kPrefix = "mj:message:";
  static constexpr std::array<std::string_view, 1> kAsked{"flow"};
  MJ_TRY(marks, store.keys(context, kPrefix, kMaxIndexKeys));
  for (const std::string& key : marks) {
    auto mark = store.load_fields(context, key, kAsked);
    if (!mark && mark.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(mark).error());
    if (mark && field_of(*mark, "flow") == std::to_string(flow)) return key.substr(kPrefix.size());
  }
  return std::string();
}

// Returns the row of a flow in a catalog; 0: there is none.
Result<std::uint64_t> catalog_row_of(FlowStore& flows, Id context, const std::string& name, Id flow) {
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
Result<std::set<Id>> jobs_of(Store& store, const FlowInspection& inspection, Id caller) {
  static constexpr std::array<std::string_view, 1> kAsked{"flow"};
  const std::string prefix = "mj:claim:job:" + std::to_string(caller) + ':';
  const std::string me = std::to_string(inspection.context) + ' ' + std::to_string(inspection.flow);
  MJ_TRY(claims, store.keys(inspection.context, prefix, kMaxIndexKeys));
  std::set<Id> jobs;
  for (const std::string& key : claims) {
    std::uint64_t id = 0;
    if (!parse_u64(std::string_view(key).substr(prefix.size()), id) || id > UINT32_MAX) continue;
    auto claim = store.load_fields(inspection.context, key, kAsked);
    if (!claim && claim.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(claim).error());
    if (claim && field_of(*claim, "flow") == me) jobs.insert(static_cast<Id>(id));
  }
  return jobs;
}

}  // namespace

Result<std::vector<FlowIndexProblem>> find_flow_index_problems(FlowStore& flows, Store& store, Id context,
                                                               const std::set<Id>& all) {
  MJ_TRY(first, FlowIndexScan(flows, store, context, all).run());
  if (first.empty()) return std::move(first);
  std::this_thread::sleep_for(kIndexPause);
  MJ_TRY(second, FlowIndexScan(flows, store, context, all).run());
  std::erase_if(second, [&](const FlowIndexProblem& each) {
    return std::none_of(first.begin(), first.end(),
                        [&](const FlowIndexProblem& other) { return other.finding.text == each.finding.text; });
  });
  return std::move(second);
}

Result<void> repair_flow_index(FlowStore& flows, Id context, const FlowIndexProblem& trouble) {
  if (trouble.entry) return flows.drop_entry(context, trouble.catalog, *trouble.entry);
  if (!trouble.schedule.empty()) return flows.repair_schedule(context, trouble.schedule);
  return {};
}

Result<std::optional<MissingFlowState>> derive_flow_state(FlowStore& flows, Store& store,
                                                          const FlowInspection& inspection, const Flow& record) {
  MJ_TRY(row, catalog_row_of(flows, inspection.context, "", inspection.flow));
  MJ_TRY(index_row, record.name.empty() ? Result<std::uint64_t>(0)
                                        : catalog_row_of(flows, inspection.context, record.name, inspection.flow));
  std::vector<Id> jobs = record.jobs;
  if (inspection.revision == 0 && row == 0 && index_row == 0) {
    MJ_TRY(named, jobs_of(store, inspection, record.caller_id));
    if (named.empty()) return std::optional<MissingFlowState>();
    if (jobs.empty()) jobs.assign(named.begin(), named.end());
  }
  MissingFlowState mark;
  MJ_TRY(key, idempotency_of(store, inspection.context, inspection.flow, record.caller_id));
  MJ_TRY(message, message_of(store, inspection.context, inspection.flow));
  mark.words = {{"caller", std::to_string(record.caller_id)},
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
  mark.words.insert(mark.words.end(), key.begin(), key.end());
  if (!message.empty()) mark.words.emplace_back("message", message);
  if (is_terminal(record.status)) {
    const std::uint64_t ended_ms = inspection.facts.empty() ? record.ended_ms : inspection.facts.back().at_ms;
    mark.words.emplace_back("ended_ms", std::to_string(ended_ms));
  }
  mark.listed = row > 0;
  mark.indexed = record.name.empty() || index_row > 0;
  return std::optional(std::move(mark));
}

}  // namespace mycojobs
