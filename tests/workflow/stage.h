// A world with its manifests and an engine of C++ functions, as tests drive it. Accepted inputs are committed and
// appended to the journal.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "workflows/workflow_decider.h"

namespace mycojobs::workflow_tests {

using nlohmann::json;

std::string cbor(const json&);
json uncbor(std::string_view);

// The output of a step: {"state": ..., "events": [{"schema", "value"}], "effects": [{"kind", "params", "ref"?}],
// "ann"?}, or {"error": {"kind", "message", "line"?}}.
using StepFunction = std::function<json(const json& state, const json& event, const json& ctx)>;
StepAnswer parse_step_answer(const json& output);
// Selects the function by the name of the entrypoint.
StepEngine make_engine(std::map<std::string, StepFunction>);

// A manifest with orders (keyed by order_id, one effect payment/charge@1) whose events go to a ledger without keys.
// with_rejected: orders accept sys/EffectReceiptRejected@1.
json orders_manifest(bool with_rejected = true);
// order: OrderCreated charges; a receipt leads to paid or failed and notifies the ledger; OrderClosed deletes the
// order.
std::map<std::string, StepFunction> orders_engine();

inline const InstanceId kLedger{"com.acme/ledger@1", ""};
InstanceId order(const std::string& id);

EventArrived make_event(const std::string& schema, const json& value);

class Stage {
 public:
  explicit Stage(std::map<std::string, StepFunction> functions = orders_engine());

  std::string add(const json& manifest, const std::string& code = "return {}");  // returns the hash
  void apply(const std::string& hash);
  Result<WorkflowDecision> decide_input(decltype(WorkflowInput::content) input) const;
  // Decides on the input and commits the decision. Records a test failure if the input is refused.
  WorkflowDecision commit_input(decltype(WorkflowInput::content) input);
  std::string get_rejection(
      decltype(WorkflowInput::content) input) const;  // returns the error, or "" if the input is accepted
  WorkflowDecision send(const std::string& schema, const json& value) {
    return commit_input(make_event(schema, value));
  }
  WorkflowDecision step(const InstanceId&);
  void settle();  // takes steps until none is possible
  WorkflowDecision receipt(const std::string& intent, const json& payload, ReceiptStatus = ReceiptStatus::ok);
  json state(const InstanceId&) const;
  std::vector<std::string> kinds(const WorkflowDecision&) const;
  const InstanceState& cell(const InstanceId& id) const { return deployment.instances.at(id); }

  ManifestCatalog catalog;
  DeploymentState deployment;
  StepEngine engine;
  WorkflowRules rules;
  std::vector<WorkflowFact> journal;
  std::uint64_t now_ms = 1'000'000;
};

}  // namespace mycojobs::workflow_tests
