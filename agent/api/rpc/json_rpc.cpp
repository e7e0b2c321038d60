#include "api/rpc/json_rpc.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "model/codec.h"
#include "model/enums.h"
#include "service/request_params.h"
#include "store/redis/format_version.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr int kParseError = -32700, kInvalidRequest = -32600, kMethodNotFound = -32601, kInvalidParams = -32602,
              kInternalError = -32603;

struct CodeRow {
  Code code;
  int rpc;
  std::string_view remedy;
};
constexpr CodeRow kCodes[] = {
    {Code::invalid, kInvalidParams, "correct the parameter that the message names and call again"},
    {Code::not_found, -32001, "check the id and the context"},
    {Code::conflict, -32002, "read the present state, then decide whether to call again"},
    {Code::denied, -32003, "ask an admin of the context for the right, or call with another token"},
    {Code::unavailable, -32004, "call again in a few seconds"},
    {Code::too_large, -32005, "send less than the limit that the message names"},
    {Code::unsupported, -32006, "the message names what this host or server lacks"},
    {Code::stale_claim, -32007, "the job has another owner now: stop"},
    {Code::io, kInternalError, "see the log of the server"},
    {Code::internal, kInternalError, "see the log of the server"},
};

const CodeRow& find_code_row(Code code) {
  for (const CodeRow& row : kCodes) {
    if (row.code == code) return row;
  }
  return kCodes[std::size(kCodes) - 1];
}

json make_error(const json& id, int code, const std::string& message, std::string_view word, std::string_view field,
                std::string_view remedy) {
  json data{{"word", word}, {"remedy", remedy}};
  if (!field.empty()) data["field"] = field;
  return {{"jsonrpc", "2.0"}, {"id", id}, {"error", {{"code", code}, {"message", message}, {"data", std::move(data)}}}};
}

json invalid_request(const json& id, const std::string& message) {
  return make_error(id, kInvalidRequest, message, "invalid_request", "",
                    R"(send {"jsonrpc": "2.0", "id": 1, "method": "system.ping", "params": {}})");
}

// Returns the parameter at the beginning of an error message: "timeout" for "timeout: 0 is not allowed". Empty: the
// message does not begin with a parameter of this method.
std::string_view get_field(std::string_view message, const Method& method) {
  const std::string_view path = message.substr(0, std::min(message.find(": "), message.size()));
  const std::string_view name = path.substr(0, path.find_first_of(".["));
  return service::find_param(method, name) != nullptr ? path : std::string_view();
}

// Returns the named parameters of a request. The forms {..}, [{..}] and {"params": {..}} are equivalent. No value: the
// parameters have another form.
std::optional<json> parse_params(const json& request) {
  const auto it = request.find("params");
  if (it == request.end()) return json::object();
  const json* params = &*it;
  if (params->is_array() && params->empty()) return json::object();
  if (params->is_array() && params->size() == 1) params = &params->front();
  if (params->is_object() && params->size() == 1 && params->contains("params") && params->front().is_object())
    params = &params->front();
  if (!params->is_object()) return std::nullopt;
  return *params;
}

// Reduces numbers to Param::server_max.
void reduce_to_server_max(const Method& method, json& params) {
  for (const service::Param& param : method.params) {
    const auto it = param.server_max ? params.find(param.name) : params.end();
    if (it != params.end() && it->get<std::uint64_t>() > *param.server_max) *it = *param.server_max;
  }
}

bool is_id(const json& id) { return id.is_string() || id.is_number() || id.is_null(); }

// Returns the id of a request. No value: a notification, or not a request.
std::optional<json> get_request_id(const json& request) {
  const auto id = request.is_object() ? request.find("id") : request.end();
  return id != request.end() && is_id(*id) ? std::optional(*id) : std::nullopt;
}

class Dispatcher {
 public:
  Dispatcher(const Rpc& rpc, const RpcCaller& caller) : rpc_(rpc), caller_(caller) {}

  // Returns the answer to one request. No value: the request is a notification.
  std::optional<json> handle_request(const json& request) const {
    if (!request.is_object()) return invalid_request(nullptr, "a request is an object");
    const auto id_it = request.find("id");
    const bool is_notification = id_it == request.end();
    if (!is_notification && !is_id(*id_it)) return invalid_request(nullptr, "id: a text, a number or null");
    const json id = is_notification ? json(nullptr) : *id_it;
    const auto version = request.find("jsonrpc");
    if (version == request.end() || *version != "2.0") return invalid_request(id, R"(jsonrpc: must be "2.0")");
    const auto name = request.find("method");
    if (name == request.end() || !name->is_string()) return invalid_request(id, "method: must be a text");
    const auto params = request.find("params");
    if (params != request.end() && !params->is_structured())
      return invalid_request(id, "params: must be an object or an array");
    json reply = call_method(id, name->get<std::string>(), request);
    if (is_notification) return std::nullopt;
    return reply;
  }

 private:
  json call_method(const json& id, const std::string& name, const json& request) const {
    if (name == "rpc.discover") return {{"jsonrpc", "2.0"}, {"id", id}, {"result", rpc_.open_rpc()}};
    const auto& methods = rpc_.methods();
    const auto method =
        std::find_if(methods.begin(), methods.end(), [&](const Method& entry) { return entry.name == name; });
    if (method == methods.end()) {
      rpc_.count_refused("unknown", "method_not_found");
      return make_error(id, kMethodNotFound, "unknown method " + dump_json(json(whole_characters(name, 100))),
                        "method_not_found", "", "rpc.discover lists the methods");
    }
    auto params = parse_params(request);
    if (!params) {
      rpc_.count_refused(method->name, to_string(Code::invalid));
      return make_error(id, kInvalidParams, "params: parameters are given by name", "invalid", "params",
                        R"(send {"name": value, ...}, or [{"name": value, ...}])");
    }
    if (const auto problem = service::validate_params(*method, *params)) {
      rpc_.count_refused(method->name, to_string(Code::invalid));
      return make_error(id, kInvalidParams, problem->message, "invalid", problem->field, problem->remedy);
    }
    for (auto it = params->begin(); it != params->end();) it = it->is_null() ? params->erase(it) : ++it;
    reduce_to_server_max(*method, *params);
    return run_method(id, *method, *params);
  }

  json run_method(const json& id, const Method& method, const json& params) const {
    try {
      auto result = method.run(params, caller_);
      if (result) return {{"jsonrpc", "2.0"}, {"id", id}, {"result", std::move(*result)}};
      const Error& error = result.error();
      const CodeRow& row = find_code_row(error.code);
      const std::string message = describe_to_client(error);
      return make_error(id, row.rpc, message, to_string(row.code), get_field(message, method),
                        message == error.message ? row.remedy : find_code_row(Code::internal).remedy);
    } catch (const std::exception& exception) {  // a bug in a method must not end the server
      log(LogLevel::error, "api", "{}: {}", method.name, exception.what());
    }
    const CodeRow& row = find_code_row(Code::internal);
    return make_error(id, row.rpc, "the call failed inside the server", to_string(row.code), "", row.remedy);
  }

  const Rpc& rpc_;
  const RpcCaller& caller_;
};

}  // namespace

int rpc_code(Code code) { return find_code_row(code).rpc; }

Rpc::Rpc(std::vector<Method> methods, RpcLimits limits, CountRefused count_refused)
    : methods_(std::move(methods)), limits_(limits), count_refused_(std::move(count_refused)) {}

std::string Rpc::answer(std::string_view body, const RpcCaller& caller) const {
  auto parsed = parse_json(body, limits_.max_body_bytes, limits_.max_values);
  if (!parsed) {
    const bool is_too_large = parsed.error().code == Code::too_large;
    return dump_json(make_error(nullptr, is_too_large ? rpc_code(Code::too_large) : kParseError, parsed.error().message,
                                is_too_large ? "too_large" : "parse_error", "",
                                is_too_large ? "send less at a time" : "send one JSON text, as UTF-8"));
  }
  if (const std::string_view digits = find_integer_beyond_64_bits(body); !digits.empty()) {
    const auto id = parsed->is_object() ? parsed->find("id") : parsed->end();
    return dump_json(make_error(id == parsed->end() ? json() : *id, rpc_code(Code::invalid),
                                "the integer " + mycojobs::excerpt(digits) + " does not fit 64 bits", "invalid", "",
                                "put it in quotes, as text"));
  }
  const Dispatcher dispatcher(*this, caller);
  if (!parsed->is_array()) {
    const auto reply = dispatcher.handle_request(*parsed);
    return reply ? dump_json(*reply) : std::string();
  }
  if (parsed->empty()) return dump_json(invalid_request(nullptr, "the batch is empty"));
  if (parsed->size() > limits_.max_batch) {
    return dump_json(make_error(nullptr, kInvalidRequest,
                                "a batch of " + std::to_string(parsed->size()) + " is over the limit of " +
                                    std::to_string(limits_.max_batch) + " calls",
                                "too_large", "", "send it in several batches"));
  }
  // Each answer is converted to text before the next call: the trees of all answers would need many times the memory.
  const std::string max = std::to_string(limits_.max_batch_answer_bytes) + " bytes";
  const auto too_large = [](const json& id, const std::string& message) {
    return dump_json(
        make_error(id, rpc_code(Code::too_large), message, "too_large", "", "send several smaller batches"));
  };
  std::string text;
  bool is_full = false;
  for (const json& request : *parsed) {
    const auto id = get_request_id(request);
    std::string answer;
    if (is_full && id) {
      answer = too_large(*id, "the answers before this one reach " + max + ": this call was not made");
    } else if (const auto reply = dispatcher.handle_request(request)) {
      answer = dump_json(*reply);
      if (id && text.size() + answer.size() > limits_.max_batch_answer_bytes) {
        is_full = true;
        if (!text.empty()) answer = too_large(*id, "the call was made, but the answers are over " + max);
      }
    }
    if (answer.empty()) continue;
    text += text.empty() ? '[' : ',';
    text += answer;
  }
  return text.empty() ? text : text + ']';
}

}  // namespace mycojobs::api
