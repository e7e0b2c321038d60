// Values of a definition: what they must be, and what is said if they are not.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "domain/flow_plan_read.h"
#include "domain/notify.h"
#include "domain/units.h"
#include "domain/utf8.h"

namespace mycojobs::plans {
namespace {

constexpr std::uint64_t kMaxDurationMs = 3650ULL * 24 * 3600 * 1000;

std::string kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "empty";
    case json::value_t::object:
      return "a map";
    case json::value_t::array:
      return "a list";
    case json::value_t::string:
      return "the text " + shown(*value.get_ptr<const std::string*>());
    case json::value_t::boolean:
      return *value.get_ptr<const bool*>() ? "true" : "false";
    default:
      return "the number " + dump_json(value);
  }
}

}  // namespace

bool Spot::wrong(std::string_view expected) const {
  refuse("is " + kind_of(value) + ", not " + std::string(expected));
  return false;
}
Spot Spot::at(const json& item, std::string_view key) const {
  return {item, path.empty() ? std::string(key) : path + '.' + std::string(key), problems};
}
Spot Spot::at(const json& item, std::size_t index) const {
  return {item, path + '[' + std::to_string(index) + ']', problems};
}

bool read_text(const Spot& spot, std::string& out) {
  const auto* text = spot.value.get_ptr<const std::string*>();
  if (text == nullptr) return spot.wrong("a text");
  if (text->empty()) {
    spot.refuse("is empty");
    return false;
  }
  out = *text;
  return true;
}

bool read_scalar(const Spot& spot, std::string& out) {
  if (const auto* text = spot.value.get_ptr<const std::string*>()) {
    out = *text;
    return true;
  }
  if (spot.value.is_structured() || spot.value.is_null()) return spot.wrong("a text, a number, true or false");
  out = dump_json(spot.value);
  return true;
}

bool read_switch(const Spot& spot, bool& out) {
  const auto* value = spot.value.get_ptr<const bool*>();
  if (value == nullptr) return spot.wrong("true or false");
  out = *value;
  return true;
}

bool read_duration(const Spot& spot, std::uint64_t& out_ms) {
  std::string text;
  if (spot.value.is_number()) {
    text = dump_json(spot.value);
  } else if (const auto* written = spot.value.get_ptr<const std::string*>()) {
    text = *written;
  } else {
    return spot.wrong("a duration such as 30s, 5m, 2h or 1d");
  }
  const auto parsed = parse_duration_ms(text);
  if (!parsed) {
    spot.refuse(parsed.error().message);
    return false;
  }
  if (*parsed == 0 || *parsed > kMaxDurationMs) {
    spot.refuse(shown(text) + " is out of range: give 1ms to 3650d, or leave it out");
    return false;
  }
  out_ms = *parsed;
  return true;
}

bool read_whole(const Spot& spot, std::int64_t least, std::int64_t most, std::int64_t& out) {
  const std::string expected = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  std::int64_t number = 0;
  if (const auto* plain = spot.value.get_ptr<const json::number_unsigned_t*>()) {
    number = *plain > INT64_MAX ? INT64_MAX : static_cast<std::int64_t>(*plain);
  } else if (const auto* whole = spot.value.get_ptr<const json::number_integer_t*>()) {
    number = *whole;
  } else {
    return spot.wrong(expected);
  }
  if (number < least || number > most) return spot.wrong(expected);
  out = number;
  return true;
}

bool read_map(const Spot& spot, TextMap& out) {
  if (!spot.value.is_object()) return spot.wrong("a map of names and texts");
  bool sound = true;
  for (const auto& item : spot.value.items()) {
    std::string text;
    if (read_scalar(spot.at(item.value(), item.key()), text)) {
      out[item.key()] = std::move(text);
    } else {
      sound = false;
    }
  }
  return sound;
}

void read_notify_field(const Spot& spot, std::string& out) {
  const NotifyRead read = read_notify(spot.value, "");
  for (const FieldProblem& problem : read.problems) {
    // "[1]: on: ..." stands behind the field's own path.
    spot.problems.add(spot.path + problem.field, problem.message.substr(problem.field.size() + 2));
  }
  if (read.problems.empty() && !read.targets.empty()) out = dump_json(spot.value);
}

void each_of(const Spot& spot, const std::function<void(const Spot&)>& see) {
  if (!spot.value.is_array()) return see(spot);
  for (std::size_t i = 0; i < spot.value.size(); ++i) see(spot.at(spot.value[i], i));
}

bool is_node_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto any = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.size() <= kMaxNameBytes && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), any) && name != "stop" && name != "continue";
}

void check_node_name(std::string_view name, const std::string& path, Problems& problems) {
  if (is_node_name(name)) return;
  const bool reserved = name == "stop" || name == "continue";
  problems.add(path, "the name " + shown(name, 70) +
                         (reserved ? " means something else in on_error: choose another"
                                   : " is no name of a node: 1 to 64 of letters, digits, '_' and '-', a letter or '_' "
                                     "first (no '.', so that results cannot collide)"));
}

}  // namespace mycojobs::plans
