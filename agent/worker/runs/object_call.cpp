#include "worker/runs/object_call.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/enums.h"
#include "store/objects/object_index.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

using nlohmann::json;
using Method = ObjectCall::Method;

constexpr double kMaxExactInteger = 9007199254740992.0;

// The members of one object in a call, with the path that an error names.
class Params {
 public:
  Params(const json& object, std::string path) : object_(object), path_(std::move(path)) {}

  std::string get_path(std::string_view name) const { return path_ + std::string(name); }
  const json* find(std::string_view name) const {
    const auto found = object_.find(std::string(name));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  tl::unexpected<Error> type_error(std::string_view name, std::string_view expected) const {
    return fail(Code::invalid,
                get_path(name) + (find(name) == nullptr ? ": is missing: give " : ": is not ") + std::string(expected));
  }
  Result<void> check_names(std::string_view allowed) const {
    for (const auto& member : object_.items()) {
      if ((" " + std::string(allowed) + " ").find(" " + member.key() + " ") != std::string::npos) continue;
      return fail(Code::invalid, get_path("") + excerpt(member.key()) + ": unknown parameter; the parameters are " +
                                     std::string(allowed));
    }
    return {};
  }
  Result<std::string> read_text(std::string_view name, std::string_view default_value) const {
    const json* value = find(name);
    if (value == nullptr) return std::string(default_value);
    if (!value->is_string()) return type_error(name, "text");
    return value->get<std::string>();
  }
  // Reads a whole number, also written as 3.0.
  Result<std::optional<std::uint64_t>> read_number(std::string_view name) const {
    const json* value = find(name);
    if (value == nullptr) return std::optional<std::uint64_t>();
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number < 0 || number > kMaxExactInteger || std::floor(number) != number)
      return type_error(name, "a whole number");
    return std::optional(static_cast<std::uint64_t>(number));
  }
  Result<std::optional<double>> read_real(std::string_view name) const {
    const json* value = find(name);
    if (value == nullptr) return std::optional<double>();
    if (!value->is_number()) return type_error(name, "a number");
    return std::optional(value->get<double>());
  }
  Result<std::vector<std::string>> read_texts(std::string_view name) const {
    const json* value = find(name);
    std::vector<std::string> out;
    // An empty Lua table may be a list or an object.
    if (value == nullptr || (value->is_object() && value->empty())) return out;
    if (!value->is_array()) return type_error(name, "a list of texts");
    for (const json& item : *value) {
      if (!item.is_string()) return type_error(name, "a list of texts");
      out.push_back(item.get<std::string>());
    }
    if (out.size() <= kMaxDeclaredFields) return out;
    return fail(Code::too_large, get_path(name) + ": " + std::to_string(out.size()) + " fields are more than the " +
                                     std::to_string(kMaxDeclaredFields) + " that a kind may declare");
  }

 private:
  const json& object_;
  std::string path_;
};

Result<ObjectKind> parse_kind(const Params& params) {
  ObjectKind result;
  MJ_TRY(space, params.read_text("namespace", "default"));
  MJ_CHECK(check_object_name(params.get_path("namespace"), space));
  if (params.find("kind") == nullptr) return params.type_error("kind", "the kind of the object, a text like \"todo\"");
  MJ_TRY(kind, params.read_text("kind", ""));
  MJ_CHECK(check_object_name(params.get_path("kind"), kind));
  result.name_space = space;
  result.kind = kind;
  return result;
}

Result<std::string> parse_id(const Params& params) {
  if (params.find("id") == nullptr) return params.type_error("id", "the id of the object, a text");
  MJ_TRY(id, params.read_text("id", ""));
  MJ_CHECK(check_object_id(params.get_path("id"), id));
  return std::move(id);
}

Result<void> parse_page(const Params& params, ObjectCall& call) {
  MJ_TRY(after, params.read_text("after", ""));
  MJ_TRY(limit, params.read_number("limit"));
  if (limit && (*limit == 0 || *limit > kMaxObjectPage)) {
    return fail(Code::invalid,
                "limit: " + std::to_string(*limit) + " is not from 1 to " + std::to_string(kMaxObjectPage));
  }
  call.cursor = after;
  call.limit = limit ? static_cast<std::size_t>(*limit) : call.limit;
  return {};
}

// Reads a put operation. The object's own "id" is used; without it, an id is generated.
Result<ObjectOp> parse_put(const Params& params) {
  ObjectOp op;
  MJ_TRY(kind, parse_kind(params));
  MJ_TRY(version, params.read_number("version"));
  const json* object = params.find("object");
  const bool empty_list = object != nullptr && object->is_array() && object->empty();  // an empty Lua table
  if (object == nullptr || (!object->is_object() && !empty_list)) return params.type_error("object", "an object");
  op.kind = kind;
  op.version = version;
  op.json = empty_list ? "{}" : dump_json(*object);
  if (op.json.size() > kMaxObjectBytes) {
    return fail(Code::too_large, params.get_path("object") + ": is " + std::to_string(op.json.size()) +
                                     " bytes of JSON, and an object may have " + std::to_string(kMaxObjectBytes));
  }
  const Params members(*object, params.get_path("object."));
  if (empty_list || members.find("id") == nullptr) {
    op.id = make_object_id();
    return op;
  }
  MJ_TRY(id, parse_id(members));
  op.id = id;
  return op;
}

Result<ObjectOp> parse_by_id(const Params& params, ObjectOp::Verb verb) {
  ObjectOp op;
  MJ_TRY(kind, parse_kind(params));
  MJ_TRY(id, parse_id(params));
  MJ_TRY(version, params.read_number("version"));
  if (verb == ObjectOp::Verb::check && !version) {
    return params.type_error("version", "the version that it must have (0: it must not exist)");
  }
  op.verb = verb;
  op.kind = kind;
  op.id = id;
  op.version = version;
  return op;
}

Result<void> parse_declare(const Params& params, ObjectCall& call) {
  MJ_TRY(kind, parse_kind(params));
  MJ_TRY(index, params.read_texts("index"));
  MJ_TRY(texts, params.read_texts("text"));
  for (const std::string& field : index) MJ_CHECK(check_object_field("index", field));
  for (const std::string& field : texts) MJ_CHECK(check_object_field("text", field));
  if (index.empty() && texts.empty()) {
    return fail(Code::invalid, "index, text: both are empty: name the fields that can be found");
  }
  call.kind = kind;
  call.index_fields = index;
  call.text_fields = texts;
  return {};
}
Result<void> parse_put_call(const Params& params, ObjectCall& call) {
  MJ_TRY(op, parse_put(params));
  call.ops.push_back(std::move(op));
  return {};
}
Result<void> parse_get(const Params& params, ObjectCall& call) {
  MJ_TRY(kind, parse_kind(params));
  MJ_TRY(id, parse_id(params));
  call.kind = kind;
  call.id = id;
  return {};
}
Result<void> parse_delete(const Params& params, ObjectCall& call) {
  MJ_TRY(op, parse_by_id(params, ObjectOp::Verb::remove));
  call.ops.push_back(std::move(op));
  return {};
}
Result<void> parse_list(const Params& params, ObjectCall& call) {
  MJ_TRY(kind, parse_kind(params));
  call.kind = kind;
  return parse_page(params, call);
}
Result<void> parse_find(const Params& params, ObjectCall& call) {
  MJ_CHECK(parse_list(params, call));
  MJ_TRY(field, params.read_text("field", ""));
  if (field.empty()) return params.type_error("field", "the name of a declared field");
  MJ_CHECK(check_object_field("field", field));
  MJ_TRY(min, params.read_real("min"));
  MJ_TRY(max, params.read_real("max"));
  call.query = {field, std::nullopt, min, max};
  const json* value = params.find("value");
  if (value == nullptr && !min && !max) return params.type_error("value", "the value to find, or min and max");
  if (value == nullptr) return {};
  if (min || max) return fail(Code::invalid, "value, min, max: give a value, or a range, not both");
  if (value->is_string()) call.query.equal = value->get<std::string>();
  if (value->is_boolean()) call.query.equal = value->get<bool>();
  if (value->is_number()) call.query.equal = value->get<double>();
  if (!call.query.equal) return params.type_error("value", "text, a number or a boolean, since only these are indexed");
  return {};
}
Result<void> parse_search(const Params& params, ObjectCall& call) {
  MJ_CHECK(parse_list(params, call));
  if (params.find("text") == nullptr) return params.type_error("text", "the words to search for");
  MJ_TRY(text, params.read_text("text", ""));
  if (text.size() > 4096) return fail(Code::too_large, "text: is more than 4096 bytes");
  call.search_text = text;
  return {};
}
Result<void> parse_count(const Params& params, ObjectCall& call) {
  MJ_TRY(kind, parse_kind(params));
  call.kind = kind;
  return {};
}
Result<void> parse_kinds(const Params& params, ObjectCall& call) {
  MJ_TRY(space, params.read_text("namespace", ""));
  call.all_namespaces = params.find("namespace") == nullptr;
  if (!call.all_namespaces) MJ_CHECK(check_object_name("namespace", space));
  call.kind.name_space = space;
  return {};
}

Result<ObjectOp> parse_op(const json& value, const std::string& path) {
  if (!value.is_object()) return fail(Code::invalid, path + ": is not an object like {op, kind, ...}");
  const Params params(value, path + ".");
  MJ_TRY(op_name, params.read_text("op", ""));
  if (op_name == "put") {
    MJ_CHECK(params.check_names("op namespace kind object version"));
    return parse_put(params);
  }
  if (op_name == "delete" || op_name == "check") {
    MJ_CHECK(params.check_names("op namespace kind id version"));
    return parse_by_id(params, op_name == "delete" ? ObjectOp::Verb::remove : ObjectOp::Verb::check);
  }
  return params.type_error("op", "put, delete or check");
}

Result<void> parse_transaction(const Params& params, ObjectCall& call) {
  const json* ops = params.find("operations");
  if (ops == nullptr || !ops->is_array() || ops->empty())
    return params.type_error("operations", "a list of operations");
  if (ops->size() > kMaxObjectOps) {
    return fail(Code::too_large, "operations: " + std::to_string(ops->size()) + " are more than the " +
                                     std::to_string(kMaxObjectOps) + " of one transaction");
  }
  for (std::size_t i = 0; i < ops->size(); ++i) {
    MJ_TRY(op, parse_op((*ops)[i], "operations[" + std::to_string(i) + "]"));
    call.ops.push_back(std::move(op));
  }
  return {};
}

struct MethodRow {
  std::string_view name;
  Method method;
  std::string_view params;
  Result<void> (*parse)(const Params&, ObjectCall&);
};
constexpr std::array kMethods{
    MethodRow{"osis.declare", Method::declare, "namespace kind index text", parse_declare},
    MethodRow{"osis.put", Method::put, "namespace kind object version", parse_put_call},
    MethodRow{"osis.get", Method::get, "namespace kind id", parse_get},
    MethodRow{"osis.delete", Method::remove, "namespace kind id version", parse_delete},
    MethodRow{"osis.list", Method::list, "namespace kind after limit", parse_list},
    MethodRow{"osis.find", Method::find, "namespace kind field value min max after limit", parse_find},
    MethodRow{"osis.search", Method::search, "namespace kind text after limit", parse_search},
    MethodRow{"osis.count", Method::count, "namespace kind", parse_count},
    MethodRow{"osis.kinds", Method::kinds, "namespace", parse_kinds},
    MethodRow{"osis.transaction", Method::transaction, "operations", parse_transaction},
};

Result<ObjectCall> parse_call(const json& request) {
  const auto method = request.find("method");
  const bool has_name = method != request.end() && method->is_string();
  const std::string name = has_name ? method->get<std::string>() : "";
  const auto row =
      std::find_if(kMethods.begin(), kMethods.end(), [&](const auto& candidate) { return candidate.name == name; });
  if (row == kMethods.end()) {
    std::string names;
    for (const MethodRow& known_method : kMethods)
      names += (names.empty() ? "" : ", ") + std::string(known_method.name);
    return fail(Code::invalid, "method: " + excerpt(name) + " is not known; the values are " + names);
  }
  const auto params_json = request.find("params");
  // An empty Lua table may arrive as a list.
  const bool is_empty =
      params_json == request.end() || params_json->is_null() || (params_json->is_array() && params_json->empty());
  if (!is_empty && !params_json->is_object()) return fail(Code::invalid, "params: is not an object");
  static const json kEmptyObject = json::object();
  const Params params(is_empty ? kEmptyObject : *params_json, "");
  MJ_CHECK(params.check_names(row->params));
  ObjectCall call;
  call.method = row->method;
  MJ_CHECK(row->parse(params, call));
  return call;
}

}  // namespace

ParsedObjectCall parse_object_call(std::string_view text) {
  auto request = parse_json(text, kMaxObjectCallBytes);
  if (!request) return {"null", tl::unexpected<Error>(std::move(request).error())};
  if (!request->is_object()) return {"null", fail(Code::invalid, "a call is not an object {id, method, params}")};
  const auto id = request->find("id");
  const bool has_id = id != request->end() && (id->is_number() || (id->is_string() && id->size() <= 64));
  if (!has_id) return {"null", fail(Code::invalid, "id: is not a number")};
  std::string id_json = dump_json(*id);
  return {std::move(id_json), parse_call(*request)};
}

namespace {

using nlohmann::json;

// Returns the code of an error as scripts see it. Codes that scripts cannot handle are reported as unavailable.
std::string_view script_error_code(Code code) {
  const bool is_shown = code == Code::invalid || code == Code::not_found || code == Code::conflict ||
                        code == Code::denied || code == Code::too_large;
  return to_string(is_shown ? code : Code::unavailable);
}

}  // namespace

std::string build_error_answer(const std::string& id, const Error& error) {
  const json detail = {{"code", script_error_code(error.code)}, {"message", error.message}};
  return "{\"id\":" + id + ",\"error\":" + dump_json(detail) + "}";
}

std::string build_answer(const std::string& id, std::string_view result_json) {
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

std::string page_json(const std::vector<StoredObject>& objects, const std::string& cursor) {
  std::string out = "{\"objects\":[";
  for (const StoredObject& object : objects) out += (&object == objects.data() ? "" : ",") + object_json(object);
  out += "]";
  if (!cursor.empty()) out += ",\"after\":" + dump_json(json(cursor));
  return out + "}";
}

std::string kinds_json(const std::vector<KindInfo>& kinds) {
  json list = json::array();
  for (const KindInfo& info : kinds) {
    list.push_back({{"namespace", info.kind.name_space},
                    {"kind", info.kind.kind},
                    {"count", info.count},
                    {"index", info.index},
                    {"text", info.text}});
  }
  return dump_json(json{{"kinds", std::move(list)}});
}

}  // namespace mycojobs
