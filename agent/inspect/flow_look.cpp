#include "inspect/flow_look.h"

#include <algorithm>
#include <set>

#include "domain/codec.h"
#include "domain/flow_decide.h"
#include "domain/flow_plan.h"
#include "domain/flow_state.h"
#include "domain/transitions.h"
#include "inspect/verify_job.h"

namespace mycojobs {
namespace {

constexpr std::size_t kEventsAtOnce = 1000;  // RunRead::events holds no more

std::string more_of(std::size_t count) { return count > 1 ? " (and " + std::to_string(count - 1) + " more)" : ""; }

class Looking {
 public:
  Looking(FlowStore& flows, Store& store, Id context, Id flow)
      : flows_(flows), store_(store), context_(context), flow_(flow), name_("flow:" + std::to_string(flow)) {}
  Result<FlowLook> run();

 private:
  void add(std::string_view rule, const std::string& text) {
    out_.findings.push_back(finding(rule, name_, name_ + ' ' + text));
  }
  Result<bool> read_journal();  // false: it cannot be read, which was said
  Result<bool> read_plan();
  Result<void> check_checkpoint();
  Result<bool> read_jobs();  // false: it has moved
  void check_jobs();
  void check_job(std::uint32_t node);
  void check_index();
  void check_due();
  Result<void> check_record();
  std::string node_name(std::uint32_t node) const { return "node " + plan_.nodes[node].name; }

  FlowStore& flows_;
  Store& store_;
  const Id context_, flow_;
  const std::string name_;
  FlowLook out_;
  Flow record_;
  FlowPlan plan_;
  RunState state_;
  std::vector<RunFact> facts_;
  std::uint64_t revision_ = 0;
  FlowPlaces places_;
  std::vector<FlowJobView> jobs_;
  std::set<std::string> heard_;  // jobs whose ends wait in the events
  bool all_events_ = true;
};

Result<FlowLook> Looking::run() {
  MJ_TRY(readable, read_journal());
  if (!readable) return std::move(out_);
  auto places = flows_.places(context_, flow_);
  if (!places && places.error().code == Code::invalid) {
    add("flow-journal", "cannot be looked at: " + places.error().message);
    return std::move(out_);
  }
  if (!places) return fail(std::move(places).error(), name_);
  places_ = *places;
  if (places_.state.empty()) {
    add("flow-mark", "has a journal, and no mark says where it is");
    return std::move(out_);
  }
  if (places_.state != "creating") {
    MJ_TRY(planned, read_plan());
    if (!planned) return std::move(out_);
    state_ = fresh(plan_);
    for (const RunFact& fact : facts_) fold(plan_, state_, fact);
    MJ_CHECK(check_checkpoint());
    if (!state_.anomalies.empty()) add("flow-fact", state_.anomalies.front() + more_of(state_.anomalies.size()));
    MJ_TRY(still, read_jobs());
    if (!still) {
      out_.moved = true;
      return std::move(out_);
    }
  }
  out_.known = true;
  out_.mend.expected_revision = revision_;
  check_index();
  if (places_.state == "creating") return std::move(out_);
  check_jobs();
  if (out_.mend.state == "active") check_due();
  MJ_CHECK(check_record());
  return std::move(out_);
}

Result<bool> Looking::read_journal() {
  std::uint64_t after = 0;
  std::vector<std::string> anomalies;
  while (true) {
    auto read = flows_.read(context_, flow_, after);
    if (!read && read.error().code == Code::invalid) {
      add("flow-journal", "cannot be read: " + read.error().message);
      return false;
    }
    if (!read) return fail(std::move(read).error(), name_);
    if (after == 0) record_ = decode<Flow>(read->record).record;
    revision_ = read->revision;
    for (RunFact& fact : read->facts) facts_.push_back(std::move(fact));
    for (std::string& each : read->anomalies) anomalies.push_back(std::move(each));
    if (!read->more || read->facts.empty()) break;
    after = facts_.back().revision;
  }
  if (!anomalies.empty()) add("flow-journal", ": " + anomalies.front() + more_of(anomalies.size()));
  return true;
}

Result<bool> Looking::read_plan() {
  const std::string hash = record_.definition_hash;
  auto text = flows_.definition(context_, hash);
  if (!text && text.error().code != Code::not_found && text.error().code != Code::invalid) {
    return fail(std::move(text).error(), name_);
  }
  auto plan = text ? plan_of_text(*text, hash) : Result<FlowPlan>(fail(text.error(), "definition"));
  if (!plan) {
    add("flow-definition", "cannot go on without its definition: " + plan.error().message);
    return false;
  }
  plan_ = std::move(*plan);
  if (plan_.nodes.size() != record_.jobs.size()) {
    add("flow-mark",
        "has " + std::to_string(plan_.nodes.size()) + " nodes and " + std::to_string(record_.jobs.size()) + " jobs");
    return false;
  }
  for (const Id id : record_.jobs) out_.jobs.push_back(job_key(record_.caller_id, id));
  return true;
}

// With it and the facts after it the run must be in the state that all facts give.
Result<void> Looking::check_checkpoint() {
  MJ_TRY(read, flows_.read(context_, flow_, std::nullopt));
  if (read.checkpoint.empty()) return {};
  auto restored = restore(plan_, read.checkpoint);
  if (restored && facts_.empty() && revision_ > 0) {
    state_ = std::move(*restored);  // the journal is gone, which was said
    return {};
  }
  bool same = restored.has_value() && restored->revision == read.checkpoint_at;
  if (same) {
    for (const RunFact& fact : facts_) {
      if (fact.revision > restored->revision) fold(plan_, *restored, fact);
    }
    same = describe(plan_, *restored) == describe(plan_, state_);
  }
  if (same || read.revision != revision_) return {};
  out_.mend.drop_checkpoint = true;
  add("flow-checkpoint", "has a checkpoint of revision " + std::to_string(read.checkpoint_at) +
                             (restored ? " that does not say what the facts say" : " that cannot be read"));
  return {};
}

Result<bool> Looking::read_jobs() {
  MJ_TRY(jobs, flows_.jobs(context_, out_.jobs));
  jobs_ = std::move(jobs);
  // The end of a job and its event are one step: read after the jobs, the events know all of these ends.
  MJ_TRY(read, flows_.read(context_, flow_, revision_));
  for (const FlowEventText& event : read.events) heard_.insert(event.key);
  all_events_ = read.events.size() < kEventsAtOnce;
  return read.revision == revision_;
}

void Looking::check_jobs() {
  for (std::uint32_t i = 0; i < jobs_.size(); ++i) check_job(i);
}

void Looking::check_job(std::uint32_t i) {
  const NodeState& node = state_.nodes[i];
  const FlowJobView& job = jobs_[i];
  const std::string where = node_name(i) + " is " + std::string(word(node.status)) + " and " + job.job_key + " is " +
                            (job.state.empty() ? "not claimed" : job.state);
  const bool bare_end = job.state.empty() && (job.status == "finished" || job.status == "error");
  const bool over = job.state == "ended" || bare_end, planned = job.state == "planned", absent = job.state == "absent";
  if (absent && plan_.nodes[i].each && node.runs == 0) return;  // written with its first dispatch
  if (is_terminal(node.status)) {
    const bool well = node.status == NodeStatus::completed && node.detail == "ok";
    if (planned || (absent && out_.mend.state != "ended")) return add("flow-job", "has a job astray: " + where);
    if (absent) return;
    if (!over) return add("flow-job-again", "goes its way: " + where);
    if (well != (job.status == "finished")) add("flow-job-again", "goes its way: " + where + " as " + job.status);
    return;
  }
  const bool under_way = node.status == NodeStatus::dispatched || node.status == NodeStatus::running;
  if (over) {
    if (!all_events_ || heard_.contains(job.job_key)) return;
    out_.again.push_back(job.job_key);
    return add("flow-unheard", "does not hear of an end: " + where + ", and no event tells of it");
  }
  const bool by_runner = plan_.nodes[i].kind == NodeKind::job && plan_.nodes[i].supervisor_url.empty();
  if (under_way && by_runner && planned) {
    out_.again.push_back(job.job_key);
    return add("flow-job", "has a job astray: " + where);
  }
  if (!under_way && !planned) add("flow-job", "has a job astray: " + where);
}

void Looking::check_index() {
  const bool creating = places_.state == "creating";
  const std::string should = creating                     ? "creating"
                             : revision_ == 0             ? "new"
                             : is_terminal(state_.status) ? "ended"
                                                          : "active";
  out_.mend.state = should;
  if (places_.revision != revision_) return;  // it has moved: the next look
  std::string wrong;
  const auto check = [&](bool good, const std::string& text) {
    if (!good) wrong += (wrong.empty() ? "" : "; ") + text;
  };
  check(places_.state == should, "its mark says " + places_.state);
  check(places_.active == (should == "active"), "it is in the index of active flows or not, the wrong way round");
  check(places_.ended == (should == "ended" || creating),
        "it is in the index of ended flows or not, the wrong way round");
  check(!places_.due_ms || should == "active", "it is due");
  check(places_.listed || creating, "the catalog lacks it");
  if (!wrong.empty()) add("flow-index", "is " + should + ", and " + wrong);
}

void Looking::check_due() {
  const bool now = places_.events > 0 || !heard_.empty() || more_to_do(plan_, state_) || !out_.again.empty();
  const std::uint64_t timer = next_timer_ms(state_);
  const std::uint64_t latest = now ? places_.now_ms : timer;
  if (latest == 0 || (places_.due_ms && *places_.due_ms <= latest)) return;
  out_.mend.due = true;
  add("flow-due",
      now ? "has something to do, and nobody will look at it" : "waits for a moment at which nobody will look");
}

Result<void> Looking::check_record() {
  if (revision_ > 0) {
    out_.mend.record = {
        {"status", std::string(word(state_.status))}, {"detail", state_.detail}, {"error", state_.error}};
  }
  auto record = store_.load(context_, name_);
  if (!record && record.error().code == Code::not_found) {
    add("flow-record", "has no record: another client deleted it");
    return {};
  }
  if (!record) return fail(std::move(record).error(), name_);
  const Flow there = decode<Flow>(*record).record;
  const bool same = there.id == flow_ && there.caller_id == record_.caller_id && there.jobs == record_.jobs &&
                    there.definition_hash == record_.definition_hash && there.parent == record_.parent;
  const bool says = revision_ == 0 || (there.status == state_.status && there.detail == state_.detail);
  if (same && says) return {};
  add("flow-record", same ? "has a record that says " + std::string(word(there.status)) + ' ' + there.detail +
                                "; its journal decides: " + std::string(word(state_.status)) + ' ' + state_.detail
                          : "has a record that another client has overwritten");
  return {};
}

}  // namespace

Result<FlowLook> look_at_run(FlowStore& flows, Store& store, Id context, Id flow) {
  return Looking(flows, store, context, flow).run();
}

}  // namespace mycojobs
