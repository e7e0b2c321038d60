// How a process is, for service managers, images and load balancers. No token is needed: it says no more than that.
//
//   GET /healthz   200 {"status": "ok"}: its threads come round; 503 "stuck": end it and start it again
//   GET /readyz    200 {"status": "ok"}: it may be given work; 503 with the reason: "draining", "the store is away:
//   ..."
//
//   GET /metrics   where it is asked for: what the process has counted, as text for Prometheus (metrics/metrics.h)
//
// None asks the store anything: all answer at once, however the store is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mycojobs/result.h"

namespace mycojobs {

struct Health {  // asked by any thread, until the server has stopped
  std::function<bool()> alive = [] { return true; };
  std::function<std::string()> why_not_ready = [] { return std::string(); };  // empty: it is
};

// What GET /metrics answers. Asked by any thread, until the server has stopped. None: there is no such path.
using MetricsText = std::function<std::string()>;
// A request was refused; why: as mycojobs_http_refused_total has it. Any thread.
using CountRefusal = std::function<void(const char* why)>;

// A server of these alone, for agents and where the JSON-RPC is not wanted.
class HealthServer {
 public:
  virtual ~HealthServer() = default;    // stops
  virtual std::string url() const = 0;  // "http://127.0.0.1:9653"
};
// listen: as ApiSettings has it. Errors: invalid (no address), conflict (the port is taken), denied, io.
Result<std::unique_ptr<HealthServer>> start_health(
    const std::string& listen, Health, MetricsText = nullptr, CountRefusal = [](const char*) {});

namespace api {
struct HttpReply;
struct HttpRoute;
std::vector<HttpRoute> health_routes(const Health&);
bool is_health_path(const std::string& path);
HttpReply answer_health(const Health&, const std::string& path);  // does not block. REQUIRES: is_health_path(path)
}  // namespace api

}  // namespace mycojobs
