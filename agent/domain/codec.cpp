#include "domain/codec.h"

#include "domain/fields.h"
#include "domain/values.h"

namespace mycojobs {
namespace {

template <class R>
std::string_view field_name(std::string_view name) {
  for (const auto& [alias, real] : kAliases<R>) {
    if (name == alias) return real;
  }
  return name;
}

// The name before `key` under which the object gives the same field; empty: none.
template <class R>
std::string_view other_name(const json& object, std::string_view name, std::string_view key) {
  if (name != key && object.contains(name)) return name;
  for (const auto& [alias, real] : kAliases<R>) {
    if (alias == key) break;
    if (real == name && name != key && object.contains(alias)) return alias;
  }
  return {};
}

// Calls see(member, style) for the field of that name; false: there is none.
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
bool read_record(const json& object, R& record, const Site& site) {
  if (!object.is_object()) return site.refuse(dump_json(object), "an object");
  for (const auto& item : object.items()) {  // no bindings: lambdas of C++20 capture them, clang 14 does not
    const std::string& key = item.key();
    const json& value = item.value();
    const std::string_view name = field_name<R>(key);
    const Site field = site.in(name);
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

// Text that is an object (or a list, where one may stand) becomes one; any other stays text, so that nothing is hidden.
json structure_or_text(const std::string& text, Style style) {
  if (auto parsed = parse_json(text); parsed && (parsed->is_object() || (style == Style::json && parsed->is_array())))
    return std::move(*parsed);
  return Value<std::string>::to_json(text);
}

}  // namespace

template <AnyRecord R>
struct Value<R> {
  static bool from_json(const json& value, R& out, const Site& site) { return read_record(value, out, site); }
};

template <class R>
Decoded<R> decode(const Fields& hash) {
  Decoded<R> out;
  for (const auto& entry : hash) {
    const Site site{out.problems, entry.first};
    const bool known = with_field(
        out.record, entry.first, [&](auto& member, Style) { read_text(std::string_view(entry.second), member, site); });
    if (!known) keep_unknown(out.record, entry.first, entry.second);
  }
  return out;
}

template <class R>
Fields encode(const R& record) {
  Fields out;
  visit(record, [&]<class T>(std::string_view name, const T& member, Style = Style::plain) {
    if (Value<T>::empty(member)) return;
    if constexpr (Plain<T>) {
      out.emplace_back(name, Value<T>::to_text(member));
    } else {
      out.emplace_back(name, dump_json(Value<T>::to_json(member)));
    }
  });
  out.insert(out.end(), record.unknown.begin(), record.unknown.end());
  return out;
}

template <class R>
Decoded<R> decode_json(const json& value) {
  Decoded<R> out;
  read_record(value, out.record, Site{out.problems, ""});
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

#define MJ_JSON(R)                                 \
  template Decoded<R> decode_json<R>(const json&); \
  template json to_json<R>(const R&)
#define MJ_HASH(R)                              \
  template Decoded<R> decode<R>(const Fields&); \
  template Fields encode<R>(const R&);          \
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

}  // namespace mycojobs
