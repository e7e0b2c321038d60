#include "api/health.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "api/http.h"
#include "base/log.h"
#include "base/version.h"
#include "domain/codec.h"

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

HttpReply refuse_page(const HttpRequest& from) {
  if (is_from_web_page(from)) return web_page_refused();
  return {};
}

class OwnHealthServer final : public HealthServer {
 public:
  explicit OwnHealthServer(std::unique_ptr<HttpServer> http) : http_(std::move(http)) {}
  ~OwnHealthServer() override { http_->stop(); }
  std::string url() const override { return http_->url(); }

 private:
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

bool is_health_path(const std::string& path) { return path == "/healthz" || path == "/readyz"; }

std::vector<HttpRoute> health_routes(const Health& health) {
  return {{"GET", "/healthz",
           [alive = health.alive](const HttpRequest&) {
             return alive() ? health_reply("ok", "") : health_reply("stuck", "a thread has not come round for 30 s");
           }},
          {"GET", "/readyz", [why_not = health.why_not_ready](const HttpRequest&) {
             const std::string reason = why_not();
             return health_reply(reason.empty() ? "ok" : "not_ready", reason);
           }}};
}

}  // namespace api

Result<std::unique_ptr<HealthServer>> start_health(const std::string& listen, Health health) {
  auto admit = [](const api::HttpRequest& from) { return api::Admission{api::refuse_page(from), api::Standing::open}; };
  MJ_TRY(http, api::HttpServer::start(listen, ApiLimits{}, api::health_routes(health), std::move(admit)));
  log(LogLevel::info, "api", "health at {}/healthz and /readyz", http->url());
  return std::make_unique<api::OwnHealthServer>(std::move(http));
}

}  // namespace mycojobs
