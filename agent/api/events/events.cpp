#include "api/events/events.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "api/events/event_stream.h"
#include "api/events/job_stream.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/thread.h"
#include "model/codec.h"
#include "store/redis/redis_flows.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

constexpr std::uint32_t kListenMs = 5000;
constexpr std::size_t kMaxWaiting = 2000;

// Parses a hint: "<context> <flow> <revision>".
bool read_hint(const std::string& hint, std::uint64_t (&numbers)[3]) {
  std::size_t from = 0;
  for (std::uint64_t& number : numbers) {
    const auto end = std::min(hint.find(' ', from), hint.size());
    if (from > end || !parse_u64(hint.substr(from, end - from), number)) return false;
    from = end + 1;
  }
  return true;
}

// Returns the event for an unavailable store: the last overview is out of date. A new overview follows when the store
// is available again.
std::string store_unavailable(std::chrono::steady_clock::duration since, const Error& error) {
  const auto for_ms = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  return "event: away\ndata: " + dump_json({{"for_ms", for_ms}, {"message", error.message}}) + "\n\n";
}

}  // namespace

Result<void> EventHub::open() {
  std::vector<std::pair<Id, std::string>> servers;  // hints of the servers of these contexts are received
  for (const Id context : services_.settings.contexts) servers.emplace_back(context, "");
  if (servers.empty()) servers.emplace_back(1, "");
  MJ_TRY(waiter, stores_.open_waiter(servers, kFlowMovedTopic));
  waiter_ = std::move(waiter);
  MJ_TRY(thread, start_thread([this] { listen(); }));
  thread_ = std::move(thread);
  return {};
}

void EventHub::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  waiter_->wake();
  thread_.join();
}

void EventHub::listen() {
  bool failing = false;
  while (true) {
    auto woken = waiter_->wait(kListenMs, false);
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    if (!woken) {
      if (!failing) log(LogLevel::warn, "api", "events: {}", woken.error().message);
      failing = true;
      changed_.wait_for(lock, std::chrono::seconds(1), [this] { return stopping_; });
      continue;
    }
    failing = false;
    for (const std::string& hint : woken->hints) notify_subscribers(hint);
    for (Subscription& each : subscriptions_) each.recheck_all = each.recheck_all || woken->reconnected;
    if (woken->reconnected || !woken->hints.empty()) changed_.notify_all();
  }
}

void EventHub::notify_subscribers(const std::string& hint) {
  std::uint64_t numbers[3];
  if (!read_hint(hint, numbers)) return;
  const auto& [context, flow, revision] = numbers;
  for (Subscription& each : subscriptions_) {
    if (!each.hints || each.context != context || (each.flow != 0 && each.flow != flow)) continue;
    each.ends = each.ends || each.moved.size() >= kMaxWaiting;
    if (!each.ends) each.moved.emplace_back(static_cast<Id>(flow), revision);
  }
}

bool EventHub::has_capacity_for(const EventRequest& request) {
  const std::uint32_t max = services_.settings.limits.event_streams;
  const RpcCaller& caller = request.caller;
  std::uint32_t all = 0, own = 0;
  for (const Subscription& each : subscriptions_) {
    if (each.ends || each.is_operators != caller.operator_token) continue;
    ++all;
    if (each.actor == caller.actor) ++own;
  }
  if (caller.operator_token || caller.actor == 0) return all < max;
  return own < std::max(1U, max / 4) && (all < max || make_room_for(caller.actor));
}

bool EventHub::make_room_for(Id actor) {
  std::map<Id, std::uint32_t> counts;
  for (const Subscription& each : subscriptions_) {
    if (!each.ends && !each.is_operators) ++counts[each.actor];
  }
  const std::uint32_t own = counts[actor];
  const auto max = std::max_element(counts.begin(), counts.end(),
                                    [](const auto& one, const auto& other) { return one.second < other.second; });
  if (max->second <= own + 1) return false;
  const auto oldest = std::find_if(subscriptions_.rbegin(), subscriptions_.rend(), [&](const Subscription& each) {
    return !each.ends && !each.is_operators && each.actor == max->first;
  });
  oldest->ends = true;
  changed_.notify_all();
  return true;
}

std::list<EventHub::Subscription>::iterator EventHub::subscribe(const EventRequest& request) {
  const std::lock_guard lock(mutex_);
  if (!has_capacity_for(request)) return subscriptions_.end();
  Subscription own;
  own.context = request.context;
  own.flow = request.flow;
  own.actor = request.caller.actor;
  own.is_operators = request.caller.operator_token;
  own.hints = request.job.empty() && !request.overview;
  return subscriptions_.insert(subscriptions_.begin(), std::move(own));
}

void EventHub::unsubscribe(std::list<Subscription>::iterator at) {
  const std::lock_guard lock(mutex_);
  subscriptions_.erase(at);
}

EventHub::WaitOutcome EventHub::wait(Subscription& own, Subscription& taken, std::uint32_t ms) {
  std::unique_lock lock(mutex_);
  const std::chrono::milliseconds until(ms);
  const bool something =
      changed_.wait_for(lock, until, [&] { return stopping_ || own.ends || own.recheck_all || !own.moved.empty(); });
  if (stopping_ || own.ends) return WaitOutcome::over;
  if (!something) return WaitOutcome::silence;
  taken.moved = std::exchange(own.moved, {});
  taken.recheck_all = std::exchange(own.recheck_all, false);
  return WaitOutcome::moved;
}

void EventHub::follow_flows(const EventRequest& request, Subscription& own, EventSink& sink) {
  EventStream events(services_, request, sink);
  Subscription taken;
  bool open = events.begin();
  while (open) {
    const WaitOutcome next = wait(own, taken, services_.settings.limits.heartbeat_ms);
    if (next == WaitOutcome::over) break;
    open = next == WaitOutcome::silence ? events.heartbeat() : events.follow(taken.moved, taken.recheck_all);
  }
}

void EventHub::follow_job(const EventRequest& request, Subscription& own, EventSink& sink) {
  JobStream events(services_, request, sink);
  Subscription taken;
  std::uint32_t silent_ms = 0;
  bool open = sink.send("retry: 1000\n\n");
  while (open) {
    const auto look = events.read_next();
    if (look == JobStream::ReadResult::over) break;
    silent_ms = look == JobStream::ReadResult::sent ? 0 : silent_ms + kJobCheckMs;
    if (silent_ms >= services_.settings.limits.heartbeat_ms) {
      open = sink.send(": heartbeat\n\n");
      silent_ms = 0;
    }
    if (wait(own, taken, kJobCheckMs) == WaitOutcome::over) break;
  }
}

void EventHub::follow_overview(const EventRequest& request, Subscription& own, EventSink& sink) {
  constexpr std::uint32_t kCheckMs = 1000;
  Subscription taken;
  std::string sent;  // last overview; empty: none, or the store was unavailable since
  bool away = false;
  std::uint32_t silent_ms = 0;
  bool open = sink.send("retry: 1000\n\n");
  while (open) {
    const auto began = std::chrono::steady_clock::now();
    const auto now = overviews_.read(request);
    if (!now && now.error().code != Code::unavailable) break;
    const bool left = !now && !away, news = left || (now && (*now)->rest != sent);
    away = !now;
    if (left) {
      sent.clear();
      open = sink.send(store_unavailable(std::chrono::steady_clock::now() - began, now.error()));
    } else if (news) {
      sent = (*now)->rest;
      open = sink.send("event: overview\ndata: " + (*now)->text + "\n\n");
    } else if (silent_ms >= services_.settings.limits.heartbeat_ms) {
      open = sink.send(": heartbeat\n\n");
    }
    silent_ms = news || silent_ms >= services_.settings.limits.heartbeat_ms ? 0 : silent_ms + kCheckMs;
    open = open && sink.open() && wait(own, taken, kCheckMs) != WaitOutcome::over;
  }
}

HttpReply EventHub::stream(const HttpRequest& from, const RpcCaller& caller) {
  auto request = read_event_request(services_, from, caller);
  if (!request) {
    const bool missing = request.error().code == Code::not_found, denied = request.error().code == Code::denied;
    const bool away = request.error().code == Code::unavailable;
    return refuse(missing  ? 404
                  : denied ? 403
                  : away   ? 503
                           : 400,
                  missing  ? "not_found"
                  : denied ? "denied"
                  : away   ? "unavailable"
                           : "invalid",
                  request.error().message, "GET /events?context=N, with &flow=M, &job=CALLER:ID or &overview=1");
  }
  // Subscribe when the stream begins: a reply that is never sent would otherwise stay subscribed.
  HttpReply reply;
  reply.type = "text/event-stream";
  reply.stream = [this, request = *request](EventSink& sink) {
    const auto own = subscribe(request);
    if (own == subscriptions_.end()) {
      (void)sink.send(
          "event: refused\ndata: {\"word\":\"unavailable\",\"remedy\":\"too many event streams are open\"}\n\n");
      return;
    }
    const struct Place {  // unsubscribes also after an exception
      EventHub& events;
      std::list<Subscription>::iterator own;
      ~Place() { events.unsubscribe(own); }
    } place{*this, own};
    if (request.overview) {
      follow_overview(request, *own, sink);
    } else {
      request.job.empty() ? follow_flows(request, *own, sink) : follow_job(request, *own, sink);
    }
  };
  return reply;
}

}  // namespace mycojobs::api
