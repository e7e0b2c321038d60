// JSON-RPC 2.0 (jsonrpc.org/specification): one request or a batch in, one text out. The table of methods is the one
// place where a method is described: dispatch, parameter checks, OpenRPC document and manual come from it.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs::api {

struct Caller {  // who asks, as the token or the loopback default says
  Id actor = 0;
  bool anonymous = false;        // loopback in dev
  bool operator_token = false;   // may act as any actor and create contexts
  std::string traceparent = {};  // of the request's header; empty: none, or one that is none
  std::string session = {};      // by which it calls (api/sessions.h); empty: by none
  std::string key = {};          // by which that was begun
  std::string origin = {};       // origin of this server that the client called; empty: not a known origin
  std::function<bool(bool waits)> note_wait = {};  // HttpRequest::note_wait
};

struct Param {
  std::string_view name, type, help;  // type: of the table in params.cpp
  bool required = false;
};
struct Method {
  std::string_view name, help;  // "flow.start"
  std::vector<Param> params;
  std::string_view result;  // what comes back: "Flow: the flow"; the type is one of shapes.h
  std::function<Result<nlohmann::json>(const nlohmann::json& params, const Caller&)> run;
};

struct RpcLimits {
  std::size_t max_body_bytes = 16U << 20;
  std::size_t max_batch = 100;
  std::size_t max_values = 500000;  // of a body's JSON, all levels together
  // Limit for all answers of a batch together. The first answer may exceed it, like the answer of a single call.
  std::size_t max_batch_answer_bytes = 16U << 20;
};

// Error codes of ours (beside the specification's -32700, -32600 to -32603): each with `data` {word, field?, remedy}.
// invalid -32602, not_found -32001, conflict -32002, denied -32003, unavailable -32004, too_large -32005, unsupported
// -32006, stale_claim -32007, io and internal -32603.
int rpc_code(Code);

class Rpc {
 public:
  // Calls that reach no method: of one that is not there, with parameters that it does not take. Any thread.
  using CountRefused = std::function<void(std::string_view method, std::string_view result)>;
  Rpc(
      std::vector<Method>, RpcLimits, CountRefused = [](std::string_view, std::string_view) {});
  // Never throws. Empty: nothing to answer (notifications).
  std::string answer(std::string_view body, const Caller&) const;
  nlohmann::json open_rpc() const;  // rpc.discover answers with it
  const std::vector<Method>& methods() const { return methods_; }
  void count_refused(std::string_view method, std::string_view result) const { count_refused_(method, result); }

 private:
  std::vector<Method> methods_;
  RpcLimits limits_;
  CountRefused count_refused_;
};

}  // namespace mycojobs::api
