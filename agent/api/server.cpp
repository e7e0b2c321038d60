#include "api/server.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "api/events.h"
#include "api/http.h"
#include "api/page.h"
#include "api/rpc.h"
#include "api/services.h"
#include "api/socket.h"
#include "api/tokens.h"
#include "base/log.h"
#include "base/version.h"
#include "coordinator/message_gate.h"
#include "coordinator/message_receiver.h"
#include "domain/codec.h"
#include "domain/trace_context.h"
#include "transport/http.h"

namespace mycojobs {
namespace api {
namespace {

using nlohmann::json;

// Somebody follows a link to the page, wherever that stands.
bool is_visit(const HttpRequest& from) {
  return from.path == "/" && from.header("sec-fetch-mode") == "navigate" &&
         from.header("sec-fetch-dest") == "document" && !from.headers.contains("origin");
}

class Running final : public ApiServer {
 public:
  Running(StoreFactory& stores, const Clock& clock, ApiSettings settings)
      : services_(stores, clock, settings),
        tokens_(settings.tokens_file),
        gate_(clock, services_.settings.contexts, services_.settings.own_servers),
        rpc_(methods_of(services_, settings.role), {settings.limits.body_bytes},
             [metrics = settings.metrics](std::string_view method, std::string_view result) {
               metrics->add(Metric::calls, {method, result});
             }),
        events_(services_, stores) {}
  ~Running() override { Running::stop(); }

  Result<void> open() {
    const ApiSettings& settings = services_.settings;
    MJ_TRY(address, parse_listen(settings.listen));
    if (auto read = tokens_.refresh(); !read) return fail(read.error(), "api.tokens");
    if (!address.loopback && !tokens_.any() && settings.coordinator_key.empty()) {
      return fail(Code::invalid, settings.listen +
                                     " can be reached from other hosts, and there is no token: make one "
                                     "with `mycojobs key token`, or listen on 127.0.0.1");
    }
    if (!tokens_.any() && !settings.anonymous)
      log(LogLevel::warn, "api",
          "{} holds no token, so clients are refused (supervisors are not: they sign): make one with `mycojobs key "
          "token`",
          settings.tokens_file);
    const bool with_events = settings.role == ApiRole::coordinator;
    if (with_events) MJ_CHECK(events_.open());
    std::vector<HttpRoute> routes{
        {"POST", "/", [this](const HttpRequest& from) { return call(from); }},
        {"POST", "/rpc", [this](const HttpRequest& from) { return call(from); }},
        {"GET", "/openrpc.json",
         [this](const HttpRequest&) {
           return HttpReply{200, "application/json", dump_json(rpc_.open_rpc(), 2) + "\n", {}, {}};
         }},
        {"GET", "/health", [this](const HttpRequest&) { return health(); }},
    };
    for (HttpRoute& route : health_routes(settings.health)) routes.push_back(std::move(route));
    if (!settings.coordinator_key.empty())
      routes.push_back({"POST", kSupervisorPath, [this](const HttpRequest& from) { return deliver(from); }});
    if (with_events) {
      for (HttpRoute& route : page_routes()) routes.push_back(std::move(route));
      if (page_files().empty()) log(LogLevel::info, "api", "{}", why_no_page());
      routes.push_back({"GET", "/events", [this](const HttpRequest& from) {
                          const auto caller = caller_of(from);
                          return caller ? events_.stream(from, *caller) : unauthorised();
                        }});
    }
    MJ_TRY(server, HttpServer::start(settings.listen, settings.limits, std::move(routes),
                                     [this](const HttpRequest& from) { return admit(from); }));
    http_ = std::move(server);
    return {};
  }

  bool has_page() const { return services_.settings.role == ApiRole::coordinator && !page_files().empty(); }
  std::string url() const override { return http_->url(); }
  std::uint16_t port() const override { return http_->port(); }
  void stop() override {
    services_.stopping = true;
    events_.stop();
    if (http_) http_->stop();
  }

 private:
  // Nothing: nobody whom we let in.
  std::optional<Caller> caller_of(const HttpRequest& from) {
    const std::string given = from.header("authorization");
    if (!given.empty()) {
      constexpr std::string_view kBearer = "bearer ";  // a scheme's case does not matter
      const std::string_view scheme = std::string_view(given).substr(0, kBearer.size());
      const bool bearer =
          std::equal(scheme.begin(), scheme.end(), kBearer.begin(), kBearer.end(),
                     [](char is, char wanted) { return (is >= 'A' && is <= 'Z' ? is | 0x20 : is) == wanted; });
      return bearer ? tokens_.find(std::string_view(given).substr(kBearer.size())) : std::nullopt;
    }
    if (!services_.settings.anonymous || !from.loopback) return std::nullopt;
    return Caller{0, true, false};
  }

  static HttpReply unauthorised() {
    HttpReply reply = refuse(401, "denied", "who calls is not known",
                             "send the header Authorization: Bearer TOKEN; `mycojobs key token` makes one");
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
  }

  bool is_strange(const HttpRequest& from) const {
    return services_.settings.role == ApiRole::coordinator ? is_from_other_page(from) : is_from_web_page(from);
  }

  Admission admit(const HttpRequest& from) {
    const bool page =
        services_.settings.role == ApiRole::coordinator && from.method != "POST" && is_page_path(from.path);
    if (is_strange(from) && !(page && is_visit(from))) {
      count_refusal("page");
      return {web_page_refused()};
    }
    if (from.path == "/health" || is_health_path(from.path)) return {{}, Standing::open};
    if (from.path == kSupervisorPath) return {{}, Standing::peer};
    if (auto read = tokens_.refresh(); !read) log(LogLevel::error, "api", "tokens: {}", read.error().message);
    const bool named = from.headers.contains("authorization");
    if (!named && services_.settings.anonymous && !names_loopback(from)) {
      count_refusal("host");
      return {other_host_refused("call http://127.0.0.1 or http://localhost, or send a token")};
    }
    if (page) return {{}, Standing::page};
    if (const auto caller = caller_of(from)) return {{}, caller->anonymous ? Standing::anonymous : Standing::token};
    count_refusal("token");
    return {unauthorised()};
  }
  void count_refusal(const char* why) {
    ++services_.refusals;
    services_.settings.metrics->add(Metric::http_refused, {why});
  }

  HttpReply call(const HttpRequest& from) {
    auto caller = caller_of(from);
    if (!caller) return unauthorised();
    // What is none is passed over, as the specification wants it of a header.
    if (parse_traceparent(from.header("traceparent"))) caller->traceparent = from.header("traceparent");
    HttpReply reply;
    reply.body = rpc_.answer(from.body, *caller);
    if (reply.body.empty()) reply.status = 204;
    return reply;
  }

  HttpReply deliver(const HttpRequest& from) {
    auto lease = services_.peers.take();
    if (!lease) return busy();
    MessageReceiver receiver(lease->store(), (*lease)->known, services_.settings.coordinator_key,
                             services_.settings.files);
    receiver.stand_behind(gate_);
    HttpReply reply;
    reply.body = receiver.answer(from.body);
    reply.proven = receiver.proven();
    return reply;
  }

  HttpReply health() {
    HttpReply reply;
    // Anybody may ask: it says no more than that.
    const std::string status = store_status();
    reply.status = status == "ok" ? 200 : 503;
    reply.body = dump_json({{"status", status}, {"version", kVersion}}) + "\n";
    return reply;
  }

  // A store that answers may refuse to write: out of memory, read-only, without a disk. Only a write finds that out;
  // how often somebody asks must not matter to the store.
  std::string store_status() {
    constexpr std::chrono::milliseconds kFresh{500};
    const std::lock_guard lock(health_);
    const auto now = std::chrono::steady_clock::now();
    if (!status_.empty() && now - status_at_ < kFresh) return status_;
    status_ = "ok";
    auto lease = services_.backends.take();
    auto time = lease ? lease->store().now_ms() : tl::unexpected<Error>(lease.error());
    if (!time) status_ = "store_away";
    const std::vector<Id>& served = services_.settings.contexts;
    for (Id context : served.empty() ? std::vector<Id>{1} : served) {  // where calls go that name none
      if (status_ != "ok") break;
      auto written = lease->store().save(context, "mj:health", {{"written_ms", std::to_string(*time)}});
      if (!written) {
        log(LogLevel::error, "api", "context {}: a write is refused: {}", context, written.error().message);
        status_ = lease->store().keys(context, "mj:health", 1) ? "store_refuses_writes" : "store_away";
      }
    }
    status_at_ = std::chrono::steady_clock::now();
    return status_;
  }

  std::mutex health_;  // of the next two
  std::string status_;
  std::chrono::steady_clock::time_point status_at_;
  Services services_;
  Tokens tokens_;
  MessageGate gate_;
  Rpc rpc_;
  Events events_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace
}  // namespace api

Result<void> may_listen(const std::string& listen) {
  MJ_TRY(address, api::parse_listen(listen));
  MJ_CHECK(api::open_listening(address));
  return {};
}

Result<std::unique_ptr<ApiServer>> start_api(StoreFactory& stores, const Clock& clock, ApiSettings settings) {
  auto server = std::make_unique<api::Running>(stores, clock, std::move(settings));
  MJ_CHECK(server->open());
  log(LogLevel::info, "api", "JSON-RPC at {}", server->url());
  if (server->has_page()) log(LogLevel::info, "api", "the page is at {}/", server->url());
  return server;
}

}  // namespace mycojobs
