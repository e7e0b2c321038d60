#include "workflows/manifest/workflow_schema.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "flows/flow_plan_reader.h"
#include "text/base64.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/suggestion.h"
#include "text/utf8.h"
#include "workflows/manifest/system_schemas.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using plans::JsonPath;

// Bits of the types that a value may have.
constexpr unsigned kNullType = 1, kBooleanType = 2, kIntegerType = 4, kNumberType = 8, kStringType = 16,
                   kArrayType = 32, kObjectType = 64, kAnyType = 127;
constexpr std::array<std::pair<std::string_view, unsigned>, 7> kTypes{{{"null", kNullType},
                                                                       {"boolean", kBooleanType},
                                                                       {"integer", kIntegerType},
                                                                       {"number", kNumberType},
                                                                       {"string", kStringType},
                                                                       {"array", kArrayType},
                                                                       {"object", kObjectType}}};
// The words of a schema. A word needs one of these types in the schema; 0: no type needed.
constexpr std::array<std::pair<std::string_view, unsigned>, 18> kKeywords{{{"type", 0},
                                                                           {"title", 0},
                                                                           {"description", 0},
                                                                           {"$ref", 0},
                                                                           {"oneOf", 0},
                                                                           {"enum", 0},
                                                                           {"const", 0},
                                                                           {"properties", kObjectType},
                                                                           {"required", kObjectType},
                                                                           {"additionalProperties", kObjectType},
                                                                           {"items", kArrayType},
                                                                           {"minItems", kArrayType},
                                                                           {"maxItems", kArrayType},
                                                                           {"minimum", kIntegerType | kNumberType},
                                                                           {"maximum", kIntegerType | kNumberType},
                                                                           {"minLength", kStringType},
                                                                           {"maxLength", kStringType},
                                                                           {"format", kStringType}}};
constexpr double kExactDouble = 9007199254740992.0;  // 2^53: every whole number up to here is exact as a double
constexpr std::uint64_t kNoBound = ~std::uint64_t{0};
constexpr std::size_t kNone = ~std::size_t{0};

std::string names_of(unsigned types) {
  std::string text;
  for (const auto& [name, bit] : kTypes)
    if ((types & bit) != 0) text += (text.empty() ? "" : " or ") + std::string(name);
  return text;
}

bool is_whole(const json& number) { return number.is_number_integer(); }
// Returns -1, 0 or 1. Exact for integers.
int compare(const json& a, const json& b) {
  if (is_whole(a) && is_whole(b)) {
    const bool minus_a = !a.is_number_unsigned() && a.get<std::int64_t>() < 0;
    const bool minus_b = !b.is_number_unsigned() && b.get<std::int64_t>() < 0;
    if (minus_a != minus_b) return minus_a ? -1 : 1;
    if (minus_a) {
      const auto x = a.get<std::int64_t>(), y = b.get<std::int64_t>();
      return x < y ? -1 : x > y ? 1 : 0;
    }
    const auto x = a.get<std::uint64_t>(), y = b.get<std::uint64_t>();
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const auto x = a.get<long double>(), y = b.get<long double>();
  return x < y ? -1 : x > y ? 1 : 0;
}
// Converts 2.0 to 2 and -0.0 to 0, as far as doubles represent whole numbers exactly.
json whole_if_it_is(const json& number) {
  const double value = number.get<double>();
  if (!number.is_number_float() || std::trunc(value) != value || std::abs(value) > kExactDouble) return number;
  return static_cast<std::int64_t>(value);
}
std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

struct SchemaNode {  // a part of a schema, compiled
  struct Arm {
    std::string tag;
    std::size_t node = kNone;
  };
  unsigned types = kAnyType;
  bool bytes = false, variant = false;
  std::map<std::string, std::size_t, std::less<>> properties;
  std::set<std::string, std::less<>> required;
  std::size_t additional = kNone, items = kNone, target = kNone;  // target: of a reference
  std::string ref, path;
  std::uint64_t min = 0, max = kNoBound;  // number of items
  std::uint64_t least_length = 0, most_length = kNoBound;
  json minimum, maximum, choices;  // null: none; choices: a list
  std::vector<Arm> arms;
};

namespace {

// A position in a value during a check.
struct ValuePath {
  const ValuePath* up = nullptr;
  std::string_view name;
  std::size_t index = kNone, depth = 0;

  ValuePath at(std::string_view key) const { return {this, key, kNone, depth + 1}; }
  ValuePath at(std::size_t i) const { return {this, {}, i, depth + 1}; }
  std::string text() const {
    if (up == nullptr) return {};
    const std::string before = up->text();
    if (index != kNone) return before + '[' + std::to_string(index) + ']';
    return before.empty() ? std::string(name) : before + '.' + std::string(name);
  }
};

std::string what_it_is(const json& value) {
  if (value.is_binary()) return "a byte string";
  if (value.is_string()) return "the text " + excerpt(value.get_ref<const std::string&>());
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "no finite number";
  return std::string(value.is_number()       ? "the number "
                     : value.is_structured() ? "an "
                                             : "") +
         (value.is_number() || value.is_boolean() ? value.dump()
          : value.is_null()                       ? "null"
                                                  : value.type_name());
}

}  // namespace

struct SchemaSet::Body {
  std::vector<SchemaNode> nodes;
  std::map<std::string, std::size_t, std::less<>> by_name;
  std::map<std::string, std::vector<VariantArm>, std::less<>> arms;

  std::size_t compile(const JsonPath&);
  void read_words(SchemaNode&, const JsonPath&);
  void read_type(SchemaNode&, const JsonPath&);
  void read_object(SchemaNode&, const JsonPath&);
  void read_list(SchemaNode&, const JsonPath&);
  void read_bounds(SchemaNode&, const JsonPath&);
  void read_choices(SchemaNode&, const JsonPath&);
  void read_variant(SchemaNode&, const JsonPath&);
  SchemaNode::Arm read_arm(const JsonPath&);
  // Follows references. Returns nullptr if they do not lead to a schema.
  const SchemaNode* real(std::size_t) const;
  // Returns whether one of the nodes that describe the value at the path satisfies `wanted`.
  bool any_at(std::string_view name, std::string_view path, const std::function<bool(const SchemaNode&)>& wanted) const;
  bool loops(std::size_t) const;
};

namespace {

bool read_count(const JsonPath& at, std::uint64_t& out) {
  if (!is_whole(at.value) || compare(at.value, json(0)) < 0) return at.report_wrong_type("a whole number from 0");
  out = at.value.get<std::uint64_t>();
  return true;
}
bool known_words(const JsonPath& at) {
  static const auto kNames = [] {
    std::array<std::string_view, kKeywords.size()> names;
    std::transform(kKeywords.begin(), kKeywords.end(), names.begin(), [](const auto& row) { return row.first; });
    return names;
  }();
  bool all = true;
  for (const auto& [word, value] : at.value.items()) {
    if (std::find(kNames.begin(), kNames.end(), word) != kNames.end()) continue;
    at.at(value, word).report_problem("is not a supported word of schemas" + did_you_mean(word, kNames));
    all = false;
  }
  return all;
}
// Reports every other keyword in the schema except title and description.
void alone(const JsonPath& at, std::string_view word) {
  for (const auto& [other, value] : at.value.items())
    if (other != word && other != "title" && other != "description")
      at.at(value, other).report_problem("is redundant beside " + std::string(word));
}

}  // namespace

bool is_system_name(std::string_view name) { return name.starts_with("sys/"); }
bool is_workflow_name(std::string_view name) {
  const auto slash = name.find('/'), at = name.find('@');
  if (slash == 0 || slash == name.npos || at == name.npos || at < slash + 2 || at + 1 == name.size()) return false;
  if (name.size() > 200) return false;
  const auto all = [](std::string_view part, auto fits) { return std::all_of(part.begin(), part.end(), fits); };
  const auto small = [](unsigned char c) { return std::islower(c) || std::isdigit(c) || c == '.' || c == '-'; };
  const auto wide = [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '.' || c == '_' || c == '-'); };
  const auto version = [](unsigned char c) { return std::isdigit(c) || c == '.'; };
  return all(name.substr(0, slash), small) && all(name.substr(slash + 1, at - slash - 1), wide) &&
         all(name.substr(at + 1), version) && std::isdigit(static_cast<unsigned char>(name[at + 1])) != 0;
}

SchemaSet::SchemaSet() : body_(std::make_unique<Body>()) {
  plans::Problems none;
  for (const auto& [name, schema] : system_schemas().items()) add(name, {schema, name, none});
  link(none);
}
SchemaSet::~SchemaSet() = default;
SchemaSet::SchemaSet(SchemaSet&&) noexcept = default;
SchemaSet& SchemaSet::operator=(SchemaSet&&) noexcept = default;

void SchemaSet::add(const std::string& name, const JsonPath& schema) {
  if (has(name)) return schema.report_problem("is listed twice");
  const std::size_t node = body_->compile(schema);
  body_->by_name.emplace(name, node);
}

std::size_t SchemaSet::Body::compile(const JsonPath& at) {  // NOLINT(misc-no-recursion): as deep as the JSON
  if (nodes.size() >= kMaxSchemaNodes) {
    at.report_problem("the schemas have more than " + std::to_string(kMaxSchemaNodes) + " parts");
    return 0;
  }
  SchemaNode node;
  node.path = at.path;
  if (!at.value.is_object()) {
    at.report_wrong_type("a schema");
  } else if (known_words(at)) {
    read_words(node, at);
  }
  nodes.push_back(std::move(node));
  return nodes.size() - 1;
}

void SchemaSet::Body::read_words(SchemaNode& node, const JsonPath& at) {
  if (at.value.contains("$ref")) {
    alone(at, "$ref");
    plans::read_text(at.at(at.value.at("$ref"), "$ref"), node.ref);
    return;
  }
  if (at.value.contains("oneOf")) {
    alone(at, "oneOf");
    return read_variant(node, at.at(at.value.at("oneOf"), "oneOf"));
  }
  read_type(node, at);
  for (const auto& [word, types] : kKeywords) {
    if (types == 0 || !at.value.contains(word)) continue;
    if (!at.value.contains("type") || (node.types & types) == 0)
      at.at(at.value.at(word), word).report_problem("has no effect without the type " + names_of(types));
  }
  read_object(node, at);
  read_list(node, at);
  read_bounds(node, at);
  read_choices(node, at);
}

void SchemaSet::Body::read_type(SchemaNode& node, const JsonPath& at) {
  if (!at.value.contains("type")) return;
  node.types = 0;
  plans::each_of(at.at(at.value.at("type"), "type"), [&](const JsonPath& each) {
    std::string name;
    if (!plans::read_text(each, name)) return;
    const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& row) { return row.first == name; });
    if (found == kTypes.end()) return each.report_problem(excerpt(name) + " is not a type: use " + names_of(kAnyType));
    node.types |= found->second;
  });
  if (node.types == 0) at.report_problem("its type is empty");
  if (!at.value.contains("format")) return;
  const json& format = at.value.at("format");
  node.bytes = format == "bytes";
  if (!node.bytes) at.at(format, "format").report_problem("the only format is bytes");
}

void SchemaSet::Body::read_object(SchemaNode& node, const JsonPath& at) {  // NOLINT(misc-no-recursion)
  if (at.value.contains("properties")) {
    const JsonPath all = at.at(at.value.at("properties"), "properties");
    if (!all.value.is_object()) {
      all.report_wrong_type("a map of schemas");
    } else {
      for (const auto& [name, schema] : all.value.items()) node.properties[name] = compile(all.at(schema, name));
    }
  }
  if (at.value.contains("additionalProperties")) {
    const JsonPath others = at.at(at.value.at("additionalProperties"), "additionalProperties");
    if (others.value != json(false)) node.additional = compile(others);
  }
  if (!at.value.contains("required")) return;
  plans::each_of(at.at(at.value.at("required"), "required"), [&](const JsonPath& each) {
    std::string name;
    if (!plans::read_text(each, name)) return;
    if (!node.required.insert(name).second) each.report_problem("is listed twice");
    if (!node.properties.contains(name) && node.additional == kNone)
      each.report_problem(excerpt(name) + " is not among the properties");
  });
}

void SchemaSet::Body::read_list(SchemaNode& node, const JsonPath& at) {  // NOLINT(misc-no-recursion)
  if (at.value.contains("items")) node.items = compile(at.at(at.value.at("items"), "items"));
}

void SchemaSet::Body::read_bounds(SchemaNode& node, const JsonPath& at) {
  const auto count = [&](const char* word, std::uint64_t& out) {
    if (at.value.contains(word)) read_count(at.at(at.value.at(word), word), out);
  };
  const auto number = [&](const char* word, json& out) {
    if (!at.value.contains(word)) return;
    const JsonPath found = at.at(at.value.at(word), word);
    if (!found.value.is_number()) {
      found.report_wrong_type("a number");
      return;
    }
    out = found.value;
  };
  count("minItems", node.min), count("maxItems", node.max);
  count("minLength", node.least_length), count("maxLength", node.most_length);
  number("minimum", node.minimum), number("maximum", node.maximum);
  if (node.min > node.max || node.least_length > node.most_length ||
      (node.minimum.is_number() && node.maximum.is_number() && compare(node.minimum, node.maximum) > 0))
    at.report_problem("its minimum is above its maximum");
}

void SchemaSet::Body::read_choices(SchemaNode& node, const JsonPath& at) {
  if (at.value.contains("const")) node.choices = json::array({at.value.at("const")});
  if (!at.value.contains("enum")) return;
  const JsonPath choices = at.at(at.value.at("enum"), "enum");
  if (at.value.contains("const")) return choices.report_problem("is redundant beside const");
  if (!choices.value.is_array() || choices.value.empty()) {
    choices.report_wrong_type("a list of values, one at least");
    return;
  }
  node.choices = choices.value;
}

SchemaNode::Arm SchemaSet::Body::read_arm(const JsonPath& at) {  // NOLINT(misc-no-recursion)
  SchemaNode::Arm arm;
  if (!at.value.is_object()) return at.report_wrong_type("a schema"), arm;
  if (at.value.contains("title")) {
    plans::read_text(at.at(at.value.at("title"), "title"), arm.tag);
  } else if (const auto ref = at.value.find("$ref"); ref != at.value.end() && ref->is_string()) {
    arm.tag = ref->get<std::string>();
  } else {
    at.report_problem("an arm needs a title or a $ref");
  }
  arm.node = compile(at);
  return arm;
}

void SchemaSet::Body::read_variant(SchemaNode& node, const JsonPath& at) {  // NOLINT(misc-no-recursion)
  node.variant = true;
  if (!at.value.is_array() || at.value.empty()) {
    at.report_wrong_type("a list of arms, one at least");
    return;
  }
  std::set<std::string> tags;
  std::set<json> schemas;
  for (std::size_t i = 0; i < at.value.size(); ++i) {
    const JsonPath place = at.at(at.value[i], i);
    const SchemaNode::Arm arm = read_arm(place);
    if (arm.node == kNone) continue;
    json bare = place.value;
    bare.erase("title"), bare.erase("description");
    if (!tags.insert(arm.tag).second)
      place.report_problem("another arm has the tag " + excerpt(arm.tag));
    else if (!schemas.insert(bare).second)
      place.report_problem("another arm has the same schema");
    node.arms.push_back(arm);
  }
}

const SchemaNode* SchemaSet::Body::real(std::size_t at) const {
  for (std::size_t hops = 0; at != kNone && hops <= nodes.size(); ++hops) {
    const SchemaNode& node = nodes[at];
    if (node.ref.empty()) return &node;
    at = node.target;
  }
  return nullptr;
}

bool SchemaSet::Body::loops(std::size_t at) const {
  std::size_t hops = 0;
  while (nodes[at].target != kNone && hops <= nodes.size()) at = nodes[at].target, ++hops;
  return hops > nodes.size();
}

void SchemaSet::link(plans::Problems& problems) {
  for (auto& node : body_->nodes) {
    if (node.ref.empty()) continue;
    const auto found = body_->by_name.find(node.ref);
    if (found == body_->by_name.end())
      problems.add(node.path, "there is no schema " + excerpt(node.ref));
    else
      node.target = found->second;
  }
  for (std::size_t i = 0; i < body_->nodes.size(); ++i)
    if (body_->loops(i)) problems.add(body_->nodes[i].path, "the reference leads back to itself");
  for (const auto& [name, index] : body_->by_name) {
    const SchemaNode* real = body_->real(index);
    if (real == nullptr || !real->variant) continue;
    auto& arms = body_->arms[name];
    arms.clear();
    for (const auto& arm : real->arms) arms.push_back({arm.tag, body_->nodes[arm.node].ref});
  }
}

bool SchemaSet::has(std::string_view name) const { return body_->by_name.contains(name); }
std::vector<std::string> SchemaSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, node] : body_->by_name) names.push_back(name);
  return names;
}
const std::vector<VariantArm>* SchemaSet::arms(std::string_view name) const {
  const auto found = body_->arms.find(name);
  return found == body_->arms.end() ? nullptr : &found->second;
}
std::optional<std::string> SchemaSet::arm_of(std::string_view into, std::string_view event) const {
  if (into == event) return "";
  if (const auto* all = arms(into); all != nullptr)
    for (const auto& arm : *all)
      if (arm.ref == event) return arm.tag;
  return std::nullopt;
}

namespace {

// Builds the canonical value of a valid value. The check ends at the first problem.
class SchemaValidator {
 public:
  SchemaValidator(const std::function<const SchemaNode*(std::size_t)>& real, ValueForm form)
      : real_(real), form_(form) {}

  json whole(std::size_t node, const json& value) { return check(node, value, {}); }
  const std::string& wrong() const { return wrong_; }

 private:
  json refuse(const ValuePath& at, const std::string& why) {
    if (wrong_.empty()) {
      const std::string place = at.text();
      wrong_ = (place.empty() ? "the value" : place) + ": " + why;
    }
    return nullptr;
  }
  json check(std::size_t index, const json& value,
             const ValuePath& at) {  // NOLINT(misc-no-recursion): depth is bounded
    if (!wrong_.empty()) return nullptr;
    if (at.depth > kMaxCborDepth) return refuse(at, "is deeper than " + std::to_string(kMaxCborDepth) + " levels");
    const SchemaNode* node = real_(index);
    if (node == nullptr) return refuse(at, "its schema leads nowhere");
    if (node->variant) return variant(*node, value, at);
    json out = typed(*node, value, at);
    if (wrong_.empty() && !node->choices.is_null() &&
        std::find(node->choices.begin(), node->choices.end(), out) == node->choices.end())
      return refuse(at, "is " + what_it_is(value) + ", not " + (node->choices.size() == 1 ? "" : "one of ") +
                            dump_json(node->choices.size() == 1 ? node->choices[0] : node->choices));
    return out;
  }
  json variant(const SchemaNode& node, const json& value, const ValuePath& at) {  // NOLINT(misc-no-recursion)
    if (!value.is_object() || value.size() != 2 || !value.contains("$tag") || !value.contains("$value") ||
        !value.at("$tag").is_string())
      return refuse(at, "is " + what_it_is(value) + ", not {\"$tag\": ..., \"$value\": ...}");
    const auto& tag = value.at("$tag").get_ref<const std::string&>();
    for (const auto& arm : node.arms)
      if (arm.tag == tag)
        return json{{"$tag", tag}, {"$value", check(arm.node, value.at("$value"), at.at(std::string_view("$value")))}};
    return refuse(at.at(std::string_view("$tag")), excerpt(tag) + " is the tag of no arm");
  }
  bool typed_as(const SchemaNode& node, unsigned type) const { return (node.types & type) != 0; }

  json typed(const SchemaNode& node, const json& value, const ValuePath& at) {  // NOLINT(misc-no-recursion)
    const auto expected = [&] {
      return refuse(at, "is " + what_it_is(value) + ", not " +
                            (node.bytes && node.types == kStringType ? "a byte string" : names_of(node.types)));
    };
    if (node.types == kAnyType && !node.bytes) return any(node, value, at);
    if (value.is_null()) return typed_as(node, kNullType) ? value : expected();
    if (value.is_boolean()) return typed_as(node, kBooleanType) ? value : expected();
    if (value.is_number()) {
      json number = whole_if_it_is(value);
      if (!typed_as(node, kNumberType) && !(typed_as(node, kIntegerType) && is_whole(number))) return expected();
      return this->number(node, std::move(number), at);
    }
    if (value.is_string() || value.is_binary()) {
      if (!typed_as(node, kStringType) || (value.is_binary() && !node.bytes)) return expected();
      return node.bytes ? bytes(node, value, at) : text(node, value, at);
    }
    if (value.is_array()) return typed_as(node, kArrayType) ? array(node, value, at) : expected();
    return typed_as(node, kObjectType) && value.is_object() ? object(node, value, at) : expected();
  }
  // Converts a value without a declared type. Only its general form is checked.
  json any(const SchemaNode& node, const json& value, const ValuePath& at) {  // NOLINT(misc-no-recursion)
    if (at.depth > kMaxCborDepth) return refuse(at, "is deeper than " + std::to_string(kMaxCborDepth) + " levels");
    if (value.is_number()) return number(node, whole_if_it_is(value), at);
    if (!value.is_structured()) return value;
    json out = value;
    if (value.is_array())
      for (std::size_t i = 0; i < value.size(); ++i) out[i] = any(node, value[i], at.at(i));
    else
      for (const auto& [name, each] : value.items()) out[name] = any(node, each, at.at(name));
    return out;
  }
  json number(const SchemaNode& node, json value, const ValuePath& at) {
    if (value.is_number_float() && !std::isfinite(value.get<double>())) return refuse(at, "is no finite number");
    if (node.minimum.is_number() && compare(value, node.minimum) < 0)
      return refuse(at, "is " + value.dump() + "; at least " + node.minimum.dump());
    if (node.maximum.is_number() && compare(value, node.maximum) > 0)
      return refuse(at, "is " + value.dump() + "; at most " + node.maximum.dump());
    return value;
  }
  bool length_fits(const SchemaNode& node, std::uint64_t length, const char* unit, const ValuePath& at) {
    if (length < node.least_length)
      refuse(at, "has " + count_with_noun(length, unit) + "; at least " + std::to_string(node.least_length));
    if (length > node.most_length)
      refuse(at, "has " + count_with_noun(length, unit) + "; at most " + std::to_string(node.most_length));
    return wrong_.empty();
  }
  json text(const SchemaNode& node, const json& value, const ValuePath& at) {
    const auto& text = value.get_ref<const std::string&>();
    if (!is_utf8(text)) return refuse(at, "is not UTF-8");
    return length_fits(node, characters(text), "character", at) ? value : json();
  }
  json bytes(const SchemaNode& node, const json& value, const ValuePath& at) {
    json out = value;
    if (value.is_string()) {
      const auto decoded = decode_base64(value.get_ref<const std::string&>());
      if (form_ == ValueForm::from_cbor || !decoded)
        return refuse(at, form_ == ValueForm::from_cbor ? "is a text, not a byte string" : "is not base64");
      out = workflows::binary(*decoded);
    }
    return length_fits(node, out.get_binary().size(), "byte", at) ? out : json();
  }
  json array(const SchemaNode& node, const json& value, const ValuePath& at) {  // NOLINT(misc-no-recursion)
    if (value.size() < node.min || value.size() > node.max)
      return refuse(
          at, "has " + count_with_noun(value.size(), "item") + "; at " +
                  (value.size() < node.min ? "least " + std::to_string(node.min) : "most " + std::to_string(node.max)));
    json out = json::array();
    static const SchemaNode kAny;
    for (std::size_t i = 0; i < value.size() && wrong_.empty(); ++i)
      out.push_back(node.items == kNone ? any(kAny, value[i], at.at(i)) : check(node.items, value[i], at.at(i)));
    return out;
  }
  json object(const SchemaNode& node, const json& value, const ValuePath& at) {  // NOLINT(misc-no-recursion)
    json out = json::object();
    for (const auto& name : node.required)
      if (!value.contains(name)) return refuse(at.at(std::string_view(name)), "is missing");
    for (const auto& [name, each] : value.items()) {
      const auto found = node.properties.find(name);
      const std::size_t schema = found == node.properties.end() ? node.additional : found->second;
      if (!is_utf8(name)) return refuse(at, "has a name that is not UTF-8");
      if (schema == kNone) return refuse(at.at(std::string_view(name)), "is an unknown field");
      out[name] = check(schema, each, at.at(std::string_view(name)));
    }
    return out;
  }

  const std::function<const SchemaNode*(std::size_t)>& real_;
  const ValueForm form_;
  std::string wrong_;
};

}  // namespace

Result<CanonicalValue> SchemaSet::check(std::string_view name, const json& value, ValueForm form,
                                        std::size_t max_bytes) const {
  const auto found = body_->by_name.find(name);
  if (found == body_->by_name.end()) return fail(Code::not_found, "there is no schema " + excerpt(name));
  const std::function<const SchemaNode*(std::size_t)> real = [this](std::size_t at) { return body_->real(at); };
  SchemaValidator checking(real, form);
  json canonical = checking.whole(found->second, value);
  if (!checking.wrong().empty()) return fail(Code::invalid, checking.wrong());
  MJ_TRY(bytes, encode_cbor(canonical));
  if (bytes.size() > max_bytes)
    return fail(Code::too_large,
                "it has " + count_with_noun(bytes.size(), "byte") + "; at most " + std::to_string(max_bytes));
  return CanonicalValue{std::make_shared<const json>(std::move(canonical)), std::move(bytes)};
}
Result<CanonicalValue> SchemaSet::check_text(std::string_view name, std::string_view text, ValueForm form,
                                             std::size_t max_bytes) const {
  MJ_TRY(value, form == ValueForm::from_cbor ? decode_cbor(text) : parse_exact_json(text));
  return check(name, value, form, max_bytes);
}
Result<CanonicalValue> SchemaSet::check_bytes(std::string_view name, std::string_view cbor,
                                              std::size_t max_bytes) const {
  return check_text(name, cbor, ValueForm::from_cbor, max_bytes);
}

namespace {

// Removes the first name of "a.b" from the path and returns it.
std::string_view next_name(std::string_view& path) {
  const auto dot = path.find('.');
  const std::string_view name = path.substr(0, dot);
  path = dot == path.npos ? std::string_view() : path.substr(dot + 1);
  return name;
}

}  // namespace

bool SchemaSet::Body::any_at(std::string_view name, std::string_view path,
                             const std::function<bool(const SchemaNode&)>& wanted) const {
  const auto start = by_name.find(name);
  if (start == by_name.end()) return false;
  const std::function<bool(std::size_t, std::string_view)> leads = [&](std::size_t at, std::string_view rest) {
    const SchemaNode* node = real(at);
    if (node == nullptr) return false;
    if (rest.empty()) return wanted(*node);
    const std::string_view first = next_name(rest);
    if (node->variant)
      return first == "$value" && std::any_of(node->arms.begin(), node->arms.end(), [&](const auto& arm) {
               return !is_system_name(nodes[arm.node].ref) && leads(arm.node, rest);
             });
    if (node->types == kAnyType) return wanted(*node);
    const auto found = node->properties.find(first);
    const std::size_t next = found == node->properties.end() ? node->additional : found->second;
    return next != kNone && leads(next, rest);
  };
  return !path.empty() && leads(start->second, path);
}

bool SchemaSet::has_path(std::string_view name, std::string_view path) const {
  return body_->any_at(name, path, [](const SchemaNode&) { return true; });
}

bool SchemaSet::may_fit(std::string_view name, std::string_view path, std::string_view other) const {
  const auto found = body_->by_name.find(other);
  const SchemaNode* into = found == body_->by_name.end() ? nullptr : body_->real(found->second);
  if (into == nullptr) return false;
  const auto numbers = [](unsigned types) { return (types & kNumberType) != 0 ? types | kIntegerType : types; };
  return body_->any_at(name, path, [&](const SchemaNode& node) {
    if (node.types == kAnyType || into->types == kAnyType) return node.variant == into->variant;
    unsigned both = numbers(node.types) & numbers(into->types);
    if (node.bytes != into->bytes) both &= ~kStringType;
    return !node.variant && !into->variant && both != 0;
  });
}

bool SchemaSet::is_of_keys(std::string_view name) const {
  const auto found = body_->by_name.find(name);
  const SchemaNode* node = found == body_->by_name.end() ? nullptr : body_->real(found->second);
  return node != nullptr && !node->variant && (node->types & ~(kStringType | kIntegerType)) == 0;
}

void SchemaSet::check_choices(plans::Problems& problems) const {
  const std::function<const SchemaNode*(std::size_t)> real = [this](std::size_t at) { return body_->real(at); };
  for (std::size_t i = 0; i < body_->nodes.size(); ++i) {
    for (const json& choice : body_->nodes[i].choices) {
      SchemaValidator checking(real, ValueForm::from_json);
      checking.whole(i, choice);
      if (!checking.wrong().empty())
        problems.add(body_->nodes[i].path,
                     "its choice " + excerpt(dump_json(choice)) + " never fits: " + checking.wrong());
    }
  }
}

namespace {

json least_number(const SchemaNode& node) {
  json number = 0;
  const auto inwards = [&](const json& bound, bool up) -> json {
    if (!bound.is_number_float() || (node.types & kNumberType) != 0) return bound;
    return static_cast<std::int64_t>(up ? std::ceil(bound.get<double>()) : std::floor(bound.get<double>()));
  };
  if (node.minimum.is_number() && compare(number, node.minimum) < 0) number = inwards(node.minimum, true);
  if (node.maximum.is_number() && compare(number, node.maximum) > 0) number = inwards(node.maximum, false);
  return number;
}

using Real = std::function<const SchemaNode*(std::size_t)>;
std::optional<json> least_value(const Real& real, std::size_t at, std::size_t depth);

std::optional<json> least_object(const Real& real, const SchemaNode& node, std::size_t depth) {
  json object = json::object();
  for (const auto& name : node.required) {
    const auto found = node.properties.find(name);
    auto value = least_value(real, found == node.properties.end() ? node.additional : found->second, depth + 1);
    if (!value) return std::nullopt;
    object[name] = std::move(*value);
  }
  return object;
}
std::optional<json> least_array(const Real& real, const SchemaNode& node, std::size_t depth) {
  json array = json::array();
  for (std::uint64_t i = 0; i < node.min; ++i) {
    auto value = node.items == kNone ? std::optional<json>(nullptr) : least_value(real, node.items, depth + 1);
    if (!value || i > kMaxSchemaNodes) return std::nullopt;
    array.push_back(std::move(*value));
  }
  return array;
}
std::optional<json> least_value(const Real& real, std::size_t at, std::size_t depth) {  // NOLINT(misc-no-recursion)
  const SchemaNode* node = at == kNone ? nullptr : real(at);
  if (node == nullptr || depth > 24) return std::nullopt;
  if (node->variant) {
    for (const auto& arm : node->arms)
      if (auto value = least_value(real, arm.node, depth + 1)) return as_arm(arm.tag, std::move(*value));
    return std::nullopt;
  }
  if (!node->choices.is_null()) return node->choices[0];
  if ((node->types & kNullType) != 0) return json(nullptr);
  if ((node->types & kBooleanType) != 0) return json(false);
  if ((node->types & (kIntegerType | kNumberType)) != 0) return least_number(*node);
  if ((node->types & kStringType) != 0) {
    if (node->least_length > kMaxSchemaNodes) return std::nullopt;
    std::string text(node->least_length, node->bytes ? '\0' : 'x');
    return node->bytes ? workflows::binary(text) : json(std::move(text));
  }
  if ((node->types & kArrayType) != 0) return least_array(real, *node, depth);
  return least_object(real, *node, depth);
}

}  // namespace

Result<CanonicalValue> SchemaSet::placeholder(std::string_view name) const {
  const auto found = body_->by_name.find(name);
  if (found == body_->by_name.end()) return fail(Code::not_found, "there is no schema " + excerpt(name));
  auto value = least_value([this](std::size_t at) { return body_->real(at); }, found->second, 0);
  if (!value) return fail(Code::unsupported, "no placeholder fits " + excerpt(name) + ": give a value");
  return check(name, *value, ValueForm::from_cbor);
}

json as_arm(const std::string& tag, json value) {
  if (tag.empty()) return value;
  return json{{"$tag", tag}, {"$value", std::move(value)}};
}
const json* at_path(const json& value, std::string_view path) {
  const json* at = &value;
  while (!path.empty()) {
    const std::string_view name = next_name(path);
    if (!at->is_object()) return nullptr;
    const auto found = at->find(name);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

}  // namespace mycojobs
