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
#include "store/store.h"

namespace mycojobs {
namespace {

// One read of a flow for verify_flows() and rebuild_flows(): reads all input of the rules in inspect/invariants.h and
// applies the rules.

struct FlowScan {
  std::vector<FlowFinding> findings;
  bool moved = false;  // the flow changed during the read: the findings are invalid
  bool known = false;  // journal, mark and definition could be read: the findings have their fixes
  std::uint64_t revision = 0;
  std::string state;              // state of its mark
  std::vector<std::string> jobs;  // keys, in the order of the nodes
};

constexpr std::size_t kMaxEventsBatch = 1000;  // limit of FlowReadResult::events

class FlowVerifier {
 public:
  FlowVerifier(FlowStore& flows, Store& store, Id context, Id flow)
      : flows_(flows), store_(store), name_("flow:" + std::to_string(flow)) {
    inspection_.context = context;
    inspection_.flow = flow;
  }
  Result<FlowScan> run();

 private:
  FlowScan unjudged();
  // Adds a finding for data that cannot be read and returns false.
  bool add(std::string_view rule, const std::string& text) {
    out_.findings.push_back(flow_finding(rule, inspection_.flow, text));
    return false;
  }
  Result<bool> read_journal();
  Result<bool> read_states();
  Result<bool> find_mark();  // for a flow without a mark
  Result<bool> read_plan();
  Result<void> read_checkpoint();
  Result<bool> read_jobs();  // false: the flow has changed
  Result<void> read_awaited();
  Result<void> read_record();

  FlowStore& flows_;
  Store& store_;
  const std::string name_;
  FlowScan out_;
  FlowInspection inspection_;
  Flow record_;  // combined from its mark and its record
};

Result<FlowScan> FlowVerifier::run() {
  MJ_TRY(readable, read_journal());
  if (!readable) return std::move(out_);
  MJ_CHECK(read_record());
  MJ_TRY(marked, read_states());
  if (!marked) return unjudged();
  if (flow_state_before(inspection_) != "creating") {
    MJ_TRY(planned, read_plan());
    if (!planned) return unjudged();
    MJ_CHECK(read_checkpoint());
    MJ_TRY(still, read_jobs());
    if (!still) {
      out_.moved = true;
      return std::move(out_);
    }
    MJ_CHECK(read_awaited());
  }
  out_.known = true;
  out_.revision = inspection_.revision;
  out_.state = inspection_.places.state;
  out_.findings = check_invariants(inspection_);
  return std::move(out_);
}

// Returns the findings for a flow that cannot be judged. Anomalies of the journal are first.
FlowScan FlowVerifier::unjudged() {
  if (!inspection_.anomalies.empty()) {
    add("flow-journal", ": " + inspection_.anomalies.front() + append_more_count(inspection_.anomalies.size()));
    std::rotate(out_.findings.begin(), std::prev(out_.findings.end()), out_.findings.end());
  }
  return std::move(out_);
}

Result<bool> FlowVerifier::read_journal() {
  std::uint64_t after = 0;
  while (true) {
    auto read = flows_.read(inspection_.context, inspection_.flow, after);
    if (!read && read.error().code == Code::invalid) {
      return add("flow-journal", "cannot be read: " + read.error().message);
    }
    if (!read) return fail(std::move(read).error(), name_);
    if (after == 0) record_ = decode<Flow>(read->record).record;
    inspection_.revision = read->revision;
    for (RunFact& fact : read->facts) inspection_.facts.push_back(std::move(fact));
    for (std::string& each : read->anomalies) inspection_.anomalies.push_back(std::move(each));
    if (!read->more || read->facts.empty()) return true;
    after = inspection_.facts.back().revision;
  }
}

Result<bool> FlowVerifier::read_states() {
  auto places = flows_.places(inspection_.context, inspection_.flow);
  const bool readable = places || places.error().code == Code::invalid;
  if (!readable) return fail(std::move(places).error(), name_);
  if (places) inspection_.places = *places;
  if (places && !places->state.empty()) return true;
  if (!places) return add("flow-journal", "cannot be checked: " + places.error().message);
  return find_mark();
}

// A record without a mark can be a flow that another client wrote and that was not started. This is not a finding.
Result<bool> FlowVerifier::find_mark() {
  const bool has_started = inspection_.revision > 0;
  const bool is_creating = flow_state_before(inspection_) == "creating";
  if (!inspection_.record || (record_.definition_hash.empty() && !is_creating)) {
    if (has_started) return add("flow-mark", "has a journal, but neither a state key nor a record");
    return false;
  }
  MJ_TRY(mark, derive_flow_state(flows_, store_, inspection_, record_));
  if (!mark) return false;
  inspection_.lost_mark = std::move(mark->words);
  inspection_.places.listed = mark->listed;
  inspection_.places.indexed = mark->indexed;
  return true;
}

Result<bool> FlowVerifier::read_plan() {
  const std::string hash = record_.definition_hash;
  auto text = flows_.definition(inspection_.context, hash);
  if (!text && text.error().code != Code::not_found && text.error().code != Code::invalid) {
    return fail(std::move(text).error(), name_);
  }
  auto plan = text ? plan_of_text(*text, hash) : Result<FlowPlan>(fail(text.error(), "definition"));
  if (!plan) return add("flow-definition", "cannot go on without its definition: " + plan.error().message);
  if (plan->nodes.size() != record_.jobs.size()) {
    return add("flow-mark", "has " + std::to_string(plan->nodes.size()) + " nodes and " +
                                std::to_string(record_.jobs.size()) + " jobs");
  }
  inspection_.plan = std::move(*plan);
  for (const Id id : record_.jobs) out_.jobs.push_back(job_key(record_.caller_id, id));
  return true;
}

Result<void> FlowVerifier::read_checkpoint() {
  MJ_TRY(read, flows_.read(inspection_.context, inspection_.flow, std::nullopt));
  inspection_.checkpoint = read.checkpoint;
  inspection_.checkpoint_at = read.checkpoint_at;
  inspection_.checkpoint_moved = read.revision != inspection_.revision;
  return {};
}

Result<bool> FlowVerifier::read_jobs() {
  MJ_TRY(jobs, flows_.jobs(inspection_.context, out_.jobs));
  inspection_.jobs = std::move(jobs);
  // A job's end and its event are written in one step. The events are read after the jobs, so that the event of every
  // ended job is known.
  MJ_TRY(read, flows_.read(inspection_.context, inspection_.flow, inspection_.revision));
  for (const FlowEventText& event : read.events) inspection_.heard.insert(event.key);
  inspection_.all_events = read.events.size() < kMaxEventsBatch;
  return read.revision == inspection_.revision;
}

Result<void> FlowVerifier::read_awaited() {
  std::vector<Id> others;
  const FoldedFlow run = fold_run(inspection_);
  for (const auto& [other, node] : run.state.awaited) {
    others.push_back(other);
    if (run.state.nodes.at(node).child == other) inspection_.children.insert(other);
  }
  if (others.empty()) return {};
  MJ_TRY(waits, flows_.flow_waits(inspection_.context, inspection_.flow, others));
  inspection_.awaited = std::move(waits);
  // The end of another flow and its event are written in one step. The events are read after the other flows, so that
  // the event of every ended flow is known.
  MJ_TRY(read, flows_.read(inspection_.context, inspection_.flow, inspection_.revision));
  for (const FlowEventText& event : read.events) inspection_.heard.insert(event.key);
  out_.moved = read.revision != inspection_.revision;
  return {};
}

Result<void> FlowVerifier::read_record() {
  auto record = store_.load(inspection_.context, name_);
  // A key of another client; read_journal() reports it.
  const bool is_other = !record && record.error().code == Code::invalid;
  if (!record && !is_other && record.error().code != Code::not_found) return fail(std::move(record).error(), name_);
  if (record) inspection_.record = std::move(*record);
  return {};
}

Result<FlowScan> check_run(FlowStore& flows, Store& store, Id context, Id flow) {
  return FlowVerifier(flows, store, context, flow).run();
}

}  // namespace
namespace {

constexpr std::size_t kMaxKeys = 10000000;
constexpr std::size_t kMaxJobsBatch = 200;
constexpr int kFlowChecks = 3;  // a finding must occur in all of them
constexpr int kTries = 20;      // attempts to read a flow that changes continuously
constexpr std::chrono::milliseconds kFlowPause{100};

// Flows with a mark, a journal, or a record that was created as a flow.
struct KnownFlows {
  std::set<Id> all;
  std::vector<Id> in_order;  // flows without a mark first, since others may wait for them
};
Result<KnownFlows> flows_of(Store& store, Id context) {
  KnownFlows out;
  std::set<Id> marked;
  for (const std::string_view prefix : {"mj:flow:", "mj:run:", "flow:"}) {
    MJ_TRY(keys, store.keys(context, prefix, kMaxKeys));
    for (const std::string& key : keys) {
      std::uint64_t id = 0;  // other names belong to another client
      if (!parse_u64(std::string_view(key).substr(prefix.size()), id) || id == 0 || id > UINT32_MAX) continue;
      out.all.insert(static_cast<Id>(id));
      if (prefix == "mj:flow:") marked.insert(static_cast<Id>(id));
    }
  }
  std::set_difference(out.all.begin(), out.all.end(), marked.begin(), marked.end(), std::back_inserter(out.in_order));
  std::set_intersection(out.all.begin(), out.all.end(), marked.begin(), marked.end(), std::back_inserter(out.in_order));
  return out;
}

Result<FlowScan> still_frame(FlowStore& flows, Store& store, Id context, Id flow) {
  for (int attempt = 0;; ++attempt) {
    MJ_TRY(look, check_run(flows, store, context, flow));
    if (!look.moved || attempt == kTries) return std::move(look);
    std::this_thread::sleep_for(kFlowPause);
  }
}

// Repeats the read, since a flow and its jobs may change between the steps of a read.
Result<FlowScan> lasting_frame(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(look, still_frame(flows, store, context, flow));
  for (int again = 1; again < kFlowChecks && !look.findings.empty(); ++again) {
    std::this_thread::sleep_for(kFlowPause);
    const std::vector<FlowFinding> before = std::move(look.findings);
    MJ_TRY(next, still_frame(flows, store, context, flow));
    look = std::move(next);
    std::erase_if(look.findings, [&](const FlowFinding& each) {
      return std::none_of(before.begin(), before.end(),
                          [&](const FlowFinding& other) { return other.rule == each.rule && other.text == each.text; });
    });
  }
  return std::move(look);
}

// A planned job that no flow will queue and that no answer will end.
struct OrphanedJob {
  std::string job_key;
  std::string owner;     // "flow:7", "message:9:1"; empty: the claim names neither
  bool is_over = false;  // the owner has ended; false: the key with the state of the owner is missing
};

Result<std::vector<JobStoreState>> planned_jobs(FlowStore& flows, Store& store, Id context,
                                                const std::set<std::string>& known) {
  constexpr std::string_view kClaims = "mj:claim:";
  MJ_TRY(keys, store.keys(context, "mj:claim:job:", kMaxKeys));
  std::vector<std::string> some, planned;
  const auto look = [&]() -> Result<void> {
    MJ_TRY(views, flows.jobs(context, some));
    for (const FlowJobView& job : views) {
      if (job.state == "planned" || job.state == "absent") planned.push_back(job.job_key);
    }
    some.clear();
    return {};
  };
  for (const std::string& key : keys) {
    std::string job = key.substr(kClaims.size());
    if (!known.contains(job)) some.push_back(std::move(job));
    if (some.size() == kMaxJobsBatch) MJ_CHECK(look());
  }
  if (!some.empty()) MJ_CHECK(look());
  MJ_TRY(places, store.job_states(context, planned, false));
  std::erase_if(places, [](const JobStoreState& job) { return job.claim.state != to_string(JobState::planned); });
  return std::move(places);
}

// Returns no value if the job has an owner.
Result<std::optional<OrphanedJob>> orphan_of(FlowStore& flows, Store& store, Id context, const JobStoreState& job) {
  OrphanedJob orphan{job.job_key, {}, false};
  const auto blank = job.claim.flow.find(' ');
  std::uint64_t flow = 0;
  if (blank != std::string::npos && parse_u64(std::string_view(job.claim.flow).substr(blank + 1), flow) && flow > 0 &&
      flow <= UINT32_MAX) {
    orphan.owner = "flow:" + std::to_string(flow);
    auto found = flows.places(context, static_cast<Id>(flow));
    if (!found && found.error().code == Code::invalid)
      return std::optional<OrphanedJob>();  // that flow has a finding for it
    if (!found) return fail(std::move(found).error(), job.job_key);
    // A flow that is being created or could not be read still owns its jobs.
    if (!found->state.empty() && found->state != "ended") return std::optional<OrphanedJob>();
    orphan.is_over = found->state == "ended";
    return std::optional(std::move(orphan));
  }
  if (job.claim.message.empty()) return std::optional(std::move(orphan));
  orphan.owner = job.claim.message;
  static constexpr std::array<std::string_view, 1> kAsked{"state"};
  auto mark = store.load_fields(context, "mj:message:" + job.claim.message, kAsked);
  if (!mark && mark.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(mark).error());
  const std::string_view state = mark ? field_of(*mark, "state") : "";
  if (state == "away") return std::optional<OrphanedJob>();  // the answer to the message ends the job
  orphan.is_over = !state.empty();
  return std::optional(std::move(orphan));
}

// known: jobs of flows that were read.
Result<std::vector<OrphanedJob>> orphans(FlowStore& flows, Store& store, Id context,
                                         const std::set<std::string>& known) {
  MJ_TRY(planned, planned_jobs(flows, store, context, known));
  std::vector<OrphanedJob> out;
  for (const JobStoreState& job : planned) {
    MJ_TRY(orphan, orphan_of(flows, store, context, job));
    if (orphan) out.push_back(std::move(*orphan));
  }
  return out;
}

std::string orphan_text(const OrphanedJob& orphan) {
  const std::string owner = orphan.owner.empty() ? "what it belongs to" : orphan.owner;
  return orphan.job_key + " is planned, and " + owner + (orphan.is_over ? " has ended" : " is unknown");
}

// Applies the repairs of a read: the fixes of the store in one step, then a commit that dispatches jobs again, then the
// events of other flows. Error `conflict`: the flow has changed.
Result<void> repair_flow(FlowStore& flows, Id context, Id flow, const FlowScan& look) {
  FlowRepair repair{look.revision, look.state, {}};
  FlowCommit again;
  again.context = context;
  again.flow = flow;
  again.expected_revision = look.revision;
  again.due_ms = 0;
  std::vector<Id> await;
  for (const FlowFinding& each : look.findings) {
    for (const FlowFix& fix : each.fixes) {
      if (fix.kind == FlowFix::Kind::dispatch) {
        again.dispatch.push_back({fix.job, {}});
      } else if (fix.kind == FlowFix::Kind::await) {
        await.push_back(fix.other);
      } else {
        repair.fixes.push_back(fix);
      }
    }
  }
  // A rebuilt mark must be set before the entries that refer to it.
  std::stable_partition(repair.fixes.begin(), repair.fixes.end(),
                        [](const FlowFix& fix) { return fix.kind == FlowFix::Kind::set_mark; });
  if (!repair.fixes.empty()) MJ_CHECK(flows.repair(context, flow, repair));
  if (!again.dispatch.empty()) MJ_CHECK(flows.commit(again));
  for (const Id other : await) MJ_CHECK(flows.await_flow(context, flow, other));
  return {};
}

class FlowsRebuild {
 public:
  FlowsRebuild(FlowStore& flows, Store& store, Id context, bool dry_run)
      : flows_(flows), store_(store), context_(context), dry_run_(dry_run) {}
  Result<FlowRebuildReport> run();

 private:
  Result<void> repair(Id flow);
  Result<void> repair_indexes(const std::set<Id>& all);
  Result<void> repair_orphans();
  void tell(std::string text, bool is_repaired);

  FlowStore& flows_;
  Store& store_;
  const Id context_;
  const bool dry_run_;
  std::set<std::string> known_;  // jobs of flows that were read
  FlowRebuildReport report_;
};

void FlowsRebuild::tell(std::string text, bool is_repaired) {
  report_.differences.push_back(std::move(text) + (is_repaired ? "" : " (cannot be repaired)"));
  report_.is_complete = report_.is_complete && is_repaired;
}

Result<FlowRebuildReport> FlowsRebuild::run() {
  MJ_TRY(all, flows_of(store_, context_));
  for (const Id flow : all.in_order) MJ_CHECK(repair(flow));
  MJ_CHECK(repair_indexes(all.all));
  MJ_CHECK(repair_orphans());
  return std::move(report_);
}

Result<void> FlowsRebuild::repair(Id flow) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    MJ_TRY(look, lasting_frame(flows_, store_, context_, flow));
    known_.insert(look.jobs.begin(), look.jobs.end());
    const Result<void> done = dry_run_ || !look.known ? Result<void>() : repair_flow(flows_, context_, flow, look);
    if (!done && done.error().code == Code::conflict) continue;
    if (!done) return fail(done.error(), "flow:" + std::to_string(flow));
    for (const FlowFinding& each : look.findings) {
      const bool has_fix = look.known && !each.fixes.empty();
      if (has_fix || each.violation) tell(each.text, has_fix);
    }
    return {};
  }
  return {};
}

Result<void> FlowsRebuild::repair_indexes(const std::set<Id>& all) {
  MJ_TRY(troubles, find_flow_index_problems(flows_, store_, context_, all));
  for (const FlowIndexProblem& each : troubles) {
    if (!dry_run_) MJ_CHECK(repair_flow_index(flows_, context_, each));
    tell(each.finding.text, !each.is_loss);
  }
  return {};
}

// Retains a planned job if its flow or message is missing, since the key may be restored from a backup.
Result<void> FlowsRebuild::repair_orphans() {
  MJ_TRY(lost, orphans(flows_, store_, context_, known_));
  for (const OrphanedJob& orphan : lost) {
    if (!dry_run_ && orphan.is_over) MJ_CHECK(store_.cancel(context_, orphan.job_key));
    const std::string what = orphan.is_over ? ": cancelled" : ": `mycojobs job cancel` ends it";
    tell(orphan_text(orphan) + what, orphan.is_over);
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_flows(FlowStore& flows, Store& store, Id context) {
  std::vector<Finding> findings;
  std::set<std::string> known;
  MJ_TRY(all, flows_of(store, context));
  for (const Id flow : all.all) {
    MJ_TRY(look, lasting_frame(flows, store, context, flow));
    known.insert(look.jobs.begin(), look.jobs.end());
    std::move(look.findings.begin(), look.findings.end(), std::back_inserter(findings));
  }
  MJ_TRY(indexes, find_flow_index_problems(flows, store, context, all.all));
  for (FlowIndexProblem& each : indexes) findings.push_back(std::move(each.finding));
  MJ_TRY(lost, orphans(flows, store, context, known));
  for (const OrphanedJob& orphan : lost)
    findings.push_back(finding("flow-orphan", orphan.job_key, orphan_text(orphan)));
  return findings;
}

Result<FlowRebuildReport> rebuild_flows(FlowStore& flows, Store& store, Id context, bool dry_run) {
  return FlowsRebuild(flows, store, context, dry_run).run();
}

}  // namespace mycojobs
