// Server-sent events: what flows of a context do, or one job, as it happens. GET
// /events?context=N[&flow=M|&job=CALLER:ID]
//
//   event: flow            data: {context, flow, revision, status, detail, error}      how it stands now
//   event: fact            data: {context, flow, revision, at_ms, kind, node?, job?, node_status?, ...}
//   : heartbeat            nothing has happened
//
// Of one flow the id of an event is the revision, and Last-Event-ID (or ?after=) goes on behind it: nothing is left
// out. Of a whole context it is "<at_ms>.<flow>.<revision>", and Last-Event-ID goes on with what has happened to active
// and recent flows since that moment.
//
// Of one job: its state and its log (job_stream.h). Of a context with &overview=1: how it is, when that changes, once a
// second at most (overview_feed.h).
//
// Threads: one waits for the store's hints; each stream reads for itself, in the thread of its connection. A stream
// that falls behind ends, and its client comes back with Last-Event-ID.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "api/event_stream.h"
#include "api/http.h"
#include "api/overview_feed.h"
#include "api/services.h"

namespace mycojobs::api {

class Events {
 public:
  Events(Services& services, StoreFactory& stores) : services_(services), stores_(stores), overviews_(services) {}
  ~Events() { stop(); }
  Result<void> open();
  void stop();
  HttpReply stream(const HttpRequest&, const Caller&);

  // What one stream has not looked at yet.
  struct Subscription {
    Id context = 0, flow = 0;  // flow 0: all
    Id actor = 0;              // actor whose share is used; 0: none
    bool is_operators = false;
    bool hints = true;  // false: the stream polls in short intervals
    std::deque<std::pair<Id, std::uint64_t>> moved;
    bool look_again = false;  // hints may have been lost
    bool ends = false;        // the stream has fallen behind, or is closed in favour of another actor's stream
  };
  // The oldest subscription is the last one. Returns end() if there are too many.
  std::list<Subscription>::iterator subscribe(const EventRequest&);
  void unsubscribe(std::list<Subscription>::iterator);
  enum class Next { moved, silence, over };
  // Until something has moved, the time is over, or we stop.
  Next wait(Subscription&, Subscription& taken, std::uint32_t ms);

 private:
  void follow_flows(const EventRequest&, Subscription&, EventSink&);
  void follow_overview(const EventRequest&, Subscription&, EventSink&);
  void follow_job(const EventRequest&, Subscription&, EventSink&);
  // With the lock held:
  bool has_place_for(const EventRequest&);
  // Ends the oldest stream of the actor with the most streams. Returns false if no actor has more than `actor` would.
  bool make_room_for(Id actor);
  void listen();
  void tell(const std::string& hint);

  Services& services_;
  StoreFactory& stores_;
  OverviewFeed overviews_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Subscription> subscriptions_;
  std::unique_ptr<Waiter> waiter_;
  std::thread thread_;
  bool stopping_ = false;
};

}  // namespace mycojobs::api
