#include "net/json_rpc_client.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxAnswer = 64U << 20;
constexpr std::pair<std::string_view, Code> kWords[] = {
    {"invalid", Code::invalid},         {"parse_error", Code::invalid},
    {"invalid_request", Code::invalid}, {"method_not_found", Code::invalid},
    {"not_found", Code::not_found},     {"conflict", Code::conflict},
    {"denied", Code::denied},           {"unavailable", Code::unavailable},
    {"too_large", Code::too_large},     {"unsupported", Code::unsupported},
    {"stale_claim", Code::stale_claim},
};

std::string get_text(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Error parse_error(const json& error) {
  if (!error.is_object()) return {Code::internal, "the server returned an error that is not an object"};
  const auto data = error.find("data");
  const std::string code_name = data != error.end() && data->is_object() ? get_text(*data, "word") : "";
  Error out{Code::internal, get_text(error, "message")};
  const std::string remedy = data != error.end() && data->is_object() ? get_text(*data, "remedy") : "";
  if (!remedy.empty()) out.message += "; " + remedy;
  for (const auto& [each, code] : kWords) {
    if (each == code_name) out.code = code;
  }
  return out;
}

// Returns no value if the text is not JSON-RPC.
std::optional<Result<json>> rpc_answer(std::string_view text) {
  auto reply = parse_json(text, kMaxAnswer);
  if (!reply || !reply->is_object()) return std::nullopt;
  if (reply->contains("error")) return Result<json>(tl::unexpected<Error>(parse_error((*reply)["error"])));
  if (reply->contains("result")) return Result<json>(std::move((*reply)["result"]));
  return std::nullopt;
}

}  // namespace

std::string rpc_request(std::string_view method, const json& params) {
  return dump_json({{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}});
}

Result<json> read_rpc_answer(std::string_view text) {
  if (auto answer = rpc_answer(text)) return std::move(*answer);
  return fail(Code::internal, "the answer is not JSON-RPC");
}

std::string answer_rpc(std::string_view request, std::size_t max_bytes,
                       const std::function<Result<json>(std::string_view, const json&)>& run) {
  json id;
  const auto done = [&]() -> Result<json> {
    MJ_TRY(call, parse_json(request, max_bytes));
    if (!call.is_object() || get_text(call, "method").empty())
      return fail(Code::invalid, "it is not a JSON-RPC request: an object with method, params and id");
    id = call.value("id", json());
    return run(get_text(call, "method"), call.value("params", json::object()));
  }();
  json answer{{"jsonrpc", "2.0"}, {"id", id}};
  if (done) {
    answer["result"] = *done;
  } else {
    const Error& error = done.error();
    answer["error"] = {
        {"code", -32000}, {"message", to_utf8(error.message)}, {"data", {{"word", to_string(error.code)}}}};
  }
  return dump_json(answer);
}

Result<json> call_rpc(HttpClient& client, const RpcCall& call, const json& params) {
  HttpPost post{call.url, rpc_request(call.method, params), call.bearer, call.timeout_ms, kMaxAnswer, call.networks};
  MJ_TRY(answer, client.post(post));
  auto result = rpc_answer(answer.body);
  if (result && (!*result || answer.status == 200)) return std::move(*result);
  const std::string status = call.url + ": HTTP status " + std::to_string(answer.status);
  if (answer.status == 401 || answer.status == 403) return fail(Code::denied, status);
  if (answer.status >= 500) return fail(Code::unavailable, status);
  return fail(Code::internal, status + ", and no JSON-RPC");
}

}  // namespace mycojobs
