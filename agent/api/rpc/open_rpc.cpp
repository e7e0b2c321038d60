// The OpenRPC document (spec.open-rpc.org), generated from the table of requests.
#include <nlohmann/json.hpp>

#include "api/rpc/json_rpc.h"
#include "api/rpc/result_schemas.h"
#include "base/version.h"
#include "model/enums.h"
#include "service/request_params.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

// Splits Request::result into type and description: "Flow: the flow".
json result_to_json(std::string_view text) {
  const auto colon = text.find(": ");
  const bool has_type = colon != std::string_view::npos;
  return {{"name", "result"},
          {"description", has_type ? text.substr(colon + 2) : text},
          {"schema", get_result_schema(has_type ? text.substr(0, colon) : "any")}};
}

std::string describe_method_param(const service::Param& param) {
  std::string text = service::describe_param(param);
  if (param.server_max) text += "; larger values are reduced to " + std::to_string(*param.server_max);
  return text;
}

json method_to_json(const Method& method) {
  json params = json::array();
  for (const bool required : {true, false}) {  // the specification wants optional parameters last
    for (const service::Param& param : method.params) {
      if (param.required != required) continue;
      params.push_back({{"name", param.name},
                        {"description", describe_method_param(param)},
                        {"required", param.required},
                        {"schema", service::get_param_schema(param)}});
    }
  }
  return {{"name", method.name},
          {"summary", method.help},
          {"paramStructure", "by-name"},
          {"params", std::move(params)},
          {"result", result_to_json(method.result)},
          {"errors", json::array({{{"$ref", "#/components/errors/invalid"}},
                                  {{"$ref", "#/components/errors/not_found"}},
                                  {{"$ref", "#/components/errors/conflict"}},
                                  {{"$ref", "#/components/errors/denied"}},
                                  {{"$ref", "#/components/errors/unavailable"}},
                                  {{"$ref", "#/components/errors/too_large"}},
                                  {{"$ref", "#/components/errors/unsupported"}}})}};
}

json errors_to_json() {
  json errors = json::object();
  for (const Code code : {Code::invalid, Code::not_found, Code::conflict, Code::denied, Code::unavailable,
                          Code::too_large, Code::unsupported}) {
    const std::string name(to_string(code));
    errors[name] = {{"code", rpc_code(code)}, {"message", name}, {"data", {{"word", name}}}};
  }
  return errors;
}

}  // namespace

json Rpc::open_rpc() const {
  json methods = json::array();
  for (const Method& method : methods_) methods.push_back(method_to_json(method));
  methods.push_back({{"name", "rpc.discover"},
                     {"summary", "this document"},
                     {"paramStructure", "by-name"},
                     {"params", json::array()},
                     {"result", result_to_json("object: an OpenRPC document")}});
  return {{"openrpc", "1.2.6"},
          {"info",
           {{"title", "mycojobs"},
            {"version", kVersion},
            {"description", "Jobs and flows over JSON-RPC 2.0. Every error has data {word, field, remedy}."}}},
          {"methods", std::move(methods)},
          {"components", {{"errors", errors_to_json()}, {"schemas", list_result_schemas()}}}};
}

}  // namespace mycojobs::api
