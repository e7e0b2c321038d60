#include "transport/rpc_client.h"

#include <nlohmann/json.hpp>

#include "domain/codec.h"

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

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Error error_of(const json& error) {
  if (!error.is_object()) return {Code::internal, "the server answers an error that is no object"};
  const auto data = error.find("data");
  const std::string word = data != error.end() && data->is_object() ? text_of(*data, "word") : "";
  Error out{Code::internal, text_of(error, "message")};
  const std::string remedy = data != error.end() && data->is_object() ? text_of(*data, "remedy") : "";
  if (!remedy.empty()) out.message += "; " + remedy;
  for (const auto& [each, code] : kWords) {
    if (each == word) out.code = code;
  }
  return out;
}

}  // namespace

Result<json> call_rpc(HttpClient& client, const RpcCall& call, const json& params) {
  HttpPost post{call.url,    dump_json({{"jsonrpc", "2.0"}, {"id", 1}, {"method", call.method}, {"params", params}}),
                call.bearer, call.timeout_ms,
                kMaxAnswer,  call.networks};
  MJ_TRY(answer, client.post(post));
  auto reply = parse_json(answer.body, kMaxAnswer);
  const bool known = reply && reply->is_object() && (reply->contains("result") || reply->contains("error"));
  if (known && reply->contains("error")) return tl::unexpected<Error>(error_of((*reply)["error"]));
  if (known && answer.status == 200) return std::move((*reply)["result"]);
  const std::string status = call.url + ": HTTP status " + std::to_string(answer.status);
  if (answer.status == 401 || answer.status == 403) return fail(Code::denied, status);
  if (answer.status >= 500) return fail(Code::unavailable, status);
  return fail(Code::internal, status + ", and no JSON-RPC");
}

}  // namespace mycojobs
