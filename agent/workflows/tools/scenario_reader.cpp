#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "text/json.h"
#include "text/units.h"
#include "text/utf8.h"
#include "workflows/manifest/manifest_fields.h"
#include "workflows/tools/scenario.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using workflows::for_each_item;
using workflows::read_field;
using workflows::read_text_field;

constexpr std::array<std::string_view, 4> kFileFields{"manifest", "start", "answers", "scenarios"};
constexpr std::array<std::string_view, 4> kScenarioFields{"name", "note", "answers", "steps"};
constexpr std::array<std::string_view, 13> kStepFields{
    "send", "receipt", "wait", "apply", "expect", "note", "ok", "error", "timeout", "cancelled", "of", "ref", "misfit"};
constexpr std::array<std::string_view, 4> kReceiptFields{"ok", "error", "timeout", "cancelled"};
constexpr std::array<std::string_view, 7> kExpectFields{"effects", "events",  "state",  "status",
                                                        "failed",  "pending", "refused"};
constexpr std::size_t kMaxScenarios = 1'000, kMaxSteps = 10'000;

// Reads {status: payload}. If the status is not ok, a text is the detail of the payload.
void read_receipt_status(const DocumentValue& node, std::string_view name, ScenarioReceipt& out) {
  const json& value = node.value.at(std::string(name));
  out.status = *parse_receipt_status(name);
  const bool is_detail = out.status != ReceiptStatus::ok && value.is_string();
  out.payload = dump_json(is_detail ? json{{"detail", value}} : value);
}
// Reads the result of a receipt: one of four fields must be present. Returns false if there is none or more than one.
bool read_receipt_result(const DocumentValue& node, ScenarioReceipt& out) {
  int result_count = 0;
  for (const auto name : kReceiptFields)
    if (node.value.contains(std::string(name)) && ++result_count == 1) read_receipt_status(node, name, out);
  if (result_count != 1) node.report_problem("a receipt has one of ok, error, timeout, cancelled");
  return result_count == 1;
}
void read_answers(const DocumentValue& node, ScenarioAnswers& out) {
  if (!node.value.is_object()) {
    node.report_wrong_type("a map from effects to their receipts");
    return;
  }
  for (const auto& [effect, receipt] : node.value.items()) {
    const DocumentValue item = node.at(receipt, effect);
    if (workflows::check_fields(item, kReceiptFields)) read_receipt_result(item, out[effect]);
  }
}

// Reads {name: value} and the optional fields, which have a text as value.
void read_named(const DocumentValue& node, std::initializer_list<std::string_view> optional_fields,
                ExpectedEffect& out) {
  if (!node.value.is_object()) {
    node.report_wrong_type("a map: {name: value}");
    return;
  }
  for (const auto& [name, value] : node.value.items()) {
    if (std::find(optional_fields.begin(), optional_fields.end(), name) != optional_fields.end()) {
      std::string text;
      if (read_text(node.at(value, name), text)) (name == "ref" ? out.ref : out.emitter) = text;
      continue;
    }
    if (!out.name.empty()) return node.report_problem("has two names: " + excerpt(out.name) + " and " + excerpt(name));
    out.name = name, out.value = dump_json(value);
  }
  if (out.name.empty()) node.report_problem("has no name: {name: value}");
}
void read_values(const DocumentValue& node, bool as_text, std::map<std::string, std::string>& out) {
  if (!node.value.is_object()) {
    node.report_wrong_type("a map from instances (\"order 7\")");
    return;
  }
  for (const auto& [name, value] : node.value.items()) {
    if (as_text)
      read_text(node.at(value, name), out[name]);
    else
      out[name] = dump_json(value);
  }
}
void read_expect(const DocumentValue& node, ScenarioExpectation& out) {
  if (!workflows::check_fields(node, kExpectFields)) return;
  for_each_item(node, "effects", false, [&](const DocumentValue& item) {
    read_named(item, {"ref", "from"}, out.effects.emplace_back());
  });
  for_each_item(node, "events", false,
                [&](const DocumentValue& item) { read_named(item, {"from"}, out.events.emplace_back()); });
  read_field(node, "state", false, [&](const DocumentValue& field) { read_values(field, false, out.states); });
  read_field(node, "status", false, [&](const DocumentValue& field) { read_values(field, true, out.statuses); });
  read_field(node, "failed", false, [&](const DocumentValue& field) { read_values(field, true, out.failures); });
  for (const auto& [instance_name, status] : out.statuses)
    if (status != "running" && status != "waiting" && status != "completed" && status != "failed")
      node.report_problem("status: " + excerpt(status) + " is not one of running, waiting, completed, failed");
  if (node.value.contains("pending")) out.pending_effects.emplace();
  for_each_item(node, "pending", false, [&](const DocumentValue& item) {
    std::string name;
    if (read_text(item, name)) out.pending_effects->push_back(name);
  });
  read_text_field(node, "refused", false, out.refusal_text);
}

void read_wait(const DocumentValue& node, ScenarioStep& out) {
  std::string text;
  if (!read_text(node, text) || text == "timer") return;
  const auto ms = parse_duration_ms(text);
  if (!ms) return node.report_problem(ms.error().message);
  out.wait_ms = *ms;
}
void read_receipt(const DocumentValue& node, ScenarioStep& out) {
  read_text_field(node, "receipt", true, out.name);
  read_text_field(node, "of", false, out.emitter);
  read_text_field(node, "ref", false, out.ref);
  read_field(node, "misfit", false, [&](const DocumentValue& field) { read_switch(field, out.has_invalid_payload); });
  read_receipt_result(node, out.receipt);
}
void read_step(const DocumentValue& node, ScenarioStep& out) {
  out.path = node.path;
  if (!workflows::check_fields(node, kStepFields)) return;
  int inputs = 0;
  const auto input = [&](const char* name, ScenarioInput kind, const auto& read) {
    read_field(node, name, false, [&](const DocumentValue& field) { ++inputs, out.input = kind, read(field); });
  };
  input("send", ScenarioInput::send, [&](const DocumentValue& field) {
    ExpectedEffect event;
    read_named(field, {}, event);
    out.name = event.name, out.value = event.value;
  });
  input("receipt", ScenarioInput::receipt, [&](const DocumentValue&) { read_receipt(node, out); });
  input("wait", ScenarioInput::wait, [&](const DocumentValue& field) { read_wait(field, out); });
  input("apply", ScenarioInput::apply, [&](const DocumentValue& field) { read_text(field, out.name); });
  if (inputs > 1) node.report_problem("has one of send, receipt, wait, apply");
  if (out.input != ScenarioInput::receipt)
    for (const char* name : {"ok", "error", "timeout", "cancelled", "of", "ref", "misfit"})
      if (node.value.contains(name)) node.report_problem(std::string(name) + " belongs to a receipt");
  read_field(node, "expect", false, [&](const DocumentValue& field) { read_expect(field, out.expect.emplace()); });
  if (inputs == 0 && !out.expect) node.report_problem("has nothing to do: send, receipt, wait, apply or expect");
}

void read_scenario(const DocumentValue& node, const ScenarioAnswers& answers, Scenario& out) {
  out.path = node.path, out.answers = answers;
  if (!workflows::check_fields(node, kScenarioFields)) return;
  read_text_field(node, "name", true, out.name);
  read_field(node, "answers", false, [&](const DocumentValue& field) { read_answers(field, out.answers); });
  for_each_item(node, "steps", true, [&](const DocumentValue& item) {
    if (out.steps.size() < kMaxSteps) read_step(item, out.steps.emplace_back());
  });
  const auto steps = node.value.find("steps");
  if (steps != node.value.end() && steps->is_array() && steps->size() > kMaxSteps)
    node.report_problem("has more than " + std::to_string(kMaxSteps) + " steps");
}

void read_file(const DocumentValue& node, ScenarioFile& out) {
  if (!workflows::check_fields(node, kFileFields)) return;
  read_text_field(node, "manifest", true, out.manifest);
  read_field(node, "start", false, [&](const DocumentValue& field) {
    std::int64_t ms = 0;
    if (read_integer(field, 0, std::int64_t{1} << 50, ms)) out.start_ms = static_cast<std::uint64_t>(ms);
  });
  ScenarioAnswers answers;
  read_field(node, "answers", false, [&](const DocumentValue& field) { read_answers(field, answers); });
  std::set<std::string> names;
  for_each_item(node, "scenarios", true, [&](const DocumentValue& item) {
    if (out.scenarios.size() >= kMaxScenarios)
      return item.report_problem("a file has at most " + std::to_string(kMaxScenarios) + " scenarios");
    read_scenario(item, answers, out.scenarios.emplace_back());
    const std::string& name = out.scenarios.back().name;
    if (!name.empty() && !names.insert(name).second)
      item.report_problem("the scenario " + excerpt(name, 200) + " is listed twice");
  });
  if (out.scenarios.empty() && node.problems.empty()) node.report_problem("it has no scenario");
}

// Returns whether the map has {"$more": true}.
bool allows_more_fields(const json& map) {
  const auto marker = map.find("$more");
  return marker != map.end() && marker->is_boolean() && marker->get<bool>();
}

}  // namespace

ParsedScenarios read_scenarios(const json& document) {
  DocumentProblems problems;
  ParsedScenarios parsed;
  read_file({document, "", problems}, parsed.file.emplace());
  if (!problems.empty()) parsed.file.reset();
  parsed.problems = problems.release_problems();
  return parsed;
}

std::vector<std::string> list_applied_manifests(const ScenarioFile& file) {
  std::set<std::string> names;
  for (const auto& scenario : file.scenarios)
    for (const auto& step : scenario.steps)
      if (step.input == ScenarioInput::apply) names.insert(step.name);
  return {names.begin(), names.end()};
}

json fill_wildcards(json expected, const json& actual) {
  if (expected == "$any") return actual;
  if (expected.is_object() && actual.is_object()) {
    const bool allows_more = allows_more_fields(expected);
    if (allows_more) expected.erase("$more");
    for (const auto& [name, value] : actual.items())
      if (const auto field = expected.find(name); field != expected.end())
        *field = fill_wildcards(std::move(*field), value);
      else if (allows_more)
        expected[name] = value;
  }
  if (expected.is_array() && actual.is_array())
    for (std::size_t i = 0; i < std::min(expected.size(), actual.size()); ++i)
      expected[i] = fill_wildcards(std::move(expected[i]), actual[i]);
  return expected;
}

std::optional<std::string> find_difference(const json& expected, const json& actual) {
  if (expected == "$any") return std::nullopt;
  if (expected.is_object() && actual.is_object()) {
    const bool allows_more = allows_more_fields(expected);
    for (const auto& [name, value] : expected.items()) {
      if (allows_more && name == "$more") continue;
      const auto field = actual.find(name);
      if (field == actual.end()) return name;
      if (const auto inner = find_difference(value, *field)) return inner->empty() ? name : name + '.' + *inner;
    }
    for (const auto& [name, value] : actual.items())
      if (!allows_more && !expected.contains(name)) return name;
    return std::nullopt;
  }
  if (expected.is_array() && actual.is_array()) {
    for (std::size_t i = 0; i < std::min(expected.size(), actual.size()); ++i) {
      const std::string path = '[' + std::to_string(i) + ']';
      if (const auto inner = find_difference(expected[i], actual[i]))
        return inner->empty() ? path : path + '.' + *inner;
    }
    if (expected.size() == actual.size()) return std::nullopt;
    return '[' + std::to_string(std::min(expected.size(), actual.size())) + ']';
  }
  if (expected == actual) return std::nullopt;
  return "";
}

}  // namespace mycojobs
