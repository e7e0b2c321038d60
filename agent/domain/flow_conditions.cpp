#include <charconv>
#include <cmath>
#include <optional>

#include "domain/codec.h"
#include "domain/flow_plan.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using Test = FlowCondition::Test;

std::string_view word_of(Test test) {
  switch (test) {
    case Test::equals:
      return "equals";
    case Test::greater_than:
      return "greater_than";
    case Test::less_than:
      return "less_than";
    case Test::exists:
      break;
  }
  return "exists";
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// As JSON spells them: 1, 1.0 and 1e0 are one number, and 007 is a text.
bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string_view::npos && is_json(text);
}

std::optional<double> finite(std::string_view text) {
  const auto number = number_of<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// Below 0, 0, above 0. Whole numbers exactly: a double would take neighbours above 2^53 for equal.
std::optional<int> compare(std::string_view a, std::string_view b) {
  const auto whole_a = number_of<std::int64_t>(a);
  const auto whole_b = number_of<std::int64_t>(b);
  if (whole_a && whole_b) return (*whole_a > *whole_b) - (*whole_a < *whole_b);
  const auto number_a = finite(a);
  const auto number_b = finite(b);
  if (!number_a || !number_b) return std::nullopt;
  return (*number_a > *number_b) - (*number_a < *number_b);
}

}  // namespace

std::string describe(const FlowCondition& condition, std::string_view node_name) {
  const bool text = condition.test == Test::equals;
  if (condition.of_input) node_name = kInputsName;
  return std::string(node_name) + '.' + condition.key + ' ' + std::string(word_of(condition.test)) + ' ' +
         (text ? shown(condition.value) : condition.value);
}

bool holds(const FlowCondition& condition, std::string_view node_name, const TextMap& values, std::string& why_not) {
  if (condition.of_input) node_name = kInputsName;
  const std::string what = std::string(node_name) + '.' + condition.key;
  const auto found = values.find(condition.key);
  const bool there = found != values.end();
  if (condition.test == Test::exists) {
    if (there == (condition.value == "true")) return true;
    why_not = what + (there ? " exists" : " is absent");
    return false;
  }
  if (!there) {
    why_not = what + " is absent";
    return false;
  }
  const std::string& value = found->second;
  if (condition.test == Test::equals) {
    if (value == condition.value) return true;
    if (is_number(value) && is_number(condition.value) && compare(value, condition.value) == 0) return true;
    why_not = what + " is " + shown(value) + ", not " + shown(condition.value);
    return false;
  }
  const bool greater = condition.test == Test::greater_than;
  const auto order = compare(value, condition.value);
  if (order && (greater ? *order > 0 : *order < 0)) return true;
  why_not = what + " is " + shown(value) + ", not " +
            (order ? (greater ? "greater than " : "less than ") + condition.value : std::string("a number"));
  return false;
}

}  // namespace mycojobs
