// JSON-RPC 2.0 over HTTP: one call.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "mycojobs/result.h"
#include "transport/http_client.h"

namespace mycojobs {

std::string rpc_request(std::string_view method, const nlohmann::json& params);
// What an answer's `result` says, or its error by the word in its data. Error internal: it is no JSON-RPC.
Result<nlohmann::json> read_rpc_answer(std::string_view text);

// The other end: what `run` says to a request, as an answer. Never throws; whatever is no request is answered as an
// error.
std::string answer_rpc(
    std::string_view request, std::size_t max_bytes,
    const std::function<Result<nlohmann::json>(std::string_view method, const nlohmann::json& params)>& run);

struct RpcCall {
  std::string url, bearer, method;
  std::uint32_t timeout_ms = 30000;
  const Networks* networks = nullptr;  // as HttpPost has them
};
// What `result` says. Errors: those of the server, by the word in their data; unavailable (nobody answers, or a gateway
// does for it); denied (the token); internal (an answer that is no JSON-RPC).
Result<nlohmann::json> call_rpc(HttpClient&, const RpcCall&, const nlohmann::json& params);

}  // namespace mycojobs
