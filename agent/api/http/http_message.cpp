#include "api/http/http_message.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "api/rpc/json_rpc.h"
#include "text/json.h"

namespace mycojobs::api {

std::string HttpRequest::header(const std::string& lower_case_name) const {
  const auto it = headers.find(lower_case_name);
  return it == headers.end() ? std::string() : it->second;
}

std::string HttpRequest::parameter(const std::string& name) const {
  const auto value = query.find(name);
  return value == query.end() ? std::string() : value->second;
}

HttpReply error_reply(int status, const std::string& error_code, const std::string& message,
                      const std::string& remedy) {
  HttpReply reply;
  reply.status = status;
  const int code = error_code == "denied"        ? rpc_code(Code::denied)
                   : error_code == "unavailable" ? rpc_code(Code::unavailable)
                   : error_code == "too_large"   ? rpc_code(Code::too_large)
                                                 : -32600;
  reply.body = dump_json(
      {{"jsonrpc", "2.0"},
       {"id", nullptr},
       {"error", {{"code", code}, {"message", message}, {"data", {{"word", error_code}, {"remedy", remedy}}}}}});
  return reply;
}

bool is_from_web_page(const HttpRequest& request) {
  const std::string site = request.header("sec-fetch-site");
  return request.headers.contains("origin") || (!site.empty() && site != "none");
}
bool is_cross_origin(const HttpRequest& request) {
  const std::string site = request.header("sec-fetch-site");
  if (!site.empty() && site != "none" && site != "same-origin") return true;
  if (!request.headers.contains("origin")) return false;
  const std::string origin = request.header("origin"), host = request.header("host");
  const bool is_own_http = !request.has_tls && origin == "http://" + host;
  return host.empty() || (!is_own_http && origin != "https://" + host);
}
HttpReply web_page_refused_reply() {
  return error_reply(403, "denied", "calls of other web pages are refused",
                     "call from a program, without the header Origin, or from the page of this server");
}

namespace {

// Returns the host of the header Host in lower case: "localhost" for "LocalHost:9652".
std::string get_host(const HttpRequest& request) {
  const std::string header = request.header("host");
  std::string host = header.substr(0, header.find(':', header.starts_with('[') ? header.find(']') : 0));
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return host;
}

}  // namespace

bool is_loopback_name(const HttpRequest& request) {
  const std::string host = get_host(request);
  if (host == "localhost") return true;
  if (host.starts_with('[') && host.ends_with(']')) {
    in6_addr v6{};
    return ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
  }
  in_addr v4{};
  return ::inet_pton(AF_INET, host.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24U == 127;
}
bool has_own_host_name(const HttpRequest& request) {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == 0) return false;
  return ::strcasecmp(get_host(request).c_str(), name.data()) == 0;
}
HttpReply other_host_refused_reply(const std::string& remedy) {
  return error_reply(403, "denied", "the header Host names no address of this machine alone", remedy);
}

HttpReply check_route(const std::vector<HttpRoute>& routes, const std::string& method, const std::string& path) {
  bool has_path = false, has_route = false;
  std::string remedy;
  for (const HttpRoute& route : routes) {
    if (!route.path.starts_with("/assets/")) remedy += (remedy.empty() ? "" : ", ") + route.method + ' ' + route.path;
    has_path = has_path || route.path == path;
    has_route = has_route || (route.path == path && route.method == (method == "HEAD" ? "GET" : method));
  }
  if (!has_path) return error_reply(404, "not_found", "this path does not exist", remedy);
  if (!has_route)
    return error_reply(405, "invalid_request", "this path does not accept " + method.substr(0, 16), remedy);
  return {};
}

HttpReply not_json_reply() {
  return error_reply(415, "invalid_request", "the body must be JSON as it is", "send no form and no compressed body");
}

HttpReply bad_request_reply(const Error& error) {
  if (error.code == Code::too_large) return error_reply(431, "too_large", error.message, "send shorter headers");
  return error_reply(400, "invalid_request", error.message, "send HTTP/1.1 as RFC 9112 has it");
}

HttpReply body_error_reply(const Error& error) {
  if (error.code == Code::unavailable)
    return error_reply(503, "unavailable", error.message, "call again in a few seconds");
  if (error.code == Code::too_large) return error_reply(413, "too_large", error.message, "send less at a time");
  return bad_request_reply(error);
}

HttpReply too_many_requests_reply() {
  HttpReply reply = error_reply(503, "unavailable", "too many connections are open", "call again in a few seconds");
  reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

}  // namespace mycojobs::api
