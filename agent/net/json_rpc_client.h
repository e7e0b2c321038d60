// A client for JSON-RPC 2.0 over HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "net/http_client.h"

namespace mycojobs {

std::string encode_rpc_request(std::string_view method, const nlohmann::json& params);
// Returns the `result` of an answer, or its error by the code word in its data. Error `internal`: not JSON-RPC.
Result<nlohmann::json> parse_rpc_answer(std::string_view text);

// The server side: calls `run` for a request and returns the answer. Never throws; an invalid request is answered with
// an error.
std::string answer_rpc(
    std::string_view request, std::size_t max_bytes,
    const std::function<Result<nlohmann::json>(std::string_view method, const nlohmann::json& params)>& run);

struct RpcCall {
  std::string url, bearer, method;
  std::uint32_t timeout_ms = 30000;
  const Networks* networks = nullptr;  // see HttpPost
  std::string ca = {};                 // see HttpPost
};
// Returns the `result`. Errors: those of the server, by the code word in their data; `unavailable` (no answer, or an
// answer of a gateway); `denied` (the token); `internal` (the answer is not JSON-RPC).
Result<nlohmann::json> call_rpc(HttpClient&, const RpcCall&, const nlohmann::json& params);

}  // namespace mycojobs
