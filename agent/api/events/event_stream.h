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

#include "api/http/http_message.h"
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
Result<EventRequest> parse_event_request(Services&, const HttpRequest&, const RpcCaller&);

class EventStream {
 public:
  // All references must outlive the stream.
  EventStream(Services& services, const EventRequest& request, EventSink& sink)
      : services_(services), request_(request), sink_(sink) {}
  // The next three functions return false if the stream must end: the client is gone, or there was an error other than
  // `unavailable`, for example because the caller has lost the right to read or the flow was deleted.
  bool begin();  // sends the current state, or the events since the requested position
  bool heartbeat();
  // Sends the new facts. changes: flows with their new revisions. recheck_all: hints may have been lost, so all recent
  // flows are read.
  bool send_changes(const std::deque<std::pair<Id, std::uint64_t>>& changes, bool recheck_all);

 private:
  struct Page {
    std::vector<std::string> events;
    std::uint64_t last_revision = 0;  // revision of the last fact that was read
    bool has_more = false, is_deleted = false;
  };
  // Reads the facts after a revision, except facts before since_ms_. UINT64_MAX: only the current state of the flow.
  Result<Page> read_page(Id flow, std::uint64_t after);
  bool send_new_facts(Id flow, std::uint64_t after);  // sends the facts after a revision, and the state of the flow
  // The next three functions lease a connection to the store. They must not send while they hold the lease: a send can
  // check the right to read, which leases another connection.
  Result<std::uint64_t> read_store_time();
  Result<std::set<Id>> find_recent_flows();
  Result<void> check_permission();
  bool send_recent_flows();
  bool has_read_permission();
  std::string format_event_id(std::uint64_t at_ms, Id flow, std::uint64_t revision) const;
  bool send_error(const Error&);

  Services& services_;
  const EventRequest& request_;
  EventSink& sink_;
  std::map<Id, std::uint64_t> sent_revisions_;  // by flow: last revision that was sent
  std::uint64_t since_ms_ = 0;
  std::chrono::steady_clock::time_point permission_checked_at_ = std::chrono::steady_clock::now();
};

}  // namespace mycojobs::api
