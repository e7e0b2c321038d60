// One client's stream of events: what it has been sent, and what comes next. Of one thread.
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

#include "api/http.h"
#include "api/services.h"

namespace mycojobs::api {

struct EventRequest {
  bool overview = false;     // of the context as a whole, instead of its flows
  Id context = 0, flow = 0;  // flow 0: all of the context
  Caller caller;
  std::optional<std::uint64_t> after_revision;  // of the flow
  std::optional<std::uint64_t> since_ms;        // of the context
  std::string job;                              // its key: of this job alone
  std::uint64_t after_seq = 0;                  // of its log
};
// Query and Last-Event-ID, and whether the caller may. Errors: invalid, denied, not_found (the flow), unavailable.
Result<EventRequest> read_event_request(Services&, const HttpRequest&, const Caller&);

class EventStream {
 public:
  EventStream(Services& services, const EventRequest& request, EventSink& sink)
      : services_(services), request_(request), sink_(sink) {}
  // Each false: the stream is over.
  bool begin();
  bool heartbeat();
  bool follow(const std::deque<std::pair<Id, std::uint64_t>>& moved, bool look_again);

 private:
  struct Page {
    std::vector<std::string> events;
    std::uint64_t last = 0;  // the revision that they reach
    bool more = false, gone = false;
  };
  // What comes after this revision (UINT64_MAX: only how the flow stands), and not before since_ms_.
  Result<Page> read_page(Id flow, std::uint64_t after);
  bool catch_up(Id flow, std::uint64_t after);
  // The next three functions use a connection to the store and send nothing: a send may need such a connection itself.
  Result<std::uint64_t> store_now();
  Result<std::set<Id>> recent_flows();
  Result<void> check_right();
  bool look_at_recent();
  bool may_look();
  std::string id_of(std::uint64_t at_ms, Id flow, std::uint64_t revision) const;
  bool say_error(const Error&);

  Services& services_;
  const EventRequest& request_;
  EventSink& sink_;
  std::map<Id, std::uint64_t> sent_;  // up to which revision
  std::uint64_t since_ms_ = 0;
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();  // whether it may look
};

}  // namespace mycojobs::api
