#include "text/document_reader.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <tuple>

#include "text/json.h"
#include "text/units.h"
#include "text/utf8.h"
#include "text/yaml.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxDurationMs = 3650ULL * 24 * 3600 * 1000;

std::string describe_value(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "empty";
    case json::value_t::object:
      return "a map";
    case json::value_t::array:
      return "a list";
    case json::value_t::string:
      return "the text " + excerpt(*value.get_ptr<const std::string*>());
    case json::value_t::boolean:
      return *value.get_ptr<const bool*>() ? "true" : "false";
    default:
      return "the number " + dump_json(value);
  }
}

}  // namespace

std::string join(const std::vector<DocumentProblem>& problems) {
  std::string out;
  for (const DocumentProblem& problem : problems) {
    if (!out.empty()) out += '\n';
    if (problem.line != 0) {
      out += "line " + std::to_string(problem.line) + ", column " + std::to_string(problem.column) + ": ";
    }
    // A path may contain names that were chosen to disturb a terminal.
    const std::string path = to_ascii(problem.path, 200);
    out += path + (path.empty() ? "" : ": ") + problem.message;
  }
  return out;
}

// The texts are "line 3, column 5: ..." (YAML) and "... at line 3 column 5: ..." (JSON).
DocumentProblem parse_syntax_error(std::string message) {
  DocumentProblem problem;
  if (const auto position = message.find("line "); position != std::string::npos) {
    const char* const text = message.c_str() + position;
    if (std::sscanf(text, "line %zu, column %zu", &problem.line, &problem.column) == 2) {
      if (position == 0) message.erase(0, message.find(": ") + 2);
    } else if (std::sscanf(text, "line %zu column %zu", &problem.line, &problem.column) != 2) {
      problem.line = problem.column = 0;
    }
  }
  problem.message = std::move(message);
  return problem;
}

void set_position(const YamlText& text, DocumentProblem& problem) {
  for (std::string path = problem.path; problem.line == 0;) {
    if (const auto match = text.positions.find(path); match != text.positions.end())
      std::tie(problem.line, problem.column) = match->second;
    if (path.empty()) return;
    const auto end = path.find_last_of(".[");
    path.resize(end == std::string::npos ? 0 : end);
  }
}

bool DocumentValue::report_wrong_type(std::string_view expected) const {
  report_problem("is " + describe_value(value) + ", not " + std::string(expected));
  return false;
}
DocumentValue DocumentValue::at(const nlohmann::json& item, std::string_view key) const {
  return {item, path.empty() ? std::string(key) : path + '.' + std::string(key), problems};
}
DocumentValue DocumentValue::at(const nlohmann::json& item, std::size_t index) const {
  return {item, path + '[' + std::to_string(index) + ']', problems};
}

bool read_text(const DocumentValue& source, std::string& out) {
  const auto* text = source.value.get_ptr<const std::string*>();
  if (text == nullptr) return source.report_wrong_type("a text");
  if (text->empty()) {
    source.report_problem("is empty");
    return false;
  }
  out = *text;
  return true;
}

bool read_scalar(const DocumentValue& source, std::string& out) {
  if (const auto* text = source.value.get_ptr<const std::string*>()) {
    out = *text;
    return true;
  }
  if (source.value.is_structured() || source.value.is_null())
    return source.report_wrong_type("a text, a number, true or false");
  out = dump_json(source.value);
  return true;
}

bool read_switch(const DocumentValue& source, bool& out) {
  const auto* value = source.value.get_ptr<const bool*>();
  if (value == nullptr) return source.report_wrong_type("true or false");
  out = *value;
  return true;
}

bool read_duration(const DocumentValue& source, std::uint64_t& out_ms) {
  std::string text;
  if (source.value.is_number()) {
    text = dump_json(source.value);
  } else if (const auto* value_text = source.value.get_ptr<const std::string*>()) {
    text = *value_text;
  } else {
    return source.report_wrong_type("a duration such as 30s, 5m, 2h or 1d");
  }
  const auto parsed = parse_duration_ms(text);
  if (!parsed) {
    source.report_problem(parsed.error().message);
    return false;
  }
  if (*parsed == 0 || *parsed > kMaxDurationMs) {
    source.report_problem(excerpt(text) + " is out of range: use 1ms to 3650d, or omit it");
    return false;
  }
  out_ms = *parsed;
  return true;
}

bool read_integer(const DocumentValue& source, std::int64_t min, std::int64_t max, std::int64_t& out) {
  const std::string expected = "a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  std::int64_t number = 0;
  if (const auto* unsigned_value = source.value.get_ptr<const nlohmann::json::number_unsigned_t*>()) {
    number = *unsigned_value > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(*unsigned_value);
  } else if (const auto* signed_value = source.value.get_ptr<const nlohmann::json::number_integer_t*>()) {
    number = *signed_value;
  } else {
    return source.report_wrong_type(expected);
  }
  if (number < min || number > max) return source.report_wrong_type(expected);
  out = number;
  return true;
}

bool read_map(const DocumentValue& source, std::map<std::string, std::string>& out) {
  if (!source.value.is_object()) return source.report_wrong_type("a map of names and texts");
  bool is_valid = true;
  for (const auto& item : source.value.items()) {
    std::string text;
    if (read_scalar(source.at(item.value(), item.key()), text)) {
      out[item.key()] = std::move(text);
    } else {
      is_valid = false;
    }
  }
  return is_valid;
}

void for_each_item(const DocumentValue& source, const std::function<void(const DocumentValue&)>& visit) {
  if (!source.value.is_array()) return visit(source);
  for (std::size_t i = 0; i < source.value.size(); ++i) visit(source.at(source.value[i], i));
}

}  // namespace mycojobs
