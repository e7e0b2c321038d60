#include <nlohmann/json.hpp>

#include "api/http.h"
#include "api/rpc.h"
#include "domain/codec.h"

namespace mycojobs::api {

std::string HttpRequest::header(const std::string& lower_case_name) const {
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? std::string() : found->second;
}

HttpReply refuse(int status, const std::string& word, const std::string& message, const std::string& remedy) {
  HttpReply reply;
  reply.status = status;
  const int code = word == "denied"        ? rpc_code(Code::denied)
                   : word == "unavailable" ? rpc_code(Code::unavailable)
                   : word == "too_large"   ? rpc_code(Code::too_large)
                                           : -32600;
  reply.body =
      dump_json({{"jsonrpc", "2.0"},
                 {"id", nullptr},
                 {"error", {{"code", code}, {"message", message}, {"data", {{"word", word}, {"remedy", remedy}}}}}});
  return reply;
}

HttpReply refuse_route(const std::vector<HttpRoute>& routes, const std::string& method, const std::string& path) {
  bool path_known = false, known = false;
  for (const HttpRoute& route : routes) {
    path_known = path_known || route.path == path;
    known = known || (route.path == path && route.method == (method == "HEAD" ? "GET" : method));
  }
  const std::string remedy = "POST / and /rpc; GET /openrpc.json, /health, /events";
  if (!path_known) return refuse(404, "not_found", "there is nothing at this path", remedy);
  if (!known) return refuse(405, "invalid_request", "this path does not take " + method.substr(0, 16), remedy);
  return {};
}

std::string wire_text(const HttpReply& reply) {
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " Refused\r\nContent-Type: " + reply.type;
  for (const auto& [name, value] : reply.headers) text += "\r\n" + name + ": " + value;
  return text +
         "\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: " + std::to_string(reply.body.size()) +
         "\r\n\r\n" + reply.body;
}

HttpReply no_json() {
  return refuse(415, "invalid_request", "the body must be JSON as it is", "send no form and no compressed body");
}

HttpReply malformed(const Error& error) {
  if (error.code == Code::too_large) return refuse(431, "too_large", error.message, "send shorter headers");
  return refuse(400, "invalid_request", error.message, "send HTTP/1.1 as RFC 9112 has it");
}

HttpReply busy() {
  HttpReply reply = refuse(503, "unavailable", "too many connections are open", "call again in a moment");
  reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

}  // namespace mycojobs::api
