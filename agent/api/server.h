// JSON-RPC over HTTP, and events: what `mycojobs coordinator`, `mycojobs dev` and an agent as supervisor serve.
//
//   POST / and /rpc      JSON-RPC 2.0 (api/rpc.h)
//   POST /session        the same, of logins by key alone (api/methods_sessions.cpp): no token is asked for
//   GET  /openrpc.json   what rpc.discover answers
//   GET  /, /assets/...  the page (api/page.h; coordinator only)
//   GET  /health         {"status": "ok", ...}; 503 while the store is away or refuses to write
//   GET  /healthz, /readyz  how the process is (api/health.h)
//   GET  /events         ?context=N[&flow=M]: server-sent events (coordinator only)
//   POST /supervisor     messages of other hosts (coordinator/message_receiver.h): signed, so that no token is asked
//   for
//
// Who may call: bearer tokens of the tokens file, each of an actor, and those of sessions (api/sessions.h). Without a
// token: loopback alone, and only with `anonymous`. A request of a web page of another origin is refused; so is one
// without a token whose Host is no loopback name (DNS rebinding). No TLS: a reverse proxy brings it.
//
// Threads: one accepts, each admitted connection has one, one waits for what flows do. A client that is slow, silent or
// gone is dropped at its deadlines, and nobody waits for it; one that has not shown a token takes no place of those
// that have.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/health.h"
#include "base/live_value.h"
#include "coordinator/message_files.h"
#include "domain/networks.h"
#include "domain/workflow_manifest.h"
#include "metrics/metrics.h"
#include "mycojobs/clock.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"
#include "mycojobs/transport.h"

namespace mycojobs {

struct Ceilings;  // domain/profiles.h

struct ApiLimits {
  // Connections of callers with a token, of operators, and without a token in `dev`: so many of each. One actor has a
  // quarter. Beyond: 503, or a waiting connection of the actor with the most connections is closed. A connection waits
  // for a request, a body, the reader of an answer, an event or the end of a job.
  std::uint32_t connections = 512;
  std::uint32_t lobby = 256;          // connections that have not sent a head yet; more: the oldest goes
  std::uint32_t peers = 64;           // of supervisors elsewhere, or of who says to be one; more: one of these goes
  std::uint32_t open = 16;            // health requests; further ones are answered with the latest result
  std::uint32_t logins = 16;          // logins; a new connection replaces the oldest incomplete request
  std::uint32_t page = 64;            // files of the page; a new connection replaces the oldest unread answer
  std::uint32_t event_streams = 256;  // for operators, and as many for all others; an actor has a quarter
  std::uint32_t calls = 8;            // calls that use the store, and as many of operators; further calls wait
  std::uint32_t actor_calls = 6;      // limit for the calls of one actor
  std::uint32_t peer_calls = 4;       // the same of peers, who take none of these
  std::uint32_t strangers = 300;      // requests of peers a minute, of one network, that nobody known here has signed
  bool spare_loopback = true;         // it is not counted as a network: a proxy before us brings everybody's requests
  std::uint32_t login_calls = 2;      // the same of those who log in
  std::size_t header_bytes = 64U << 10;
  std::size_t body_bytes = 16U << 20;    // limit for a body, and for all large bodies of an actor; three times for all
  std::size_t answer_bytes = 32U << 20;  // limit for the unread large answers of an actor; four times for all
  std::size_t peer_body_bytes = kMaxRequestBytes + (64U << 10);  // a little more, so that too much is refused as such
  std::size_t login_body_bytes = 4096;
  std::uint32_t header_ms = 5000;       // from the first byte, or from the connection's beginning
  std::uint32_t body_ms = 30000;        // all of the body
  std::uint32_t body_part_ms = 5000;    // without a byte of it
  std::uint32_t idle_ms = 15000;        // between two requests of one connection
  std::uint32_t write_ms = 30000;       // an answer that is not taken
  std::uint32_t event_write_ms = 5000;  // one event that is not taken
  std::uint32_t heartbeat_ms = 15000;   // comments in an event stream that is silent
};

enum class ApiRole { coordinator, supervisor };

struct ApiSettings {
  ApiRole role = ApiRole::coordinator;
  std::string listen = "127.0.0.1:9652";  // ADDRESS:PORT, [v6]:PORT; port 0: a free one
  std::string tokens_file;                // need not exist; read again when it changes
  std::vector<std::string> names;  // origins by which clients call this server, beside those of loopback (origin.h)
  bool anonymous = false;          // `dev`: loopback without a token is the default actor
  std::vector<Id> contexts;        // the first one counts where a call names none; empty: 1, and all are served
  std::vector<Id> own_servers;     // contexts with a Redis of their own, where all are served
  Networks networks;               // in which supervisors may be (runner.create)
  Health health;                   // of the process
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::string coordinator_key;  // public; empty: no messages come in here
  CarriedFiles files;           // of messages
  std::uint64_t max_script_bytes = 4U << 20;
  LiveValue<Ceilings> ceilings = {};  // of the jobs that come in; null: the built-in ones
  std::uint32_t wait_replicas = 0;    // as the stores have it, for who asks how things are
  std::function<Result<void>(const WorkflowManifest&)> check_code;  // of workflows that are applied; null: nobody looks
  ApiLimits limits;
};

class ApiServer {
 public:
  virtual ~ApiServer() = default;       // stops
  virtual std::string url() const = 0;  // "http://127.0.0.1:9652"
  virtual bool has_page() const = 0;    // for browsers, at url()
  virtual std::uint16_t port() const = 0;
  virtual void stop() = 0;  // takes no more calls, ends streams, finishes calls that are under way
};

// Whether somebody could listen there now. Errors: as start_api()'s.
Result<void> may_listen(const std::string& listen);

// Errors: invalid (listen is no address; an address that is not loopback without tokens; the tokens file), conflict
// (the port is taken), denied, io. Both references must outlive the server.
Result<std::unique_ptr<ApiServer>> start_api(StoreFactory&, const Clock&, ApiSettings);

}  // namespace mycojobs
