// The HTTP server of `mycojobs coordinator`, `mycojobs dev`, and an agent that is a supervisor: JSON-RPC and events.
//
//   POST / and /rpc         JSON-RPC 2.0 (api/rpc/json_rpc.h)
//   POST /session           the methods for logins (api/methods/session_methods.cpp), without a token; coordinator only
//   POST /supervisor        signed messages of other hosts, without a token (messaging/message_receiver.h)
//   GET  /openrpc.json      the OpenRPC document, the same as the result of rpc.discover
//   GET  /artifacts         a file of a job (api/artifacts/artifact_downloads.h), with a token or the ticket of a link;
//                           coordinator only
//   GET  /events            server-sent events (api/events/events.h); coordinator only
//   GET  /, /assets/...     the web page (api/page.h); coordinator only
//   GET  /health            {"status": "ok", ...}; 503 if the store is unavailable or refuses writes
//   GET  /healthz, /readyz  health of the process (api/health.h)
//
// Authentication: bearer tokens of the tokens file, each for an actor or an operator, and tokens of sessions
// (api/auth/sessions.h). Without a token: only loopback clients, and only with `allows_anonymous`. A request of a web
// page of another origin is refused. A request without a token is also refused if its header Host is not a loopback
// name (DNS rebinding).
//
// With a certificate all of this is served over HTTPS only. Plain HTTP at an address that other hosts can reach must be
// allowed explicitly, since tokens cross the network.
//
// Threads: one thread accepts connections, each admitted connection has a thread, and one thread waits for hints about
// flows. A connection that is slow or silent is closed at its deadlines and does not block other connections.
// Unauthenticated connections use separate limits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "api/api_settings.h"
#include "api/artifacts/artifact_downloads.h"
#include "api/artifacts/artifact_uploads.h"
#include "api/auth/peer_rate_limiter.h"
#include "api/auth/tokens.h"
#include "api/events/events.h"
#include "api/http/http_server.h"
#include "api/rpc/json_rpc.h"
#include "api/services.h"
#include "base/clock.h"
#include "base/result.h"
#include "messaging/inbound_filter.h"
#include "store/store.h"

namespace mycojobs::api {

// Thread-safe.
class ApiServer {
 public:
  // Starts the server. Errors: invalid (`listen` is not an address; it is not loopback and there are no tokens, or
  // neither a certificate nor allows_plain_http; the tokens file or a name is invalid), conflict (the port is in use),
  // denied, io, and errors of the store. Both references must outlive the server.
  static Result<std::unique_ptr<ApiServer>> start(StoreFactory&, const Clock&, const ApiSettings&);
  ~ApiServer();  // stop()
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;
  std::string url() const { return http_->url(); }  // "http://127.0.0.1:9652", or with TLS "https://..."
  bool has_page() const;                            // returns whether url() serves the web page
  std::uint16_t port() const { return http_->port(); }
  void stop();  // rejects new calls, ends streams, and waits until running calls have ended

 private:
  ApiServer(StoreFactory&, const Clock&, const ApiSettings&);
  Result<void> open();

  Admission admit(const HttpRequest&);
  // Limits requests of unknown peers before the connection has a thread and before the body is read.
  Admission admit_peer(const HttpRequest&);
  // Admits a download or upload by its ticket. The connection counts to the caller that requested the ticket. With a
  // ticket of another server, it counts as a login until accept_ticket() has found the key of the ticket. Strangers can
  // sign such a ticket, so a network can send only a limited number of them with unknown keys.
  Admission admit_ticket(const HttpRequest&);
  // Returns the caller of a ticket. The key of another server is looked up in the store. Errors: denied, unavailable.
  Result<RpcCaller> accept_ticket(const HttpRequest&, const Result<Ticket>&);
  // Returns whether the store has the key of a ticket. Only databases of served contexts are read: the first call to a
  // database writes to it.
  Result<bool> is_ticket_key_known(const Ticket&);
  bool is_from_foreign_page(const HttpRequest&) const;
  bool is_rate_limited(const HttpRequest&) const;
  void count_refusal(const char* reason);

  // Returns the authenticated caller of a request. No value: the request must be refused.
  std::optional<RpcCaller> authenticate(const HttpRequest&);
  std::optional<RpcCaller> find_caller(std::string_view token);
  // Logs an error of the tokens file once, not for each request while the file is invalid.
  void refresh_tokens();
  // Returns whether the header still identifies the same caller. Since the stream began, the row of the token may have
  // been removed from the tokens file or changed to another actor.
  bool is_same_caller(const RpcCaller&, const std::string& authorization);
  // Returns whether the caller's session is valid; true without a session. Ends the session if its key no longer
  // belongs to the actor. Errors: those of the store.
  Result<bool> has_valid_session(const RpcCaller&);
  // Returns the reply that refuses the request if the caller's session is invalid, or cannot be checked.
  std::optional<HttpReply> check_session(const RpcCaller&);

  HttpReply handle_call(const HttpRequest&);
  HttpReply handle_delivery(const HttpRequest&);
  HttpReply handle_events(const HttpRequest&);
  HttpReply handle_artifact(const HttpRequest&);
  BodyStream open_upload(const HttpRequest&);
  // Returns the reply of `make_reply` for the caller of the request. Its stream ends after the caller's token or
  // session has become invalid.
  HttpReply make_authorized_stream(const HttpRequest&, const std::function<HttpReply(const RpcCaller&)>& make_reply);
  HttpReply handle_login(const HttpRequest&);

  // Checks the store with a write: a store that answers reads may refuse writes, because it is out of memory, read-only
  // or cannot use its disk. One thread at a time checks, at most twice a second. Other threads use the latest result;
  // they wait for the check only if that result is too old.
  std::string store_status();
  std::string latest_status();  // returns the result of the latest check; does not block
  std::string check_store();

  std::mutex status_mutex_;  // guards the next four members
  std::condition_variable check_ended_;
  bool is_checking_ = false;
  std::string status_;
  std::chrono::steady_clock::time_point status_time_;
  Services services_;
  Tokens tokens_;
  std::mutex tokens_error_mutex_;
  std::string tokens_error_;  // the last error of tokens_.reload_if_changed(); empty: the file is valid
  PeerRateLimiter peer_limiter_, ticket_limiter_;
  InboundMessageFilter inbound_filter_, ticket_filter_;
  BackendPool ticket_backends_;  // for tickets of other servers, so that forged ones do not delay logins
  Rpc rpc_, logins_;
  EventHub events_;
  ArtifactDownloads downloads_;
  ArtifactUploads uploads_;
  std::unique_ptr<HttpServer> http_;
};

// Checks whether plain HTTP may be used at the address. Error invalid: other hosts can reach it. The message has the
// remedy.
Result<void> check_plain_http(const ListenAddress&, const std::string& listen);

// Checks whether the address is valid and its port is free. Errors: those of ApiServer::start() for `listen`.
Result<void> check_listen_address(const std::string& listen);

}  // namespace mycojobs::api
