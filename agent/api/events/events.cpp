#include "api/events/events.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "api/events/event_stream.h"
#include "api/events/job_stream.h"
#include "base/parse.h"
#include "model/codec.h"
#include "store/keys.h"
#include "store/redis/format_version.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

constexpr std::size_t kMaxPendingChanges = 2000;

// Parses a hint: "<context> <flow> <revision>".
bool parse_hint(const std::string& hint, std::uint64_t (&numbers)[3]) {
  std::size_t start = 0;
  for (std::uint64_t& number : numbers) {
    const auto end = std::min(hint.find(' ', start), hint.size());
    if (start > end || !parse_u64(hint.substr(start, end - start), number)) return false;
    start = end + 1;
  }
  return true;
}

// Returns the event for an unavailable store: the last overview is out of date. A new overview follows when the store
// is available again.
std::string format_unavailable_event(std::chrono::steady_clock::duration duration, const Error& error) {
  const auto elapsed_ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return "event: away\ndata: " + dump_json({{"for_ms", elapsed_ms}, {"message", error.message}}) + "\n\n";
}

}  // namespace

Result<void> EventHub::open() {
  std::vector<Id> contexts = services_.settings.contexts;
  if (contexts.empty()) contexts.push_back(1);
  std::set<std::string> servers;
  for (const Id context : contexts) {
    if (!servers.insert(stores_.server_name(context)).second) continue;
    MJ_TRY(hints, stores_.subscribe(context, {{kFlowChangedChannel}, {}}, *this));
    hints_.push_back(std::move(hints));
  }
  return {};
}

void EventHub::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  hints_.clear();
}

void EventHub::on_subscription_changed(bool is_complete) {
  if (!is_complete) return;
  const std::lock_guard lock(mutex_);
  for (Subscription& subscription : subscriptions_) subscription.recheck_all = true;
  changed_.notify_all();
}

void EventHub::on_message(std::string_view /*channel*/, std::string_view text) {
  std::uint64_t numbers[3];
  if (!parse_hint(std::string(text), numbers)) return;
  const std::lock_guard lock(mutex_);
  const auto& [context, flow, revision] = numbers;
  for (Subscription& subscription : subscriptions_) {
    if (!subscription.uses_hints || subscription.context != context ||
        (subscription.flow != 0 && subscription.flow != flow))
      continue;
    subscription.must_end = subscription.must_end || subscription.changes.size() >= kMaxPendingChanges;
    if (!subscription.must_end) subscription.changes.emplace_back(static_cast<Id>(flow), revision);
  }
  changed_.notify_all();
}

bool EventHub::reserve_capacity(const EventRequest& request) {
  const std::uint32_t max = services_.settings.limits.max_event_streams;
  const RpcCaller& caller = request.caller;
  std::uint32_t total = 0, actor_total = 0;
  for (const Subscription& subscription : subscriptions_) {
    if (subscription.must_end || subscription.is_operator != caller.operator_token) continue;
    ++total;
    if (subscription.actor == caller.actor) ++actor_total;
  }
  if (caller.operator_token || caller.actor == 0) return total < max;
  return actor_total < std::max(1U, max / 4) && (total < max || end_stream_of_largest_actor(caller.actor));
}

bool EventHub::end_stream_of_largest_actor(Id actor) {
  std::map<Id, std::uint32_t> counts;
  for (const Subscription& subscription : subscriptions_) {
    if (!subscription.must_end && !subscription.is_operator) ++counts[subscription.actor];
  }
  const std::uint32_t actor_count = counts[actor];
  const auto max = std::max_element(counts.begin(), counts.end(),
                                    [](const auto& left, const auto& right) { return left.second < right.second; });
  if (max->second <= actor_count + 1) return false;
  const auto oldest =
      std::find_if(subscriptions_.rbegin(), subscriptions_.rend(), [&](const Subscription& subscription) {
        return !subscription.must_end && !subscription.is_operator && subscription.actor == max->first;
      });
  oldest->must_end = true;
  changed_.notify_all();
  return true;
}

std::list<EventHub::Subscription>::iterator EventHub::subscribe(const EventRequest& request) {
  const std::lock_guard lock(mutex_);
  if (!reserve_capacity(request)) return subscriptions_.end();
  Subscription subscription;
  subscription.context = request.context;
  subscription.flow = request.flow;
  subscription.actor = request.caller.actor;
  subscription.is_operator = request.caller.operator_token;
  subscription.uses_hints = request.job.empty() && !request.overview;
  return subscriptions_.insert(subscriptions_.begin(), std::move(subscription));
}

void EventHub::unsubscribe(std::list<Subscription>::iterator it) {
  const std::lock_guard lock(mutex_);
  subscriptions_.erase(it);
}

EventHub::WaitOutcome EventHub::wait_for_changes(Subscription& subscription, Subscription& pending,
                                                 std::uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const std::chrono::milliseconds timeout(timeout_ms);
  const bool has_changed = changed_.wait_for(lock, timeout, [&] {
    return stopping_ || subscription.must_end || subscription.recheck_all || !subscription.changes.empty();
  });
  if (stopping_ || subscription.must_end) return WaitOutcome::ended;
  if (!has_changed) return WaitOutcome::timeout;
  pending.changes = std::exchange(subscription.changes, {});
  pending.recheck_all = std::exchange(subscription.recheck_all, false);
  return WaitOutcome::changed;
}

void EventHub::stream_flows(const EventRequest& request, Subscription& subscription, EventSink& sink) {
  EventStream events(services_, request, sink);
  Subscription pending;
  bool keep_open = events.begin();
  while (keep_open) {
    const WaitOutcome outcome =
        wait_for_changes(subscription, pending, services_.settings.limits.heartbeat_interval_ms);
    if (outcome == WaitOutcome::ended) break;
    keep_open = outcome == WaitOutcome::timeout ? events.heartbeat()
                                                : events.send_changes(pending.changes, pending.recheck_all);
  }
}

void EventHub::stream_job(const EventRequest& request, Subscription& subscription, EventSink& sink) {
  JobStream events(services_, request, sink);
  Subscription pending;
  std::uint32_t idle_ms = 0;
  bool keep_open = sink.send("retry: 1000\n\n");
  while (keep_open) {
    const auto result = events.poll();
    if (result == JobStream::ReadResult::ended) break;
    idle_ms = result == JobStream::ReadResult::sent ? 0 : idle_ms + kJobPollIntervalMs;
    if (idle_ms >= services_.settings.limits.heartbeat_interval_ms) {
      keep_open = sink.send(": heartbeat\n\n");
      idle_ms = 0;
    }
    if (wait_for_changes(subscription, pending, kJobPollIntervalMs) == WaitOutcome::ended) break;
  }
}

void EventHub::stream_overview(const EventRequest& request, Subscription& subscription, EventSink& sink) {
  constexpr std::uint32_t kPollIntervalMs = 1000;
  Subscription pending;
  std::string sent_text;  // last overview; empty: none, or the store was unavailable since
  bool is_unavailable = false;
  std::uint32_t idle_ms = 0;
  bool keep_open = sink.send("retry: 1000\n\n");
  while (keep_open) {
    const auto start = std::chrono::steady_clock::now();
    const auto overview = overviews_.read(request);
    if (!overview && overview.error().code != Code::unavailable) break;
    const bool has_become_unavailable = !overview && !is_unavailable,
               has_news = has_become_unavailable || (overview && (*overview)->timeless_text != sent_text);
    is_unavailable = !overview;
    if (has_become_unavailable) {
      sent_text.clear();
      keep_open = sink.send(format_unavailable_event(std::chrono::steady_clock::now() - start, overview.error()));
    } else if (has_news) {
      sent_text = (*overview)->timeless_text;
      keep_open = sink.send("event: overview\ndata: " + (*overview)->text + "\n\n");
    } else if (idle_ms >= services_.settings.limits.heartbeat_interval_ms) {
      keep_open = sink.send(": heartbeat\n\n");
    }
    idle_ms = has_news || idle_ms >= services_.settings.limits.heartbeat_interval_ms ? 0 : idle_ms + kPollIntervalMs;
    keep_open =
        keep_open && sink.is_open() && wait_for_changes(subscription, pending, kPollIntervalMs) != WaitOutcome::ended;
  }
}

HttpReply EventHub::make_stream_reply(const HttpRequest& http_request, const RpcCaller& caller) {
  auto request = parse_event_request(services_, http_request, caller);
  if (!request) {
    const bool is_missing = request.error().code == Code::not_found, is_denied = request.error().code == Code::denied;
    const bool is_unavailable = request.error().code == Code::unavailable;
    return error_reply(is_missing       ? 404
                       : is_denied      ? 403
                       : is_unavailable ? 503
                                        : 400,
                       is_missing       ? "not_found"
                       : is_denied      ? "denied"
                       : is_unavailable ? "unavailable"
                                        : "invalid",
                       describe_to_client(request.error()),
                       "GET /events?context=N, with &flow=M, &job=CALLER:ID or &overview=1");
  }
  // The subscription begins with the stream: if the reply is never sent, no subscription remains.
  HttpReply reply;
  reply.type = "text/event-stream";
  reply.stream = [this, request = *request](EventSink& sink) {
    const auto subscription = subscribe(request);
    if (subscription == subscriptions_.end()) {
      (void)sink.send(
          "event: refused\ndata: {\"word\":\"unavailable\",\"remedy\":\"too many event streams are open\"}\n\n");
      return;
    }
    const struct Unsubscriber {  // unsubscribes also after an exception
      EventHub& events;
      std::list<Subscription>::iterator subscription;
      ~Unsubscriber() { events.unsubscribe(subscription); }
    } unsubscriber{*this, subscription};
    if (request.overview) {
      stream_overview(request, *subscription, sink);
    } else {
      request.job.empty() ? stream_flows(request, *subscription, sink) : stream_job(request, *subscription, sink);
    }
  };
  return reply;
}

}  // namespace mycojobs::api
