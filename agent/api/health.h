// Health checks of the process, for service managers, container images and load balancers. No token is needed, since
// the answers contain only the health and the counters of the process.
//
//   GET /healthz   200 {"status": "ok"}: all threads make progress; 503 "stuck": restart the process
//   GET /readyz    200 {"status": "ok"}: send work to the process; 503 with the reason: "draining", "the store is
//                  away: ..."
//   GET /metrics   only if enabled: the counters of the process in the text format of Prometheus (telemetry/metrics.h)
//
// No request accesses the store, so all are answered immediately even if the store is unavailable.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace mycojobs {

class TlsContext;  // net/tls.h

// Callbacks that compute the state of the process. Called by any thread until the server has stopped.
struct Health {
  std::function<bool()> is_alive = [] { return true; };
  std::function<std::string()> get_not_ready_reason = [] { return std::string(); };  // empty: ready
};

// Returns the body of GET /metrics. Called by any thread until the server has stopped. Null: the path does not exist.
using MetricsText = std::function<std::string()>;
// Counts a refused request. `reason` is the value of the label of the metric mycojobs_http_requests_rejected_total.
// Called by any thread.
using CountRefusal = std::function<void(const char* reason)>;

namespace api {
class HttpServer;  // api/http/http_server.h
struct HttpReply;
struct HttpRoute;
std::vector<HttpRoute> health_routes(const Health&);
bool is_health_path(const std::string& path);
HttpReply make_health_answer(const Health&, const std::string& path);  // does not block. REQUIRES: is_health_path(path)

// Starts an HTTP server with only the paths above, for agents and for coordinators without JSON-RPC. listen: same
// format as ApiSettings::listen. tls: see ApiSettings::tls. Plain HTTP is allowed at any address, since the answers and
// requests hold no secret. Errors: invalid (not an address), conflict (the port is in use), denied, io.
Result<std::unique_ptr<HttpServer>> start_health_server(
    const std::string& listen, Health, MetricsText = nullptr, CountRefusal = [](const char*) {},
    std::shared_ptr<TlsContext> tls = nullptr);
}  // namespace api

}  // namespace mycojobs
