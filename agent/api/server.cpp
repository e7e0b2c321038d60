#include "api/server.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "api/http/origin.h"
#include "api/page.h"
#include "base/log.h"
#include "base/version.h"
#include "messaging/message_receiver.h"
#include "messaging/transport/http_transport.h"
#include "model/enums.h"
#include "model/trace_context.h"
#include "store/keys.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr std::string_view kLoginPath = "/session";
constexpr std::chrono::seconds kMaxStatusAge{5};
constexpr std::uint32_t kMaxTicketChecks = 2;  // at the same time, of tickets of other servers

// Ends a stream after its token or session has become invalid. Calls is_authorized() at most every two seconds.
// Not thread-safe.
class AuthorizedEventSink final : public EventSink {
 public:
  AuthorizedEventSink(EventSink& sink, std::function<bool()> is_authorized)
      : sink_(sink), is_authorized_(std::move(is_authorized)) {}
  bool send(std::string_view text) override { return check_authorization() && sink_.send(text); }
  bool is_open() const override { return sink_.is_open() && check_authorization(); }

 private:
  bool check_authorization() const {
    constexpr std::chrono::seconds kCheckInterval{2};
    const auto now = std::chrono::steady_clock::now();
    if (!is_revoked_ && now - checked_at_ >= kCheckInterval) {
      is_revoked_ = !is_authorized_();
      checked_at_ = now;
    }
    return !is_revoked_;
  }
  EventSink& sink_;
  std::function<bool()> is_authorized_;
  mutable std::chrono::steady_clock::time_point checked_at_ = std::chrono::steady_clock::now();
  mutable bool is_revoked_ = false;
};

// Returns whether a browser navigates to the page. The link may be on another site, which is allowed only for the page.
bool is_page_navigation(const HttpRequest& request) {
  return request.path == "/" && request.header("sec-fetch-mode") == "navigate" &&
         request.header("sec-fetch-dest") == "document" && !request.headers.contains("origin");
}

HttpReply unauthorized_reply() {
  HttpReply reply =
      error_reply(401, "denied", "the caller is unknown",
                  "send the header Authorization: Bearer TOKEN; create a token with `mycojobs key token`");
  reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

// Anyone can send a ticket, so the reply does not contain the reason.
HttpReply ticket_refused_reply(const Error& error) {
  if (error.code == Code::unavailable)
    return error_reply(503, "unavailable", "the link cannot be checked now", "request it again in a few seconds");
  return error_reply(403, "denied", "the link is not valid, or has expired",
                     "request a new link: artifact.get, or the page of the job");
}

HttpReply too_many_unknown_callers_reply(const std::string& network) {
  HttpReply reply = error_reply(429, "unavailable", "too many requests from " + network + " were from unknown callers",
                                "send again in a minute");
  reply.headers.emplace_back("Retry-After", "60");
  return reply;
}

// Clients without a token receive this reply, so it contains only the status and the version.
HttpReply make_health_reply(const std::string& status) {
  HttpReply reply;
  reply.status = status == "ok" ? 200 : 503;
  reply.body = dump_json({{"status", status}, {"version", kVersion}}) + "\n";
  return reply;
}

}  // namespace

Result<std::unique_ptr<ApiServer>> ApiServer::start(StoreFactory& stores, const Clock& clock,
                                                    const ApiSettings& settings) {
  std::unique_ptr<ApiServer> server(new ApiServer(stores, clock, settings));
  MJ_CHECK(server->open());
  log(LogLevel::info, "api", "JSON-RPC at {}", server->url());
  // `mycojobs dev` prints the address of the page itself.
  if (server->has_page() && !settings.allows_anonymous) log(LogLevel::info, "api", "the page is at {}/", server->url());
  return server;
}

ApiServer::ApiServer(StoreFactory& stores, const Clock& clock, const ApiSettings& settings)
    : services_(stores, clock, settings),
      tokens_(settings.tokens_file),
      peer_limiter_(clock, settings.limits.max_unknown_peer_requests),
      ticket_limiter_(clock, settings.limits.max_unknown_peer_requests),
      inbound_filter_(clock, services_.settings.contexts, services_.settings.contexts_with_own_redis, settings.metrics),
      ticket_filter_(clock, services_.settings.contexts, services_.settings.contexts_with_own_redis),
      ticket_backends_(stores, kMaxTicketChecks),
      rpc_(make_methods(services_, settings.role), {settings.limits.max_body_bytes},
           [metrics = settings.metrics](std::string_view method, std::string_view result) {
             metrics->add(Metric::rpc_calls, {method, result});
           }),
      logins_(make_login_methods(services_), {settings.limits.max_login_body_bytes, 1}),
      events_(services_, stores),
      downloads_(services_, stores),
      uploads_(services_) {}

ApiServer::~ApiServer() { stop(); }

bool ApiServer::has_page() const { return services_.settings.role == ApiRole::coordinator && !page_files().empty(); }

Result<void> ApiServer::open() {
  const ApiSettings& settings = services_.settings;
  MJ_TRY(address, parse_listen(settings.listen));
  auto origins = parse_origins(settings.origins);
  if (!origins) return fail(origins.error(), "api.names");
  services_.settings.origins = std::move(*origins);
  if (auto read = tokens_.reload_if_changed(); !read) return fail(read.error(), "api.tokens");
  if (!address.loopback && !tokens_.has_tokens() && settings.coordinator_key.empty()) {
    return fail(Code::invalid, settings.listen +
                                   " can be reached from other hosts, but there is no token: create one with "
                                   "`mycojobs key token`, or listen on 127.0.0.1");
  }
  if (!settings.tls && !settings.allows_plain_http) MJ_CHECK(check_plain_http(address, settings.listen));
  if (!settings.tls && !address.loopback)
    log(LogLevel::warn, "api",
        "{} has no TLS (api.insecure): tokens and data cross the network in plain text, unless a proxy on the way ends "
        "TLS",
        settings.listen);
  if (!tokens_.has_tokens() && !settings.allows_anonymous)
    log(LogLevel::warn, "api",
        "{} has no token, so clients are refused (except supervisors, which sign): create one with `mycojobs key "
        "token`",
        settings.tokens_file);
  const bool is_coordinator = settings.role == ApiRole::coordinator;
  if (is_coordinator) MJ_CHECK(events_.open());
  std::vector<HttpRoute> routes{
      {"POST", "/", [this](const HttpRequest& request) { return handle_call(request); }},
      {"POST", "/rpc", [this](const HttpRequest& request) { return handle_call(request); }},
      {"GET", "/openrpc.json",
       [this](const HttpRequest&) {
         return HttpReply{200, "application/json", dump_json(rpc_.open_rpc(), 2) + "\n", {}, {}};
       }},
      {"GET", "/health", [this](const HttpRequest&) { return make_health_reply(store_status()); }},
  };
  for (HttpRoute& route : health_routes(settings.health)) routes.push_back(std::move(route));
  if (!settings.coordinator_key.empty())
    routes.push_back(
        {"POST", kSupervisorPath, [this](const HttpRequest& request) { return handle_delivery(request); }});
  if (is_coordinator) {
    for (HttpRoute& route : page_routes()) routes.push_back(std::move(route));
    if (page_files().empty()) log(LogLevel::info, "api", "{}", page_unavailable_reason());
    routes.push_back({"GET", "/events", [this](const HttpRequest& request) { return handle_events(request); }});
    routes.push_back(
        {"GET", std::string(kArtifactPath), [this](const HttpRequest& request) { return handle_artifact(request); }});
    routes.push_back(
        {"PUT", std::string(kArtifactPath), {}, [this](const HttpRequest& request) { return open_upload(request); }});
    routes.push_back(
        {"POST", std::string(kLoginPath), [this](const HttpRequest& request) { return handle_login(request); }});
  }
  MJ_TRY(server, HttpServer::start(
                     address, settings.limits, std::move(routes),
                     [this](const HttpRequest& request) { return admit(request); }, settings.tls));
  http_ = std::move(server);
  return {};
}

void ApiServer::stop() {
  services_.stopping = true;
  events_.stop();
  if (http_) http_->stop();
}

std::optional<RpcCaller> ApiServer::authenticate(const HttpRequest& request) {
  const std::string authorization = request.header("authorization");
  if (!authorization.empty()) {
    constexpr std::string_view kBearer = "bearer ";  // compared without case
    const std::string_view scheme = std::string_view(authorization).substr(0, kBearer.size());
    const bool is_bearer =
        std::equal(scheme.begin(), scheme.end(), kBearer.begin(), kBearer.end(),
                   [](char c, char lower) { return (c >= 'A' && c <= 'Z' ? c | 0x20 : c) == lower; });
    return is_bearer ? find_caller(std::string_view(authorization).substr(kBearer.size())) : std::nullopt;
  }
  if (!services_.settings.allows_anonymous || !request.loopback) return std::nullopt;
  return RpcCaller{0, true, false};
}

std::optional<RpcCaller> ApiServer::find_caller(std::string_view token) {
  if (!Sessions::is_session_token(token)) return tokens_.find(token);
  auto session = services_.sessions.find(token);
  if (!session) return std::nullopt;
  RpcCaller caller{session->actor};
  caller.session = std::move(session->id);
  caller.key = std::move(session->key);
  return caller;
}

void ApiServer::refresh_tokens() {
  auto read = tokens_.reload_if_changed();
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

bool ApiServer::is_same_caller(const RpcCaller& caller, const std::string& authorization) {
  refresh_tokens();
  HttpRequest request;
  request.headers["authorization"] = authorization;
  const auto current = authenticate(request);
  return current && current->actor == caller.actor && current->operator_token == caller.operator_token &&
         current->session == caller.session;
}

Result<bool> ApiServer::has_valid_session(const RpcCaller& caller) {
  if (caller.session.empty()) return true;
  if (!services_.sessions.is_valid_session(caller.session)) return false;
  MJ_TRY(lease, services_.select_backends(caller).acquire(caller.actor));
  MJ_TRY(owner, lease.store().owner_of_key(caller.key));
  if (owner.actor_count == 1 && owner.id == caller.actor) return true;
  services_.sessions.end_session(caller.session);
  log(LogLevel::warn, "api", "actor {}: its session is over: the key {} is its own no more", caller.actor, caller.key);
  return false;
}

std::optional<HttpReply> ApiServer::check_session(const RpcCaller& caller) {
  const auto is_valid = has_valid_session(caller);
  if (!is_valid)
    return error_reply(503, std::string(to_string(is_valid.error().code)), is_valid.error().message,
                       "call again in a few seconds");
  if (!*is_valid) return unauthorized_reply();
  return std::nullopt;
}

HttpReply ApiServer::handle_login(const HttpRequest& request) {
  RpcCaller client;
  client.origin = find_origin(request, services_.settings.origins);
  HttpReply reply;
  reply.body = logins_.answer(request.body, client);
  if (reply.body.empty()) reply.status = 204;
  return reply;
}

HttpReply ApiServer::handle_events(const HttpRequest& request) {
  return make_authorized_stream(request,
                                [&](const RpcCaller& caller) { return events_.make_stream_reply(request, caller); });
}

HttpReply ApiServer::handle_artifact(const HttpRequest& request) {
  if (ArtifactDownloads::has_ticket(request)) {
    const auto caller = accept_ticket(request, downloads_.verify_ticket(request));
    return caller ? downloads_.make_reply(request, *caller) : ticket_refused_reply(caller.error());
  }
  return make_authorized_stream(request,
                                [&](const RpcCaller& caller) { return downloads_.make_reply(request, caller); });
}

BodyStream ApiServer::open_upload(const HttpRequest& request) {
  BodyStream refused;
  if (ArtifactUploads::has_ticket(request)) {
    const auto caller = accept_ticket(request, uploads_.verify_ticket(request));
    if (caller) return uploads_.open(request, *caller);
    refused.refusal = ticket_refused_reply(caller.error());
    return refused;
  }
  const auto caller = authenticate(request);
  if (!caller) {
    refused.refusal = unauthorized_reply();
    return refused;
  }
  if (auto refusal = check_session(*caller)) {
    refused.refusal = std::move(*refusal);
    return refused;
  }
  return uploads_.open(request, *caller);
}

HttpReply ApiServer::make_authorized_stream(const HttpRequest& request,
                                            const std::function<HttpReply(const RpcCaller&)>& make_reply) {
  const auto caller = authenticate(request);
  if (!caller) return unauthorized_reply();
  if (auto refusal = check_session(*caller)) return std::move(*refusal);
  HttpReply reply = make_reply(*caller);
  if (!reply.stream || caller->anonymous) return reply;
  reply.stream = [this, client = *caller, token = request.header("authorization"),
                  stream = std::move(reply.stream)](EventSink& sink) {
    AuthorizedEventSink authorized_sink(sink, [this, &client, &token] {
      if (!is_same_caller(client, token)) return false;
      const auto is_valid = has_valid_session(client);
      return !is_valid || *is_valid;  // the stream stays open while the store is unavailable
    });
    stream(authorized_sink);
  };
  return reply;
}

bool ApiServer::is_from_foreign_page(const HttpRequest& request) const {
  return services_.settings.role == ApiRole::coordinator ? is_cross_origin(request) : is_from_web_page(request);
}

Admission ApiServer::admit(const HttpRequest& request) {
  const bool is_page =
      services_.settings.role == ApiRole::coordinator && request.method != "POST" && is_page_path(request.path);
  if (is_from_foreign_page(request) && !(is_page && is_page_navigation(request))) {
    count_refusal("page");
    return {web_page_refused_reply()};
  }
  if (request.path == "/health")
    return {{}, ConnectionClass::health, 0, [this] { return make_health_reply(latest_status()); }};
  if (is_health_path(request.path))
    return {{}, ConnectionClass::health, 0, [this, path = request.path] {
              return make_health_answer(services_.settings.health, path);
            }};
  if (request.path == kSupervisorPath) return admit_peer(request);
  const bool is_login = services_.settings.role == ApiRole::coordinator && request.path == kLoginPath;
  refresh_tokens();
  const bool has_token = !request.header("authorization").empty();
  if (!has_token && services_.settings.allows_anonymous && !is_loopback_name(request)) {
    count_refusal("host");
    return {other_host_refused_reply("call http://127.0.0.1 or http://localhost, or send a token")};
  }
  if (is_login) return {{}, ConnectionClass::login};
  if (services_.settings.role == ApiRole::coordinator &&
      (ArtifactDownloads::has_ticket(request) || ArtifactUploads::has_ticket(request)))
    return admit_ticket(request);
  if (is_page) return {{}, ConnectionClass::page};
  if (const auto caller = authenticate(request)) {
    if (caller->anonymous) return {{}, ConnectionClass::anonymous};
    return {{}, caller->operator_token ? ConnectionClass::operators : ConnectionClass::token, caller->actor};
  }
  count_refusal("token");
  return {unauthorized_reply()};
}

namespace {

Admission make_caller_admission(const RpcCaller& caller) {
  if (caller.anonymous) return {{}, ConnectionClass::anonymous};
  return {{}, caller.operator_token ? ConnectionClass::operators : ConnectionClass::token, caller.actor};
}

}  // namespace

Admission ApiServer::admit_ticket(const HttpRequest& request) {
  const auto ticket =
      ArtifactUploads::has_ticket(request) ? uploads_.verify_ticket(request) : downloads_.verify_ticket(request);
  if (!ticket) {
    count_refusal("ticket");
    return {ticket_refused_reply(ticket.error())};
  }
  if (ticket->signer_key.empty()) return make_caller_admission(ticket->caller);
  if (!is_rate_limited(request) || ticket_limiter_.is_below_limit(request.network)) return {{}, ConnectionClass::login};
  count_refusal("ticket");
  return {too_many_unknown_callers_reply(request.network)};
}

Result<bool> ApiServer::is_ticket_key_known(const Ticket& ticket) {
  if (ticket.context == 0) return false;
  MJ_TRY(lease, ticket_backends_.acquire());
  if (!ticket_filter_.check(lease.store(), ticket.context)) return false;
  return lease.store().has_ticket_key(ticket.context, ticket.signer_key);
}

Result<RpcCaller> ApiServer::accept_ticket(const HttpRequest& request, const Result<Ticket>& ticket) {
  if (!ticket) return tl::unexpected<Error>(ticket.error());
  if (ticket->signer_key.empty()) return ticket->caller;
  const auto is_known = is_ticket_key_known(*ticket);
  if (!is_known || !*is_known) {
    count_refusal("ticket");
    if (is_rate_limited(request)) ticket_limiter_.count_refusal(request.network);
    if (!is_known && is_known.error().code == Code::unavailable) return tl::unexpected<Error>(is_known.error());
    return fail(Code::denied, "the ticket was not created by a server of this context");
  }
  if (!request.readmit || !request.readmit(make_caller_admission(ticket->caller)))
    return fail(Code::unavailable, "too many connections: request it again in a few seconds");
  if (is_rate_limited(request)) ticket_limiter_.mark_known_network(request.network);
  return ticket->caller;
}

Admission ApiServer::admit_peer(const HttpRequest& request) {
  if (!is_rate_limited(request) || request.has_signed_before || peer_limiter_.is_below_limit(request.network))
    return {{}, ConnectionClass::peer};
  count_refusal("unknown_peer");
  return {too_many_unknown_callers_reply(request.network)};
}

bool ApiServer::is_rate_limited(const HttpRequest& request) const {
  return !request.network.empty() && !(request.loopback && services_.settings.limits.exempt_loopback);
}

void ApiServer::count_refusal(const char* reason) {
  ++services_.refusal_count;
  services_.settings.metrics->add(Metric::http_refusals, {reason});
}

HttpReply ApiServer::handle_call(const HttpRequest& request) {
  auto caller = authenticate(request);
  if (!caller) return unauthorized_reply();
  if (auto refusal = check_session(*caller)) return std::move(*refusal);
  caller->origin = find_origin(request, services_.settings.origins);
  caller->report_wait = request.report_wait;
  // An invalid traceparent is ignored, as the W3C specification requires.
  if (parse_traceparent(request.header("traceparent"))) caller->traceparent = request.header("traceparent");
  HttpReply reply;
  reply.body = rpc_.answer(request.body, *caller);
  if (reply.body.empty()) reply.status = 204;
  return reply;
}

HttpReply ApiServer::handle_delivery(const HttpRequest& request) {
  auto lease = services_.peer_backends.acquire();
  if (!lease) return too_many_requests_reply();
  MessageReceiver receiver(lease->store(), (*lease)->public_keys, services_.settings.coordinator_key,
                           services_.settings.attachments);
  receiver.set_filter(inbound_filter_);
  HttpReply reply;
  reply.body = receiver.handle_request(request.body);
  reply.signer_key = receiver.verified_sender();
  if (is_rate_limited(request))
    receiver.is_unknown_sender() ? peer_limiter_.count_refusal(request.network)
                                 : peer_limiter_.mark_known_network(request.network);
  return reply;
}

std::string ApiServer::store_status() {
  constexpr std::chrono::milliseconds kMinCheckInterval{500};
  {
    std::unique_lock lock(status_mutex_);
    const auto age = std::chrono::steady_clock::now() - status_time_;
    if (!status_.empty() && age < kMinCheckInterval) return status_;
    if (is_checking_) {
      if (!status_.empty() && age < kMaxStatusAge) return status_;
      if (!check_ended_.wait_for(lock, kMinCheckInterval, [this] { return !is_checking_; })) return "store_unavailable";
      return status_;
    }
    is_checking_ = true;
  }
  std::string status = "store_unavailable";
  try {
    status = check_store();
  } catch (const std::exception& error) {  // is_checking_ must be reset
    log(LogLevel::error, "api", "the check of the store: {}", error.what());
  }
  const std::lock_guard lock(status_mutex_);
  is_checking_ = false;
  status_ = std::move(status);
  status_time_ = std::chrono::steady_clock::now();
  check_ended_.notify_all();
  return status_;
}

std::string ApiServer::latest_status() {
  const std::lock_guard lock(status_mutex_);
  const bool is_recent = std::chrono::steady_clock::now() - status_time_ < kMaxStatusAge;
  return is_recent && !status_.empty() ? status_ : "store_unavailable";
}

std::string ApiServer::check_store() {
  auto lease = services_.health_backends.acquire();
  auto time = lease ? lease->store().now_ms() : tl::unexpected<Error>(lease.error());
  if (!time) return "store_unavailable";
  const std::vector<Id>& contexts = services_.settings.contexts;
  for (Id context : contexts.empty() ? std::vector<Id>{1} : contexts) {  // the default context
    auto saved = lease->store().save(context, kHealthKey, {{"written_ms", std::to_string(*time)}});
    if (saved) continue;
    log(LogLevel::error, "api", "context {}: a write is refused: {}", context, saved.error().message);
    return lease->store().keys(context, kHealthKey, 1) ? "store_refuses_writes" : "store_unavailable";
  }
  return "ok";
}

Result<void> check_plain_http(const ListenAddress& address, const std::string& listen) {
  if (address.loopback) return {};
  return fail(Code::invalid, listen +
                                 " can be reached from other hosts, but has no TLS: set api.tls.cert and api.tls.key, "
                                 "or listen on 127.0.0.1, or set api.insecure = true if a proxy ends TLS or the "
                                 "network is trusted");
}

Result<void> check_listen_address(const std::string& listen) {
  MJ_TRY(address, parse_listen(listen));
  MJ_CHECK(open_listening(address));
  return {};
}

}  // namespace mycojobs::api
