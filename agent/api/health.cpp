#include "api/health.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "api/http/http_server.h"
#include "base/log.h"
#include "base/version.h"
#include "text/json.h"

namespace mycojobs {
namespace api {
namespace {

HttpReply health_reply(const std::string& word, const std::string& reason) {
  HttpReply reply;
  reply.status = word == "ok" ? 200 : 503;
  nlohmann::json body{{"status", word}, {"version", kVersion}};
  if (!reason.empty()) body["reason"] = reason;
  reply.body = dump_json(body) + "\n";
  return reply;
}

constexpr const char* kMetricsPath = "/metrics";

// Refuses requests of web pages. A page whose host name resolves to this machine (DNS rebinding) has the same origin as
// the server and can be detected only by the header Host. This is checked for metrics; health contains nothing of use
// to a page.
HttpReply refuse_page(const HttpRequest& from, const CountRefusal& refused) {
  if (is_from_web_page(from)) {
    refused("page");
    return web_page_refused();
  }
  if (from.path == kMetricsPath && from.loopback && !is_loopback_name(from) && !names_this_host(from)) {
    refused("host");
    return other_host_refused("call http://127.0.0.1, http://localhost or this machine by its own host name");
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

class HealthServerImpl final : public HealthServer {
 public:
  explicit HealthServerImpl(std::unique_ptr<HttpServer> http) : http_(std::move(http)) {}
  ~HealthServerImpl() override { http_->stop(); }
  std::string url() const override { return http_->url(); }

 private:
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

bool is_health_path(const std::string& path) { return path == "/healthz" || path == "/readyz"; }

HttpReply answer_health(const Health& health, const std::string& path) {
  if (path == "/healthz")
    return health.alive() ? health_reply("ok", "") : health_reply("stuck", "a thread made no progress for 30 s");
  const std::string reason = health.why_not_ready();
  return health_reply(reason.empty() ? "ok" : "not_ready", reason);
}

std::vector<HttpRoute> health_routes(const Health& health) {
  const auto answer = [health](const HttpRequest& from) { return answer_health(health, from.path); };
  return {{"GET", "/healthz", answer}, {"GET", "/readyz", answer}};
}

}  // namespace api

Result<std::unique_ptr<HealthServer>> start_health(const std::string& listen, Health health, MetricsText text,
                                                   CountRefusal refused) {
  auto admit = [health, refused = std::move(refused)](const api::HttpRequest& from) {
    api::Admission admission{api::refuse_page(from, refused), api::ConnectionClass::open};
    if (api::is_health_path(from.path))
      admission.when_full = [&health, path = from.path] { return api::answer_health(health, path); };
    return admission;
  };
  auto routes = api::health_routes(health);
  const bool metered = text != nullptr;
  if (metered) routes.push_back(api::metrics_route(std::move(text)));
  MJ_TRY(http, api::HttpServer::start(listen, ApiLimits{}, std::move(routes), std::move(admit)));
  log(LogLevel::info, "api", "health at {}/healthz and /readyz{}", http->url(), metered ? ", metrics at /metrics" : "");
  return std::make_unique<api::HealthServerImpl>(std::move(http));
}

}  // namespace mycojobs
