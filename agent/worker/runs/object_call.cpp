#include "worker/runs/object_call.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/enums.h"
#include "store/object_index.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

using nlohmann::json;
using Method = ObjectCall::Method;

constexpr double kMaxExact = 9007199254740992.0;

// The members of one object in a call, with the path that an error names.
class Params {
 public:
  Params(const json& object, std::string place) : object_(object), place_(std::move(place)) {}

  std::string at(std::string_view name) const { return place_ + std::string(name); }
  const json* find(std::string_view name) const {
    const auto found = object_.find(std::string(name));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  tl::unexpected<Error> wrong(std::string_view name, std::string_view want) const {
    return fail(Code::invalid,
                at(name) + (find(name) == nullptr ? ": is missing: give " : ": is not ") + std::string(want));
  }
  Result<void> only(std::string_view known) const {
    for (const auto& each : object_.items()) {
      if ((" " + std::string(known) + " ").find(" " + each.key() + " ") != std::string::npos) continue;
      return fail(Code::invalid,
                  at("") + excerpt(each.key()) + ": unknown parameter; the parameters are " + std::string(known));
    }
    return {};
  }
  Result<std::string> text(std::string_view name, std::string_view otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return std::string(otherwise);
    if (!value->is_string()) return wrong(name, "text");
    return value->get<std::string>();
  }
  // Reads a whole number, also written as 3.0.
  Result<std::optional<std::uint64_t>> number(std::string_view name) const {
    const json* value = find(name);
    if (value == nullptr) return std::optional<std::uint64_t>();
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number < 0 || number > kMaxExact || std::floor(number) != number) return wrong(name, "a whole number");
    return std::optional(static_cast<std::uint64_t>(number));
  }
  Result<std::optional<double>> real(std::string_view name) const {
    const json* value = find(name);
    if (value == nullptr) return std::optional<double>();
    if (!value->is_number()) return wrong(name, "a number");
    return std::optional(value->get<double>());
  }
  Result<std::vector<std::string>> texts(std::string_view name) const {
    const json* value = find(name);
    std::vector<std::string> out;
    // An empty Lua table may be a list or an object.
    if (value == nullptr || (value->is_object() && value->empty())) return out;
    if (!value->is_array()) return wrong(name, "a list of texts");
    for (const json& each : *value) {
      if (!each.is_string()) return wrong(name, "a list of texts");
      out.push_back(each.get<std::string>());
    }
    if (out.size() <= kMaxDeclaredFields) return out;
    return fail(Code::too_large, at(name) + ": " + std::to_string(out.size()) + " fields are more than the " +
                                     std::to_string(kMaxDeclaredFields) + " that a kind may declare");
  }

 private:
  const json& object_;
  std::string place_;
};

Result<ObjectKind> read_kind(const Params& params) {
  ObjectKind of;
  MJ_TRY(space, params.text("namespace", "default"));
  MJ_CHECK(check_object_name(params.at("namespace"), space));
  if (params.find("kind") == nullptr) return params.wrong("kind", "the kind of the object, a text like \"todo\"");
  MJ_TRY(kind, params.text("kind", ""));
  MJ_CHECK(check_object_name(params.at("kind"), kind));
  of.space = space;
  of.kind = kind;
  return of;
}

Result<std::string> read_id(const Params& params) {
  if (params.find("id") == nullptr) return params.wrong("id", "the id of the object, a text");
  MJ_TRY(id, params.text("id", ""));
  MJ_CHECK(check_object_id(params.at("id"), id));
  return std::move(id);
}

Result<void> read_page(const Params& params, ObjectCall& call) {
  MJ_TRY(after, params.text("after", ""));
  MJ_TRY(limit, params.number("limit"));
  if (limit && (*limit == 0 || *limit > kMaxObjectPage)) {
    return fail(Code::invalid,
                "limit: " + std::to_string(*limit) + " is not from 1 to " + std::to_string(kMaxObjectPage));
  }
  call.after = after;
  call.limit = limit ? static_cast<std::size_t>(*limit) : call.limit;
  return {};
}

// Reads a put operation. The object's own "id" is used; without it, an id is generated.
Result<ObjectOp> read_put(const Params& params) {
  ObjectOp op;
  MJ_TRY(of, read_kind(params));
  MJ_TRY(version, params.number("version"));
  const json* object = params.find("object");
  const bool empty_list = object != nullptr && object->is_array() && object->empty();  // an empty Lua table
  if (object == nullptr || (!object->is_object() && !empty_list)) return params.wrong("object", "an object");
  op.of = of;
  op.version = version;
  op.json = empty_list ? "{}" : dump_json(*object);
  if (op.json.size() > kMaxObjectBytes) {
    return fail(Code::too_large, params.at("object") + ": is " + std::to_string(op.json.size()) +
                                     " bytes of JSON, and an object may have " + std::to_string(kMaxObjectBytes));
  }
  const Params members(*object, params.at("object."));
  if (empty_list || members.find("id") == nullptr) {
    op.id = make_object_id();
    return op;
  }
  MJ_TRY(id, read_id(members));
  op.id = id;
  return op;
}

Result<ObjectOp> read_by_id(const Params& params, ObjectOp::Verb verb) {
  ObjectOp op;
  MJ_TRY(of, read_kind(params));
  MJ_TRY(id, read_id(params));
  MJ_TRY(version, params.number("version"));
  if (verb == ObjectOp::Verb::check && !version) {
    return params.wrong("version", "the version that it must have (0: it must not exist)");
  }
  op.verb = verb;
  op.of = of;
  op.id = id;
  op.version = version;
  return op;
}

Result<void> read_declare(const Params& params, ObjectCall& call) {
  MJ_TRY(of, read_kind(params));
  MJ_TRY(index, params.texts("index"));
  MJ_TRY(texts, params.texts("text"));
  for (const std::string& field : index) MJ_CHECK(check_object_field("index", field));
  for (const std::string& field : texts) MJ_CHECK(check_object_field("text", field));
  if (index.empty() && texts.empty()) {
    return fail(Code::invalid, "index, text: both are empty: name the fields that can be found");
  }
  call.of = of;
  call.index = index;
  call.texts = texts;
  return {};
}
Result<void> read_put_call(const Params& params, ObjectCall& call) {
  MJ_TRY(op, read_put(params));
  call.ops.push_back(std::move(op));
  return {};
}
Result<void> read_get(const Params& params, ObjectCall& call) {
  MJ_TRY(of, read_kind(params));
  MJ_TRY(id, read_id(params));
  call.of = of;
  call.id = id;
  return {};
}
Result<void> read_delete(const Params& params, ObjectCall& call) {
  MJ_TRY(op, read_by_id(params, ObjectOp::Verb::remove));
  call.ops.push_back(std::move(op));
  return {};
}
Result<void> read_list(const Params& params, ObjectCall& call) {
  MJ_TRY(of, read_kind(params));
  call.of = of;
  return read_page(params, call);
}
Result<void> read_find(const Params& params, ObjectCall& call) {
  MJ_CHECK(read_list(params, call));
  MJ_TRY(field, params.text("field", ""));
  if (field.empty()) return params.wrong("field", "the name of a declared field");
  MJ_CHECK(check_object_field("field", field));
  MJ_TRY(min, params.real("min"));
  MJ_TRY(max, params.real("max"));
  call.query = {field, std::nullopt, min, max};
  const json* value = params.find("value");
  if (value == nullptr && !min && !max) return params.wrong("value", "the value to find, or min and max");
  if (value == nullptr) return {};
  if (min || max) return fail(Code::invalid, "value, min, max: give a value, or a range, not both");
  if (value->is_string()) call.query.equal = value->get<std::string>();
  if (value->is_boolean()) call.query.equal = value->get<bool>();
  if (value->is_number()) call.query.equal = value->get<double>();
  if (!call.query.equal) return params.wrong("value", "text, a number or a boolean, since only these are indexed");
  return {};
}
Result<void> read_search(const Params& params, ObjectCall& call) {
  MJ_CHECK(read_list(params, call));
  if (params.find("text") == nullptr) return params.wrong("text", "the words to search for");
  MJ_TRY(text, params.text("text", ""));
  if (text.size() > 4096) return fail(Code::too_large, "text: is more than 4096 bytes");
  call.text = text;
  return {};
}
Result<void> read_count(const Params& params, ObjectCall& call) {
  MJ_TRY(of, read_kind(params));
  call.of = of;
  return {};
}
Result<void> read_kinds(const Params& params, ObjectCall& call) {
  MJ_TRY(space, params.text("namespace", ""));
  call.all_spaces = params.find("namespace") == nullptr;
  if (!call.all_spaces) MJ_CHECK(check_object_name("namespace", space));
  call.of.space = space;
  return {};
}

Result<ObjectOp> read_op(const json& value, const std::string& place) {
  if (!value.is_object()) return fail(Code::invalid, place + ": is not an object like {op, kind, ...}");
  const Params params(value, place + ".");
  MJ_TRY(word, params.text("op", ""));
  if (word == "put") {
    MJ_CHECK(params.only("op namespace kind object version"));
    return read_put(params);
  }
  if (word == "delete" || word == "check") {
    MJ_CHECK(params.only("op namespace kind id version"));
    return read_by_id(params, word == "delete" ? ObjectOp::Verb::remove : ObjectOp::Verb::check);
  }
  return params.wrong("op", "put, delete or check");
}

Result<void> read_transaction(const Params& params, ObjectCall& call) {
  const json* ops = params.find("operations");
  if (ops == nullptr || !ops->is_array() || ops->empty()) return params.wrong("operations", "a list of operations");
  if (ops->size() > kMaxObjectOps) {
    return fail(Code::too_large, "operations: " + std::to_string(ops->size()) + " are more than the " +
                                     std::to_string(kMaxObjectOps) + " of one transaction");
  }
  for (std::size_t i = 0; i < ops->size(); ++i) {
    MJ_TRY(op, read_op((*ops)[i], "operations[" + std::to_string(i) + "]"));
    call.ops.push_back(std::move(op));
  }
  return {};
}

struct MethodRow {
  std::string_view name;
  Method method;
  std::string_view params;
  Result<void> (*read)(const Params&, ObjectCall&);
};
constexpr std::array kMethods{
    MethodRow{"osis.declare", Method::declare, "namespace kind index text", read_declare},
    MethodRow{"osis.put", Method::put, "namespace kind object version", read_put_call},
    MethodRow{"osis.get", Method::get, "namespace kind id", read_get},
    MethodRow{"osis.delete", Method::remove, "namespace kind id version", read_delete},
    MethodRow{"osis.list", Method::list, "namespace kind after limit", read_list},
    MethodRow{"osis.find", Method::find, "namespace kind field value min max after limit", read_find},
    MethodRow{"osis.search", Method::search, "namespace kind text after limit", read_search},
    MethodRow{"osis.count", Method::count, "namespace kind", read_count},
    MethodRow{"osis.kinds", Method::kinds, "namespace", read_kinds},
    MethodRow{"osis.transaction", Method::transaction, "operations", read_transaction},
};

Result<ObjectCall> read_call(const json& request) {
  const auto method = request.find("method");
  const bool has_name = method != request.end() && method->is_string();
  const std::string name = has_name ? method->get<std::string>() : "";
  const auto row = std::find_if(kMethods.begin(), kMethods.end(), [&](const auto& each) { return each.name == name; });
  if (row == kMethods.end()) {
    std::string known;
    for (const MethodRow& each : kMethods) known += (known.empty() ? "" : ", ") + std::string(each.name);
    return fail(Code::invalid, "method: " + excerpt(name) + " is not known; the values are " + known);
  }
  const auto given = request.find("params");
  // An empty Lua table may arrive as a list.
  const bool none = given == request.end() || given->is_null() || (given->is_array() && given->empty());
  if (!none && !given->is_object()) return fail(Code::invalid, "params: is not an object");
  static const json kNone = json::object();
  const Params params(none ? kNone : *given, "");
  MJ_CHECK(params.only(row->params));
  ObjectCall call;
  call.method = row->method;
  MJ_CHECK(row->read(params, call));
  return call;
}

}  // namespace

ParsedObjectCall read_object_call(std::string_view text) {
  auto request = parse_json(text, kMaxObjectCallBytes);
  if (!request) return {"null", tl::unexpected<Error>(std::move(request).error())};
  if (!request->is_object()) return {"null", fail(Code::invalid, "a call is not an object {id, method, params}")};
  const auto id = request->find("id");
  const bool has_id = id != request->end() && (id->is_number() || (id->is_string() && id->size() <= 64));
  if (!has_id) return {"null", fail(Code::invalid, "id: is not a number")};
  std::string own = dump_json(*id);
  return {std::move(own), read_call(*request)};
}

namespace {

using nlohmann::json;

// Scripts see the codes below; any other error is reported as unavailable.
std::string_view word_for_scripts(Code code) {
  const bool is_shown = code == Code::invalid || code == Code::not_found || code == Code::conflict ||
                        code == Code::denied || code == Code::too_large;
  return to_string(is_shown ? code : Code::unavailable);
}

}  // namespace

std::string error_answer(const std::string& id, const Error& error) {
  const json detail = {{"code", word_for_scripts(error.code)}, {"message", error.message}};
  return "{\"id\":" + id + ",\"error\":" + dump_json(detail) + "}";
}

std::string answer(const std::string& id, std::string_view result_json) {
  return "{\"id\":" + id + ",\"result\":" + std::string(result_json) + "}";
}

std::string stamp_json(const ObjectStamp& stamp) {
  return dump_json(json{{"id", stamp.id},
                        {"version", stamp.version},
                        {"created_ms", stamp.created_ms},
                        {"updated_ms", stamp.updated_ms}});
}

std::string object_json(const StoredObject& object) {
  std::string stamp = stamp_json({object.id, object.version, object.created_ms, object.updated_ms});
  stamp.pop_back();
  return stamp + ",\"object\":" + object.json + "}";
}

std::string page_json(const std::vector<StoredObject>& objects, const std::string& after) {
  std::string out = "{\"objects\":[";
  for (const StoredObject& each : objects) out += (&each == objects.data() ? "" : ",") + object_json(each);
  out += "]";
  if (!after.empty()) out += ",\"after\":" + dump_json(json(after));
  return out + "}";
}

std::string kinds_json(const std::vector<KindInfo>& kinds) {
  json list = json::array();
  for (const KindInfo& each : kinds) {
    list.push_back({{"namespace", each.of.space},
                    {"kind", each.of.kind},
                    {"count", each.count},
                    {"index", each.index},
                    {"text", each.text}});
  }
  return dump_json(json{{"kinds", std::move(list)}});
}

}  // namespace mycojobs
