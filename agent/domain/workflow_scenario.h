// A test of workflows, written as scenarios: what comes in, and what is expected then. Played in memory, on the kernel
// that a coordinator has (workflow_decide.h) and the engine that is given. Time moves only where a scenario says so.
// Pure; any thread. docs/workflows/testing.md is the page for people.
//
//   {manifest, start?, answers?, scenarios: [{name, answers?, steps: [step]}]}
//   step    one input or none, `expect` or nothing, `note` for readers
//     {send: {event: value}}
//     {receipt: effect, ok: payload | error: text or {detail, message?} | timeout: ... | cancelled: ...,
//      of?: "order 7", ref?, misfit?: true}
//     {wait: "15m" | "timer"}
//     {apply: name of a file}
//   expect  {effects: [{effect: params, ref?, from?}], events: [{event: value, from?}], state: {"order 7": value|null},
//            status: {"order 7": word}, failed: {"order 7": text}, pending: [effect], refused: text}
//   answers {effect: {ok: payload | ...}}: given at once, whenever the effect is asked for
//   values  "$any" is any value; a map with "$more": true may have other fields, too
//
// play() works off each input until nothing can take a step: receipts of `answers`, timers that are due and approvals
// whose time is over come by themselves. Effects and events of a step that expects something are compared whole; an
// instance that fails and is not expected to is a mismatch in any case. At the end the journal is replayed.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/flow_plan.h"
#include "domain/workflow_decide.h"

namespace mycojobs {

// Values are texts of JSON.
struct ScenarioReceipt {
  ReceiptStatus status = ReceiptStatus::ok;
  std::string payload;
};
using ScenarioAnswers = std::map<std::string, ScenarioReceipt>;  // by effect, as it stands there

struct ExpectedEffect {
  std::string name, value;               // of an effect and its parameters, or of an event
  std::optional<std::string> ref, from;  // from: an instance, "order 7"
};
struct ScenarioExpectation {
  std::vector<ExpectedEffect> effects, events;
  std::map<std::string, std::string> state, status, failed;  // by instance
  std::optional<std::vector<std::string>> pending;
  std::string refused;  // a part of the message; empty: it is not
};
enum class ScenarioInput { none, send, receipt, wait, apply };
struct ScenarioStep {
  ScenarioInput input = ScenarioInput::none;
  std::string path;         // "scenarios[0].steps[2]"
  std::string name, value;  // of the event, effect or manifest's file
  ScenarioReceipt receipt;
  std::string of, ref;                   // whose effect; empty: any
  bool misfit = false;                   // the payload does not fit its schema, and is meant not to
  std::optional<std::uint64_t> wait_ms;  // nothing: until the next timer
  std::optional<ScenarioExpectation> expect;
};
struct Scenario {
  std::string name, path;
  ScenarioAnswers answers;  // those of the file, too
  std::vector<ScenarioStep> steps;
};
struct ScenarioFile {
  std::string manifest;                    // a file, beside it
  std::uint64_t start_ms = 1767225600000;  // 2026-01-01T00:00:00Z
  std::vector<Scenario> scenarios;
};
struct ScenarioRead {
  std::optional<ScenarioFile> file;  // nothing: there are problems
  std::vector<PlanProblem> problems;
};
ScenarioRead read_scenarios(const nlohmann::json&);
// Files of manifests that `apply` names.
std::vector<std::string> manifests_of(const ScenarioFile&);

// What is not as it was expected. Where values differ, both as JSON with a line for each part.
struct Mismatch {
  std::string path, what;  // what: "the state of order 7 differs", a sentence
  std::string expected, got;
};
struct Played {
  std::vector<Mismatch> mismatches;  // the scenario ends at the first step that has one
  std::uint64_t steps = 0;           // of code; in the replay they are taken once more
  WorldState world;
  std::vector<WorkflowFact> history;
};
struct ScenarioWorld {
  const ManifestCatalog& catalog;
  std::string manifest;                      // hash
  std::map<std::string, std::string> files;  // of `apply` -> hash
};
Played play(const ScenarioFile&, const Scenario&, const ScenarioWorld&, const WorkflowEngine&);

// Nothing: the value is as expected ("$any", "$more"). Else the path of the first place that is not.
std::optional<std::string> differs(const nlohmann::json& expected, const nlohmann::json& got);
// The expected value without "$any" and "$more", where `got` has something that they allow: to show both side by side.
nlohmann::json filled(nlohmann::json expected, const nlohmann::json& got);

}  // namespace mycojobs
