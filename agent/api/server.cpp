#include "api/server.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "api/auth/peer_rate_limiter.h"
#include "api/auth/tokens.h"
#include "api/events/events.h"
#include "api/http/http_server.h"
#include "api/http/origin.h"
#include "api/http/socket.h"
#include "api/page.h"
#include "api/rpc/json_rpc.h"
#include "api/services.h"
#include "base/log.h"
#include "base/version.h"
#include "messaging/inbound_filter.h"
#include "messaging/message_receiver.h"
#include "messaging/transport/http_transport.h"
#include "model/enums.h"
#include "model/trace_context.h"
#include "text/json.h"

namespace mycojobs {
namespace api {
namespace {

using nlohmann::json;

constexpr std::string_view kLoginPath = "/session";

// Ends an event stream after its token or session has become invalid. Calls `holds` at most every two seconds. Not
// thread-safe.
class AuthorizedEventSink final : public EventSink {
 public:
  AuthorizedEventSink(EventSink& sink, std::function<bool()> holds) : sink_(sink), holds_(std::move(holds)) {}
  bool send(std::string_view text) override { return asked_holds() && sink_.send(text); }
  bool open() const override { return sink_.open() && asked_holds(); }

 private:
  bool asked_holds() const {
    constexpr std::chrono::seconds kFresh{2};
    const auto now = std::chrono::steady_clock::now();
    if (!over_ && now - asked_ >= kFresh) {
      over_ = !holds_();
      asked_ = now;
    }
    return !over_;
  }
  EventSink& sink_;
  std::function<bool()> holds_;
  mutable std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  mutable bool over_ = false;
};

// Returns whether a browser opens the page. It may follow a link of another site, which is allowed only for the page.
bool is_visit(const HttpRequest& from) {
  return from.path == "/" && from.header("sec-fetch-mode") == "navigate" &&
         from.header("sec-fetch-dest") == "document" && !from.headers.contains("origin");
}

class ApiServerImpl final : public ApiServer {
 public:
  ApiServerImpl(StoreFactory& stores, const Clock& clock, ApiSettings settings)
      : services_(stores, clock, settings),
        tokens_(settings.tokens_file),
        strangers_(clock, settings.limits.strangers),
        gate_(clock, services_.settings.contexts, services_.settings.own_servers, settings.metrics),
        rpc_(methods_of(services_, settings.role), {settings.limits.body_bytes},
             [metrics = settings.metrics](std::string_view method, std::string_view result) {
               metrics->add(Metric::calls, {method, result});
             }),
        logins_(login_methods(services_), {settings.limits.login_body_bytes, 1}),
        events_(services_, stores) {}
  ~ApiServerImpl() override { ApiServerImpl::stop(); }

  Result<void> open() {
    const ApiSettings& settings = services_.settings;
    MJ_TRY(address, parse_listen(settings.listen));
    auto origins = parse_origins(settings.names);
    if (!origins) return fail(origins.error(), "api.names");
    services_.settings.names = std::move(*origins);
    if (auto read = tokens_.refresh(); !read) return fail(read.error(), "api.tokens");
    if (!address.loopback && !tokens_.has_tokens() && settings.coordinator_key.empty()) {
      return fail(Code::invalid, settings.listen +
                                     " can be reached from other hosts, but there is no token: create one with "
                                     "`mycojobs key token`, or listen on 127.0.0.1");
    }
    if (!tokens_.has_tokens() && !settings.anonymous)
      log(LogLevel::warn, "api",
          "{} has no token, so clients are refused (except supervisors, which sign): create one with `mycojobs key "
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
      if (page_files().empty()) log(LogLevel::info, "api", "{}", page_unavailable_reason());
      routes.push_back({"GET", "/events", [this](const HttpRequest& from) { return events(from); }});
      routes.push_back({"POST", std::string(kLoginPath), [this](const HttpRequest& from) { return log_in(from); }});
    }
    MJ_TRY(server, HttpServer::start(settings.listen, settings.limits, std::move(routes),
                                     [this](const HttpRequest& from) { return admit(from); }));
    http_ = std::move(server);
    return {};
  }

  bool has_page() const override { return services_.settings.role == ApiRole::coordinator && !page_files().empty(); }
  std::string url() const override { return http_->url(); }
  std::uint16_t port() const override { return http_->port(); }
  void stop() override {
    services_.stopping = true;
    events_.stop();
    if (http_) http_->stop();
  }

 private:
  // Returns the authenticated caller of a request. No value: the request must be refused.
  std::optional<RpcCaller> caller_of(const HttpRequest& from) {
    const std::string given = from.header("authorization");
    if (!given.empty()) {
      constexpr std::string_view kBearer = "bearer ";  // compared without case
      const std::string_view scheme = std::string_view(given).substr(0, kBearer.size());
      const bool bearer =
          std::equal(scheme.begin(), scheme.end(), kBearer.begin(), kBearer.end(),
                     [](char is, char wanted) { return (is >= 'A' && is <= 'Z' ? is | 0x20 : is) == wanted; });
      return bearer ? caller_by(std::string_view(given).substr(kBearer.size())) : std::nullopt;
    }
    if (!services_.settings.anonymous || !from.loopback) return std::nullopt;
    return RpcCaller{0, true, false};
  }

  std::optional<RpcCaller> caller_by(std::string_view token) {
    if (!Sessions::is_token(token)) return tokens_.find(token);
    auto session = services_.sessions.find(token);
    if (!session) return std::nullopt;
    RpcCaller caller{session->actor};
    caller.session = std::move(session->id);
    caller.key = std::move(session->key);
    return caller;
  }

  // Logs an error of the tokens file once, not for each request while the file is invalid.
  void refresh_tokens() {
    auto read = tokens_.refresh();
    std::string error = read ? std::string() : std::move(read).error().message;
    const std::lock_guard lock(tokens_error_mutex_);
    if (error == tokens_error_) return;
    tokens_error_ = std::move(error);
    if (tokens_error_.empty()) {
      log(LogLevel::info, "api", "read {} again: its lines are valid", services_.settings.tokens_file);
    } else {
      log(LogLevel::error, "api", "tokens: {}", tokens_error_);
    }
  }

  // Returns whether the header still identifies the same caller. Its line may have been removed from the tokens file,
  // or changed to another actor, since the stream began.
  bool is_still(const RpcCaller& who, const std::string& authorization) {
    refresh_tokens();
    HttpRequest asked;
    asked.headers["authorization"] = authorization;
    const auto now = caller_of(asked);
    return now && now->actor == who.actor && now->operator_token == who.operator_token && now->session == who.session;
  }

  // Returns whether the caller's session is valid; true without a session. Ends the session if its key no longer
  // belongs to the actor. Errors: those of the store.
  Result<bool> holds(const RpcCaller& caller) {
    if (caller.session.empty()) return true;
    if (!services_.sessions.is_valid_session(caller.session)) return false;
    MJ_TRY(lease, services_.backends_of(caller).take(caller.actor));
    MJ_TRY(owner, lease.store().owner_of_key(caller.key));
    if (owner.actors == 1 && owner.id == caller.actor) return true;
    services_.sessions.end(caller.session);
    log(LogLevel::warn, "api", "actor {}: its session is over: the key {} is its own no more", caller.actor,
        caller.key);
    return false;
  }

  HttpReply log_in(const HttpRequest& from) {
    RpcCaller nobody;
    nobody.origin = origin_of(from, services_.settings.names);
    HttpReply reply;
    reply.body = logins_.answer(from.body, nobody);
    if (reply.body.empty()) reply.status = 204;
    return reply;
  }

  HttpReply events(const HttpRequest& from) {
    const auto caller = caller_of(from);
    if (!caller) return unauthorised();
    const auto held = holds(*caller);
    if (!held)
      return refuse(503, std::string(to_string(held.error().code)), held.error().message,
                    "call again in a few seconds");
    if (!*held) return unauthorised();
    HttpReply reply = events_.stream(from, *caller);
    if (!reply.stream || caller->anonymous) return reply;
    reply.stream = [this, who = *caller, token = from.header("authorization"),
                    all = std::move(reply.stream)](EventSink& sink) {
      AuthorizedEventSink guarded(sink, [this, &who, &token] {
        if (!is_still(who, token)) return false;
        const auto still = holds(who);
        return !still || *still;  // the stream stays open while the store is unavailable
      });
      all(guarded);
    };
    return reply;
  }

  static HttpReply unauthorised() {
    HttpReply reply = refuse(401, "denied", "the caller is unknown",
                             "send the header Authorization: Bearer TOKEN; create a token with `mycojobs key token`");
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
    if (from.path == "/health") return {{}, ConnectionClass::open, 0, [this] { return health_of(latest_status()); }};
    if (is_health_path(from.path))
      return {{}, ConnectionClass::open, 0, [this, path = from.path] {
                return answer_health(services_.settings.health, path);
              }};
    if (from.path == kSupervisorPath) return admit_peer(from);
    const bool login = services_.settings.role == ApiRole::coordinator && from.path == kLoginPath;
    refresh_tokens();
    const bool named = !from.header("authorization").empty();
    if (!named && services_.settings.anonymous && !is_loopback_name(from)) {
      count_refusal("host");
      return {other_host_refused("call http://127.0.0.1 or http://localhost, or send a token")};
    }
    if (login) return {{}, ConnectionClass::login};
    if (page) return {{}, ConnectionClass::page};
    if (const auto caller = caller_of(from)) {
      if (caller->anonymous) return {{}, ConnectionClass::anonymous};
      return {{}, caller->operator_token ? ConnectionClass::operators : ConnectionClass::token, caller->actor};
    }
    count_refusal("token");
    return {unauthorised()};
  }
  // Limits requests of unknown peers before the connection has a thread and before the body is read.
  Admission admit_peer(const HttpRequest& from) {
    if (!is_counted(from) || from.proven || strangers_.check_limit(from.network)) return {{}, ConnectionClass::peer};
    count_refusal("strangers");
    HttpReply reply =
        refuse(429, "unavailable", "too many requests from " + from.network + " were from unknown callers",
               "send again in a minute");
    reply.headers.emplace_back("Retry-After", "60");
    return {std::move(reply)};
  }
  bool is_counted(const HttpRequest& from) const {
    return !from.network.empty() && !(from.loopback && services_.settings.limits.spare_loopback);
  }
  void count_refusal(const char* why) {
    ++services_.refusals;
    services_.settings.metrics->add(Metric::http_refused, {why});
  }

  HttpReply call(const HttpRequest& from) {
    auto caller = caller_of(from);
    if (!caller) return unauthorised();
    const auto held = holds(*caller);
    if (!held)
      return refuse(503, std::string(to_string(held.error().code)), held.error().message,
                    "call again in a few seconds");
    if (!*held) return unauthorised();
    caller->origin = origin_of(from, services_.settings.names);
    caller->note_wait = from.note_wait;
    // An invalid traceparent is ignored, as the W3C specification requires.
    if (parse_traceparent(from.header("traceparent"))) caller->traceparent = from.header("traceparent");
    HttpReply reply;
    reply.body = rpc_.answer(from.body, *caller);
    if (reply.body.empty()) reply.status = 204;
    return reply;
  }

  HttpReply deliver(const HttpRequest& from) {
    auto lease = services_.peers.take();
    if (!lease) return too_many_requests_reply();
    MessageReceiver receiver(lease->store(), (*lease)->known, services_.settings.coordinator_key,
                             services_.settings.files);
    receiver.set_filter(gate_);
    HttpReply reply;
    reply.body = receiver.answer(from.body);
    reply.proven = receiver.verified_sender();
    if (is_counted(from))
      receiver.is_unknown_sender() ? strangers_.count_refusal(from.network)
                                   : strangers_.mark_known_network(from.network);
    return reply;
  }

  HttpReply health() { return health_of(store_status()); }
  // The body contains nothing else, since no token is needed.
  static HttpReply health_of(const std::string& status) {
    HttpReply reply;
    reply.status = status == "ok" ? 200 : 503;
    reply.body = dump_json({{"status", status}, {"version", kVersion}}) + "\n";
    return reply;
  }

  // Checks the store with a write: a store that answers reads may refuse writes, because it is out of memory, read-only
  // or cannot use its disk. One thread at a time checks, at most twice a second. Other threads use the latest result;
  // they wait for the check only if that result is too old.
  std::string store_status() {
    constexpr std::chrono::milliseconds kFresh{500};
    {
      std::unique_lock lock(health_);
      const auto age = std::chrono::steady_clock::now() - status_at_;
      if (!status_.empty() && age < kFresh) return status_;
      if (is_checking_) {
        if (!status_.empty() && age < kStatusCounts) return status_;
        if (!checked_.wait_for(lock, kFresh, [this] { return !is_checking_; })) return "store_away";
        return status_;
      }
      is_checking_ = true;
    }
    std::string status = "store_away";
    try {
      status = check_store();
    } catch (const std::exception& bug) {  // is_checking_ must be reset
      log(LogLevel::error, "api", "the check of the store: {}", bug.what());
    }
    const std::lock_guard lock(health_);
    is_checking_ = false;
    status_ = std::move(status);
    status_at_ = std::chrono::steady_clock::now();
    checked_.notify_all();
    return status_;
  }

  // Returns the result of the latest check. Does not block.
  std::string latest_status() {
    const std::lock_guard lock(health_);
    const bool counts = std::chrono::steady_clock::now() - status_at_ < kStatusCounts;
    return counts && !status_.empty() ? status_ : "store_away";
  }

  std::string check_store() {
    auto lease = services_.health.take();
    auto time = lease ? lease->store().now_ms() : tl::unexpected<Error>(lease.error());
    if (!time) return "store_away";
    const std::vector<Id>& served = services_.settings.contexts;
    for (Id context : served.empty() ? std::vector<Id>{1} : served) {  // the default context
      auto written = lease->store().save(context, "mj:health", {{"written_ms", std::to_string(*time)}});
      if (written) continue;
      log(LogLevel::error, "api", "context {}: a write is refused: {}", context, written.error().message);
      return lease->store().keys(context, "mj:health", 1) ? "store_refuses_writes" : "store_away";
    }
    return "ok";
  }

  static constexpr std::chrono::seconds kStatusCounts{5};
  std::mutex health_;  // guards the next four members
  std::condition_variable checked_;
  bool is_checking_ = false;
  std::string status_;
  std::chrono::steady_clock::time_point status_at_;
  Services services_;
  Tokens tokens_;
  std::mutex tokens_error_mutex_;
  std::string tokens_error_;  // the last error of tokens_.refresh(); empty: the file is valid
  PeerRateLimiter strangers_;
  InboundMessageFilter gate_;
  Rpc rpc_, logins_;
  EventHub events_;
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
  const bool anonymous = settings.anonymous;  // `mycojobs dev` prints the address of the page itself
  auto server = std::make_unique<api::ApiServerImpl>(stores, clock, std::move(settings));
  MJ_CHECK(server->open());
  log(LogLevel::info, "api", "JSON-RPC at {}", server->url());
  if (server->has_page() && !anonymous) log(LogLevel::info, "api", "the page is at {}/", server->url());
  return server;
}

}  // namespace mycojobs
