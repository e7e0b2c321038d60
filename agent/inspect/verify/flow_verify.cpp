#include "inspect/verify/flow_verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "base/result.h"
#include "inspect/invariants.h"
#include "inspect/verify/flow_indexes.h"
#include "model/codec.h"
#include "store/flow_store.h"
#include "store/keys.h"
#include "store/store.h"

namespace mycojobs {
namespace {

// The result of one read of a flow, to which the rules of inspect/invariants.h were applied.
struct FlowScan {
  std::vector<FlowFinding> findings;
  bool has_changed = false;  // the flow changed during the read, so the findings are invalid
  bool is_readable = false;  // journal, mark and definition could be read, so the findings have their fixes
  std::uint64_t revision = 0;
  std::string state;              // state in the mark of the flow
  std::vector<std::string> jobs;  // keys of the jobs, in the order of the nodes
};

constexpr std::size_t kMaxEventsBatch = 1000;  // limit of FlowReadResult::events

// Reads a flow once, with all input of the rules in inspect/invariants.h, and applies the rules.
class FlowVerifier {
 public:
  FlowVerifier(FlowStore& flows, Store& store, Id context, Id flow)
      : flows_(flows), store_(store), name_("flow:" + std::to_string(flow)) {
    inspection_.context = context;
    inspection_.flow = flow;
  }
  Result<FlowScan> run();

 private:
  FlowScan report_read_errors();
  // Adds a finding for data that cannot be read and returns false.
  bool add_finding(std::string_view rule, const std::string& text) {
    scan_.findings.push_back(make_flow_finding(rule, inspection_.flow, text));
    return false;
  }
  // Functions that return a bool return false if the check cannot continue. They have then added a finding,
  // unless the key is not a flow or the flow has changed.
  Result<bool> read_journal();
  Result<bool> read_index_entries();
  Result<bool> derive_missing_mark();
  Result<bool> read_plan();
  Result<void> read_checkpoint();
  Result<bool> read_jobs();  // returns false if the flow has changed
  Result<void> read_awaited_flows();
  Result<void> read_record();

  FlowStore& flows_;
  Store& store_;
  const std::string name_;
  FlowScan scan_;
  FlowInspection inspection_;
  Flow record_;  // combined from the mark and the record of the flow
};

Result<FlowScan> FlowVerifier::run() {
  MJ_TRY(is_readable, read_journal());
  if (!is_readable) return std::move(scan_);
  MJ_CHECK(read_record());
  MJ_TRY(has_mark, read_index_entries());
  if (!has_mark) return report_read_errors();
  if (get_flow_state(inspection_) != kFlowStateCreating) {
    MJ_TRY(has_plan, read_plan());
    if (!has_plan) return report_read_errors();
    MJ_CHECK(read_checkpoint());
    MJ_TRY(is_unchanged, read_jobs());
    if (!is_unchanged) {
      scan_.has_changed = true;
      return std::move(scan_);
    }
    MJ_CHECK(read_awaited_flows());
  }
  scan_.is_readable = true;
  scan_.revision = inspection_.revision;
  scan_.state = inspection_.index_entries.state;
  scan_.findings = check_invariants(inspection_);
  return std::move(scan_);
}

// Returns the findings for a flow to which the rules cannot be applied. Anomalies of the journal are first.
FlowScan FlowVerifier::report_read_errors() {
  if (!inspection_.anomalies.empty()) {
    add_finding("flow-journal", ": " + inspection_.anomalies.front() + format_more_count(inspection_.anomalies.size()));
    std::rotate(scan_.findings.begin(), std::prev(scan_.findings.end()), scan_.findings.end());
  }
  return std::move(scan_);
}

Result<bool> FlowVerifier::read_journal() {
  std::uint64_t last_revision = 0;
  while (true) {
    auto read = flows_.read(inspection_.context, inspection_.flow, last_revision);
    if (!read && read.error().code == Code::invalid) {
      return add_finding("flow-journal", "cannot be read: " + read.error().message);
    }
    if (!read) return fail(std::move(read).error(), name_);
    if (last_revision == 0) record_ = decode<Flow>(read->record).record;
    inspection_.revision = read->revision;
    for (RunFact& fact : read->facts) inspection_.facts.push_back(std::move(fact));
    for (std::string& entry : read->anomalies) inspection_.anomalies.push_back(std::move(entry));
    if (!read->has_more || read->facts.empty()) return true;
    last_revision = inspection_.facts.back().revision;
  }
}

Result<bool> FlowVerifier::read_index_entries() {
  auto index_entries = flows_.read_index_entries(inspection_.context, inspection_.flow);
  const bool is_recoverable = index_entries || index_entries.error().code == Code::invalid;
  if (!is_recoverable) return fail(std::move(index_entries).error(), name_);
  if (index_entries) inspection_.index_entries = *index_entries;
  if (index_entries && !index_entries->state.empty()) return true;
  if (!index_entries) return add_finding("flow-journal", "cannot be checked: " + index_entries.error().message);
  return derive_missing_mark();
}

// A record without a mark can be a flow that another client wrote and that was not started. This is not a finding.
Result<bool> FlowVerifier::derive_missing_mark() {
  const bool has_started = inspection_.revision > 0;
  const bool is_creating = get_flow_state(inspection_) == kFlowStateCreating;
  if (!inspection_.record || (record_.definition_hash.empty() && !is_creating)) {
    if (has_started) return add_finding("flow-mark", "has a journal, but neither a state key nor a record");
    return false;
  }
  MJ_TRY(mark, derive_flow_mark(flows_, store_, inspection_, record_));
  if (!mark) return false;
  inspection_.derived_mark = std::move(mark->fields);
  inspection_.index_entries.in_catalog = mark->in_catalog;
  inspection_.index_entries.in_name_catalog = mark->in_name_catalog;
  return true;
}

Result<bool> FlowVerifier::read_plan() {
  const std::string hash = record_.definition_hash;
  auto text = flows_.definition(inspection_.context, hash);
  if (!text && text.error().code != Code::not_found && text.error().code != Code::invalid) {
    return fail(std::move(text).error(), name_);
  }
  auto plan = text ? parse_stored_plan(*text, hash) : Result<FlowPlan>(fail(text.error(), "definition"));
  if (!plan) return add_finding("flow-definition", "cannot go on without its definition: " + plan.error().message);
  if (plan->nodes.size() != record_.jobs.size()) {
    return add_finding("flow-mark", "has " + std::to_string(plan->nodes.size()) + " nodes and " +
                                        std::to_string(record_.jobs.size()) + " jobs");
  }
  inspection_.plan = std::move(*plan);
  for (const Id id : record_.jobs) scan_.jobs.push_back(job_key(record_.caller_id, id));
  return true;
}

Result<void> FlowVerifier::read_checkpoint() {
  MJ_TRY(read, flows_.read(inspection_.context, inspection_.flow, std::nullopt));
  inspection_.checkpoint = read.checkpoint;
  inspection_.checkpoint_revision = read.checkpoint_revision;
  inspection_.checkpoint_changed = read.revision != inspection_.revision;
  return {};
}

Result<bool> FlowVerifier::read_jobs() {
  MJ_TRY(jobs, flows_.job_views(inspection_.context, scan_.jobs));
  inspection_.jobs = std::move(jobs);
  // A job's end and its event are written in one step. The events are read after the jobs, so that the event of every
  // ended job is known.
  MJ_TRY(read, flows_.read(inspection_.context, inspection_.flow, inspection_.revision));
  for (const FlowEventText& event : read.events) inspection_.ended_in_inbox.insert(event.key);
  inspection_.has_all_events = read.events.size() < kMaxEventsBatch;
  return read.revision == inspection_.revision;
}

Result<void> FlowVerifier::read_awaited_flows() {
  std::vector<Id> other_flows;
  const FoldedFlow run = fold_run(inspection_);
  for (const auto& [flow, node] : run.state.awaited_flows) {
    other_flows.push_back(flow);
    if (run.state.nodes.at(node).child == flow) inspection_.children.insert(flow);
  }
  if (other_flows.empty()) return {};
  MJ_TRY(waits, flows_.flow_waits(inspection_.context, inspection_.flow, other_flows));
  inspection_.awaited_flows = std::move(waits);
  // The end of another flow and its event are written in one step. The events are read after the other flows, so that
  // the event of every ended flow is known.
  MJ_TRY(read, flows_.read(inspection_.context, inspection_.flow, inspection_.revision));
  for (const FlowEventText& event : read.events) inspection_.ended_in_inbox.insert(event.key);
  scan_.has_changed = read.revision != inspection_.revision;
  return {};
}

Result<void> FlowVerifier::read_record() {
  auto record = store_.load(inspection_.context, name_);
  // The key belongs to another client; read_journal() reports it.
  const bool is_foreign_key = !record && record.error().code == Code::invalid;
  if (!record && !is_foreign_key && record.error().code != Code::not_found)
    return fail(std::move(record).error(), name_);
  if (record) inspection_.record = std::move(*record);
  return {};
}

Result<FlowScan> scan_flow(FlowStore& flows, Store& store, Id context, Id flow) {
  return FlowVerifier(flows, store, context, flow).run();
}

constexpr std::size_t kMaxFlowKeys = 10000000;
constexpr std::size_t kMaxJobsBatch = 200;
constexpr int kFlowChecks = 3;     // number of reads that must all have a finding
constexpr int kMaxFlowReads = 20;  // attempts to read a flow that changes continuously
constexpr std::chrono::milliseconds kFlowCheckInterval{100};

// Flows with a mark, a journal, or a record that was created as a flow.
struct KnownFlows {
  std::set<Id> ids;
  std::vector<Id> repair_order;  // flows without a mark first, since others may wait for them
};
Result<KnownFlows> list_known_flows(Store& store, Id context) {
  KnownFlows result;
  std::set<Id> marked_ids;
  for (const std::string_view prefix : {kFlowKey, kFlowJournalKey, "flow:"}) {
    MJ_TRY(keys, store.keys(context, prefix, kMaxFlowKeys));
    for (const std::string& key : keys) {
      std::uint64_t id = 0;  // other names belong to another client
      if (!parse_u64(std::string_view(key).substr(prefix.size()), id) || id == 0 || id > UINT32_MAX) continue;
      result.ids.insert(static_cast<Id>(id));
      if (prefix == kFlowKey) marked_ids.insert(static_cast<Id>(id));
    }
  }
  std::set_difference(result.ids.begin(), result.ids.end(), marked_ids.begin(), marked_ids.end(),
                      std::back_inserter(result.repair_order));
  std::set_intersection(result.ids.begin(), result.ids.end(), marked_ids.begin(), marked_ids.end(),
                        std::back_inserter(result.repair_order));
  return result;
}

// Repeats the read while the flow changes during it.
Result<FlowScan> scan_stable_flow(FlowStore& flows, Store& store, Id context, Id flow) {
  for (int attempt = 0;; ++attempt) {
    MJ_TRY(scan, scan_flow(flows, store, context, flow));
    if (!scan.has_changed || attempt == kMaxFlowReads) return std::move(scan);
    std::this_thread::sleep_for(kFlowCheckInterval);
  }
}

// Returns the findings that all reads have in common, since a flow and its jobs may change between the steps of a read.
Result<FlowScan> scan_persistent_findings(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(scan, scan_stable_flow(flows, store, context, flow));
  for (int check = 1; check < kFlowChecks && !scan.findings.empty(); ++check) {
    std::this_thread::sleep_for(kFlowCheckInterval);
    const std::vector<FlowFinding> earlier_findings = std::move(scan.findings);
    MJ_TRY(next_scan, scan_stable_flow(flows, store, context, flow));
    scan = std::move(next_scan);
    std::erase_if(scan.findings, [&](const FlowFinding& finding) {
      return std::none_of(earlier_findings.begin(), earlier_findings.end(), [&](const FlowFinding& earlier) {
        return earlier.rule == finding.rule && earlier.text == finding.text;
      });
    });
  }
  return std::move(scan);
}

// A planned job that no flow will queue and that no answer will end.
struct OrphanedJob {
  std::string job_key;
  std::string owner;             // "flow:7" or "message:9:1"; empty if the claim names neither
  bool owner_has_ended = false;  // if false, the key with the state of the owner is missing
};

Result<std::vector<JobStoreState>> list_planned_jobs(FlowStore& flows, Store& store, Id context,
                                                     const std::set<std::string>& known_jobs) {
  constexpr std::string_view kClaims = kClaimKey;
  MJ_TRY(keys, store.keys(context, job_claims_prefix(), kMaxFlowKeys));
  std::vector<std::string> batch, candidates;
  const auto load_states = [&]() -> Result<void> {
    MJ_TRY(views, flows.job_views(context, batch));
    for (const FlowJobView& job : views) {
      if (job.state == kJobStatePlanned || job.state == "absent") candidates.push_back(job.job_key);
    }
    batch.clear();
    return {};
  };
  for (const std::string& key : keys) {
    std::string job = key.substr(kClaims.size());
    if (!known_jobs.contains(job)) batch.push_back(std::move(job));
    if (batch.size() == kMaxJobsBatch) MJ_CHECK(load_states());
  }
  if (!batch.empty()) MJ_CHECK(load_states());
  MJ_TRY(states, store.job_states(context, candidates, false));
  std::erase_if(states, [](const JobStoreState& job) { return job.claim.state != to_string(JobState::planned); });
  return std::move(states);
}

// Returns no value if the job has an owner.
Result<std::optional<OrphanedJob>> find_orphan(FlowStore& flows, Store& store, Id context, const JobStoreState& job) {
  OrphanedJob orphan{job.job_key, {}, false};
  const auto separator = job.claim.flow.find(' ');
  std::uint64_t flow = 0;
  if (separator != std::string::npos && parse_u64(std::string_view(job.claim.flow).substr(separator + 1), flow) &&
      flow > 0 && flow <= UINT32_MAX) {
    orphan.owner = "flow:" + std::to_string(flow);
    auto index_entries = flows.read_index_entries(context, static_cast<Id>(flow));
    if (!index_entries && index_entries.error().code == Code::invalid)
      return std::optional<OrphanedJob>();  // that flow has a finding for it
    if (!index_entries) return fail(std::move(index_entries).error(), job.job_key);
    // A flow that is being created or could not be read still owns its jobs.
    if (!index_entries->state.empty() && index_entries->state != kFlowStateEnded) return std::optional<OrphanedJob>();
    orphan.owner_has_ended = index_entries->state == kFlowStateEnded;
    return std::optional(std::move(orphan));
  }
  if (job.claim.message.empty()) return std::optional(std::move(orphan));
  orphan.owner = job.claim.message;
  static constexpr std::array<std::string_view, 1> kStateField{"state"};
  auto mark = store.load_fields(context, message_state_key(job.claim.message), kStateField);
  if (!mark && mark.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(mark).error());
  const std::string_view state = mark ? field_of(*mark, "state") : "";
  if (state == kMessageStateAway) return std::optional<OrphanedJob>();  // the answer to the message ends the job
  orphan.owner_has_ended = !state.empty();
  return std::optional(std::move(orphan));
}

// Returns the planned jobs without an owner, except known_jobs, which are the jobs of the flows that were read.
Result<std::vector<OrphanedJob>> find_orphans(FlowStore& flows, Store& store, Id context,
                                              const std::set<std::string>& known_jobs) {
  MJ_TRY(jobs, list_planned_jobs(flows, store, context, known_jobs));
  std::vector<OrphanedJob> orphans;
  for (const JobStoreState& job : jobs) {
    MJ_TRY(orphan, find_orphan(flows, store, context, job));
    if (orphan) orphans.push_back(std::move(*orphan));
  }
  return orphans;
}

std::string format_orphan(const OrphanedJob& orphan) {
  const std::string owner = orphan.owner.empty() ? "what it belongs to" : orphan.owner;
  return orphan.job_key + " is planned, and " + owner + (orphan.owner_has_ended ? " has ended" : " is unknown");
}

// Applies the repairs of a read: the fixes of the store in one step, then a commit that dispatches jobs again, then the
// events of other flows. Error `conflict`: the flow has changed.
Result<void> repair_flow(FlowStore& flows, Id context, Id flow, const FlowScan& scan) {
  FlowRepair repair{scan.revision, scan.state, {}};
  FlowCommit commit;
  commit.context = context;
  commit.flow = flow;
  commit.expected_revision = scan.revision;
  commit.due_ms = 0;
  std::vector<Id> awaited_flows;
  for (const FlowFinding& finding : scan.findings) {
    for (const FlowFix& fix : finding.fixes) {
      if (fix.kind == FlowFix::Kind::dispatch) {
        commit.dispatches.push_back({fix.job_key, {}});
      } else if (fix.kind == FlowFix::Kind::await_flow) {
        awaited_flows.push_back(fix.awaited_flow);
      } else {
        repair.fixes.push_back(fix);
      }
    }
  }
  // A rebuilt mark must be set before the entries that refer to it.
  std::stable_partition(repair.fixes.begin(), repair.fixes.end(),
                        [](const FlowFix& fix) { return fix.kind == FlowFix::Kind::set_mark; });
  if (!repair.fixes.empty()) MJ_CHECK(flows.repair(context, flow, repair));
  if (!commit.dispatches.empty()) MJ_CHECK(flows.commit(commit));
  for (const Id awaited_flow : awaited_flows) MJ_CHECK(flows.await_flow(context, flow, awaited_flow));
  return {};
}

class FlowRebuilder {
 public:
  FlowRebuilder(FlowStore& flows, Store& store, Id context, bool dry_run)
      : flows_(flows), store_(store), context_(context), dry_run_(dry_run) {}
  Result<FlowRebuildReport> run();

 private:
  Result<void> repair(Id flow);
  Result<void> repair_indexes(const std::set<Id>& flow_ids);
  Result<void> repair_orphans();
  void report_difference(std::string text, bool is_repaired);

  FlowStore& flows_;
  Store& store_;
  const Id context_;
  const bool dry_run_;
  std::set<std::string> known_jobs_;  // jobs of flows that were read
  FlowRebuildReport report_;
};

void FlowRebuilder::report_difference(std::string text, bool is_repaired) {
  report_.differences.push_back(std::move(text) + (is_repaired ? "" : " (cannot be repaired)"));
  report_.is_complete = report_.is_complete && is_repaired;
}

Result<FlowRebuildReport> FlowRebuilder::run() {
  MJ_TRY(known_flows, list_known_flows(store_, context_));
  for (const Id flow : known_flows.repair_order) MJ_CHECK(repair(flow));
  MJ_CHECK(repair_indexes(known_flows.ids));
  MJ_CHECK(repair_orphans());
  return std::move(report_);
}

Result<void> FlowRebuilder::repair(Id flow) {
  for (int attempt = 0; attempt < kMaxFlowReads; ++attempt) {
    MJ_TRY(scan, scan_persistent_findings(flows_, store_, context_, flow));
    known_jobs_.insert(scan.jobs.begin(), scan.jobs.end());
    const Result<void> result =
        dry_run_ || !scan.is_readable ? Result<void>() : repair_flow(flows_, context_, flow, scan);
    if (!result && result.error().code == Code::conflict) continue;
    if (!result) return fail(result.error(), "flow:" + std::to_string(flow));
    for (const FlowFinding& finding : scan.findings) {
      const bool has_fix = scan.is_readable && !finding.fixes.empty();
      if (has_fix || finding.violation) report_difference(finding.text, has_fix);
    }
    return {};
  }
  return {};
}

Result<void> FlowRebuilder::repair_indexes(const std::set<Id>& flow_ids) {
  MJ_TRY(problems, find_flow_index_problems(flows_, store_, context_, flow_ids));
  for (const FlowIndexProblem& problem : problems) {
    if (!dry_run_) MJ_CHECK(repair_flow_index(flows_, context_, problem));
    report_difference(problem.finding.text, !problem.has_lost_data);
  }
  return {};
}

// Retains a planned job if its flow or message is missing, since the key may be restored from a backup.
Result<void> FlowRebuilder::repair_orphans() {
  MJ_TRY(orphans, find_orphans(flows_, store_, context_, known_jobs_));
  for (const OrphanedJob& orphan : orphans) {
    if (!dry_run_ && orphan.owner_has_ended) MJ_CHECK(store_.cancel(context_, orphan.job_key));
    const std::string remedy = orphan.owner_has_ended ? ": cancelled" : ": `mycojobs job cancel` ends it";
    report_difference(format_orphan(orphan) + remedy, orphan.owner_has_ended);
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_flows(FlowStore& flows, Store& store, Id context) {
  std::vector<Finding> findings;
  std::set<std::string> known_jobs;
  MJ_TRY(known_flows, list_known_flows(store, context));
  for (const Id flow : known_flows.ids) {
    MJ_TRY(scan, scan_persistent_findings(flows, store, context, flow));
    known_jobs.insert(scan.jobs.begin(), scan.jobs.end());
    std::move(scan.findings.begin(), scan.findings.end(), std::back_inserter(findings));
  }
  MJ_TRY(indexes, find_flow_index_problems(flows, store, context, known_flows.ids));
  for (FlowIndexProblem& problem : indexes) findings.push_back(std::move(problem.finding));
  MJ_TRY(orphans, find_orphans(flows, store, context, known_jobs));
  for (const OrphanedJob& orphan : orphans)
    findings.push_back(make_finding("flow-orphan", orphan.job_key, format_orphan(orphan)));
  return findings;
}

Result<FlowRebuildReport> rebuild_flows(FlowStore& flows, Store& store, Id context, bool dry_run) {
  return FlowRebuilder(flows, store, context, dry_run).run();
}

}  // namespace mycojobs
