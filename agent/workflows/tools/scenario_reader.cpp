#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/sha256.h"
#include "text/json.h"
#include "text/units.h"
#include "text/utf8.h"
#include "workflows/manifest/manifest_fields.h"
#include "workflows/tools/scenario.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using plans::JsonPath;
using plans::Problems;
using workflows::each_in;
using workflows::field;
using workflows::text_field;

constexpr std::array<std::string_view, 4> kFileFields{"manifest", "start", "answers", "scenarios"};
constexpr std::array<std::string_view, 4> kScenarioFields{"name", "note", "answers", "steps"};
constexpr std::array<std::string_view, 13> kStepFields{
    "send", "receipt", "wait", "apply", "expect", "note", "ok", "error", "timeout", "cancelled", "of", "ref", "misfit"};
constexpr std::array<std::string_view, 4> kEnds{"ok", "error", "timeout", "cancelled"};
constexpr std::array<std::string_view, 7> kExpectFields{"effects", "events",  "state",  "status",
                                                        "failed",  "pending", "refused"};
constexpr std::size_t kMaxScenarios = 1'000, kMaxSteps = 10'000;

// Reads {status: payload}. If the status is not ok, a text is the detail of the payload.
void read_end(const JsonPath& at, std::string_view name, ScenarioReceipt& out) {
  const json& value = at.value.at(std::string(name));
  out.status = *parse_receipt_status(name);
  const bool detail = out.status != ReceiptStatus::ok && value.is_string();
  out.payload = dump_json(detail ? json{{"detail", value}} : value);
}
// Reads the one of four ends that must be present. Returns false if there is none or more than one.
bool read_receipt_end(const JsonPath& at, ScenarioReceipt& out) {
  int found = 0;
  for (const auto name : kEnds)
    if (at.value.contains(std::string(name)) && ++found == 1) read_end(at, name, out);
  if (found != 1) at.report_problem("a receipt has one of ok, error, timeout, cancelled");
  return found == 1;
}
void read_answers(const JsonPath& at, ScenarioAnswers& out) {
  if (!at.value.is_object()) {
    at.report_wrong_type("a map from effects to their receipts");
    return;
  }
  for (const auto& [effect, end] : at.value.items()) {
    const JsonPath each = at.at(end, effect);
    if (workflows::read_fields(each, kEnds)) read_receipt_end(each, out[effect]);
  }
}

// Reads {name: value}, with the optional fields `more`.
void read_named(const JsonPath& at, std::initializer_list<std::string_view> more, ExpectedEffect& out) {
  if (!at.value.is_object()) {
    at.report_wrong_type("a map: {name: value}");
    return;
  }
  for (const auto& [name, value] : at.value.items()) {
    if (std::find(more.begin(), more.end(), name) != more.end()) {
      std::string text;
      if (plans::read_text(at.at(value, name), text)) (name == "ref" ? out.ref : out.from) = text;
      continue;
    }
    if (!out.name.empty()) return at.report_problem("has two names: " + excerpt(out.name) + " and " + excerpt(name));
    out.name = name, out.value = dump_json(value);
  }
  if (out.name.empty()) at.report_problem("has no name: {name: value}");
}
void read_values(const JsonPath& at, bool as_text, std::map<std::string, std::string>& out) {
  if (!at.value.is_object()) {
    at.report_wrong_type("a map from instances (\"order 7\")");
    return;
  }
  for (const auto& [name, value] : at.value.items()) {
    if (as_text)
      plans::read_text(at.at(value, name), out[name]);
    else
      out[name] = dump_json(value);
  }
}
void read_expect(const JsonPath& at, ScenarioExpectation& out) {
  if (!workflows::read_fields(at, kExpectFields)) return;
  each_in(at, "effects", false, [&](const JsonPath& each) {
    read_named(each, {"ref", "from"}, out.effects.emplace_back());
  });
  each_in(at, "events", false, [&](const JsonPath& each) { read_named(each, {"from"}, out.events.emplace_back()); });
  field(at, "state", false, [&](const JsonPath& found) { read_values(found, false, out.state); });
  field(at, "status", false, [&](const JsonPath& found) { read_values(found, true, out.status); });
  field(at, "failed", false, [&](const JsonPath& found) { read_values(found, true, out.failed); });
  for (const auto& [instance, status] : out.status)
    if (status != "running" && status != "waiting" && status != "completed" && status != "failed")
      at.report_problem("status: " + excerpt(status) + " is not one of running, waiting, completed, failed");
  if (at.value.contains("pending")) out.pending.emplace();
  each_in(at, "pending", false, [&](const JsonPath& each) {
    std::string name;
    if (plans::read_text(each, name)) out.pending->push_back(name);
  });
  text_field(at, "refused", false, out.refused);
}

void read_wait(const JsonPath& at, ScenarioStep& out) {
  std::string text;
  if (!plans::read_text(at, text) || text == "timer") return;
  const auto ms = parse_duration_ms(text);
  if (!ms) return at.report_problem(ms.error().message);
  out.wait_ms = *ms;
}
void read_receipt(const JsonPath& at, ScenarioStep& out) {
  text_field(at, "receipt", true, out.name);
  text_field(at, "of", false, out.of);
  text_field(at, "ref", false, out.ref);
  field(at, "misfit", false, [&](const JsonPath& found) { plans::read_switch(found, out.misfit); });
  read_receipt_end(at, out.receipt);
}
void read_step(const JsonPath& at, ScenarioStep& out) {
  out.path = at.path;
  if (!workflows::read_fields(at, kStepFields)) return;
  int inputs = 0;
  const auto input = [&](const char* name, ScenarioInput kind, const auto& read) {
    field(at, name, false, [&](const JsonPath& found) { ++inputs, out.input = kind, read(found); });
  };
  input("send", ScenarioInput::send, [&](const JsonPath& found) {
    ExpectedEffect event;
    read_named(found, {}, event);
    out.name = event.name, out.value = event.value;
  });
  input("receipt", ScenarioInput::receipt, [&](const JsonPath&) { read_receipt(at, out); });
  input("wait", ScenarioInput::wait, [&](const JsonPath& found) { read_wait(found, out); });
  input("apply", ScenarioInput::apply, [&](const JsonPath& found) { plans::read_text(found, out.name); });
  if (inputs > 1) at.report_problem("has one of send, receipt, wait, apply");
  if (out.input != ScenarioInput::receipt)
    for (const char* name : {"ok", "error", "timeout", "cancelled", "of", "ref", "misfit"})
      if (at.value.contains(name)) at.report_problem(std::string(name) + " belongs to a receipt");
  field(at, "expect", false, [&](const JsonPath& found) { read_expect(found, out.expect.emplace()); });
  if (inputs == 0 && !out.expect) at.report_problem("has nothing to do: send, receipt, wait, apply or expect");
}

void read_scenario(const JsonPath& at, const ScenarioAnswers& answers, Scenario& out) {
  out.path = at.path, out.answers = answers;
  if (!workflows::read_fields(at, kScenarioFields)) return;
  text_field(at, "name", true, out.name);
  field(at, "answers", false, [&](const JsonPath& found) { read_answers(found, out.answers); });
  each_in(at, "steps", true, [&](const JsonPath& each) {
    if (out.steps.size() < kMaxSteps) read_step(each, out.steps.emplace_back());
  });
  const auto steps = at.value.find("steps");
  if (steps != at.value.end() && steps->is_array() && steps->size() > kMaxSteps)
    at.report_problem("has more than " + std::to_string(kMaxSteps) + " steps");
}

void read_file(const JsonPath& at, ScenarioFile& out) {
  if (!workflows::read_fields(at, kFileFields)) return;
  text_field(at, "manifest", true, out.manifest);
  field(at, "start", false, [&](const JsonPath& found) {
    std::int64_t ms = 0;
    if (plans::read_whole(found, 0, std::int64_t{1} << 50, ms)) out.start_ms = static_cast<std::uint64_t>(ms);
  });
  ScenarioAnswers answers;
  field(at, "answers", false, [&](const JsonPath& found) { read_answers(found, answers); });
  std::set<std::string> names;
  each_in(at, "scenarios", true, [&](const JsonPath& each) {
    if (out.scenarios.size() >= kMaxScenarios)
      return each.report_problem("a file has at most " + std::to_string(kMaxScenarios) + " scenarios");
    read_scenario(each, answers, out.scenarios.emplace_back());
    const std::string& name = out.scenarios.back().name;
    if (!name.empty() && !names.insert(name).second)
      each.report_problem("the scenario " + excerpt(name, 200) + " is listed twice");
  });
  if (out.scenarios.empty() && at.problems.empty()) at.report_problem("it has no scenario");
}

// Returns whether the map has {"$more": true}.
bool is_open(const json& map) {
  const auto more = map.find("$more");
  return more != map.end() && more->is_boolean() && more->get<bool>();
}

}  // namespace

ParsedScenarios read_scenarios(const json& document) {
  Problems problems;
  ParsedScenarios read;
  read_file({document, "", problems}, read.file.emplace());
  if (!problems.empty()) read.file.reset();
  read.problems = problems.take_problems();
  return read;
}

std::vector<std::string> manifests_of(const ScenarioFile& file) {
  std::set<std::string> names;
  for (const auto& scenario : file.scenarios)
    for (const auto& step : scenario.steps)
      if (step.input == ScenarioInput::apply) names.insert(step.name);
  return {names.begin(), names.end()};
}

json fill_defaults(json expected, const json& got) {
  if (expected == "$any") return got;
  if (expected.is_object() && got.is_object()) {
    const bool open = is_open(expected);
    if (open) expected.erase("$more");
    for (const auto& [name, value] : got.items())
      if (const auto found = expected.find(name); found != expected.end())
        *found = fill_defaults(std::move(*found), value);
      else if (open)
        expected[name] = value;
  }
  if (expected.is_array() && got.is_array())
    for (std::size_t i = 0; i < std::min(expected.size(), got.size()); ++i)
      expected[i] = fill_defaults(std::move(expected[i]), got[i]);
  return expected;
}

std::optional<std::string> differs(const json& expected, const json& got) {
  if (expected == "$any") return std::nullopt;
  if (expected.is_object() && got.is_object()) {
    const bool open = is_open(expected);
    for (const auto& [name, value] : expected.items()) {
      if (open && name == "$more") continue;
      const auto found = got.find(name);
      if (found == got.end()) return name;
      if (const auto inner = differs(value, *found)) return inner->empty() ? name : name + '.' + *inner;
    }
    for (const auto& [name, value] : got.items())
      if (!open && !expected.contains(name)) return name;
    return std::nullopt;
  }
  if (expected.is_array() && got.is_array()) {
    for (std::size_t i = 0; i < std::min(expected.size(), got.size()); ++i) {
      const std::string place = '[' + std::to_string(i) + ']';
      if (const auto inner = differs(expected[i], got[i])) return inner->empty() ? place : place + '.' + *inner;
    }
    if (expected.size() == got.size()) return std::nullopt;
    return '[' + std::to_string(std::min(expected.size(), got.size())) + ']';
  }
  if (expected == got) return std::nullopt;
  return "";
}

}  // namespace mycojobs
