// Tests of workflows, written as scenarios of inputs and expected results. A scenario runs in memory, with the same
// decisions as in a coordinator (workflows/workflow_decider.h). Time advances only by `wait` steps. No side effects;
// thread-safe. docs/workflows/testing.md documents the format for users.
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
//   answers {effect: {ok: payload | ...}}: receipts that are delivered at once, whenever the effect is requested
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

#include "text/document_reader.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {

// A receipt. Values are JSON texts.
struct ScenarioReceipt {
  ReceiptStatus status = ReceiptStatus::ok;
  std::string payload;
};
using ScenarioAnswers = std::map<std::string, ScenarioReceipt>;  // by effect, as written in the file

struct ExpectedEffect {
  std::string name, value;             // an effect and its parameters, or an event and its value
  std::optional<std::string> ref;      // issuer_ref of the effect
  std::optional<std::string> emitter;  // instance that emits the effect or event: "order 7"
};
struct ScenarioExpectation {
  std::vector<ExpectedEffect> effects, events;
  std::map<std::string, std::string> states, statuses, failures;  // by instance
  std::optional<std::vector<std::string>> pending_effects;        // names of the effects without a receipt
  std::string refusal_text;  // part of the error message; if empty, the input must be accepted
};
enum class ScenarioInput { none, send, receipt, wait, apply };
struct ScenarioStep {
  ScenarioInput input = ScenarioInput::none;
  std::string path;         // "scenarios[0].steps[2]"
  std::string name, value;  // an event and its value, an effect, or a manifest's file
  ScenarioReceipt receipt;
  std::string emitter, ref;              // instance and issuer_ref that select the effect; if empty, any
  bool has_invalid_payload = false;      // the payload must not match the receipt schema
  std::optional<std::uint64_t> wait_ms;  // if there is no value, until the next timer
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
  std::optional<ScenarioFile> file;  // no value if there are problems
  std::vector<DocumentProblem> problems;
};
ParsedScenarios read_scenarios(const nlohmann::json&);
// Returns the names of the manifest files in `apply` steps.
std::vector<std::string> list_applied_manifests(const ScenarioFile&);

// A difference between the expected and the actual result. The values are formatted as JSON on several lines.
struct Mismatch {
  std::string path;
  std::string message;  // "the state of order 7 differs"
  std::string expected, actual;
};
struct ScenarioResult {
  std::vector<Mismatch> mismatches;  // a scenario ends at the first step with a mismatch
  std::uint64_t steps = 0;           // steps of code, without the replay
  DeploymentState deployment;
  std::vector<WorkflowFact> facts;  // journal of the scenario
};
// The manifests that a scenario uses.
struct ScenarioManifests {
  const ManifestCatalog& catalog;
  std::string manifest;                      // hash
  std::map<std::string, std::string> files;  // file name of `apply` -> hash
};
ScenarioResult run_scenario(const ScenarioFile&, const Scenario&, const ScenarioManifests&, const StepEngine&);

// Returns no value if the actual value matches, considering "$any" and "$more"; otherwise the path of the first
// difference.
std::optional<std::string> find_difference(const nlohmann::json& expected, const nlohmann::json& actual);
// Replaces "$any" and "$more" in the expected value by the values that they match, for a display side by side.
nlohmann::json fill_wildcards(nlohmann::json expected, const nlohmann::json& actual);

}  // namespace mycojobs
