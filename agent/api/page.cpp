#include "api/page.h"

namespace mycojobs::api {
namespace {

constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

void add_security_headers(HttpReply& reply) {
  reply.headers.emplace_back("Content-Security-Policy", kContentSecurityPolicy);
  reply.headers.emplace_back("Referrer-Policy", "no-referrer");
  reply.headers.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
  reply.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  reply.headers.emplace_back("X-Frame-Options", "DENY");
}

HttpReply serve(const PageFile& file, const HttpRequest& request) {
  HttpReply reply;
  reply.type = file.type;
  reply.headers.emplace_back("ETag", file.etag);
  reply.headers.emplace_back("Vary", "Accept-Encoding");
  reply.headers.emplace_back("Cache-Control", file.path == "/" ? "no-cache" : "public, max-age=31536000, immutable");
  add_security_headers(reply);
  if (request.header("if-none-match").find(file.etag) != std::string::npos) {
    reply.status = 304;
    return reply;
  }
  if (request.header("accept-encoding").find("gzip") == std::string::npos)
    return error_reply(406, "invalid_request", "the page is sent compressed alone", "send Accept-Encoding: gzip");
  reply.headers.emplace_back("Content-Encoding", "gzip");
  reply.body = file.gzip;
  return reply;
}

}  // namespace

bool is_page_path(const std::string& path) { return path == "/" || path.starts_with("/assets/"); }

std::vector<HttpRoute> page_routes() {
  std::vector<HttpRoute> routes;
  for (const PageFile& file : page_files())
    routes.push_back(
        {"GET", std::string(file.path), [&file](const HttpRequest& request) { return serve(file, request); }});
  if (routes.empty()) {
    routes.push_back({"GET", "/", [](const HttpRequest&) {
                        return error_reply(404, "not_found", std::string(page_unavailable_reason()),
                                           "use the JSON-RPC: POST /rpc");
                      }});
  }
  return routes;
}

}  // namespace mycojobs::api
