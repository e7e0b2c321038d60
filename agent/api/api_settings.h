// Settings and limits of the API (server.h) and of the HTTP server (http/http_server.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/health.h"
#include "artifacts/transfer/artifact_cache.h"
#include "base/live_value.h"
#include "base/result.h"
#include "messaging/message_artifacts.h"
#include "messaging/transport/transport.h"
#include "net/networks.h"
#include "net/tls.h"
#include "service/upload_service.h"
#include "telemetry/metrics.h"
#include "workflows/manifest/workflow_manifest.h"

namespace mycojobs {

class ArtifactBucket;

struct Ceilings;  // security/ceilings.h

// Limits of the server.
struct ApiLimits {
  // Limit of each of three classes of connections: callers with a token, operators, and clients without a token in
  // `dev`. An actor can use a quarter of the connections with a token. If the limit is reached, a waiting connection of
  // the actor with the most connections is closed, or else the new connection is answered with status 503. A connection
  // waits if it has no complete request, or if its answer is not yet read, or if its call waits for an event or for the
  // end of a job.
  std::uint32_t max_connections = 512;
  // Connections without a complete first head, of which a network can use a quarter. A new connection replaces the
  // oldest one, of its own network if that has used its share.
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
  bool hides_reasons = false;                   // refused requests are answered with status 404 and without a body
};

enum class ApiRole { coordinator, supervisor };

struct ApiSettings {
  ApiRole role = ApiRole::coordinator;
  std::string listen = "127.0.0.1:9652";  // ADDRESS:PORT or [IPv6 ADDRESS]:PORT; port 0 selects a free port
  // The certificate, with the role of a server; null: plain HTTP.
  std::shared_ptr<TlsContext> tls = {};
  bool allows_plain_http = false;  // plain HTTP may be used at an address that other hosts reach
  std::string tokens_file;         // the file can be missing; it is read again after a change
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
  // Folder of this host with artifacts (artifacts/job_artifacts.h). If empty, no artifacts are sent to clients.
  std::string state_dir;
  ArtifactCache::Limits artifact_cache_limits = {};  // artifacts of other hosts in state_dir, for each context
  service::UploadLimits uploads = {};                // limits of uploads, which are stored in state_dir
  std::shared_ptr<const ArtifactBucket> bucket;      // null: this process uses no object storage
  // Networks in which artifacts of other hosts are downloaded over HTTPS; null permits any address.
  std::shared_ptr<const Networks> link_networks;
  std::uint64_t max_script_bytes = 4U << 20;
  LiveValue<Ceilings> ceilings = {};  // limits of jobs that callers create; if null, the built-in ceilings apply
  std::uint32_t wait_replicas = 0;    // number of replicas that must confirm a write; reported by context.doctor
  // Checks the code of a manifest before it is stored. If null, the code is not checked.
  std::function<Result<void>(const WorkflowManifest&)> check_code;
  ApiLimits limits;
};

}  // namespace mycojobs
