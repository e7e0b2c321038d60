// JSON-RPC 2.0 (jsonrpc.org/specification): parses one request or a batch, calls the methods and returns the answer as
// text. Parameters are checked against the table of requests, from which the OpenRPC document is made.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "service/request_table.h"

namespace mycojobs::api {

// The authenticated caller of a request, from its token or from the default for loopback.
struct RpcCaller {
  Id actor = 0;
  bool anonymous = false;        // `mycojobs dev`: a loopback client without a token
  bool operator_token = false;   // may act as any actor and create contexts
  std::string traceparent = {};  // header traceparent; empty: missing or invalid
  std::string session = {};      // id of the session (api/auth/sessions.h); empty: no session
  std::string key = {};          // public key by which the session was begun
  std::string origin = {};       // origin of this server that the client called; empty: not a known origin
  std::function<bool(bool is_waiting)> report_wait = {};  // HttpRequest::report_wait
};

// A request of the table with its function.
struct Method : service::Request {
  std::function<Result<nlohmann::json>(const nlohmann::json& params, const RpcCaller&)> run;
};

struct RpcLimits {
  std::size_t max_body_bytes = 16U << 20;
  std::size_t max_batch = 100;
  std::size_t max_values = 500000;  // number of JSON values in a body, on all levels together
  // Limit for all answers of a batch together. The first answer may exceed it, like the answer of a single call.
  std::size_t max_batch_answer_bytes = 16U << 20;
};

// Returns the JSON-RPC code of an error: invalid -32602, not_found -32001, conflict -32002, denied -32003, unavailable
// -32004, too_large -32005, unsupported -32006, stale_claim -32007, io and internal -32603. The specification defines
// -32700 and -32600 to -32603. Every error has `data` {word, field?, remedy}.
int rpc_code(Code);

// Thread-safe.
class Rpc {
 public:
  // Counts calls that are refused before a method runs: unknown methods and invalid parameters. Called by any thread.
  using CountRefused = std::function<void(std::string_view method, std::string_view result)>;
  Rpc(
      std::vector<Method>, RpcLimits, CountRefused = [](std::string_view, std::string_view) {});
  // Returns the answer to a request or batch; empty: the body has only notifications. An exception of a method becomes
  // an error with code -32603.
  std::string answer(std::string_view body, const RpcCaller&) const;
  nlohmann::json open_rpc() const;  // the answer of rpc.discover
  const std::vector<Method>& methods() const { return methods_; }
  void count_refused(std::string_view method, std::string_view result) const { count_refused_(method, result); }

 private:
  std::vector<Method> methods_;
  RpcLimits limits_;
  CountRefused count_refused_;
};

}  // namespace mycojobs::api
