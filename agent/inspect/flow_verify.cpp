#include "inspect/flow_verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "domain/codec.h"
#include "domain/invariants.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {
namespace {

// One look at one flow, for verify_flows() and rebuild_flows(): all that domain/invariants.h judges by is read,
// and judged.

struct FlowLook {
  std::vector<FlowFinding> findings;
  bool moved = false;             // meanwhile: the findings say nothing
  bool known = false;             // its journal, mark and definition could be read: the findings have their fixes
  std::uint64_t revision = 0;     //
  std::string state;              // of its mark
  std::vector<std::string> jobs;  // keys, in the order of the nodes
};

constexpr std::size_t kEventsAtOnce = 1000;  // RunRead::events holds no more

class Looking {
 public:
  Looking(FlowStore& flows, Store& store, Id context, Id flow)
      : flows_(flows), store_(store), name_("flow:" + std::to_string(flow)) {
    sight_.context = context;
    sight_.flow = flow;
  }
  Result<FlowLook> run();

 private:
  FlowLook unjudged();
  // What cannot be read becomes a finding, and false.
  bool add(std::string_view rule, const std::string& text) {
    out_.findings.push_back(flow_finding(rule, sight_.flow, text));
    return false;
  }
  Result<bool> read_journal();
  Result<bool> read_places();
  Result<bool> read_plan();
  Result<void> read_checkpoint();
  Result<bool> read_jobs();  // false: it has moved
  Result<void> read_record();

  FlowStore& flows_;
  Store& store_;
  const std::string name_;
  FlowLook out_;
  FlowSight sight_;
  Flow record_;  // as its mark and the record have it together
};

Result<FlowLook> Looking::run() {
  MJ_TRY(readable, read_journal());
  if (!readable) return std::move(out_);
  MJ_TRY(marked, read_places());
  if (!marked) return unjudged();
  if (sight_.places.state != "creating") {
    MJ_TRY(planned, read_plan());
    if (!planned) return unjudged();
    MJ_CHECK(read_checkpoint());
    MJ_TRY(still, read_jobs());
    if (!still) {
      out_.moved = true;
      return std::move(out_);
    }
  }
  MJ_CHECK(read_record());
  out_.known = true;
  out_.revision = sight_.revision;
  out_.state = sight_.places.state;
  out_.findings = judge(sight_);
  return std::move(out_);
}

// Its journal comes first, too, when there is no more to say.
FlowLook Looking::unjudged() {
  if (!sight_.anomalies.empty()) {
    add("flow-journal", ": " + sight_.anomalies.front() + and_more(sight_.anomalies.size()));
    std::rotate(out_.findings.begin(), std::prev(out_.findings.end()), out_.findings.end());
  }
  return std::move(out_);
}

Result<bool> Looking::read_journal() {
  std::uint64_t after = 0;
  while (true) {
    auto read = flows_.read(sight_.context, sight_.flow, after);
    if (!read && read.error().code == Code::invalid) {
      return add("flow-journal", "cannot be read: " + read.error().message);
    }
    if (!read) return fail(std::move(read).error(), name_);
    if (after == 0) record_ = decode<Flow>(read->record).record;
    sight_.revision = read->revision;
    for (RunFact& fact : read->facts) sight_.facts.push_back(std::move(fact));
    for (std::string& each : read->anomalies) sight_.anomalies.push_back(std::move(each));
    if (!read->more || read->facts.empty()) return true;
    after = sight_.facts.back().revision;
  }
}

Result<bool> Looking::read_places() {
  auto places = flows_.places(sight_.context, sight_.flow);
  const bool readable = places || places.error().code == Code::invalid;
  if (!readable) return fail(std::move(places).error(), name_);
  if (places) sight_.places = *places;
  if (places && !places->state.empty()) return true;
  if (!places) return add("flow-journal", "cannot be looked at: " + places.error().message);
  return add("flow-mark", "has a journal, and no mark says where it is");
}

Result<bool> Looking::read_plan() {
  const std::string hash = record_.definition_hash;
  auto text = flows_.definition(sight_.context, hash);
  if (!text && text.error().code != Code::not_found && text.error().code != Code::invalid) {
    return fail(std::move(text).error(), name_);
  }
  auto plan = text ? plan_of_text(*text, hash) : Result<FlowPlan>(fail(text.error(), "definition"));
  if (!plan) return add("flow-definition", "cannot go on without its definition: " + plan.error().message);
  if (plan->nodes.size() != record_.jobs.size()) {
    return add("flow-mark", "has " + std::to_string(plan->nodes.size()) + " nodes and " +
                                std::to_string(record_.jobs.size()) + " jobs");
  }
  sight_.plan = std::move(*plan);
  for (const Id id : record_.jobs) out_.jobs.push_back(job_key(record_.caller_id, id));
  return true;
}

Result<void> Looking::read_checkpoint() {
  MJ_TRY(read, flows_.read(sight_.context, sight_.flow, std::nullopt));
  sight_.checkpoint = read.checkpoint;
  sight_.checkpoint_at = read.checkpoint_at;
  sight_.checkpoint_moved = read.revision != sight_.revision;
  return {};
}

Result<bool> Looking::read_jobs() {
  MJ_TRY(jobs, flows_.jobs(sight_.context, out_.jobs));
  sight_.jobs = std::move(jobs);
  // The end of a job and its event are one step: read after the jobs, the events know all of these ends.
  MJ_TRY(read, flows_.read(sight_.context, sight_.flow, sight_.revision));
  for (const FlowEventText& event : read.events) sight_.heard.insert(event.key);
  sight_.all_events = read.events.size() < kEventsAtOnce;
  return read.revision == sight_.revision;
}

Result<void> Looking::read_record() {
  auto record = store_.load(sight_.context, name_);
  if (!record && record.error().code != Code::not_found) return fail(std::move(record).error(), name_);
  if (record) sight_.record = std::move(*record);
  return {};
}

Result<FlowLook> look_at_run(FlowStore& flows, Store& store, Id context, Id flow) {
  return Looking(flows, store, context, flow).run();
}

}  // namespace
namespace {

constexpr std::size_t kMaxKeys = 10000000;
constexpr std::size_t kJobsAtOnce = 200;
constexpr int kFlowLooks = 3;  // what every one of them finds lasts
constexpr int kTries = 20;     // of a look at a flow that moves all the time
constexpr std::chrono::milliseconds kFlowPause{100};

// Flows with a mark or a journal.
Result<std::set<Id>> flows_of(Store& store, Id context) {
  std::set<Id> flows;
  for (const std::string_view prefix : {"mj:flow:", "mj:run:"}) {
    MJ_TRY(keys, store.keys(context, prefix, kMaxKeys));
    for (const std::string& key : keys) {
      std::uint64_t id = 0;  // other names are another client's
      if (parse_u64(std::string_view(key).substr(prefix.size()), id) && id > 0 && id <= UINT32_MAX) {
        flows.insert(static_cast<Id>(id));
      }
    }
  }
  return flows;
}

Result<FlowLook> still_look(FlowStore& flows, Store& store, Id context, Id flow) {
  for (int attempt = 0;; ++attempt) {
    MJ_TRY(look, look_at_run(flows, store, context, flow));
    if (!look.moved || attempt == kTries) return std::move(look);
    std::this_thread::sleep_for(kFlowPause);
  }
}

// A flow and its jobs may move between the steps of a look.
Result<FlowLook> lasting_look(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(look, still_look(flows, store, context, flow));
  for (int again = 1; again < kFlowLooks && !look.findings.empty(); ++again) {
    std::this_thread::sleep_for(kFlowPause);
    const std::vector<FlowFinding> before = std::move(look.findings);
    MJ_TRY(next, still_look(flows, store, context, flow));
    look = std::move(next);
    std::erase_if(look.findings, [&](const FlowFinding& each) {
      return std::none_of(before.begin(), before.end(),
                          [&](const FlowFinding& other) { return other.rule == each.rule && other.text == each.text; });
    });
  }
  return std::move(look);
}

// Whether the message has left, and its answer will end what it took with it.
Result<bool> is_away(Store& store, Id context, const std::string& message) {
  static constexpr std::array<std::string_view, 1> kAsked{"state"};
  auto mark = store.load_fields(context, "mj:message:" + message, kAsked);
  if (!mark && mark.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(mark).error());
  return mark && field_of(*mark, "state") == "away";
}

// Planned jobs that no flow will ever queue, and no answer end. known: jobs of flows that were looked at.
Result<std::vector<std::string>> orphans(FlowStore& flows, Store& store, Id context,
                                         const std::set<std::string>& known) {
  constexpr std::string_view kClaims = "mj:claim:";
  MJ_TRY(keys, store.keys(context, "mj:claim:job:", kMaxKeys));
  std::vector<std::string> some, planned;
  const auto look = [&]() -> Result<void> {
    MJ_TRY(views, flows.jobs(context, some));
    for (const FlowJobView& job : views) {
      if (job.state == "planned") planned.push_back(job.job_key);
    }
    some.clear();
    return {};
  };
  for (const std::string& key : keys) {
    std::string job = key.substr(kClaims.size());
    if (!known.contains(job)) some.push_back(std::move(job));
    if (some.size() == kJobsAtOnce) MJ_CHECK(look());
  }
  if (!some.empty()) MJ_CHECK(look());
  std::vector<std::string> out;
  MJ_TRY(places, store.places(context, planned, false));
  for (const JobPlaces& job : places) {
    const auto blank = job.claim.flow.find(' ');
    std::uint64_t flow = 0;
    const bool named = blank != std::string::npos &&
                       parse_u64(std::string_view(job.claim.flow).substr(blank + 1), flow) && flow > 0 &&
                       flow <= UINT32_MAX;
    if (job.claim.state != "planned") continue;
    if (job.claim.flow.empty() && !job.claim.message.empty()) {
      MJ_TRY(away, is_away(store, context, job.claim.message));
      if (away) continue;
    }
    FlowPlaces of;
    if (named) {
      auto found = flows.places(context, static_cast<Id>(flow));
      if (!found && found.error().code == Code::invalid) continue;  // that flow has a finding for it
      if (!found) return fail(std::move(found).error(), job.job_key);
      of = *found;
    }
    // A flow that is being created, or that was not to be read, has them still.
    if (of.state.empty() || of.state == "ended") out.push_back(job.job_key);
  }
  return out;
}

// What a look asks for, done: the fixes of the store in one step, then a commit that dispatches jobs once more. Error
// conflict: the flow has moved.
Result<void> mend_flow(FlowStore& flows, Id context, Id flow, const FlowLook& look) {
  FlowRepair repair{look.revision, look.state, {}};
  FlowCommit again;
  again.context = context;
  again.flow = flow;
  again.expected_revision = look.revision;
  again.due_ms = 0;
  for (const FlowFinding& each : look.findings) {
    for (const FlowFix& fix : each.fixes) {
      if (fix.kind == FlowFix::Kind::dispatch) {
        again.dispatch.push_back({fix.job, {}});
      } else {
        repair.fixes.push_back(fix);
      }
    }
  }
  if (!repair.fixes.empty()) MJ_CHECK(flows.repair(context, flow, repair));
  if (!again.dispatch.empty()) MJ_CHECK(flows.commit(again));
  return {};
}

Result<void> rebuild_flow(FlowStore& flows, Store& store, Id context, Id flow, bool dry_run,
                          std::set<std::string>& known, std::vector<std::string>& differences) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    MJ_TRY(look, lasting_look(flows, store, context, flow));
    known.insert(look.jobs.begin(), look.jobs.end());
    std::vector<std::string> mended;
    for (const FlowFinding& each : look.findings) {
      if (!look.known) mended.push_back(each.text + " (cannot be mended)");
      if (look.known && !each.fixes.empty()) mended.push_back(each.text);
    }
    const Result<void> done = dry_run || !look.known ? Result<void>() : mend_flow(flows, context, flow, look);
    if (!done && done.error().code == Code::conflict) continue;
    if (!done) return fail(done.error(), "flow:" + std::to_string(flow));
    std::move(mended.begin(), mended.end(), std::back_inserter(differences));
    return {};
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_flows(FlowStore& flows, Store& store, Id context) {
  std::vector<Finding> findings;
  std::set<std::string> known;
  MJ_TRY(all, flows_of(store, context));
  for (const Id flow : all) {
    MJ_TRY(look, lasting_look(flows, store, context, flow));
    known.insert(look.jobs.begin(), look.jobs.end());
    std::move(look.findings.begin(), look.findings.end(), std::back_inserter(findings));
  }
  MJ_TRY(lost, orphans(flows, store, context, known));
  for (const std::string& job : lost) {
    findings.push_back(finding("flow-orphan", job, job + " is planned, and its flow or message is gone or has ended"));
  }
  return findings;
}

Result<std::vector<std::string>> rebuild_flows(FlowStore& flows, Store& store, Id context, bool dry_run) {
  std::vector<std::string> differences;
  std::set<std::string> known;
  MJ_TRY(all, flows_of(store, context));
  for (const Id flow : all) MJ_CHECK(rebuild_flow(flows, store, context, flow, dry_run, known, differences));
  MJ_TRY(lost, orphans(flows, store, context, known));
  for (const std::string& job : lost) {
    differences.push_back(job + ": it is planned, and its flow or message is gone or has ended: cancelled");
    if (!dry_run) MJ_CHECK(store.cancel(context, job));
  }
  return differences;
}

}  // namespace mycojobs
