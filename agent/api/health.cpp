#include "api/health.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "api/http/http_server.h"
#include "base/log.h"
#include "base/version.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

HttpReply health_reply(const std::string& status, const std::string& reason) {
  HttpReply reply;
  reply.status = status == "ok" ? 200 : 503;
  nlohmann::json body{{"status", status}, {"version", kVersion}};
  if (!reason.empty()) body["reason"] = reason;
  reply.body = dump_json(body) + "\n";
  return reply;
}

constexpr const char* kMetricsPath = "/metrics";

// Refuses requests of web pages. A page whose host name resolves to this machine (DNS rebinding) has the same origin as
// the server and can be detected only by the header Host. This is checked for metrics; health contains nothing of use
// to a page.
HttpReply check_web_access(const HttpRequest& request, const CountRefusal& count_refusal) {
  if (is_from_web_page(request)) {
    count_refusal("page");
    return web_page_refused_reply();
  }
  if (request.path == kMetricsPath && request.loopback && !is_loopback_name(request) && !has_own_host_name(request)) {
    count_refusal("host");
    return other_host_refused_reply("call http://127.0.0.1, http://localhost or this machine by its own host name");
  }
  return {};
}

HttpRoute metrics_route(MetricsText text) {
  return {"GET", kMetricsPath, [text = std::move(text)](const HttpRequest&) {
            HttpReply reply;
            reply.type = "text/plain; version=0.0.4; charset=utf-8";
            reply.body = text();
            return reply;
          }};
}

}  // namespace

bool is_health_path(const std::string& path) { return path == "/healthz" || path == "/readyz"; }

HttpReply make_health_answer(const Health& health, const std::string& path) {
  if (path == "/healthz")
    return health.is_alive() ? health_reply("ok", "") : health_reply("stuck", "a thread made no progress for 30 s");
  const std::string reason = health.get_not_ready_reason();
  return health_reply(reason.empty() ? "ok" : "not_ready", reason);
}

std::vector<HttpRoute> health_routes(const Health& health) {
  const auto answer = [health](const HttpRequest& request) { return make_health_answer(health, request.path); };
  return {{"GET", "/healthz", answer}, {"GET", "/readyz", answer}};
}

Result<std::unique_ptr<HttpServer>> start_health_server(const std::string& listen, Health health, MetricsText text,
                                                        CountRefusal count_refusal, std::shared_ptr<TlsContext> tls) {
  auto admit = [health, count_refusal = std::move(count_refusal)](const HttpRequest& request) {
    Admission admission{check_web_access(request, count_refusal), ConnectionClass::health};
    if (is_health_path(request.path))
      admission.make_full_reply = [&health, path = request.path] { return make_health_answer(health, path); };
    return admission;
  };
  auto routes = health_routes(health);
  const bool has_metrics = text != nullptr;
  if (has_metrics) routes.push_back(metrics_route(std::move(text)));
  auto http = HttpServer::start(listen, ApiLimits{}, std::move(routes), std::move(admit), std::move(tls));
  if (http)
    log(LogLevel::info, "api", "health at {}/healthz and /readyz{}", (*http)->url(),
        has_metrics ? ", metrics at /metrics" : "");
  return http;
}

}  // namespace mycojobs::api
