// How the type of a field is written: Value<T>. Plain types know text (what a hash holds); lists, maps and records know
// JSON. read_text() and read_json() below take either for both. Only codec.cpp needs it.
#pragma once

#include <concepts>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/ids.h"
#include "domain/codec.h"
#include "domain/enums.h"
#include "domain/utf8.h"

namespace mycojobs {

using nlohmann::json;

// Where we are in a record, for the message: "job[0].timeout". Hostile input cannot make the list long.
struct Site {
  std::vector<FieldProblem>& problems;
  std::string field;

  bool refuse(std::string_view value, std::string_view expected) const {
    return refuse(shown(value) + " is not " + std::string(expected));
  }
  bool refuse(const std::string& message) const {
    if (problems.size() < 16) problems.push_back({field, field + ": " + message});
    return false;
  }
  Site at(std::size_t index) const { return {problems, field + '[' + std::to_string(index) + ']'}; }
  Site in(std::string_view name) const { return {problems, (field.empty() ? "" : field + '.') + std::string(name)}; }
};

template <class T>
struct Value;
template <class T>
concept Plain = requires {
  Value<T>::from_text({}, std::declval<T&>(), std::declval<const Site&>());
};

// false: refused, with the reason noted, and `out` left as it was.
template <class T>
bool read_text(std::string_view text, T& out, const Site& site);
template <class T>
bool read_json(const json& value, T& out, const Site& site);

template <std::unsigned_integral T>
struct Value<T> {
  static bool from_text(std::string_view text, T& out, const Site& site, int least = 0) {
    static constexpr std::uint64_t kMost = std::numeric_limits<T>::max();
    std::uint64_t number = 0;
    if (!parse_u64(text, number) || number > kMost) {
      return site.refuse(text, "a whole number from " + std::to_string(least) + " to " + std::to_string(kMost));
    }
    out = static_cast<T>(number);
    return true;
  }
  static std::string to_text(T value) { return std::to_string(value); }
  static json to_json(T value) { return value; }
  static bool empty(T value) { return value == 0; }
};

template <>
struct Value<std::int32_t> {
  static bool from_text(std::string_view text, std::int32_t& out, const Site& site) {
    const bool negative = text.starts_with('-');
    std::uint64_t number = 0;
    if (!parse_u64(text.substr(negative ? 1 : 0), number) || number > 2147483647U) {
      return site.refuse(text, "a whole number from -2147483647 to 2147483647");
    }
    out = static_cast<std::int32_t>(negative ? -static_cast<std::int64_t>(number) : static_cast<std::int64_t>(number));
    return true;
  }
  static std::string to_text(std::int32_t value) { return std::to_string(value); }
  static json to_json(std::int32_t value) { return value; }
  static bool empty(std::int32_t value) { return value == 0; }
};

template <>
struct Value<bool> {
  static bool from_text(std::string_view text, bool& out, const Site& site) {
    if (text != "true" && text != "false") return site.refuse(text, "true or false");
    out = text == "true";
    return true;
  }
  static std::string to_text(bool value) { return value ? "true" : "false"; }
  static json to_json(bool value) { return value; }
  static bool empty(bool) { return false; }
};

template <>
struct Value<std::string> {
  static bool from_text(std::string_view text, std::string& out, const Site&) {
    out = text;
    return true;
  }
  static const std::string& to_text(const std::string& value) { return value; }
  static json to_json(const std::string& value) { return is_utf8(value) ? value : to_utf8(value); }
  static bool empty(const std::string& value) { return value.empty(); }
};

template <class T>
requires std::is_enum_v<T>
struct Value<T> {
  static bool from_text(std::string_view text, T& out, const Site& site) {
    if (auto value = parse<T>(text)) {
      out = *value;
      return true;
    }
    std::string known;
    for (auto each : words<T>()) known += (known.empty() ? "one of " : ", ") + std::string(each);
    return site.refuse(text, known);
  }
  static std::string to_text(T value) { return std::string(word(value)); }
  static json to_json(T value) { return word(value); }
  static bool empty(T) { return false; }
};

// An optional number is one that may be left out but not be 0 (Job::timeout; validate() says so).
template <Plain T>
struct Value<std::optional<T>> {
  static bool from_text(std::string_view text, std::optional<T>& out, const Site& site) {
    T value{};
    bool read = false;
    if constexpr (std::unsigned_integral<T>) {
      read = Value<T>::from_text(text, value, site, 1);
    } else {
      read = Value<T>::from_text(text, value, site);
    }
    if (read) out = value;
    return read;
  }
  static std::string to_text(const std::optional<T>& value) { return Value<T>::to_text(*value); }
  static json to_json(const std::optional<T>& value) { return Value<T>::to_json(*value); }
  static bool empty(const std::optional<T>& value) { return !value.has_value(); }
};

template <class T>
struct Value<std::optional<T>> {
  static bool from_json(const json& value, std::optional<T>& out, const Site& site) {
    T inner;
    if (!read_json(value, inner, site)) return false;
    out = std::move(inner);
    return true;
  }
  static json to_json(const std::optional<T>& value) { return mycojobs::to_json(*value); }
  static bool empty(const std::optional<T>& value) { return !value.has_value(); }
};

template <class T>
struct Value<std::vector<T>> {
  // Some clients write an empty list as {}: Lua and PHP cannot tell them apart.
  static bool from_json(const json& value, std::vector<T>& out, const Site& site) {
    if (value.is_object() && value.empty()) {
      out.clear();
      return true;
    }
    if (!value.is_array()) return site.refuse(dump_json(value), "a list");
    std::vector<T> items;
    items.reserve(value.size());
    for (const auto& item : value) {
      if (item.is_null()) return site.at(items.size()).refuse("is null");
      T inner{};
      if (!read_json(item, inner, site.at(items.size()))) return false;
      items.push_back(std::move(inner));
    }
    out = std::move(items);
    return true;
  }
  static json to_json(const std::vector<T>& value) {
    json out = json::array();
    for (const auto& item : value) {
      if constexpr (Plain<T>) {
        out.push_back(Value<T>::to_json(item));
      } else {
        out.push_back(mycojobs::to_json(item));
      }
    }
    return out;
  }
  static bool empty(const std::vector<T>& value) { return value.empty(); }
};

template <>
struct Value<TextMap> {
  static bool from_json(const json& value, TextMap& out, const Site& site) {
    if (value.is_array() && value.empty()) {
      out.clear();
      return true;
    }
    if (!value.is_object()) return site.refuse(dump_json(value), "a map");
    TextMap items;
    for (const auto& [key, item] : value.items()) {
      const Site entry{site.problems, site.field + '[' + shown(key) + ']'};
      if (item.is_null()) return entry.refuse("is null");
      if (!read_json(item, items[key], entry)) return false;
    }
    out = std::move(items);
    return true;
  }
  static json to_json(const TextMap& value) {
    json out = json::object();
    for (const auto& [key, text] : value) out[to_utf8(key)] = Value<std::string>::to_json(text);
    return out;
  }
  static bool empty(const TextMap& value) { return value.empty(); }
};

template <class T>
bool read_text(std::string_view text, T& out, const Site& site) {
  if (text.empty()) return true;  // absent and empty are read alike
  if constexpr (Plain<T>) {
    return Value<T>::from_text(text, out, site);
  } else {
    auto parsed = parse_json(text);
    if (!parsed) return site.refuse(parsed.error().message);
    if (parsed->is_string()) return site.refuse(text, "a list or a map");
    return Value<T>::from_json(*parsed, out, site);
  }
}

template <class T>
bool read_json(const json& value, T& out, const Site& site) {
  if (value.is_null()) return true;
  const auto* text = value.get_ptr<const std::string*>();
  if constexpr (Plain<T>) {
    if (value.is_structured()) return site.refuse(dump_json(value), "a single value");
    if constexpr (std::is_same_v<T, std::string>) {
      return Value<T>::from_text(text ? *text : dump_json(value), out, site);
    } else {
      return read_text(text ? *text : dump_json(value), out, site);  // 5 and "5" alike
    }
  } else {
    return text ? read_text(*text, out, site) : Value<T>::from_json(value, out, site);
  }
}

}  // namespace mycojobs
