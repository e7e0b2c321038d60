#include "model/codec.h"

#include <algorithm>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/parse.h"
#include "model/enums.h"
#include "model/record_fields.h"
#include "text/json.h"
#include "text/json_writer.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// FieldCodec<T> defines how a field of type T is written. Plain types have a text form, which is also the form in a
// hash. Lists, maps and records have a JSON form. read_text() and read_json() below accept both forms for every type.

using nlohmann::json;

// The position in a record, for messages: "job[0].timeout". The text is built from the enclosing paths only when a
// value is rejected. The list of problems is bounded, so hostile input cannot make it long.
struct FieldPath {
  enum class ValueShape { field, item, key };
  std::vector<FieldProblem>& problems;
  std::string_view name;  // name of a field or a key; empty for the record itself
  ValueShape shape = ValueShape::field;
  std::size_t index = 0;  // for an item
  const FieldPath* parent = nullptr;

  bool add_problem(std::string_view value, std::string_view expected) const {
    return add_problem(excerpt(value) + " is not " + std::string(expected));
  }
  bool add_problem(const std::string& message) const {
    if (problems.size() >= kMaxFieldProblems) return false;
    std::string field = path();
    std::string line = field + ": " + message;
    problems.push_back({std::move(field), std::move(line)});
    return false;
  }
  // For ids, 0 means "none", so the message does not offer 0 as a value.
  bool is_id_field() const {
    if (shape == ValueShape::item && parent != nullptr) return parent->is_id_field();
    return name == "id" || name.ends_with("_id") || name == "dependends";
  }
  FieldPath item_path(std::size_t item) const { return {problems, {}, ValueShape::item, item, this}; }
  FieldPath key_path(std::string_view key) const { return {problems, key, ValueShape::key, 0, this}; }
  FieldPath field_path(std::string_view field) const { return {problems, field, ValueShape::field, 0, this}; }

 private:
  std::string path() const {
    const std::string prefix = parent != nullptr ? parent->path() : "";
    if (shape == ValueShape::item) return prefix + '[' + std::to_string(index) + ']';
    if (shape == ValueShape::key) return prefix + '[' + excerpt(name) + ']';
    return (prefix.empty() ? "" : prefix + '.') + std::string(name);
  }
};

template <class T>
struct FieldCodec;

template <class T>
concept Plain = requires {
  FieldCodec<T>::from_text({}, std::declval<T&>(), std::declval<const FieldPath&>());
};

// Returns false if the value was rejected; the reason is then recorded and `out` is unchanged.
template <class T>
bool read_text(std::string_view text, T& out, const FieldPath& path);

template <class T>
bool read_json(const json& value, T& out, const FieldPath& path);

template <std::unsigned_integral T>
struct FieldCodec<T> {
  static bool from_text(std::string_view text, T& out, const FieldPath& path, int min = 0) {
    static constexpr std::uint64_t kMaxValue = std::numeric_limits<T>::max();
    std::uint64_t number = 0;
    if (!parse_u64(text, number) || number > kMaxValue) {
      const int lowest = path.is_id_field() ? 1 : min;
      return path.add_problem(text,
                              "a whole number from " + std::to_string(lowest) + " to " + std::to_string(kMaxValue));
    }
    out = static_cast<T>(number);
    return true;
  }
  static std::string to_text(T value) { return std::to_string(value); }
  static json to_json(T value) { return value; }
  static bool is_empty(T value) { return value == 0; }
};

// A priority is the only field with a sign. validate() rejects a value out of range.
template <>
struct FieldCodec<std::int32_t> {
  static bool from_text(std::string_view text, std::int32_t& out, const FieldPath& path) {
    const bool is_negative = text.starts_with('-');
    std::uint64_t number = 0;
    if (!parse_u64(text.substr(is_negative ? 1 : 0), number) || number > 2147483647U) {
      return path.add_problem(
          text, "a whole number from " + std::to_string(-kMaxPriority) + " to " + std::to_string(kMaxPriority));
    }
    out =
        static_cast<std::int32_t>(is_negative ? -static_cast<std::int64_t>(number) : static_cast<std::int64_t>(number));
    return true;
  }
  static std::string to_text(std::int32_t value) { return std::to_string(value); }
  static json to_json(std::int32_t value) { return value; }
  static bool is_empty(std::int32_t value) { return value == 0; }
};

template <>
struct FieldCodec<bool> {
  static bool from_text(std::string_view text, bool& out, const FieldPath& path) {
    if (text != "true" && text != "false") return path.add_problem(text, "true or false");
    out = text == "true";
    return true;
  }
  static std::string to_text(bool value) { return value ? "true" : "false"; }
  static json to_json(bool value) { return value; }
  static bool is_empty(bool) { return false; }
};

template <>
struct FieldCodec<std::string> {
  static bool from_text(std::string_view text, std::string& out, const FieldPath&) {
    out = text;
    return true;
  }
  static const std::string& to_text(const std::string& value) { return value; }
  static json to_json(const std::string& value) { return is_utf8(value) ? value : to_utf8(value); }
  static bool is_empty(const std::string& value) { return value.empty(); }
};

template <class T>
requires std::is_enum_v<T>
struct FieldCodec<T> {
  static bool from_text(std::string_view text, T& out, const FieldPath& path) {
    if (auto value = parse<T>(text)) {
      out = *value;
      return true;
    }
    std::string names;
    for (auto name : enum_names<T>()) names += (names.empty() ? "one of " : ", ") + std::string(name);
    return path.add_problem(text, names);
  }
  static std::string to_text(T value) { return std::string(to_string(value)); }
  static json to_json(T value) { return to_string(value); }
  static bool is_empty(T) { return false; }
};

// An optional number may be absent but must not be 0 (Job::timeout; see validate()).
template <Plain T>
struct FieldCodec<std::optional<T>> {
  static bool from_text(std::string_view text, std::optional<T>& out, const FieldPath& path) {
    T value{};
    bool is_read = false;
    if constexpr (std::unsigned_integral<T>) {
      is_read = FieldCodec<T>::from_text(text, value, path, 1);
    } else {
      is_read = FieldCodec<T>::from_text(text, value, path);
    }
    if (is_read) out = value;
    return is_read;
  }
  static std::string to_text(const std::optional<T>& value) { return FieldCodec<T>::to_text(*value); }
  static json to_json(const std::optional<T>& value) { return FieldCodec<T>::to_json(*value); }
  static bool is_empty(const std::optional<T>& value) { return !value.has_value(); }
};

template <class T>
struct FieldCodec<std::optional<T>> {
  static bool from_json(const json& value, std::optional<T>& out, const FieldPath& path) {
    T element;
    if (!read_json(value, element, path)) return false;
    out = std::move(element);
    return true;
  }
  static json to_json(const std::optional<T>& value) { return mycojobs::to_json(*value); }
  static bool is_empty(const std::optional<T>& value) { return !value.has_value(); }
};

template <class T>
struct FieldCodec<std::vector<T>> {
  // Some clients write an empty list as {}, because Lua and PHP cannot tell them apart.
  static bool from_json(const json& value, std::vector<T>& out, const FieldPath& path) {
    if (value.is_object() && value.empty()) {
      out.clear();
      return true;
    }
    if (!value.is_array()) return path.add_problem(dump_json(value), "a list");
    std::vector<T> items;
    items.reserve(value.size());
    for (const auto& item : value) {
      if (item.is_null()) return path.item_path(items.size()).add_problem("is null");
      T element{};
      if (!read_json(item, element, path.item_path(items.size()))) return false;
      items.push_back(std::move(element));
    }
    out = std::move(items);
    return true;
  }
  static json to_json(const std::vector<T>& value) {
    json out = json::array();
    for (const auto& item : value) {
      if constexpr (Plain<T>) {
        out.push_back(FieldCodec<T>::to_json(item));
      } else {
        out.push_back(mycojobs::to_json(item));
      }
    }
    return out;
  }
  static bool is_empty(const std::vector<T>& value) { return value.empty(); }
};

template <>
struct FieldCodec<TextMap> {
  static bool from_json(const json& value, TextMap& out, const FieldPath& path) {
    if (value.is_array() && value.empty()) {
      out.clear();
      return true;
    }
    if (!value.is_object()) return path.add_problem(dump_json(value), "a map");
    TextMap items;
    for (const auto& [key, item] : value.items()) {
      const FieldPath entry = path.key_path(std::string_view(key));
      if (item.is_null()) return entry.add_problem("is null");
      if (!read_json(item, items[key], entry)) return false;
    }
    out = std::move(items);
    return true;
  }
  static json to_json(const TextMap& value) {
    json out = json::object();
    for (const auto& [key, text] : value) out[to_utf8(key)] = FieldCodec<std::string>::to_json(text);
    return out;
  }
  static bool is_empty(const TextMap& value) { return value.empty(); }
};

template <class T>
bool read_text(std::string_view text, T& out, const FieldPath& path) {
  if (text.empty()) return true;  // absent and empty are equivalent
  if constexpr (Plain<T>) {
    return FieldCodec<T>::from_text(text, out, path);
  } else {
    auto parsed = parse_json(text);
    if (!parsed) return path.add_problem(parsed.error().message);
    if (parsed->is_string()) return path.add_problem(text, "a list or a map");
    return FieldCodec<T>::from_json(*parsed, out, path);
  }
}

template <class T>
bool read_json(const json& value, T& out, const FieldPath& path) {
  if (value.is_null()) return true;
  const auto* text = value.get_ptr<const std::string*>();
  if constexpr (Plain<T>) {
    if (value.is_structured()) return path.add_problem(dump_json(value), "a single value");
    if constexpr (std::is_same_v<T, std::string>) {
      return FieldCodec<T>::from_text(text ? *text : dump_json(value), out, path);
    } else {
      return read_text(text ? *text : dump_json(value), out, path);  // 5 and "5" are equivalent
    }
  } else {
    return text ? read_text(*text, out, path) : FieldCodec<T>::from_json(value, out, path);
  }
}

template <class R>
std::string_view resolve_alias(std::string_view name) {
  for (const auto& [alias, canonical_name] : kAliases<R>) {
    if (name == alias) return canonical_name;
  }
  return name;
}

// If the object gives the field `name` not only as `key` but also under a name with precedence over it, returns that
// name. Otherwise returns an empty text. The canonical name has the highest precedence, then the aliases in the order
// of the table.
template <class R>
std::string_view find_duplicate_name(const json& object, std::string_view name, std::string_view key) {
  if (name != key && object.contains(name)) return name;
  for (const auto& [alias, canonical_name] : kAliases<R>) {
    if (alias == key) break;
    if (canonical_name == name && name != key && object.contains(alias)) return alias;
  }
  return {};
}

// Calls visitor(member, style) for the field of that name. Returns false if there is no such field.
template <class R, class Visitor>
bool visit_field(R& record, std::string_view name, Visitor visitor) {
  bool is_found = false;
  visit(record, [&](std::string_view field_name, auto& member, JsonTextStyle style = JsonTextStyle::plain) {
    if (is_found || field_name != name) return;
    is_found = true;
    visitor(member, style);
  });
  return is_found;
}

template <class R>
void add_unknown_field(R& record, std::string_view name, std::string text) {
  if constexpr (requires { record.unknown; }) record.unknown.emplace_back(name, std::move(text));
}

std::string json_to_text(const json& value) {
  const auto* text = value.get_ptr<const std::string*>();
  return text ? *text : dump_json(value);
}

template <class R>
bool read_record(const json& object, R& record, const FieldPath& path) {
  if (!object.is_object()) return path.add_problem(dump_json(object), "an object");
  for (const auto& item : object.items()) {  // no structured bindings: clang 14 cannot capture them in lambdas
    const std::string& key = item.key();
    const json& value = item.value();
    const std::string_view name = resolve_alias<R>(key);
    const FieldPath field = path.field_path(name);
    if (const auto duplicate = find_duplicate_name<R>(object, name, key); !duplicate.empty()) {
      field.add_problem("is given twice, as " + std::string(duplicate) + " and as " + key);
      continue;
    }
    const bool is_known = visit_field(record, name, [&](auto& member, JsonTextStyle style) {
      if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::string>) {
        if (style != JsonTextStyle::plain && value.is_structured()) {
          member = dump_json(value);
          return;
        }
      }
      read_json(value, member, field);
    });
    if (!is_known && !value.is_null()) add_unknown_field(record, key, json_to_text(value));
  }
  return true;
}

// Returns text that is an object (or a list, where the style allows it) as a structure. Any other text stays text, so
// that no content is lost. Text that nests deeply stays text too: as part of another record it would exceed the depth
// limit of readers.
json text_to_json(const std::string& text, JsonTextStyle style) {
  constexpr std::size_t kMaxLevels = 32;
  if (nests_deeper_than(text, kMaxLevels)) return FieldCodec<std::string>::to_json(text);
  if (auto parsed = parse_json(text);
      parsed && (parsed->is_object() || (style == JsonTextStyle::json_any && parsed->is_array())))
    return std::move(*parsed);
  return FieldCodec<std::string>::to_json(text);
}

}  // namespace

template <AnyRecord R>
struct FieldCodec<R> {
  static bool from_json(const json& value, R& out, const FieldPath& path) { return read_record(value, out, path); }
};

namespace {

template <class R>
void read_entry(const std::pair<std::string, std::string>& entry, DecodeResult<R>& out) {
  const FieldPath path{out.problems, entry.first};
  const bool is_known = visit_field(out.record, entry.first, [&](auto& member, JsonTextStyle) {
    read_text(std::string_view(entry.second), member, path);
  });
  if (!is_known) add_unknown_field(out.record, entry.first, entry.second);
}

}  // namespace

template <class R>
DecodeResult<R> decode(const Fields& hash) {
  DecodeResult<R> out;
  for (const auto& entry : hash) read_entry(entry, out);
  return out;
}

namespace {

bool has_only_utf8(const TextMap& map) {
  return std::all_of(map.begin(), map.end(),
                     [](const auto& entry) { return is_utf8(entry.first) && is_utf8(entry.second); });
}
bool has_only_utf8(const std::vector<std::string>& texts) {
  return std::all_of(texts.begin(), texts.end(), [](const std::string& text) { return is_utf8(text); });
}
bool has_only_utf8(const std::vector<Id>&) { return true; }

// Types with an append_json() overload are written without building a JSON tree.
template <class T>
std::string encode_json_value(const T& value) {
  if constexpr (requires { has_only_utf8(value); }) {
    std::string out;
    if (has_only_utf8(value)) return append_json(out, value), out;
  }
  return dump_json(FieldCodec<T>::to_json(value));
}

}  // namespace

template <class R>
Fields encode(const R& record) {
  Fields out;
  visit(record, [&]<class T>(std::string_view name, const T& member, JsonTextStyle = JsonTextStyle::plain) {
    if (FieldCodec<T>::is_empty(member)) return;
    if constexpr (Plain<T>) {
      out.emplace_back(name, FieldCodec<T>::to_text(member));
    } else {
      out.emplace_back(name, encode_json_value(member));
    }
  });
  out.insert(out.end(), record.unknown.begin(), record.unknown.end());
  return out;
}

template <class R>
DecodeResult<R> decode_json(const json& value) {
  DecodeResult<R> out;
  read_record(value, out.record, FieldPath{out.problems, ""});
  return out;
}

template <class R>
json to_json(const R& record) {
  json out = json::object();
  visit(record, [&]<class T>(std::string_view name, const T& member, JsonTextStyle style = JsonTextStyle::plain) {
    if (!kWritesEmptyFields<R> && FieldCodec<T>::is_empty(member)) return;
    if constexpr (std::is_same_v<T, std::string>) {
      out[name] = style != JsonTextStyle::plain ? text_to_json(member, style) : FieldCodec<T>::to_json(member);
    } else {
      out[name] = FieldCodec<T>::to_json(member);
    }
  });
  if constexpr (requires { record.unknown; }) {
    for (const auto& [name, text] : record.unknown) {
      std::string key = to_utf8(name);
      if (!out.contains(key)) out[std::move(key)] = FieldCodec<std::string>::to_json(text);
    }
  }
  return out;
}

#define MJ_JSON(R)                                      \
  template DecodeResult<R> decode_json<R>(const json&); \
  template json to_json<R>(const R&)
#define MJ_HASH(R)                                   \
  template DecodeResult<R> decode<R>(const Fields&); \
  template Fields encode<R>(const R&);               \
  MJ_JSON(R)
MJ_HASH(Actor);
MJ_HASH(Context);
MJ_HASH(Job);
MJ_HASH(Flow);
MJ_HASH(Message);
MJ_HASH(Runner);
MJ_JSON(FlowNode);
MJ_JSON(Log);
#undef MJ_HASH
#undef MJ_JSON

std::string_view field_of(const Fields& fields, std::string_view name) {
  for (const auto& [field_name, value] : fields) {
    if (field_name == name) return value;
  }
  return {};
}

std::uint64_t number_of(const Fields& fields, std::string_view name) {
  std::uint64_t number = 0;
  return parse_u64(field_of(fields, name), number) ? number : 0;
}

}  // namespace mycojobs
