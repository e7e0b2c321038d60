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
#include "model/notify_targets.h"
#include "model/policy_json.h"
#include "model/record_fields.h"
#include "model/trace_context.h"
#include "text/json.h"
#include "text/json_writer.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// Value<T> defines how the type of a field is written. Plain types have a text form (the form in a hash); lists, maps
// and records have a JSON form. read_text() and read_json() below accept either form for both.

using nlohmann::json;

constexpr std::int32_t kMaxPriority = 100;  // and its negative is the minimum
std::string priority_range() { return std::to_string(-kMaxPriority) + " to " + std::to_string(kMaxPriority); }

// The position in a record, for messages: "job[0].timeout". The text is built from the enclosing sites only when a
// value is rejected. The list of problems is bounded, so hostile input cannot make it long.
struct FieldPath {
  enum class ValueShape { field, item, key };
  std::vector<FieldProblem>& problems;
  std::string_view name;  // name of a field or a key; empty for the record itself
  ValueShape is = ValueShape::field;
  std::size_t index = 0;  // for an item
  const FieldPath* above = nullptr;

  bool refuse(std::string_view value, std::string_view expected) const {
    return refuse(excerpt(value) + " is not " + std::string(expected));
  }
  bool refuse(const std::string& message) const {
    if (problems.size() >= 16) return false;
    std::string field = path();
    std::string line = field + ": " + message;
    problems.push_back({std::move(field), std::move(line)});
    return false;
  }
  // For ids, 0 means "none", so the message does not offer 0 as a value.
  bool holds_ids() const {
    if (is == ValueShape::item && above != nullptr) return above->holds_ids();
    return name == "id" || name.ends_with("_id") || name == "dependends";
  }
  FieldPath at(std::size_t item) const { return {problems, {}, ValueShape::item, item, this}; }
  FieldPath at(std::string_view key) const { return {problems, key, ValueShape::key, 0, this}; }
  FieldPath in(std::string_view field) const { return {problems, field, ValueShape::field, 0, this}; }

 private:
  std::string path() const {
    const std::string before = above != nullptr ? above->path() : "";
    if (is == ValueShape::item) return before + '[' + std::to_string(index) + ']';
    if (is == ValueShape::key) return before + '[' + excerpt(name) + ']';
    return (before.empty() ? "" : before + '.') + std::string(name);
  }
};

template <class T>
struct Value;

template <class T>
concept Plain = requires {
  Value<T>::from_text({}, std::declval<T&>(), std::declval<const FieldPath&>());
};

// Returns false if the value was rejected; the reason is then recorded and `out` is unchanged.
template <class T>
bool read_text(std::string_view text, T& out, const FieldPath& site);

template <class T>
bool read_json(const json& value, T& out, const FieldPath& site);

template <std::unsigned_integral T>
struct Value<T> {
  static bool from_text(std::string_view text, T& out, const FieldPath& site, int min = 0) {
    static constexpr std::uint64_t kMaxValue = std::numeric_limits<T>::max();
    std::uint64_t number = 0;
    if (!parse_u64(text, number) || number > kMaxValue) {
      const int from = site.holds_ids() ? 1 : min;
      return site.refuse(text, "a whole number from " + std::to_string(from) + " to " + std::to_string(kMaxValue));
    }
    out = static_cast<T>(number);
    return true;
  }
  static std::string to_text(T value) { return std::to_string(value); }
  static json to_json(T value) { return value; }
  static bool empty(T value) { return value == 0; }
};

// A priority is the only field with a sign. validate() rejects a value out of range.
template <>
struct Value<std::int32_t> {
  static bool from_text(std::string_view text, std::int32_t& out, const FieldPath& site) {
    const bool negative = text.starts_with('-');
    std::uint64_t number = 0;
    if (!parse_u64(text.substr(negative ? 1 : 0), number) || number > 2147483647U) {
      return site.refuse(text, "a whole number from " + priority_range());
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
  static bool from_text(std::string_view text, bool& out, const FieldPath& site) {
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
  static bool from_text(std::string_view text, std::string& out, const FieldPath&) {
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
  static bool from_text(std::string_view text, T& out, const FieldPath& site) {
    if (auto value = parse<T>(text)) {
      out = *value;
      return true;
    }
    std::string known;
    for (auto each : words<T>()) known += (known.empty() ? "one of " : ", ") + std::string(each);
    return site.refuse(text, known);
  }
  static std::string to_text(T value) { return std::string(to_string(value)); }
  static json to_json(T value) { return to_string(value); }
  static bool empty(T) { return false; }
};

// An optional number may be absent but must not be 0 (Job::timeout; see validate()).
template <Plain T>
struct Value<std::optional<T>> {
  static bool from_text(std::string_view text, std::optional<T>& out, const FieldPath& site) {
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
  static bool from_json(const json& value, std::optional<T>& out, const FieldPath& site) {
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
  // Some clients write an empty list as {}, because Lua and PHP cannot tell them apart.
  static bool from_json(const json& value, std::vector<T>& out, const FieldPath& site) {
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
  static bool from_json(const json& value, TextMap& out, const FieldPath& site) {
    if (value.is_array() && value.empty()) {
      out.clear();
      return true;
    }
    if (!value.is_object()) return site.refuse(dump_json(value), "a map");
    TextMap items;
    for (const auto& [key, item] : value.items()) {
      const FieldPath entry = site.at(std::string_view(key));
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
bool read_text(std::string_view text, T& out, const FieldPath& site) {
  if (text.empty()) return true;  // absent and empty are equivalent
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
bool read_json(const json& value, T& out, const FieldPath& site) {
  if (value.is_null()) return true;
  const auto* text = value.get_ptr<const std::string*>();
  if constexpr (Plain<T>) {
    if (value.is_structured()) return site.refuse(dump_json(value), "a single value");
    if constexpr (std::is_same_v<T, std::string>) {
      return Value<T>::from_text(text ? *text : dump_json(value), out, site);
    } else {
      return read_text(text ? *text : dump_json(value), out, site);  // 5 and "5" are equivalent
    }
  } else {
    return text ? read_text(*text, out, site) : Value<T>::from_json(value, out, site);
  }
}

}  // namespace
namespace {

template <class R>
std::string_view field_name(std::string_view name) {
  for (const auto& [alias, real] : kAliases<R>) {
    if (name == alias) return real;
  }
  return name;
}

// Returns another name before `key` under which the object has the same field, or an empty text.
template <class R>
std::string_view other_name(const json& object, std::string_view name, std::string_view key) {
  if (name != key && object.contains(name)) return name;
  for (const auto& [alias, real] : kAliases<R>) {
    if (alias == key) break;
    if (real == name && name != key && object.contains(alias)) return alias;
  }
  return {};
}

// Calls see(member, style) for the field of that name. Returns false if there is no such field.
template <class R, class See>
bool with_field(R& record, std::string_view name, See see) {
  bool found = false;
  visit(record, [&](std::string_view each, auto& member, Style style = Style::plain) {
    if (found || each != name) return;
    found = true;
    see(member, style);
  });
  return found;
}

template <class R>
void keep_unknown(R& record, std::string_view name, std::string text) {
  if constexpr (requires { record.unknown; }) record.unknown.emplace_back(name, std::move(text));
}

std::string as_text(const json& value) {
  const auto* text = value.get_ptr<const std::string*>();
  return text ? *text : dump_json(value);
}

template <class R>
bool read_record(const json& object, R& record, const FieldPath& site) {
  if (!object.is_object()) return site.refuse(dump_json(object), "an object");
  for (const auto& item : object.items()) {  // no structured bindings: clang 14 cannot capture them in lambdas
    const std::string& key = item.key();
    const json& value = item.value();
    const std::string_view name = field_name<R>(key);
    const FieldPath field = site.in(name);
    if (const auto other = other_name<R>(object, name, key); !other.empty()) {
      field.refuse("is given twice, as " + std::string(other) + " and as " + key);
      continue;
    }
    const bool known = with_field(record, name, [&](auto& member, Style style) {
      if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::string>) {
        if (style != Style::plain && value.is_structured()) {
          member = dump_json(value);
          return;
        }
      }
      read_json(value, member, field);
    });
    if (!known && !value.is_null()) keep_unknown(record, key, as_text(value));
  }
  return true;
}

// Returns text that is an object (or a list, where the style allows it) as a structure. Any other text stays text, so
// that no content is lost. Text that nests deeply stays text too: as part of another record it would exceed the depth
// limit of readers.
json structure_or_text(const std::string& text, Style style) {
  constexpr std::size_t kMaxLevels = 32;
  if (nests_deeper_than(text, kMaxLevels)) return Value<std::string>::to_json(text);
  if (auto parsed = parse_json(text);
      parsed && (parsed->is_object() || (style == Style::json_any && parsed->is_array())))
    return std::move(*parsed);
  return Value<std::string>::to_json(text);
}

}  // namespace

template <AnyRecord R>
struct Value<R> {
  static bool from_json(const json& value, R& out, const FieldPath& site) { return read_record(value, out, site); }
};

namespace {

template <class R>
void read_entry(const std::pair<std::string, std::string>& entry, DecodeResult<R>& out) {
  const FieldPath site{out.problems, entry.first};
  const bool known = with_field(out.record, entry.first,
                                [&](auto& member, Style) { read_text(std::string_view(entry.second), member, site); });
  if (!known) keep_unknown(out.record, entry.first, entry.second);
}

}  // namespace

template <class R>
DecodeResult<R> decode(const Fields& hash) {
  DecodeResult<R> out;
  for (const auto& entry : hash) read_entry(entry, out);
  return out;
}

namespace {

bool all_utf8(const TextMap& map) {
  return std::all_of(map.begin(), map.end(),
                     [](const auto& each) { return is_utf8(each.first) && is_utf8(each.second); });
}
bool all_utf8(const std::vector<std::string>& texts) {
  return std::all_of(texts.begin(), texts.end(), [](const std::string& each) { return is_utf8(each); });
}
bool all_utf8(const std::vector<Id>&) { return true; }

// Types with an append_json() overload are written without building a JSON tree.
template <class T>
std::string json_of(const T& value) {
  if constexpr (requires { all_utf8(value); }) {
    std::string out;
    if (all_utf8(value)) return append_json(out, value), out;
  }
  return dump_json(Value<T>::to_json(value));
}

}  // namespace

template <class R>
Fields encode(const R& record) {
  Fields out;
  visit(record, [&]<class T>(std::string_view name, const T& member, Style = Style::plain) {
    if (Value<T>::empty(member)) return;
    if constexpr (Plain<T>) {
      out.emplace_back(name, Value<T>::to_text(member));
    } else {
      out.emplace_back(name, json_of(member));
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
  visit(record, [&]<class T>(std::string_view name, const T& member, Style style = Style::plain) {
    if (!kAllFields<R> && Value<T>::empty(member)) return;
    if constexpr (std::is_same_v<T, std::string>) {
      out[name] = style != Style::plain ? structure_or_text(member, style) : Value<T>::to_json(member);
    } else {
      out[name] = Value<T>::to_json(member);
    }
  });
  if constexpr (requires { record.unknown; }) {
    for (const auto& [name, text] : record.unknown) {
      std::string key = to_utf8(name);
      if (!out.contains(key)) out[std::move(key)] = Value<std::string>::to_json(text);
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
  for (const auto& [each, value] : fields) {
    if (each == name) return value;
  }
  return {};
}

std::uint64_t number_of(const Fields& fields, std::string_view name) {
  std::uint64_t number = 0;
  return parse_u64(field_of(fields, name), number) ? number : 0;
}

namespace {

constexpr std::size_t kMaxKeyBytes = 255;
constexpr std::size_t kMaxDependends = 10000;
constexpr std::size_t kMaxFindings = 16;  // further problems would not help the reader

class FieldProblemList {
 public:
  void add(std::string field, const std::string& message) {
    if (problems_.size() >= kMaxFindings) return;
    std::string line = field + ": " + message;
    problems_.push_back({std::move(field), std::move(line)});
  }
  void need_id(std::string field, Id id) {
    if (id == 0) add(std::move(field), "is missing or 0: give a whole number from 1 to 4294967295");
  }
  std::vector<FieldProblem> take() { return std::move(problems_); }

 private:
  std::vector<FieldProblem> problems_;
};

void check_env(const TextMap& env, FieldProblemList& findings) {
  for (const auto& [name, value] : env) {
    if (name.empty()) {
      findings.add("env_vars", "a name is empty");
    } else if (name.find('=') != std::string::npos || name.find('\0') != std::string::npos) {
      findings.add("env_vars", "the name " + excerpt(name) + " has '=' or NUL in it: rename the variable");
    } else if (value.find('\0') != std::string::npos) {
      findings.add("env_vars", "the value of " + excerpt(name) + " contains NUL: the system cannot pass it on");
    }
  }
}

void check_key(const char* field, const std::string& key, FieldProblemList& findings) {
  if (key.size() > kMaxKeyBytes) {
    findings.add(field, "is longer than " + std::to_string(kMaxKeyBytes) + " bytes: give a hash of it");
  }
}

void check_script(const Job& job, FieldProblemList& findings) {
  findings.need_id("id", job.id);
  findings.need_id("caller_id", job.caller_id);
  findings.need_id("context_id", job.context_id);
  if (job.script.empty()) findings.add("script", "is missing or empty");
  if (job.script_type.empty()) {
    findings.add("script_type", "is missing: give the kind of script, such as python");
  } else if (!is_script_type(job.script_type)) {
    findings.add("script_type",
                 excerpt(job.script_type) + " is not a script type: 1 to 32 of a-z, 0-9, '_' and '-', a letter first");
  }
  if (job.timeout == 0U) findings.add("timeout", "0 is not allowed: give 1 to 4294967295 seconds, or leave it out");
  if (job.name.find('\0') != std::string::npos) findings.add("name", "contains NUL: rename the job");
  check_env(job.env_vars, findings);
}

}  // namespace

std::vector<FieldProblem> validate_script(const Job& job) {
  FieldProblemList findings;
  check_script(job, findings);
  return findings.take();
}

std::vector<FieldProblem> validate(const Job& job) {
  FieldProblemList findings;
  check_script(job, findings);
  if (job.dependends.size() > kMaxDependends) {
    findings.add("dependends", std::to_string(job.dependends.size()) + " jobs are more than " +
                                   std::to_string(kMaxDependends) + ": add a job in between that joins them");
  }
  // Reports only the first invalid id.
  const auto odd =
      std::find_if(job.dependends.begin(), job.dependends.end(), [&](Id id) { return id == 0 || id == job.id; });
  if (odd != job.dependends.end() && *odd == 0) {
    findings.add("dependends", "0 is not a job id");
  } else if (odd != job.dependends.end()) {
    findings.add("dependends", std::to_string(*odd) + " is the job itself");
  }
  if (job.priority < -kMaxPriority || job.priority > kMaxPriority) {
    findings.add("priority", std::to_string(job.priority) + " is out of range: give " + priority_range());
  }
  check_key("idempotency_key", job.idempotency_key, findings);
  check_key("concurrency_key", job.concurrency_key, findings);
  if (job.concurrency_limit != 0 && job.concurrency_key.empty()) {
    findings.add("concurrency_limit", "has no effect without a concurrency_key");
  }
  if (auto context = check_traceparent(job.traceparent); !context) findings.add("traceparent", context.error().message);
  auto problems = findings.take();
  for (FieldProblem& problem : read_notify(job.notify, "notify").problems) problems.push_back(std::move(problem));
  for (FieldProblem& problem : read_policy(job.policy, "policy").problems) problems.push_back(std::move(problem));
  if (problems.size() > kMaxFindings) problems.resize(kMaxFindings);
  return problems;
}

std::string join(const std::vector<FieldProblem>& problems) {
  std::string out;
  for (std::size_t i = 0; i < std::min(problems.size(), kMaxFindings); ++i) {
    if (!out.empty()) out += "; ";
    out += problems[i].message;
  }
  if (problems.size() > kMaxFindings) out += "; and " + std::to_string(problems.size() - kMaxFindings) + " more";
  return out;
}

}  // namespace mycojobs
