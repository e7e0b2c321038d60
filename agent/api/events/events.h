// Server-sent events about the flows of a context, one flow, one job, or the overview of a context.
//
//   GET /events?context=N[&flow=M|&job=CALLER:ID|&overview=1]
//
//   event: flow            data: {context, flow, revision, status, detail, error}      the current state of a flow
//   event: fact            data: {context, flow, revision, at_ms, kind, node?, job?, node_status?, ...}
//   : heartbeat            sent when there was no event for ApiLimits::heartbeat_interval_ms
//
// A stream with &flow uses the revision as the id of an event. The header Last-Event-ID (or ?after=) resumes after this
// revision, and no fact is omitted. A stream of all flows of a context uses the id "<at_ms>.<flow>.<revision>", and
// Last-Event-ID resumes with the facts of active and recent flows since at_ms.
//
// A stream with &job sends the state and the log of the job (job_stream.h). A stream with &overview=1 sends the
// overview of the context after each change, at most once a second (overview_feed.h).
//
// Threads: a thread of the store delivers hints. Each stream reads the store in the thread of its connection. A stream
// with too many unprocessed hints is ended; its client reconnects with Last-Event-ID.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/events/event_stream.h"
#include "api/events/overview_feed.h"
#include "api/http/http_message.h"
#include "api/services.h"

namespace mycojobs::api {

// Thread-safe.
class EventHub final : private HintListener {
 public:
  // Both references must outlive this object.
  EventHub(Services& services, StoreFactory& stores) : services_(services), stores_(stores), overviews_(services) {}
  ~EventHub() { stop(); }
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;
  Result<void> open();  // subscribes to the hints of all servers
  void stop();          // ends all streams
  // Returns the reply to GET /events. The server calls the stream of the reply in the thread of the connection.
  HttpReply make_stream_reply(const HttpRequest&, const RpcCaller&);

  // State of one open stream, with the changes that the stream has not processed yet.
  struct Subscription {
    Id context = 0;
    Id flow = 0;   // 0 for a stream of all flows
    Id actor = 0;  // actor to which the stream is counted; 0 if there is none
    bool is_operator = false;
    bool uses_hints = true;                            // if false, the stream polls in short intervals
    std::deque<std::pair<Id, std::uint64_t>> changes;  // flow and its new revision
    bool recheck_all = false;                          // hints may have been lost
    bool must_end = false;  // the stream has fallen behind, or is closed in favour of another actor's stream
  };
  // Adds a subscription at the front of the list, so that the oldest is the last one. Returns end() if the limits do
  // not allow another stream.
  std::list<Subscription>::iterator subscribe(const EventRequest&);
  void unsubscribe(std::list<Subscription>::iterator);
  enum class WaitOutcome { changed, timeout, ended };
  // Waits for changes and moves them to `pending`. Returns WaitOutcome::ended if the stream must end.
  WaitOutcome wait_for_changes(Subscription&, Subscription& pending, std::uint32_t timeout_ms);

 private:
  void stream_flows(const EventRequest&, Subscription&, EventSink&);
  void stream_overview(const EventRequest&, Subscription&, EventSink&);
  void stream_job(const EventRequest&, Subscription&, EventSink&);
  // Returns whether the limits allow a stream for the request. May end a stream of another actor. REQUIRES: the lock is
  // held.
  bool reserve_capacity(const EventRequest&);
  // Ends the oldest stream of the actor with the most streams. Returns false if no other actor has more streams than
  // `actor` would have with one more stream. REQUIRES: the lock is held.
  bool end_stream_of_largest_actor(Id actor);
  void on_message(std::string_view channel, std::string_view text) override;
  void on_key_changed(std::string_view /*key*/) override {}
  void on_subscription_changed(bool is_complete) override;

  Services& services_;
  StoreFactory& stores_;
  OverviewFeed overviews_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Subscription> subscriptions_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<HintSubscription>> hints_;  // subscriptions, one for each server
};

}  // namespace mycojobs::api
