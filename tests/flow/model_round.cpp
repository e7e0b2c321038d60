#include "flow/model_round.h"

#include <sstream>

#include "jobs/state_machines.h"

namespace mycojobs {

using Verb = FlowControl::Verb;
using JobPhase = RunWorld::JobPhase;

void Round::say(const std::string& what) {
  if (!wrong_.empty()) return;
  std::ostringstream out;
  out << what << "\nplan:\n" << drawn() << "journal:\n";
  for (const RunFact& fact : deployment_.journal) {
    out << fact.revision << ' ' << fact.kind << ' ' << (fact.node ? plan_.nodes[*fact.node].name : "") << ' '
        << fact.data_json << '\n';
  }
  wrong_ = out.str();
}

std::string Round::drawn() const {
  std::ostringstream out;
  out << "max_parallel " << plan_.max_parallel << " timeout " << plan_.timeout_ms << '\n';
  for (const PlanNode& node : plan_.nodes) {
    out << node.name << ' ' << to_string(node.kind) << " needs";
    for (const std::uint32_t need : node.needs) out << ' ' << plan_.nodes[need].name;
    out << " on_error " << static_cast<int>(node.on_error);
    if (node.error_node) out << ' ' << plan_.nodes[*node.error_node].name;
    if (node.compensation) out << " compensate " << plan_.nodes[*node.compensation].name;
    for (const auto& when : node.when) out << " when " << describe(when, plan_.nodes[when.node].name);
    for (const auto& gate : node.gates) out << ' ' << gate;
    if (node.kind == NodeKind::each)
      out << " places " << node.max_elements << (node.element_source ? " of a result" : "");
    out << '\n';
  }
  return out.str();
}

void Round::compare(const std::string& after) {
  if (!compared_ || !wrong_.empty()) return;
  std::string differs;
  if (deployment_.describe_flow() != model_.describe_flow())
    differs = "flow: " + deployment_.describe_flow() + ", the model says " + model_.describe_flow() + '\n';
  for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
    const std::string is = deployment_.describe_node(plan_.nodes[i].name);
    if (is != model_.describe_node(i))
      differs += plan_.nodes[i].name + ": " + is + ", the model says " + model_.describe_node(i) + '\n';
    if (static_cast<int>(deployment_.run.nodes[i].runs) != model_.node(i).runs)
      differs += plan_.nodes[i].name + ": runs\n";
  }
  if (deployment_.run.signals != model_.signals()) differs += "signals, or what they carry\n";
  if (!differs.empty()) say("after " + after + ": " + differs);
}

void Round::start() {
  (void)deployment_.apply(StartRun{"manual", 0}, go_on());
  if (compared_) model_.start(deployment_.now);
  compare("start");
}

void Round::job_seen(const JobObserved& seen) {
  (void)deployment_.apply(seen, go_on());
  if (compared_ && seen.ended) model_.job(deployment_.now, seen.node, seen.status, seen.detail, seen.values);
  if (compared_ && !seen.ended) model_.time(deployment_.now);
  compare("job " + (seen.node < plan_.nodes.size() ? plan_.nodes[seen.node].name : "?"));
}

void Round::see(std::uint32_t i) {
  const auto& job = deployment_.jobs[i];
  JobObserved seen{i, job.phase == JobPhase::ended, job.status, job.detail, job.error, job.values, 0};
  job_seen(seen);
}

void Round::end_job(std::uint32_t i, bool well) {
  auto& job = deployment_.jobs[i];
  if (job.phase != JobPhase::queued) return;
  job.phase = JobPhase::ended;
  job.status = well ? "finished" : "error";
  job.detail = well ? "ok" : job.cancel_asked ? "cancelled" : "exit";
  if (well && !random_.one_in(4)) job.values["k"] = std::to_string(random_.below(3));
  static const std::vector<std::string> kLists{"[1,2]", "[]", "[1]", R"({"a":1,"b":2})", "nonsense", "[1,2,3,4,5]"};
  if (well && !random_.one_in(6)) job.values["list"] = random_.of(kLists);
  see(i);
}

void Round::start_child(std::uint32_t i) {
  // Starting a child is idempotent by parent and key, as in the store: the same node and run have the same child.
  const Id child = 1000 + i * 10 + deployment_.run.nodes[i].runs;
  deployment_.children.emplace(child, RunWorld::Child{i, false, false});
  (void)deployment_.apply(ChildStarted{i, child}, go_on());
  if (compared_) model_.child_started(deployment_.now, i, child);
  compare("child of " + plan_.nodes[i].name);
}

void Round::end_flow(Id flow, bool well) {
  (void)deployment_.apply(FlowObserved{flow, well ? FlowStatus::finished : FlowStatus::error, "", {}}, go_on());
  if (compared_) model_.flow_ended(deployment_.now, flow, well);
  compare("flow " + std::to_string(flow));
}

void Round::pass(std::uint64_t ms) {
  deployment_.now += ms;
  (void)deployment_.apply(TimePassed{}, go_on());
  if (compared_) model_.time(deployment_.now);
  compare("time");
}

void Round::control(Verb verb, const std::string& target, Id actor) {
  FlowControl control;
  control.verb = verb;
  control.target = target;
  control.actor = actor;
  if (verb == Verb::signal && random_.one_in(2)) control.payload = std::to_string(random_.below(3));
  if (random_.one_in(4)) control.key = "key" + std::to_string(++keys_);
  const auto done = deployment_.apply(control, go_on());
  const bool taken = !compared_ || model_.control(deployment_.now, control) == done.has_value();
  const std::string what = std::string(to_string(verb)) + ' ' + target;
  if (!taken) say(what + ": " + (done ? "taken" : done.error().message) + ", the model disagrees");
  compare(what);
  if (done && !control.key.empty()) repeat(control);
}

void Round::repeat(FlowControl control) {
  const std::size_t before = deployment_.journal.size();
  if (!deployment_.apply(control, false)) say("the same control with its key is refused");
  const bool moved = deployment_.journal.size() != before;
  if (compared_ && moved) say("the same control with its key changes something");
  control.comment = "another";
  const auto other = deployment_.apply(control, false);
  if (other || other.error().code != Code::conflict) say("another control with the same key is taken");
}

void Round::answer_any() {
  static const std::vector<std::string> kNames{"legal", "money", "go", "more", "nobody"};
  static const std::vector<Verb> kVerbs{Verb::approve, Verb::approve, Verb::reject, Verb::signal, Verb::resume};
  std::string target = random_.of(kNames);
  if (random_.one_in(2)) target = random_.of(plan_.nodes).name;
  if (!deployment_.run.waiting.empty() && !random_.one_in(4))
    target = plan_.nodes[*deployment_.run.waiting.begin()].name;
  control(random_.of(kVerbs), target, random_.one_in(4) ? 99 : 7);
}

void Round::crash() {
  if (random_.one_in(2) && !checkpoint_.empty()) {
    deployment_.crash_to_checkpoint(checkpoint_);
  } else {
    deployment_.crash();
  }
  // Recovery repeats the effects outside of the commits, and reads every job that should be active.
  for (const Effect& effect : pending_child_actions(plan_, deployment_.run)) {
    if (effect.kind == Effect::Kind::start_child) start_child(effect.node);
    if (effect.kind == Effect::Kind::cancel_child) deployment_.children[effect.flow].cancel_asked = true;
  }
  if (random_.one_in(2)) {
    for (const std::uint32_t i : in_flight(NodeKind::job)) see(i);
  }
}

void Round::any_event() {
  const std::uint32_t n = static_cast<std::uint32_t>(plan_.nodes.size());
  switch (random_.below(22)) {
    case 0:
    case 1:
      return pass(random_.below(100));
    case 2:
      if (const auto next = next_timer_ms(deployment_.run)) pass(next > deployment_.now ? next - deployment_.now : 0);
      return;
    case 3:
    case 4:
    case 5:
      return answer_any();
    case 6:
      return crash();
    case 7:
      checkpoint_ = checkpoint(plan_, deployment_.run);
      return;
    case 8:
      return see(random_.below(n));  // early, late or repeated
    case 9:
      return job_seen({n + random_.below(5), true, "finished", "ok", "", {}, 0});  // a foreign job
    case 10:
      return end_flow(random_.one_in(2) ? 9001 : 9002, !random_.one_in(4));
    case 11:
      if (random_.one_in(3)) control(Verb::pause, "");
      return;
    case 12:
      return control(Verb::resume, "");
    case 13:
      if (random_.one_in(8)) control(Verb::cancel, "");
      return;
    case 14:
      return control(Verb::retry, random_.one_in(2) ? "" : random_.of(plan_.nodes).name);
    case 15:
      return start();  // repeated
    case 16:
    case 17:
      if (const auto flows = in_flight(NodeKind::flow); !flows.empty()) {
        const std::uint32_t i = random_.of(flows);
        const Id child = deployment_.run.nodes[i].child;
        if (child == 0 || random_.one_in(6)) return start_child(i);
        end_flow(child, !random_.one_in(5));
      }
      return;
    default:
      if (const auto jobs = in_flight(NodeKind::job); !jobs.empty()) end_job(random_.of(jobs), !random_.one_in(7));
  }
}

// After the end of the run no event changes anything.
void Round::late_events() {
  const std::size_t before = deployment_.journal.size();
  for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) see(i);
  end_flow(9001, true);
  pass(100000);
  start();
  for (const Verb verb : {Verb::pause, Verb::resume, Verb::cancel}) {
    FlowControl control;
    control.verb = verb;
    const auto done = deployment_.apply(control);
    if (done || done.error().code != Code::conflict) say("a control comes after the end");
  }
  if (deployment_.journal.size() != before) say("something changes after the end");
}

// Ends all active work and answers all pending questions; then the run must end.
void Round::calm_down() {
  for (int turn = 0; turn < 2000 && !over(); ++turn) {
    if (!compared_) (void)deployment_.apply(TimePassed{}, true);
    if (deployment_.run.paused) control(Verb::resume, "");
    if (over()) return;
    const RunState now = deployment_.run;
    for (const std::uint32_t i : now.in_flight) {
      if (over() || deployment_.run.nodes[i].status != NodeStatus::dispatched) continue;
      const PlanNode& node = plan_.nodes[i];
      if (node.kind == NodeKind::job) end_job(i, !deployment_.jobs[i].cancel_asked && !random_.one_in(10));
      if (node.kind == NodeKind::flow && now.nodes[i].child == 0) start_child(i);
      if (node.kind == NodeKind::flow && now.nodes[i].child != 0) end_flow(now.nodes[i].child, !random_.one_in(10));
      if (node.kind == NodeKind::wait) pass(200);
      if (node.kind == NodeKind::pause || node.kind == NodeKind::approval) {
        control(random_.one_in(10) ? Verb::reject : Verb::approve, node.name);
      }
    }
    for (const std::uint32_t i : now.gated) {
      for (const std::string& gate : now.nodes[i].gates) {
        if (over()) return;
        const std::string name = gate.substr(gate.find(':') + 1);
        if (gate.substr(0, 4) == "flow") end_flow(static_cast<Id>(std::stoul(name)), true);
        if (gate.substr(0, 8) == "approval") control(Verb::approve, name);
        if (gate.substr(0, 6) == "signal") control(Verb::signal, name);
      }
    }
    if (compared_) pass(1);
  }
  if (!is_terminal_now())
    say("the run does not end: " + deployment_.describe_flow() + '\n' + describe(plan_, deployment_.run));
}

void Round::checks_at_end() {
  if (!wrong_.empty()) return;
  for (const std::string& each : check_journal(plan_, deployment_.journal)) say(each);
  for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
    const auto& job = deployment_.jobs[i];
    if (deployment_.run.nodes[i].detail == "absent") continue;  // not a node of this run
    if (job.phase != JobPhase::ended) say("the job of " + plan_.nodes[i].name + " has not ended, but the flow has");
    const bool good =
        deployment_.run.nodes[i].status == NodeStatus::completed && deployment_.run.nodes[i].detail == "ok";
    if (good != (job.status == "finished")) say("the job of " + plan_.nodes[i].name + " has another end than its node");
  }
}

}  // namespace mycojobs
