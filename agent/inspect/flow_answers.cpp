// What people have said in a flow, for its view: controls of its journal.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "inspect/flow_reading.h"
#include "inspect/flow_words.h"

namespace mycojobs {
namespace {

constexpr std::size_t kFacts = 20000;  // a longer journal is not looked through to its end

// A control fact, as an answer and what it was about; nothing: it is no control that can be read.
struct Said {
  FlowAnswer answer;
  std::string verb, target;
};
std::optional<Said> said_by(const RunFact& fact) {
  if (fact.kind != "control" || fact.node) return std::nullopt;
  const auto more = parse_json(fact.more.empty() ? "{}" : fact.more);
  if (!more || !more->is_object()) return std::nullopt;
  const auto text = [&](const char* name) {
    const auto found = more->find(name);
    return found != more->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Said said{{"", 0, text("comment"), fact.at_ms}, text("verb"), text("target")};
  said.answer.what = done_word(said.verb);
  const auto actor = more->find("actor");
  if (actor != more->end() && actor->is_number_unsigned() && actor->get<std::uint64_t>() <= UINT32_MAX)
    said.answer.actor = actor->get<Id>();
  return said;
}

bool asks_people(const FlowPlan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlanNode& node) {
    return node.kind == NodeKind::approval || node.kind == NodeKind::pause || !node.gates.empty();
  });
}

// By name: a view leaves out what the run has not got yet.
using Planned = std::map<std::string_view, const PlanNode*>;
Planned by_name(const FlowPlan& plan) {
  Planned all;
  for (const PlanNode& node : plan.nodes) all.emplace(node.name, &node);
  return all;
}

void take_answer(const Planned& plan, const Said& said, FlowView& view) {
  if (said.target.empty()) {
    const std::string& wish = view.detail == "cancelled" ? "cancelling" : view.detail;
    const bool holds = (wish == "paused" && said.verb == "pause") || (wish == "cancelling" && said.verb == "cancel");
    if (holds) view.said = said.answer;
    return;
  }
  const std::string gate = (said.verb == "signal" ? "signal:" : "approval:") + said.target;
  for (NodeView& node : view.nodes) {
    const auto planned = plan.find(node.name);
    if (planned == plan.end()) continue;
    const auto& gates = planned->second->gates;
    const bool named = said.verb != "signal" && node.name == said.target;
    if (named || std::find(gates.begin(), gates.end(), gate) != gates.end()) node.answers.push_back(said.answer);
  }
}

}  // namespace

std::string describe(const FlowAnswer& answer) {
  return fmt::format("{} by {}{}{}", answer.what, answer.actor, answer.comment.empty() ? "" : ": ", answer.comment);
}

// Only where somebody may have said something: a journal can be long.
Result<void> take_answers(FlowStore& flows, Id context, const FlowPlan& plan, FlowView& view) {
  const bool held = view.detail == "paused" || view.detail == "cancelling" || view.detail == "cancelled";
  if (!held && !asks_people(plan)) return {};
  std::vector<std::string> told_already;
  MJ_TRY(facts, read_facts(flows, context, view.record.id, kFacts, told_already));
  const Planned planned = by_name(plan);
  for (const RunFact& fact : facts) {
    if (const auto said = said_by(fact)) take_answer(planned, *said, view);
  }
  return {};
}

}  // namespace mycojobs
