#include "domain/flow_invariants.h"

#include <algorithm>
#include <utility>

#include "domain/codec.h"
#include "domain/flow_decide.h"
#include "domain/transitions.h"

namespace mycojobs {
namespace {

using FixKind = FlowFix::Kind;
using FlowWhere = FlowFix::Place;

FlowFix enter_flow(FlowWhere place) { return {FixKind::enter, place, {}, {}}; }
FlowFix leave_flow(FlowWhere place) { return {FixKind::leave, place, {}, {}}; }

class FlowJudging {
 public:
  explicit FlowJudging(const FlowSight& sight) : sight_(sight), creating_(sight.places.state == "creating") {}
  std::vector<FlowFinding> run();

 private:
  void add(std::string_view rule, const std::string& text, std::vector<FlowFix> fixes = {}) {
    findings_.push_back(flow_finding(rule, sight_.flow, text, std::move(fixes)));
  }
  void check_journal();
  void check_checkpoint();
  void check_index();
  void check_jobs();
  void check_job(std::uint32_t node);
  void check_settled(const std::string& where, const NodeState&, const FlowJobView&, bool over);
  void check_due();
  void check_record();

  const FlowSight& sight_;
  const bool creating_;
  RunState state_;
  std::string should_;  // be the state of its mark
  bool again_ = false;  // a job is to be dispatched once more
  std::vector<FlowFinding> findings_;
};

std::vector<FlowFinding> FlowJudging::run() {
  check_journal();
  if (!creating_) {
    state_ = fresh(*sight_.plan);
    for (const RunFact& fact : sight_.facts) fold(*sight_.plan, state_, fact);
    check_checkpoint();
    if (!state_.anomalies.empty()) {
      add("flow-fact", state_.anomalies.front() + and_more(state_.anomalies.size()));
    }
  }
  should_ = creating_ ? "creating" : sight_.revision == 0 ? "new" : is_terminal(state_.status) ? "ended" : "active";
  check_index();
  if (!creating_) {
    check_jobs();
    if (should_ == "active") check_due();
  }
  check_record();
  return std::move(findings_);
}

void FlowJudging::check_journal() {
  std::vector<FlowFix> fixes;
  if (sight_.places.deaf) fixes.push_back(leave_flow(FlowWhere::events));
  if (!sight_.anomalies.empty()) {
    add("flow-journal", ": " + sight_.anomalies.front() + and_more(sight_.anomalies.size()), std::move(fixes));
  } else if (sight_.places.deaf) {
    add("flow-journal", "cannot hear of its jobs: another client wrote where its events belong", std::move(fixes));
  }
}

// With it and the facts after it the run must be in the state that all facts give.
void FlowJudging::check_checkpoint() {
  if (sight_.checkpoint.empty()) return;
  const FlowPlan& plan = *sight_.plan;
  auto restored = restore(plan, sight_.checkpoint);
  if (restored && sight_.facts.empty() && sight_.revision > 0) {
    state_ = std::move(*restored);  // the journal is gone, which was said
    return;
  }
  const bool readable = restored.has_value();
  bool same = readable && restored->revision == sight_.checkpoint_at;
  if (same) {
    for (const RunFact& fact : sight_.facts) {
      if (fact.revision > restored->revision) fold(plan, *restored, fact);
    }
    same = describe(plan, *restored) == describe(plan, state_);
  }
  if (same || sight_.checkpoint_moved) return;
  add("flow-checkpoint",
      "has a checkpoint of revision " + std::to_string(sight_.checkpoint_at) +
          (readable ? " that does not say what the facts say" : " that cannot be read"),
      {leave_flow(FlowWhere::checkpoint)});
}

void FlowJudging::check_index() {
  const FlowPlaces& places = sight_.places;
  if (places.revision != sight_.revision) return;  // it has moved: the next look
  std::string wrong;
  std::vector<FlowFix> fixes;
  const auto check = [&](bool good, const std::string& text, FlowFix fix) {
    if (good) return;
    wrong += (wrong.empty() ? "" : "; ") + text;
    fixes.push_back(std::move(fix));
  };
  const auto put = [](bool in, FlowWhere place) { return in ? enter_flow(place) : leave_flow(place); };
  const bool active = should_ == "active";
  const bool ended = should_ == "ended" || creating_;
  check(places.state == should_, "its mark says " + places.state,
        {FixKind::set_mark, FlowWhere::none, {}, {{"state", should_}}});
  check(places.active == active, "it is in the index of active flows or not, the wrong way round",
        put(active, FlowWhere::active));
  check(places.ended == ended, "it is in the index of ended flows or not, the wrong way round",
        put(ended, FlowWhere::ended));
  check(!places.due_ms || active, "it is due", leave_flow(FlowWhere::due));
  check(places.listed || creating_, "the catalog lacks it", enter_flow(FlowWhere::catalog));
  if (!wrong.empty()) add("flow-index", "is " + should_ + ", and " + wrong, std::move(fixes));
}

void FlowJudging::check_jobs() {
  for (std::uint32_t i = 0; i < sight_.jobs.size(); ++i) check_job(i);
}

void FlowJudging::check_job(std::uint32_t i) {
  const PlanNode& planned_node = sight_.plan->nodes[i];
  const NodeState& node = state_.nodes[i];
  const FlowJobView& job = sight_.jobs[i];
  const std::string where = "node " + planned_node.name + " is " + std::string(word(node.status)) + " and " +
                            job.job_key + " is " + (job.state.empty() ? "not claimed" : job.state);
  const bool bare_end = job.state.empty() && (job.status == "finished" || job.status == "error");
  const bool over = job.state == "ended" || bare_end;
  const bool planned = job.state == "planned";
  if (job.state == "absent" && planned_node.each && node.runs == 0) return;  // written with its first dispatch
  if (is_terminal(node.status)) return check_settled(where, node, job, over);
  const bool under_way = node.status == NodeStatus::dispatched || node.status == NodeStatus::running;
  const std::vector<FlowFix> dispatch{{FixKind::dispatch, FlowWhere::none, job.job_key, {}}};
  if (over) {
    if (!sight_.all_events || sight_.heard.contains(job.job_key)) return;
    again_ = true;
    return add("flow-unheard", "does not hear of an end: " + where + ", and no event tells of it", dispatch);
  }
  const bool by_runner = planned_node.kind == NodeKind::job && planned_node.supervisor_url.empty();
  if (under_way && by_runner && planned) {
    again_ = true;
    return add("flow-job", "has a job astray: " + where, dispatch);
  }
  if (!under_way && !planned) add("flow-job", "has a job astray: " + where);
}

void FlowJudging::check_settled(const std::string& where, const NodeState& node, const FlowJobView& job, bool over) {
  const bool absent = job.state == "absent";
  const bool well = node.status == NodeStatus::completed && node.detail == "ok";
  if (job.state == "planned" || (absent && should_ != "ended")) {
    return add("flow-job", "has a job astray: " + where);
  }
  if (absent) return;
  if (!over) return add("flow-job-again", "goes its way: " + where);
  if (well != (job.status == "finished")) add("flow-job-again", "goes its way: " + where + " as " + job.status);
}

void FlowJudging::check_due() {
  const FlowPlaces& places = sight_.places;
  const bool now = places.events > 0 || !sight_.heard.empty() || more_to_do(*sight_.plan, state_) || again_;
  const std::uint64_t latest = now ? places.now_ms : next_timer_ms(state_);
  if (latest == 0 || (places.due_ms && *places.due_ms <= latest)) return;
  add("flow-due",
      now ? "has something to do, and nobody will look at it" : "waits for a moment at which nobody will look",
      {enter_flow(FlowWhere::due)});
}

// What it is, as its mark knows it, and how far it has come.
void FlowJudging::check_record() {
  Fields should = sight_.places.identity;
  should.emplace_back("context_id", std::to_string(sight_.context));
  if (!creating_ && sight_.revision > 0) {
    should.emplace_back("status", word(state_.status));
    should.emplace_back("detail", state_.detail);
    should.emplace_back("error", state_.error);
  }
  std::string wrong;
  FlowFix fix{FixKind::set_record, FlowWhere::none, {}, {}};
  for (auto& [name, value] : should) {
    const std::string_view is = sight_.record ? field_of(*sight_.record, name) : std::string_view();
    if (is == value) continue;
    wrong += (wrong.empty() ? "" : "; ") + name + ' ' + (is.empty() ? "nothing" : std::string(is.substr(0, 80))) +
             ", its journal decides: " + (value.empty() ? "nothing" : value.substr(0, 80));
    fix.words.emplace_back(name, std::move(value));
  }
  if (!sight_.record) {
    add("flow-record", "has no record: another client deleted it", {std::move(fix)});
  } else if (!wrong.empty()) {
    add("flow-record", "has a record that says " + wrong, {std::move(fix)});
  }
}

}  // namespace

std::vector<FlowFinding> judge(const FlowSight& sight) { return FlowJudging(sight).run(); }

FlowFinding flow_finding(std::string_view rule, Id flow, const std::string& text, std::vector<FlowFix> fixes) {
  const std::string name = "flow:" + std::to_string(flow);
  return {finding(rule, name, name + ' ' + text), std::move(fixes)};
}

std::string and_more(std::size_t count) { return count > 1 ? " (and " + std::to_string(count - 1) + " more)" : ""; }

}  // namespace mycojobs
