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
// (api/auth/sessions.h). Without a token: only loopback clients, and only with `anonymous`. A request of a web page of
// another origin is refused. A request without a token is also refused if its header Host is not a loopback name (DNS
// rebinding). The server has no TLS; use a reverse proxy.
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

// Limits of the server. Times are in milliseconds.
struct ApiLimits {
  // Connections. The first limit applies to each of three classes: callers with a token, operators, and clients without
  // a token in `dev`. One actor can use a quarter. If the limit is reached, a new connection gets status 503, or a
  // waiting connection of the actor with the most connections is closed. A connection waits for a request, a body, the
  // client to read an answer, an event or the end of a job.
  std::uint32_t connections = 512;
  std::uint32_t pending_connections = 256;  // without a complete first head; a new connection replaces the oldest
  std::uint32_t peer_connections = 64;      // to /supervisor; a new connection replaces another one
  std::uint32_t health_connections = 16;    // further health requests are answered with the latest result
  std::uint32_t login_connections = 16;     // a new connection replaces the oldest incomplete request
  std::uint32_t page_connections = 64;      // files of the page; a new connection replaces the oldest unread answer
  std::uint32_t event_streams = 256;        // of operators, and as many of all other callers; an actor has a quarter

  // Calls that use the store at the same time; further calls wait.
  std::uint32_t calls = 8;            // of callers, and as many of operators
  std::uint32_t calls_per_actor = 6;  // of one actor
  std::uint32_t peer_calls = 4;       // of peers
  std::uint32_t login_calls = 2;      // of clients that log in

  std::uint32_t unknown_peer_requests = 300;  // requests to /supervisor by unknown signers, per network and minute
  bool exempt_loopback = true;  // do not count loopback as a network: a proxy forwards the requests of all networks

  std::size_t header_bytes = 64U << 10;
  std::size_t body_bytes = 16U << 20;    // one body, and all large bodies of an actor; all actors: three times as much
  std::size_t answer_bytes = 32U << 20;  // unread large answers of an actor; all actors: four times as much
  std::size_t peer_body_bytes = kMaxRequestBytes + (64U << 10);  // exceeds the limit of messages
  std::size_t login_body_bytes = 4096;

  std::uint32_t header_ms = 5000;       // for a head, from its first byte or from the accept
  std::uint32_t body_ms = 30000;        // for a complete body
  std::uint32_t body_part_ms = 5000;    // until the next byte of a body
  std::uint32_t idle_ms = 15000;        // between two requests of a connection
  std::uint32_t write_ms = 30000;       // for writing an answer
  std::uint32_t event_write_ms = 5000;  // for writing an event
  std::uint32_t heartbeat_ms = 15000;   // interval of heartbeats in an event stream without events
};

enum class ApiRole { coordinator, supervisor };

struct ApiSettings {
  ApiRole role = ApiRole::coordinator;
  std::string listen = "127.0.0.1:9652";  // ADDRESS:PORT, [v6]:PORT; port 0: any free port
  std::string tokens_file;                // can be missing; is read again after a change
  // Origins by which clients call this server; empty: those of loopback (api/http/origin.h).
  std::vector<std::string> origins;
  bool anonymous = false;       // `dev`: loopback without a token is the default actor
  std::vector<Id> contexts;     // served contexts, the default first; empty: all, default 1
  std::vector<Id> own_servers;  // contexts with their own Redis server, if all contexts are served
  Networks networks;            // allowed addresses of remote supervisors (runner.create)
  Health health;                // callbacks for the health of the process
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::string coordinator_key;  // public key; empty: messages of other hosts are not accepted
  MessageAttachments files;     // files of received messages
  std::uint64_t max_script_bytes = 4U << 20;
  LiveValue<Ceilings> ceilings = {};  // for jobs that callers create; null: the built-in ceilings
  std::uint32_t wait_replicas = 0;    // number of replicas that must confirm a write; reported by context.doctor
  std::function<Result<void>(const WorkflowManifest&)> check_code;  // checks the code of a manifest; null: not checked
  ApiLimits limits;
};

// Thread-safe.
class ApiServer {
 public:
  virtual ~ApiServer() = default;       // stops
  virtual std::string url() const = 0;  // "http://127.0.0.1:9652"
  virtual bool has_page() const = 0;    // whether url() serves the web page
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
