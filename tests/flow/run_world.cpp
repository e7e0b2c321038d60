#include "flow/run_world.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "flows/flow_yaml.h"
#include "jobs/state_machines.h"

namespace mycojobs {

FlowPlan plan_of_yaml(const std::string& text) {
  YamlText places;
  const auto json = flow_yaml_to_json(text, places);
  if (!json) throw std::runtime_error(json.error().message);
  ParsedPlan read = read_plan(*json);
  if (!read.plan) throw std::runtime_error(join(read.problems));
  return std::move(*read.plan);
}

RunWorld::RunWorld(FlowPlan of) : plan(std::move(of)), run(initial_state(plan)), jobs(plan.nodes.size()) {}

Result<void> RunWorld::apply(const decltype(FlowEvent::body)& event, bool continues) {
  auto decided = decide(plan, run, {now, event}, limits);
  if (!decided) return tl::unexpected<Error>(decided.error());
  check(run, *decided);
  run = std::move(decided->state);
  std::vector<std::uint32_t> to_start;
  for (const RunFact& fact : decided->facts) journal.push_back(fact);
  for (const Effect& each : decided->effects) {
    effect(each);
    if (each.kind == Effect::Kind::start_child) to_start.push_back(each.node);
  }
  if (start_children) {
    for (const std::uint32_t node : to_start) {
      const Id child = next_child++;
      children[child] = {node, false, false};
      (void)apply(ChildStarted{node, child}, false);
    }
  }
  // Each step settles, starts or resets a node, so an endless loop is a bug of decide().
  for (std::size_t turns = 0; continues && violations.empty() && has_immediate_action(plan, run); ++turns) {
    if (turns > 10 * plan.nodes.size() + 100) {
      violations.push_back("the run never becomes idle");
      break;
    }
    (void)apply(TimePassed{}, false);
  }
  return {};
}

void RunWorld::effect(const Effect& effect) {
  JobRecord& job = jobs[effect.node];
  const std::string& name = plan.nodes[effect.node].name;
  const auto must = [&](bool so, const std::string& what) {
    if (!so) violations.push_back(name + ": " + what);
  };
  switch (effect.kind) {
    case Effect::Kind::dispatch:
      must(job.phase == JobPhase::planned, "dispatched, and is not planned");
      job.phase = JobPhase::queued;
      ++job.queued;
      break;
    case Effect::Kind::requeue:
      must(job.phase == JobPhase::ended && job.status == "error", "queued again, and has not failed");
      job = {JobPhase::queued, false, false, "", "", "", {}, job.queued + 1};
      break;
    case Effect::Kind::finish:
      must(job.phase == JobPhase::planned, "ended by the flow, and is not planned");
      job.phase = JobPhase::ended;
      job.by_flow = true;
      job.status = "finished";
      break;
    case Effect::Kind::fail:
      must(job.phase != JobPhase::queued, "ended by the flow while it is queued");
      if (job.phase == JobPhase::ended) break;
      job.phase = JobPhase::ended;
      job.by_flow = true;
      job.status = "error";
      job.detail = effect.detail;
      break;
    case Effect::Kind::replan:
      must(job.phase == JobPhase::ended && job.by_flow && job.status == "error", "planned again, and was not ended so");
      job = {JobPhase::planned, false, false, "", "", "", {}, job.queued};
      break;
    case Effect::Kind::cancel_job:
      must(plan.nodes[effect.node].kind == NodeKind::job, "cancelled as a job");
      job.cancel_asked = true;
      break;
    case Effect::Kind::cancel_child:
      must(children.contains(effect.flow), "cancels a child that is none");
      children[effect.flow].cancel_asked = true;
      break;
    case Effect::Kind::await_flow:
      awaited.emplace(effect.flow, effect.node);
      break;
    case Effect::Kind::start_child:
      must(plan.nodes[effect.node].kind == NodeKind::flow, "starts a child");
      break;
  }
}

void RunWorld::check(const RunState& before, const Decision& decided) {
  std::uint64_t revision = before.revision;
  for (const RunFact& fact : decided.facts) {
    if (fact.revision != ++revision)
      violations.push_back("revision " + std::to_string(fact.revision) + " is not the next");
  }
  for (std::size_t i = before.anomalies.size(); i < decided.state.anomalies.size(); ++i) {
    violations.push_back("decide() made a fact that does not fit: " + decided.state.anomalies[i]);
  }
  // Checks every decision of a small run but only a sample of a long run, since each check scans the whole flow.
  if (++decisions > 20 && decisions % 7 != 0) return;
  RunState folded = before;
  for (const RunFact& fact : decided.facts) fold(plan, folded, fact);
  const std::string is = describe(plan, decided.state);
  if (describe(plan, folded) != is)
    violations.push_back("the facts say another state:\n" + describe(plan, folded) + is);
  const auto again = restore(plan, checkpoint(plan, decided.state));
  if (!again) {
    violations.push_back("its checkpoint cannot be read");
  } else if (describe(plan, *again) != is) {
    violations.push_back("its checkpoint says another state:\n" + describe(plan, *again) + is);
  }
}

void RunWorld::observe_job(std::uint32_t node) {
  const JobRecord& job = jobs[node];
  JobObserved seen;
  seen.node = node;
  seen.ended = job.phase == JobPhase::ended;
  if (seen.ended) {
    seen.status = job.status;
    seen.detail = job.detail;
    seen.error = job.error;
    seen.values = job.values;
  }
  (void)apply(seen);
}

void RunWorld::end_job(const std::string& name, const std::string& status, const TextMap& values) {
  JobRecord& job = jobs[index(name)];
  if (job.phase != JobPhase::queued) throw std::runtime_error(name + " is not queued");
  job.phase = JobPhase::ended;
  job.status = status;
  job.detail = status == "finished" ? "ok" : job.cancel_asked ? "cancelled" : "exit";
  job.values = values;
  observe_job(index(name));
}

Result<void> RunWorld::control(FlowControl::Verb verb, const std::string& target, const std::string& key, Id actor) {
  FlowControl control;
  control.verb = verb;
  control.target = target;
  control.key = key;
  control.actor = actor;
  return apply(control);
}

void RunWorld::advance_clock(std::uint64_t ms) {
  now += ms;
  (void)apply(TimePassed{});
}

void RunWorld::crash() {
  RunState again = initial_state(plan);
  for (const RunFact& fact : journal) fold(plan, again, fact);
  if (describe(plan, again) != describe(plan, run)) violations.push_back("the journal says another state");
  run = std::move(again);
}

void RunWorld::crash_to_checkpoint(const std::string& text) {
  auto again = restore(plan, text);
  if (!again) {
    violations.push_back("an old checkpoint cannot be read");
    return;
  }
  for (const RunFact& fact : journal) {
    if (fact.revision > again->revision) fold(plan, *again, fact);
  }
  if (describe(plan, *again) != describe(plan, run)) violations.push_back("checkpoint and journal say another state");
  run = std::move(*again);
}

std::string RunWorld::describe_node(const std::string& name) const {
  return std::string(to_string(node(name).status)) + ' ' + node(name).detail;
}
std::string RunWorld::describe_flow() const { return std::string(to_string(run.status)) + ' ' + run.detail; }

int RunWorld::count(const std::string& kind, const std::string& node) const {
  int found = 0;
  for (const RunFact& fact : journal) {
    found += fact.kind == kind && (node.empty() || fact.node == index(node)) ? 1 : 0;
  }
  return found;
}

std::vector<std::string> RunWorld::get_order(const std::string& kind) const {
  std::vector<std::string> names;
  for (const RunFact& fact : journal) {
    if (fact.kind == kind && fact.node) names.push_back(plan.nodes[*fact.node].name);
  }
  return names;
}

}  // namespace mycojobs
