// The HTTP server of `mycojobs coordinator`, `mycojobs dev`, and an agent that is a supervisor: JSON-RPC and events.
//
//   POST / and /rpc         JSON-RPC 2.0 (api/rpc/json_rpc.h)
//   POST /session           the methods for logins (api/methods/session_methods.cpp), without a token; coordinator only
//   POST /supervisor        signed messages of other hosts, without a token (messaging/message_receiver.h)
//   GET  /openrpc.json      the OpenRPC document, the same as the result of rpc.discover
//   GET  /events            server-sent events (api/events/events.h); coordinator only
//   GET  /, /assets/...     the web page (api/page.h); coordinator only
//   GET  /health            {"status": "ok", ...}; 503 if the store is unavailable or refuses writes
//   GET  /healthz, /readyz  health of the process (api/health.h)
//
// Authentication: bearer tokens of the tokens file, each for an actor or an operator, and tokens of sessions
// (api/auth/sessions.h). Without a token: only loopback clients, and only with `allows_anonymous`. A request of a web
// page of another origin is refused. A request without a token is also refused if its header Host is not a loopback
// name (DNS rebinding). The server has no TLS; use a reverse proxy.
//
// Threads: one thread accepts connections, each admitted connection has a thread, and one thread waits for hints about
// flows. A connection that is slow or silent is closed at its deadlines and does not block other connections.
// Unauthenticated connections use separate limits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/health.h"
#include "base/clock.h"
#include "base/live_value.h"
#include "base/result.h"
#include "messaging/message_artifacts.h"
#include "messaging/transport/transport.h"
#include "net/networks.h"
#include "store/store.h"
#include "telemetry/metrics.h"
#include "workflows/manifest/workflow_manifest.h"

namespace mycojobs {

struct Ceilings;  // security/ceilings.h

// Limits of the server.
struct ApiLimits {
  // Limit of each of three classes of connections: callers with a token, operators, and clients without a token in
  // `dev`. An actor can use a quarter of the connections with a token. If the limit is reached, a waiting connection of
  // the actor with the most connections is closed, or else the new connection is answered with status 503. A connection
  // waits if it has no complete request, or if its answer is not yet read, or if its call waits for an event or for the
  // end of a job.
  std::uint32_t max_connections = 512;
  // Connections without a complete first head. A new connection replaces the oldest one.
  std::uint32_t max_pending_connections = 256;
  std::uint32_t max_peer_connections = 64;    // connections to /supervisor; a new connection replaces another one
  std::uint32_t max_health_connections = 16;  // further health requests are answered with the latest result
  std::uint32_t max_login_connections = 16;   // a new connection replaces the oldest incomplete request
  std::uint32_t max_page_connections = 64;    // files of the page; a new connection replaces the oldest unread answer
  // Event streams of operators, and separately those of all other callers, of which an actor can use a quarter.
  std::uint32_t max_event_streams = 256;

  // Calls that use the store at the same time. Further calls wait.
  std::uint32_t max_calls = 8;            // calls of callers with a token, and separately calls of operators
  std::uint32_t max_calls_per_actor = 6;  // calls of one actor
  std::uint32_t max_peer_calls = 4;       // calls of supervisors on other hosts
  std::uint32_t max_login_calls = 2;      // calls of clients that log in

  std::uint32_t max_unknown_peer_requests = 300;  // requests to /supervisor by unknown signers, per network and minute
  bool exempt_loopback = true;  // loopback is not limited as a network: a proxy forwards the requests of all networks

  std::size_t max_head_bytes = 64U << 10;
  // Limit of one body, and of all large bodies of one actor. The limit of all actors together is three times as high.
  std::size_t max_body_bytes = 16U << 20;
  // Limit of the unread large answers of one actor. The limit of all actors together is four times as high.
  std::size_t max_answer_bytes = 32U << 20;
  std::size_t max_peer_body_bytes = kMaxRequestBytes + (64U << 10);  // exceeds the limit of messages
  std::size_t max_login_body_bytes = 4096;

  std::uint32_t head_timeout_ms = 5000;         // for a complete head, from its first byte or from the accept
  std::uint32_t body_timeout_ms = 30000;        // for a complete body
  std::uint32_t body_part_timeout_ms = 5000;    // until the next byte of a body
  std::uint32_t idle_timeout_ms = 15000;        // between two requests of a connection
  std::uint32_t write_timeout_ms = 30000;       // for writing an answer
  std::uint32_t event_write_timeout_ms = 5000;  // for writing an event
  std::uint32_t heartbeat_interval_ms = 15000;  // interval of heartbeats in an event stream without events
};

enum class ApiRole { coordinator, supervisor };

struct ApiSettings {
  ApiRole role = ApiRole::coordinator;
  std::string listen = "127.0.0.1:9652";  // ADDRESS:PORT or [IPv6 ADDRESS]:PORT; port 0 selects a free port
  std::string tokens_file;                // the file can be missing; it is read again after a change
  // Origins by which clients call this server. If empty, the loopback origins apply (api/http/origin.h).
  std::vector<std::string> origins;
  bool allows_anonymous = false;  // true in `dev`: loopback clients without a token act as the default actor
  // Served contexts; the first one is the default. If empty, all contexts are served, and the default is 1.
  std::vector<Id> contexts;
  std::vector<Id> contexts_with_own_redis;  // contexts with a separate Redis server, if all contexts are served
  Networks networks;                        // allowed addresses of remote supervisors (runner.create)
  Health health;                            // callbacks for the health of the process
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::string coordinator_key;     // public key; if empty, messages of other hosts are refused
  MessageAttachments attachments;  // storage for the files of received messages
  std::uint64_t max_script_bytes = 4U << 20;
  LiveValue<Ceilings> ceilings = {};  // limits of jobs that callers create; if null, the built-in ceilings apply
  std::uint32_t wait_replicas = 0;    // number of replicas that must confirm a write; reported by context.doctor
  // Checks the code of a manifest before it is stored. If null, the code is not checked.
  std::function<Result<void>(const WorkflowManifest&)> check_code;
  ApiLimits limits;
};

// Thread-safe.
class ApiServer {
 public:
  virtual ~ApiServer() = default;       // calls stop()
  virtual std::string url() const = 0;  // "http://127.0.0.1:9652"
  virtual bool has_page() const = 0;    // returns whether url() serves the web page
  virtual std::uint16_t port() const = 0;
  virtual void stop() = 0;  // rejects new calls, ends streams, and waits until running calls have ended
};

// Checks whether the address is valid and its port is free. Errors: those of start_api() for `listen`.
Result<void> check_listen_address(const std::string& listen);

// Starts the server. Errors: invalid (`listen` is not an address; it is not loopback and there are no tokens; the
// tokens file or a name is invalid), conflict (the port is in use), denied, io, and errors of the store. Both
// references must outlive the server.
Result<std::unique_ptr<ApiServer>> start_api(StoreFactory&, const Clock&, ApiSettings);

}  // namespace mycojobs
