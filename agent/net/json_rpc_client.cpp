#include "net/json_rpc_client.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxAnswerBytes = 64U << 20;
constexpr std::pair<std::string_view, Code> kCodeNames[] = {
    {"invalid", Code::invalid},         {"parse_error", Code::invalid},
    {"invalid_request", Code::invalid}, {"method_not_found", Code::invalid},
    {"not_found", Code::not_found},     {"conflict", Code::conflict},
    {"denied", Code::denied},           {"unavailable", Code::unavailable},
    {"too_large", Code::too_large},     {"unsupported", Code::unsupported},
    {"stale_claim", Code::stale_claim},
};

Error parse_error(const json& error) {
  if (!error.is_object()) return {Code::internal, "the server returned an error that is not an object"};
  const auto data = error.find("data");
  const std::string code_name = data != error.end() ? text_field(*data, "word") : "";
  Error out{Code::internal, text_field(error, "message")};
  const std::string remedy = data != error.end() ? text_field(*data, "remedy") : "";
  if (!remedy.empty()) out.message += "; " + remedy;
  for (const auto& [name, code] : kCodeNames) {
    if (name == code_name) out.code = code;
  }
  return out;
}

// Returns no value if the text is not JSON-RPC.
std::optional<Result<json>> try_parse_answer(std::string_view text) {
  auto reply = parse_json(text, kMaxAnswerBytes);
  if (!reply || !reply->is_object()) return std::nullopt;
  if (reply->contains("error")) return Result<json>(tl::unexpected<Error>(parse_error((*reply)["error"])));
  if (reply->contains("result")) return Result<json>(std::move((*reply)["result"]));
  return std::nullopt;
}

}  // namespace

std::string encode_rpc_request(std::string_view method, const json& params) {
  return dump_json({{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}});
}

Result<json> parse_rpc_answer(std::string_view text) {
  if (auto answer = try_parse_answer(text)) return std::move(*answer);
  return fail(Code::internal, "the answer is not JSON-RPC");
}

std::string answer_rpc(std::string_view request, std::size_t max_bytes,
                       const std::function<Result<json>(std::string_view, const json&)>& run) {
  json id;
  const auto result = [&]() -> Result<json> {
    MJ_TRY(call, parse_json(request, max_bytes));
    if (!call.is_object() || text_field(call, "method").empty())
      return fail(Code::invalid, "it is not a JSON-RPC request: an object with method, params and id");
    id = call.value("id", json());
    return run(text_field(call, "method"), call.value("params", json::object()));
  }();
  json answer{{"jsonrpc", "2.0"}, {"id", id}};
  if (result) {
    answer["result"] = *result;
  } else {
    const Error& error = result.error();
    answer["error"] = {
        {"code", -32000}, {"message", to_utf8(error.message)}, {"data", {{"word", to_string(error.code)}}}};
  }
  return dump_json(answer);
}

Result<json> call_rpc(HttpClient& client, const RpcCall& call, const json& params) {
  HttpPost post{call.url,     encode_rpc_request(call.method, params), call.bearer, call.timeout_ms, kMaxAnswerBytes,
                call.networks};
  post.ca = call.ca;
  MJ_TRY(answer, client.post(post));
  auto result = try_parse_answer(answer.body);
  if (result && (!*result || answer.status == 200)) return std::move(*result);
  const std::string status = call.url + ": HTTP status " + std::to_string(answer.status);
  if (answer.status == 401 || answer.status == 403) return fail(Code::denied, status);
  if (answer.status >= 500) return fail(Code::unavailable, status);
  return fail(Code::internal, status + ", and no JSON-RPC");
}

}  // namespace mycojobs
