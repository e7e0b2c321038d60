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

#include "text/base64.h"
#include "text/cbor.h"
#include "text/cbor_map_reader.h"
#include "text/document_reader.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/suggestion.h"
#include "text/utf8.h"
#include "workflows/manifest/system_schemas.h"

namespace mycojobs {
namespace {

using nlohmann::json;

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
// The keywords of a schema, each with the types of which the schema needs one. 0 means that no type is needed.
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
constexpr double kMaxExactDouble = 9007199254740992.0;  // 2^53: every whole number up to here is exact as a double
constexpr std::uint64_t kNoBound = ~std::uint64_t{0};
constexpr std::size_t kNoNode = ~std::size_t{0};
constexpr std::size_t kMaxPlaceholderDepth = 24;  // levels of a placeholder; a schema may contain itself

std::string list_types(unsigned types) {
  std::string text;
  for (const auto& [name, bit] : kTypes)
    if ((types & bit) != 0) text += (text.empty() ? "" : " or ") + std::string(name);
  return text;
}

bool is_integer(const json& number) { return number.is_number_integer(); }
// Returns -1, 0 or 1. Exact for integers.
int compare(const json& a, const json& b) {
  if (is_integer(a) && is_integer(b)) {
    const bool is_a_negative = !a.is_number_unsigned() && a.get<std::int64_t>() < 0;
    const bool is_b_negative = !b.is_number_unsigned() && b.get<std::int64_t>() < 0;
    if (is_a_negative != is_b_negative) return is_a_negative ? -1 : 1;
    if (is_a_negative) {
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
json to_integer_if_whole(const json& number) {
  const double value = number.get<double>();
  if (!number.is_number_float() || std::trunc(value) != value || std::abs(value) > kMaxExactDouble) return number;
  return static_cast<std::int64_t>(value);
}
std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

// A compiled part of a schema. Nodes refer to each other by their index in SchemaSet::Body::nodes.
struct SchemaNode {
  struct Arm {
    std::string tag;
    std::size_t node = kNoNode;
  };
  unsigned types = kAnyType;
  bool is_byte_string = false, is_variant = false;
  std::map<std::string, std::size_t, std::less<>> properties;
  std::set<std::string, std::less<>> required;
  std::size_t additional_properties = kNoNode, items = kNoNode;  // nodes of the schemas in these keywords
  std::string ref;                        // name of the schema in $ref; empty if there is no reference
  std::size_t referenced_node = kNoNode;  // node of the schema that `ref` names
  std::string path;                       // path of the node in the manifest
  std::uint64_t min_items = 0, max_items = kNoBound;
  std::uint64_t min_length = 0, max_length = kNoBound;
  json minimum, maximum, choices;  // null if the schema has none; `choices` is a list
  std::vector<Arm> arms;
};

namespace {

// A position in a value during a check.
struct ValuePath {
  const ValuePath* parent = nullptr;
  std::string_view name;
  std::size_t index = kNoNode, depth = 0;

  ValuePath at(std::string_view key) const { return {this, key, kNoNode, depth + 1}; }
  ValuePath at(std::size_t i) const { return {this, {}, i, depth + 1}; }
  std::string text() const {
    if (parent == nullptr) return {};
    const std::string parent_text = parent->text();
    if (index != kNoNode) return parent_text + '[' + std::to_string(index) + ']';
    return parent_text.empty() ? std::string(name) : parent_text + '.' + std::string(name);
  }
};

std::string describe_value(const json& value) {
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

  // Adds a schema with its parts to `nodes` and returns its index.
  std::size_t compile(const DocumentValue&);
  void read_keywords(SchemaNode&, const DocumentValue&);
  void read_type(SchemaNode&, const DocumentValue&);
  void read_object(SchemaNode&, const DocumentValue&);
  void read_list(SchemaNode&, const DocumentValue&);
  void read_bounds(SchemaNode&, const DocumentValue&);
  void read_choices(SchemaNode&, const DocumentValue&);
  void read_variant(SchemaNode&, const DocumentValue&);
  SchemaNode::Arm read_arm(const DocumentValue&);
  // Follows references. Returns nullptr if they do not lead to a schema.
  const SchemaNode* resolve(std::size_t) const;
  // Returns whether one of the nodes that describe the value at the path satisfies the predicate.
  bool any_node_at(std::string_view name, std::string_view path,
                   const std::function<bool(const SchemaNode&)>& predicate) const;
  // Returns whether the references that start at this node form a cycle.
  bool is_cyclic(std::size_t) const;
};

namespace {

// Reads a whole number from 0. Reports any other value and returns false.
bool read_count(const DocumentValue& source, std::uint64_t& out) {
  if (!is_integer(source.value) || compare(source.value, json(0)) < 0)
    return source.report_wrong_type("a whole number from 0");
  out = source.value.get<std::uint64_t>();
  return true;
}
// Reports unsupported keywords. Returns whether there are none.
bool check_keywords(const DocumentValue& source) {
  static const auto kNames = [] {
    std::array<std::string_view, kKeywords.size()> names;
    std::transform(kKeywords.begin(), kKeywords.end(), names.begin(), [](const auto& row) { return row.first; });
    return names;
  }();
  bool are_all_supported = true;
  for (const auto& [word, value] : source.value.items()) {
    if (std::find(kNames.begin(), kNames.end(), word) != kNames.end()) continue;
    source.at(value, word).report_problem("is not a supported word of schemas" + did_you_mean(word, kNames));
    are_all_supported = false;
  }
  return are_all_supported;
}
// Reports every other keyword in the schema except title and description.
void check_no_other_keywords(const DocumentValue& source, std::string_view word) {
  for (const auto& [other, value] : source.value.items())
    if (other != word && other != "title" && other != "description")
      source.at(value, other).report_problem("is redundant beside " + std::string(word));
}

}  // namespace

bool is_system_name(std::string_view name) { return name.starts_with("sys/"); }
bool is_workflow_name(std::string_view name) {
  const auto slash = name.find('/'), at = name.find('@');
  if (slash == 0 || slash == name.npos || at == name.npos || at < slash + 2 || at + 1 == name.size()) return false;
  if (name.size() > 200) return false;
  const auto consists_of = [](std::string_view part, auto is_allowed) {
    return std::all_of(part.begin(), part.end(), is_allowed);
  };
  const auto is_namespace_char = [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '.' || c == '-';
  };
  const auto is_name_char = [](unsigned char c) {
    return c < 128 && (std::isalnum(c) || c == '.' || c == '_' || c == '-');
  };
  const auto is_version_char = [](unsigned char c) { return std::isdigit(c) || c == '.'; };
  return consists_of(name.substr(0, slash), is_namespace_char) &&
         consists_of(name.substr(slash + 1, at - slash - 1), is_name_char) &&
         consists_of(name.substr(at + 1), is_version_char) &&
         std::isdigit(static_cast<unsigned char>(name[at + 1])) != 0;
}

SchemaSet::SchemaSet() : body_(std::make_unique<Body>()) {
  DocumentProblems problems;
  for (const auto& [name, schema] : system_schemas().items()) add(name, {schema, name, problems});
  link(problems);
}
SchemaSet::~SchemaSet() = default;
SchemaSet::SchemaSet(SchemaSet&&) noexcept = default;
SchemaSet& SchemaSet::operator=(SchemaSet&&) noexcept = default;

void SchemaSet::add(const std::string& name, const DocumentValue& schema) {
  if (has(name)) return schema.report_problem("is listed twice");
  const std::size_t node = body_->compile(schema);
  body_->by_name.emplace(name, node);
}

std::size_t SchemaSet::Body::compile(const DocumentValue& source) {  // NOLINT(misc-no-recursion): as deep as the JSON
  if (nodes.size() >= kMaxSchemaNodes) {
    source.report_problem("the schemas have more than " + std::to_string(kMaxSchemaNodes) + " parts");
    return 0;
  }
  SchemaNode node;
  node.path = source.path;
  if (!source.value.is_object()) {
    source.report_wrong_type("a schema");
  } else if (check_keywords(source)) {
    read_keywords(node, source);
  }
  nodes.push_back(std::move(node));
  return nodes.size() - 1;
}

void SchemaSet::Body::read_keywords(SchemaNode& node, const DocumentValue& source) {
  if (source.value.contains("$ref")) {
    check_no_other_keywords(source, "$ref");
    read_text(source.at(source.value.at("$ref"), "$ref"), node.ref);
    return;
  }
  if (source.value.contains("oneOf")) {
    check_no_other_keywords(source, "oneOf");
    return read_variant(node, source.at(source.value.at("oneOf"), "oneOf"));
  }
  read_type(node, source);
  for (const auto& [word, types] : kKeywords) {
    if (types == 0 || !source.value.contains(word)) continue;
    if (!source.value.contains("type") || (node.types & types) == 0)
      source.at(source.value.at(word), word).report_problem("has no effect without the type " + list_types(types));
  }
  read_object(node, source);
  read_list(node, source);
  read_bounds(node, source);
  read_choices(node, source);
}

void SchemaSet::Body::read_type(SchemaNode& node, const DocumentValue& source) {
  if (!source.value.contains("type")) return;
  node.types = 0;
  for_each_item(source.at(source.value.at("type"), "type"), [&](const DocumentValue& item) {
    std::string name;
    if (!read_text(item, name)) return;
    const auto type = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& row) { return row.first == name; });
    if (type == kTypes.end()) return item.report_problem(excerpt(name) + " is not a type: use " + list_types(kAnyType));
    node.types |= type->second;
  });
  if (node.types == 0) source.report_problem("its type is empty");
  if (!source.value.contains("format")) return;
  const json& format = source.value.at("format");
  node.is_byte_string = format == "bytes";
  if (!node.is_byte_string) source.at(format, "format").report_problem("the only format is bytes");
}

void SchemaSet::Body::read_object(SchemaNode& node, const DocumentValue& source) {  // NOLINT(misc-no-recursion)
  if (source.value.contains("properties")) {
    const DocumentValue properties = source.at(source.value.at("properties"), "properties");
    if (!properties.value.is_object()) {
      properties.report_wrong_type("a map of schemas");
    } else {
      for (const auto& [name, schema] : properties.value.items())
        node.properties[name] = compile(properties.at(schema, name));
    }
  }
  if (source.value.contains("additionalProperties")) {
    const DocumentValue additional = source.at(source.value.at("additionalProperties"), "additionalProperties");
    if (additional.value != json(false)) node.additional_properties = compile(additional);
  }
  if (!source.value.contains("required")) return;
  for_each_item(source.at(source.value.at("required"), "required"), [&](const DocumentValue& item) {
    std::string name;
    if (!read_text(item, name)) return;
    if (!node.required.insert(name).second) item.report_problem("is listed twice");
    if (!node.properties.contains(name) && node.additional_properties == kNoNode)
      item.report_problem(excerpt(name) + " is not among the properties");
  });
}

void SchemaSet::Body::read_list(SchemaNode& node, const DocumentValue& source) {  // NOLINT(misc-no-recursion)
  if (source.value.contains("items")) node.items = compile(source.at(source.value.at("items"), "items"));
}

void SchemaSet::Body::read_bounds(SchemaNode& node, const DocumentValue& source) {
  const auto read_count_keyword = [&](const char* word, std::uint64_t& out) {
    if (source.value.contains(word)) read_count(source.at(source.value.at(word), word), out);
  };
  const auto read_number_keyword = [&](const char* word, json& out) {
    if (!source.value.contains(word)) return;
    const DocumentValue bound = source.at(source.value.at(word), word);
    if (!bound.value.is_number()) {
      bound.report_wrong_type("a number");
      return;
    }
    out = bound.value;
  };
  read_count_keyword("minItems", node.min_items), read_count_keyword("maxItems", node.max_items);
  read_count_keyword("minLength", node.min_length), read_count_keyword("maxLength", node.max_length);
  read_number_keyword("minimum", node.minimum), read_number_keyword("maximum", node.maximum);
  if (node.min_items > node.max_items || node.min_length > node.max_length ||
      (node.minimum.is_number() && node.maximum.is_number() && compare(node.minimum, node.maximum) > 0))
    source.report_problem("its minimum is above its maximum");
}

void SchemaSet::Body::read_choices(SchemaNode& node, const DocumentValue& source) {
  if (source.value.contains("const")) node.choices = json::array({source.value.at("const")});
  if (!source.value.contains("enum")) return;
  const DocumentValue choices = source.at(source.value.at("enum"), "enum");
  if (source.value.contains("const")) return choices.report_problem("is redundant beside const");
  if (!choices.value.is_array() || choices.value.empty()) {
    choices.report_wrong_type("a list of values, one at least");
    return;
  }
  node.choices = choices.value;
}

SchemaNode::Arm SchemaSet::Body::read_arm(const DocumentValue& source) {  // NOLINT(misc-no-recursion)
  SchemaNode::Arm arm;
  if (!source.value.is_object()) return source.report_wrong_type("a schema"), arm;
  if (source.value.contains("title")) {
    read_text(source.at(source.value.at("title"), "title"), arm.tag);
  } else if (const auto ref = source.value.find("$ref"); ref != source.value.end() && ref->is_string()) {
    arm.tag = ref->get<std::string>();
  } else {
    source.report_problem("an arm needs a title or a $ref");
  }
  arm.node = compile(source);
  return arm;
}

void SchemaSet::Body::read_variant(SchemaNode& node, const DocumentValue& source) {  // NOLINT(misc-no-recursion)
  node.is_variant = true;
  if (!source.value.is_array() || source.value.empty()) {
    source.report_wrong_type("a list of arms, one at least");
    return;
  }
  std::set<std::string> tags;
  std::set<json> schemas;
  for (std::size_t i = 0; i < source.value.size(); ++i) {
    const DocumentValue item = source.at(source.value[i], i);
    const SchemaNode::Arm arm = read_arm(item);
    if (arm.node == kNoNode) continue;
    json content = item.value;
    content.erase("title"), content.erase("description");
    if (!tags.insert(arm.tag).second)
      item.report_problem("another arm has the tag " + excerpt(arm.tag));
    else if (!schemas.insert(content).second)
      item.report_problem("another arm has the same schema");
    node.arms.push_back(arm);
  }
}

const SchemaNode* SchemaSet::Body::resolve(std::size_t index) const {
  for (std::size_t steps = 0; index != kNoNode && steps <= nodes.size(); ++steps) {
    const SchemaNode& node = nodes[index];
    if (node.ref.empty()) return &node;
    index = node.referenced_node;
  }
  return nullptr;
}

bool SchemaSet::Body::is_cyclic(std::size_t index) const {
  std::size_t steps = 0;
  while (nodes[index].referenced_node != kNoNode && steps <= nodes.size())
    index = nodes[index].referenced_node, ++steps;
  return steps > nodes.size();
}

void SchemaSet::link(DocumentProblems& problems) {
  for (auto& node : body_->nodes) {
    if (node.ref.empty()) continue;
    const auto entry = body_->by_name.find(node.ref);
    if (entry == body_->by_name.end())
      problems.add(node.path, "there is no schema " + excerpt(node.ref));
    else
      node.referenced_node = entry->second;
  }
  for (std::size_t i = 0; i < body_->nodes.size(); ++i)
    if (body_->is_cyclic(i)) problems.add(body_->nodes[i].path, "the reference leads back to itself");
  for (const auto& [name, index] : body_->by_name) {
    const SchemaNode* node = body_->resolve(index);
    if (node == nullptr || !node->is_variant) continue;
    auto& arms = body_->arms[name];
    arms.clear();
    for (const auto& arm : node->arms) arms.push_back({arm.tag, body_->nodes[arm.node].ref});
  }
}

bool SchemaSet::has(std::string_view name) const { return body_->by_name.contains(name); }
std::vector<std::string> SchemaSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, node] : body_->by_name) names.push_back(name);
  return names;
}
const std::vector<VariantArm>* SchemaSet::arms(std::string_view name) const {
  const auto entry = body_->arms.find(name);
  return entry == body_->arms.end() ? nullptr : &entry->second;
}
std::optional<std::string> SchemaSet::find_arm(std::string_view target, std::string_view event) const {
  if (target == event) return "";
  if (const auto* target_arms = arms(target); target_arms != nullptr)
    for (const auto& arm : *target_arms)
      if (arm.ref == event) return arm.tag;
  return std::nullopt;
}

namespace {

// Returns the node with this index after following references, or nullptr.
using NodeResolver = std::function<const SchemaNode*(std::size_t)>;

// Checks a value and builds its canonical form. The check ends at the first problem.
class SchemaValidator {
 public:
  SchemaValidator(const NodeResolver& resolve, ValueForm form) : resolve_(resolve), form_(form) {}

  json validate(std::size_t node, const json& value) { return check(node, value, {}); }
  const std::string& error() const { return error_; }

 private:
  json reject(const ValuePath& path, const std::string& reason) {
    if (error_.empty()) {
      const std::string location = path.text();
      error_ = (location.empty() ? "the value" : location) + ": " + reason;
    }
    return nullptr;
  }
  json check(std::size_t index, const json& value,
             const ValuePath& path) {  // NOLINT(misc-no-recursion): depth is bounded
    if (!error_.empty()) return nullptr;
    if (path.depth > kMaxCborDepth) return reject(path, "is deeper than " + std::to_string(kMaxCborDepth) + " levels");
    const SchemaNode* node = resolve_(index);
    if (node == nullptr) return reject(path, "its schema leads nowhere");
    if (node->is_variant) return check_variant(*node, value, path);
    json out = check_type(*node, value, path);
    if (error_.empty() && !node->choices.is_null() &&
        std::find(node->choices.begin(), node->choices.end(), out) == node->choices.end())
      return reject(path, "is " + describe_value(value) + ", not " + (node->choices.size() == 1 ? "" : "one of ") +
                              dump_json(node->choices.size() == 1 ? node->choices[0] : node->choices));
    return out;
  }
  json check_variant(const SchemaNode& node, const json& value, const ValuePath& path) {  // NOLINT(misc-no-recursion)
    if (!value.is_object() || value.size() != 2 || !value.contains("$tag") || !value.contains("$value") ||
        !value.at("$tag").is_string())
      return reject(path, "is " + describe_value(value) + ", not {\"$tag\": ..., \"$value\": ...}");
    const auto& tag = value.at("$tag").get_ref<const std::string&>();
    for (const auto& arm : node.arms)
      if (arm.tag == tag)
        return json{{"$tag", tag},
                    {"$value", check(arm.node, value.at("$value"), path.at(std::string_view("$value")))}};
    return reject(path.at(std::string_view("$tag")), excerpt(tag) + " is the tag of no arm");
  }
  bool allows_type(const SchemaNode& node, unsigned type) const { return (node.types & type) != 0; }

  json check_type(const SchemaNode& node, const json& value, const ValuePath& path) {  // NOLINT(misc-no-recursion)
    const auto reject_type = [&] {
      return reject(path,
                    "is " + describe_value(value) + ", not " +
                        (node.is_byte_string && node.types == kStringType ? "a byte string" : list_types(node.types)));
    };
    if (node.types == kAnyType && !node.is_byte_string) return check_any(node, value, path);
    if (value.is_null()) return allows_type(node, kNullType) ? value : reject_type();
    if (value.is_boolean()) return allows_type(node, kBooleanType) ? value : reject_type();
    if (value.is_number()) {
      json number = to_integer_if_whole(value);
      if (!allows_type(node, kNumberType) && !(allows_type(node, kIntegerType) && is_integer(number)))
        return reject_type();
      return check_number(node, std::move(number), path);
    }
    if (value.is_string() || value.is_binary()) {
      if (!allows_type(node, kStringType) || (value.is_binary() && !node.is_byte_string)) return reject_type();
      return node.is_byte_string ? check_bytes(node, value, path) : check_text(node, value, path);
    }
    if (value.is_array()) return allows_type(node, kArrayType) ? check_array(node, value, path) : reject_type();
    return allows_type(node, kObjectType) && value.is_object() ? check_object(node, value, path) : reject_type();
  }
  // Converts a value without a declared type. Only its general form is checked.
  json check_any(const SchemaNode& node, const json& value, const ValuePath& path) {  // NOLINT(misc-no-recursion)
    if (path.depth > kMaxCborDepth) return reject(path, "is deeper than " + std::to_string(kMaxCborDepth) + " levels");
    if (value.is_number()) return check_number(node, to_integer_if_whole(value), path);
    if (!value.is_structured()) return value;
    json out = value;
    if (value.is_array())
      for (std::size_t i = 0; i < value.size(); ++i) out[i] = check_any(node, value[i], path.at(i));
    else
      for (const auto& [name, member] : value.items()) out[name] = check_any(node, member, path.at(name));
    return out;
  }
  json check_number(const SchemaNode& node, json value, const ValuePath& path) {
    if (value.is_number_float() && !std::isfinite(value.get<double>())) return reject(path, "is no finite number");
    if (node.minimum.is_number() && compare(value, node.minimum) < 0)
      return reject(path, "is " + value.dump() + "; at least " + node.minimum.dump());
    if (node.maximum.is_number() && compare(value, node.maximum) > 0)
      return reject(path, "is " + value.dump() + "; at most " + node.maximum.dump());
    return value;
  }
  bool check_length(const SchemaNode& node, std::uint64_t length, const char* unit, const ValuePath& path) {
    if (length < node.min_length)
      reject(path, "has " + count_with_noun(length, unit) + "; at least " + std::to_string(node.min_length));
    if (length > node.max_length)
      reject(path, "has " + count_with_noun(length, unit) + "; at most " + std::to_string(node.max_length));
    return error_.empty();
  }
  json check_text(const SchemaNode& node, const json& value, const ValuePath& path) {
    const auto& text = value.get_ref<const std::string&>();
    if (!is_utf8(text)) return reject(path, "is not UTF-8");
    return check_length(node, count_characters(text), "character", path) ? value : json();
  }
  json check_bytes(const SchemaNode& node, const json& value, const ValuePath& path) {
    json out = value;
    if (value.is_string()) {
      const auto decoded = decode_base64(value.get_ref<const std::string&>());
      if (form_ == ValueForm::from_cbor || !decoded)
        return reject(path, form_ == ValueForm::from_cbor ? "is a text, not a byte string" : "is not base64");
      out = workflows::to_binary(*decoded);
    }
    return check_length(node, out.get_binary().size(), "byte", path) ? out : json();
  }
  json check_array(const SchemaNode& node, const json& value, const ValuePath& path) {  // NOLINT(misc-no-recursion)
    if (value.size() < node.min_items || value.size() > node.max_items)
      return reject(path, "has " + count_with_noun(value.size(), "item") + "; at " +
                              (value.size() < node.min_items ? "least " + std::to_string(node.min_items)
                                                             : "most " + std::to_string(node.max_items)));
    json out = json::array();
    static const SchemaNode kAnyNode;
    for (std::size_t i = 0; i < value.size() && error_.empty(); ++i)
      out.push_back(node.items == kNoNode ? check_any(kAnyNode, value[i], path.at(i))
                                          : check(node.items, value[i], path.at(i)));
    return out;
  }
  json check_object(const SchemaNode& node, const json& value, const ValuePath& path) {  // NOLINT(misc-no-recursion)
    json out = json::object();
    for (const auto& name : node.required)
      if (!value.contains(name)) return reject(path.at(std::string_view(name)), "is missing");
    for (const auto& [name, member] : value.items()) {
      const auto entry = node.properties.find(name);
      const std::size_t schema = entry == node.properties.end() ? node.additional_properties : entry->second;
      if (!is_utf8(name)) return reject(path, "has a name that is not UTF-8");
      if (schema == kNoNode) return reject(path.at(std::string_view(name)), "is an unknown field");
      out[name] = check(schema, member, path.at(std::string_view(name)));
    }
    return out;
  }

  const NodeResolver& resolve_;
  const ValueForm form_;
  std::string error_;
};

}  // namespace

Result<CanonicalValue> SchemaSet::check(std::string_view name, const json& value, ValueForm form,
                                        std::size_t max_bytes) const {
  const auto entry = body_->by_name.find(name);
  if (entry == body_->by_name.end()) return fail(Code::not_found, "there is no schema " + excerpt(name));
  const NodeResolver resolve = [this](std::size_t index) { return body_->resolve(index); };
  SchemaValidator validator(resolve, form);
  json canonical = validator.validate(entry->second, value);
  if (!validator.error().empty()) return fail(Code::invalid, validator.error());
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

bool SchemaSet::Body::any_node_at(std::string_view name, std::string_view path,
                                  const std::function<bool(const SchemaNode&)>& predicate) const {
  const auto start = by_name.find(name);
  if (start == by_name.end()) return false;
  const std::function<bool(std::size_t, std::string_view)> visit = [&](std::size_t index,
                                                                       std::string_view remaining_path) {
    const SchemaNode* node = resolve(index);
    if (node == nullptr) return false;
    if (remaining_path.empty()) return predicate(*node);
    const std::string_view first = next_name(remaining_path);
    if (node->is_variant)
      return first == "$value" && std::any_of(node->arms.begin(), node->arms.end(), [&](const auto& arm) {
               return !is_system_name(nodes[arm.node].ref) && visit(arm.node, remaining_path);
             });
    if (node->types == kAnyType) return predicate(*node);
    const auto entry = node->properties.find(first);
    const std::size_t next_index = entry == node->properties.end() ? node->additional_properties : entry->second;
    return next_index != kNoNode && visit(next_index, remaining_path);
  };
  return !path.empty() && visit(start->second, path);
}

bool SchemaSet::has_path(std::string_view name, std::string_view path) const {
  return body_->any_node_at(name, path, [](const SchemaNode&) { return true; });
}

bool SchemaSet::can_match(std::string_view name, std::string_view path, std::string_view other) const {
  const auto entry = body_->by_name.find(other);
  const SchemaNode* target = entry == body_->by_name.end() ? nullptr : body_->resolve(entry->second);
  if (target == nullptr) return false;
  // A schema for numbers accepts integers, too.
  const auto add_integer_type = [](unsigned types) {
    return (types & kNumberType) != 0 ? types | kIntegerType : types;
  };
  return body_->any_node_at(name, path, [&](const SchemaNode& node) {
    if (node.types == kAnyType || target->types == kAnyType) return node.is_variant == target->is_variant;
    unsigned common_types = add_integer_type(node.types) & add_integer_type(target->types);
    if (node.is_byte_string != target->is_byte_string) common_types &= ~kStringType;
    return !node.is_variant && !target->is_variant && common_types != 0;
  });
}

bool SchemaSet::is_key_schema(std::string_view name) const {
  const auto entry = body_->by_name.find(name);
  const SchemaNode* node = entry == body_->by_name.end() ? nullptr : body_->resolve(entry->second);
  return node != nullptr && !node->is_variant && (node->types & ~(kStringType | kIntegerType)) == 0;
}

void SchemaSet::check_choices(DocumentProblems& problems) const {
  const NodeResolver resolve = [this](std::size_t index) { return body_->resolve(index); };
  for (std::size_t i = 0; i < body_->nodes.size(); ++i) {
    for (const json& choice : body_->nodes[i].choices) {
      SchemaValidator validator(resolve, ValueForm::from_json);
      validator.validate(i, choice);
      if (!validator.error().empty())
        problems.add(body_->nodes[i].path,
                     "its choice " + excerpt(dump_json(choice)) + " never fits: " + validator.error());
    }
  }
}

namespace {

json make_minimal_number(const SchemaNode& node) {
  json number = 0;
  const auto round_inwards = [&](const json& bound, bool up) -> json {
    if (!bound.is_number_float() || (node.types & kNumberType) != 0) return bound;
    return static_cast<std::int64_t>(up ? std::ceil(bound.get<double>()) : std::floor(bound.get<double>()));
  };
  if (node.minimum.is_number() && compare(number, node.minimum) < 0) number = round_inwards(node.minimum, true);
  if (node.maximum.is_number() && compare(number, node.maximum) > 0) number = round_inwards(node.maximum, false);
  return number;
}

std::optional<json> make_minimal_value(const NodeResolver& resolve, std::size_t index, std::size_t depth);

std::optional<json> make_minimal_object(const NodeResolver& resolve, const SchemaNode& node, std::size_t depth) {
  json object = json::object();
  for (const auto& name : node.required) {
    const auto entry = node.properties.find(name);
    auto value = make_minimal_value(
        resolve, entry == node.properties.end() ? node.additional_properties : entry->second, depth + 1);
    if (!value) return std::nullopt;
    object[name] = std::move(*value);
  }
  return object;
}
std::optional<json> make_minimal_array(const NodeResolver& resolve, const SchemaNode& node, std::size_t depth) {
  json array = json::array();
  for (std::uint64_t i = 0; i < node.min_items; ++i) {
    auto value =
        node.items == kNoNode ? std::optional<json>(nullptr) : make_minimal_value(resolve, node.items, depth + 1);
    if (!value || i > kMaxSchemaNodes) return std::nullopt;
    array.push_back(std::move(*value));
  }
  return array;
}
std::optional<json> make_minimal_value(const NodeResolver& resolve, std::size_t index,
                                       std::size_t depth) {  // NOLINT(misc-no-recursion)
  const SchemaNode* node = index == kNoNode ? nullptr : resolve(index);
  if (node == nullptr || depth > kMaxPlaceholderDepth) return std::nullopt;
  if (node->is_variant) {
    for (const auto& arm : node->arms)
      if (auto value = make_minimal_value(resolve, arm.node, depth + 1)) return wrap_in_arm(arm.tag, std::move(*value));
    return std::nullopt;
  }
  if (!node->choices.is_null()) return node->choices[0];
  if ((node->types & kNullType) != 0) return json(nullptr);
  if ((node->types & kBooleanType) != 0) return json(false);
  if ((node->types & (kIntegerType | kNumberType)) != 0) return make_minimal_number(*node);
  if ((node->types & kStringType) != 0) {
    if (node->min_length > kMaxSchemaNodes) return std::nullopt;
    std::string text(node->min_length, node->is_byte_string ? '\0' : 'x');
    return node->is_byte_string ? workflows::to_binary(text) : json(std::move(text));
  }
  if ((node->types & kArrayType) != 0) return make_minimal_array(resolve, *node, depth);
  return make_minimal_object(resolve, *node, depth);
}

}  // namespace

Result<CanonicalValue> SchemaSet::placeholder(std::string_view name) const {
  const auto entry = body_->by_name.find(name);
  if (entry == body_->by_name.end()) return fail(Code::not_found, "there is no schema " + excerpt(name));
  auto value = make_minimal_value([this](std::size_t index) { return body_->resolve(index); }, entry->second, 0);
  if (!value) return fail(Code::unsupported, "no placeholder fits " + excerpt(name) + ": give a value");
  return check(name, *value, ValueForm::from_cbor);
}

json wrap_in_arm(const std::string& tag, json value) {
  if (tag.empty()) return value;
  return json{{"$tag", tag}, {"$value", std::move(value)}};
}
const json* find_at_path(const json& value, std::string_view path) {
  const json* current = &value;
  while (!path.empty()) {
    const std::string_view name = next_name(path);
    if (!current->is_object()) return nullptr;
    const auto member = current->find(name);
    if (member == current->end()) return nullptr;
    current = &*member;
  }
  return current;
}

}  // namespace mycojobs
