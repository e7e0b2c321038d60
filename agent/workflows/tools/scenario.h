// Tests of workflows, written as scenarios of inputs and expected results. A scenario is played in memory, with the
// decisions that a coordinator uses (workflows/workflow_decider.h) and the given engine. Time advances only where a
// scenario says so. Pure and thread-safe. docs/workflows/testing.md documents the format for users.
//
//   {manifest, start?, answers?, scenarios: [{name, answers?, steps: [step]}]}
//   step    at most one input, an optional `expect`, an optional `note` for readers
//     {send: {event: value}}
//     {receipt: effect, ok: payload | error: text or {detail, message?} | timeout: ... | cancelled: ...,
//      of?: "order 7", ref?, misfit?: true}
//     {wait: "15m" | "timer"}
//     {apply: name of a file}
//   expect  {effects: [{effect: params, ref?, from?}], events: [{event: value, from?}], state: {"order 7": value|null},
//            status: {"order 7": word}, failed: {"order 7": text}, pending: [effect], refused: text}
//   answers {effect: {ok: payload | ...}}: receipts that are given at once, whenever the effect is requested
//   values  "$any" is any value; a map with "$more": true may have other fields, too
//
// run_scenario() processes each input until no instance can take a step. Receipts of `answers`, expired timers and
// approvals whose time limit has passed are delivered automatically. If a step has `expect`, all its effects and events
// are compared. An instance that fails unexpectedly is always a mismatch. At the end the journal is replayed.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flows/flow_plan.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {

// A receipt. Values are JSON texts.
struct ScenarioReceipt {
  ReceiptStatus status = ReceiptStatus::ok;
  std::string payload;
};
using ScenarioAnswers = std::map<std::string, ScenarioReceipt>;  // by effect, as written in the file

struct ExpectedEffect {
  std::string name, value;               // an effect and its parameters, or an event and its value
  std::optional<std::string> ref, from;  // from: an instance, "order 7"
};
struct ScenarioExpectation {
  std::vector<ExpectedEffect> effects, events;
  std::map<std::string, std::string> state, status, failed;  // by instance
  std::optional<std::vector<std::string>> pending;
  std::string refused;  // a part of the message; empty: the input must not be refused
};
enum class ScenarioInput { none, send, receipt, wait, apply };
struct ScenarioStep {
  ScenarioInput input = ScenarioInput::none;
  std::string path;         // "scenarios[0].steps[2]"
  std::string name, value;  // an event and its value, an effect, or a manifest's file
  ScenarioReceipt receipt;
  std::string of, ref;                   // selects the effect; empty: any
  bool misfit = false;                   // the payload intentionally does not fit its schema
  std::optional<std::uint64_t> wait_ms;  // no value: until the next timer
  std::optional<ScenarioExpectation> expect;
};
struct Scenario {
  std::string name, path;
  ScenarioAnswers answers;  // includes those of the file
  std::vector<ScenarioStep> steps;
};
struct ScenarioFile {
  std::string manifest;                    // path relative to the scenario file
  std::uint64_t start_ms = 1767225600000;  // 2026-01-01T00:00:00Z
  std::vector<Scenario> scenarios;
};
struct ParsedScenarios {
  std::optional<ScenarioFile> file;  // no value: there are problems
  std::vector<PlanProblem> problems;
};
ParsedScenarios read_scenarios(const nlohmann::json&);
// Returns the manifest files that `apply` steps name.
std::vector<std::string> manifests_of(const ScenarioFile&);

// A difference from the expected result. Values are formatted as JSON on several lines.
struct Mismatch {
  std::string path, what;  // the text of `what` is a sentence such as "the state of order 7 differs"
  std::string expected, got;
};
struct ScenarioResult {
  std::vector<Mismatch> mismatches;  // a scenario ends at the first step with a mismatch
  std::uint64_t steps = 0;           // steps of code, without the replay
  DeploymentState deployment;
  std::vector<WorkflowFact> history;
};
struct ScenarioDeployment {
  const ManifestCatalog& catalog;
  std::string manifest;                      // hash
  std::map<std::string, std::string> files;  // file name of `apply` -> hash
};
ScenarioResult run_scenario(const ScenarioFile&, const Scenario&, const ScenarioDeployment&, const StepEngine&);

// Returns no value if `got` matches (considering "$any" and "$more"), otherwise the path of the first difference.
std::optional<std::string> differs(const nlohmann::json& expected, const nlohmann::json& got);
// Replaces "$any" and "$more" in the expected value by the values of `got` that they match, for a side-by-side display.
nlohmann::json fill_defaults(nlohmann::json expected, const nlohmann::json& got);

}  // namespace mycojobs
