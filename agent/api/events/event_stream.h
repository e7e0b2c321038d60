// The event stream of one client for the flows of a context: tracks which revisions were sent, reads newer facts from
// the store and sends them. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/http/http_server.h"
#include "api/services.h"

namespace mycojobs::api {

// Parsed parameters of GET /events.
struct EventRequest {
  bool overview = false;     // overview of the context instead of events of flows
  Id context = 0, flow = 0;  // flow 0: all flows of the context
  RpcCaller caller;
  std::optional<std::uint64_t> after_revision;  // resume one flow after this revision
  std::optional<std::uint64_t> since_ms;        // resume all flows from this time
  std::string job;                              // key of a job: only events of this job; empty: events of flows
  std::uint64_t after_seq = 0;                  // resume the log of the job after this line
};
// Parses the query and the header Last-Event-ID, and checks that the caller may read the context, flow or job. Errors:
// invalid, denied, not_found, unavailable.
Result<EventRequest> read_event_request(Services&, const HttpRequest&, const RpcCaller&);

class EventStream {
 public:
  // All references must outlive the stream.
  EventStream(Services& services, const EventRequest& request, EventSink& sink)
      : services_(services), request_(request), sink_(sink) {}
  // Each of these functions returns false if the stream must end: the client is gone, or there was an error other than
  // `unavailable`, for example because the caller has lost the right to read or the flow was deleted.
  bool begin();  // sends the current state, or the events since the requested position
  bool heartbeat();
  // Sends the new facts. moved: flows with their new revisions; recheck_all: hints may have been lost, so all recent
  // flows are read.
  bool follow(const std::deque<std::pair<Id, std::uint64_t>>& moved, bool recheck_all);

 private:
  struct Page {
    std::vector<std::string> events;
    std::uint64_t last = 0;  // revision of the last fact
    bool more = false, gone = false;
  };
  // Reads the facts after a revision, except facts before since_ms_. UINT64_MAX: only the current state of the flow.
  Result<Page> read_page(Id flow, std::uint64_t after);
  bool catch_up(Id flow, std::uint64_t after);
  // The next three functions lease a connection to the store and send nothing: a send may lease one, too.
  Result<std::uint64_t> store_now();
  Result<std::set<Id>> recent_flows();
  Result<void> check_right();
  bool skip_to_recent();
  bool check_read_permission();
  std::string id_of(std::uint64_t at_ms, Id flow, std::uint64_t revision) const;
  bool send_error(const Error&);

  Services& services_;
  const EventRequest& request_;
  EventSink& sink_;
  std::map<Id, std::uint64_t> sent_;  // by flow: last revision that was sent
  std::uint64_t since_ms_ = 0;
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();  // last check of the right to read
};

}  // namespace mycojobs::api
