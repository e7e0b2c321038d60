#include "store/redis/redis_waiter.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/errno_text.h"
#include "base/log.h"
#include "base/parse.h"
#include "store/keys.h"
#include "store/redis/key_tracking.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Time-out of BLMOVE, after which it is sent again. It is short if other queues wait for a blocking connection.
constexpr std::string_view kBlockSeconds = "5", kShortBlockSeconds = "1";
constexpr milliseconds kReplyTimeout{8000};
constexpr milliseconds kPingInterval{5000};
constexpr milliseconds kQueueErrorDelay{2000};  // pause after an error of a queue key that is not a list
// Pause between two polls: the first one after an entry was found, and the longest one.
constexpr milliseconds kMinPollPause{50}, kMaxPollPause{500};
// Pause after a poll because of a report, since each entry that is added or removed causes one.
constexpr milliseconds kRequestedPollPause{10};
// The server also reports changes of the queues on which connections block, just before it answers these connections.
constexpr milliseconds kReportDelay{1};
// Limit of the delay of claims above which the waiter polls queues instead of blocking on them.
constexpr milliseconds kMaxBlockingDelay{2};
constexpr std::uint32_t kConnectTimeoutMs = 1000;
// Keys and hints are short. A longer reply was pushed by another client, and closes the connection.
constexpr std::size_t kMaxReplyBytes = 1U << 20;

Result<void> check(const Result<Reply>& reply) { return reply ? Result<void>() : tl::unexpected<Error>(reply.error()); }

milliseconds reconnect_delay(unsigned failures) { return milliseconds(failures <= 1 ? 250 : 500); }

}  // namespace

std::optional<QueueHint> parse_queue_hint(std::string_view message) {
  const std::size_t end = message.find(' ');
  std::uint64_t context = 0;
  if (end == std::string_view::npos || !parse_u64(message.substr(0, end), context) || context > UINT32_MAX)
    return std::nullopt;
  return QueueHint{static_cast<Id>(context), message.substr(end + 1)};
}

RedisWaiter::RedisWaiter(std::string topic, Fd event)
    : topic_(std::move(topic)),
      event_(std::move(event)),
      claim_delay_(std::random_device{}()),
      poll_delay_(std::random_device{}()) {}

Result<std::unique_ptr<Waiter>> RedisWaiter::open(const RedisStoreConfig& config,
                                                  const std::vector<std::pair<Id, std::string>>& queues,
                                                  const std::string& topic) {
  Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return fail(Code::io, "cannot make an eventfd: " + errno_text(errno));
  std::unique_ptr<RedisWaiter> waiter(new RedisWaiter(topic, std::move(event)));
  for (const auto& [context, key] : queues) {
    MJ_TRY(options, connection_options(config, context));
    options.connect_timeout_ms = std::min(options.connect_timeout_ms, kConnectTimeoutMs);
    options.max_reply_bytes = kMaxReplyBytes;
    // The first command of a connection selects its database, since an error of SELECT concerns one context only.
    const std::uint32_t database = std::exchange(options.database, 0);
    Server& server = waiter->find_or_add_server(options);
    if (key.empty()) continue;
    WatchedQueue& queue = server.queues.emplace_back();
    queue.context = context;
    queue.database = database;
    queue.key = key;
    if (server.blocking.size() < kMaxBlockingConnections) {
      server.blocking.emplace_back(options).queue = server.queues.size() - 1;
    } else if (!server.poller) {
      server.poller.emplace(options);
    }
  }
  return waiter;
}

RedisWaiter::Server& RedisWaiter::find_or_add_server(const RedisConnection::Options& options) {
  const auto server = std::find_if(servers_.begin(), servers_.end(), [&](const Server& s) {
    return s.options.endpoint == options.endpoint && s.options.tls == options.tls;
  });
  return server == servers_.end() ? servers_.emplace_back(options) : *server;
}

void RedisWaiter::wake() {
  const std::uint64_t increment = 1;
  (void)!::write(event_.get(), &increment, sizeof increment);
}

void RedisWaiter::set_paused(Id context, const std::vector<std::string>& queues) {
  for (Server& server : servers_) {
    for (WatchedQueue& queue : server.queues) {
      if (queue.context != context) continue;
      queue.paused = std::find(queues.begin(), queues.end(), queue.key) != queues.end();
    }
  }
}

// Claims that no result of wait() has caused do not count, since the queues may have been empty for long.
void RedisWaiter::on_claimed(Id context, bool has_found_entries) {
  for (Server& server : servers_) {
    bool was_claim_due = false, has_context = false;
    for (WatchedQueue& queue : server.queues) {
      if (queue.context != context) continue;
      has_context = true;
      // This agent may have claimed a doubtful entry itself.
      const bool is_due = std::exchange(queue.is_claim_due, false) && (has_found_entries || !queue.is_doubtful);
      was_claim_due = was_claim_due || is_due;
      queue.has_old_replies = queue.has_old_replies || has_found_entries;
    }
    if (has_context && has_found_entries) server.has_claimed_since_poll = true;
    if (!was_claim_due) continue;
    for (ReactionDelay* delay : {&claim_delay_, &poll_delay_})
      has_found_entries ? delay->on_success() : delay->on_failure();
    if (has_found_entries || (server.poller && server.has_reports)) continue;
    // Without polls, the next BLMOVE is delayed.
    const Time next_check_at = steady_clock::now() + claim_delay_.draw();
    for (WatchedQueue& queue : server.queues) {
      if (queue.context == context) queue.next_check_at = std::max(queue.next_check_at, next_check_at);
    }
  }
}

Result<WaitResult> RedisWaiter::wait(std::uint32_t timeout_ms, bool for_work) {
  const Time until = steady_clock::now() + milliseconds(timeout_ms);
  WaitResult result;
  errors_.clear();
  const auto has_result = [&] { return result.has_work || result.reconnected || !result.hints.empty(); };
  if (for_work) report_work(result);
  for (bool is_done = false; !is_done;) {
    connect_due(result);
    for (Server& server : servers_) {
      if (server.is_connected) send_requests(server, for_work);
    }
    const bool is_ready = has_result() || !errors_.empty();
    const bool was_woken = poll_once(is_ready ? steady_clock::now() : until, for_work, result);
    for (Server& server : servers_) clear_old_replies(server);
    if (for_work) report_work(result);
    is_done = is_ready || was_woken || has_result() || !errors_.empty() || steady_clock::now() >= until;
  }
  if (for_work && std::exchange(has_unnamed_work_, false)) result.contexts.clear();
  result.has_unreachable_server =
      std::any_of(servers_.begin(), servers_.end(), [](const Server& server) { return !server.is_connected; });
  if (has_result() || errors_.empty()) return result;
  return tl::unexpected<Error>(std::move(errors_.front()));
}

void RedisWaiter::connect_due(WaitResult& result) {
  for (Server& server : servers_) {
    if (server.is_connected || steady_clock::now() < server.retry_at) continue;
    if (auto connected = connect(server, result); !connected) {
      drop_connection(server, std::move(connected).error());
      continue;
    }
    server.is_connected = true;
    server.failures = 0;
    result.reconnected = result.reconnected || server.was_connected;
    server.was_connected = true;
  }
}

Result<void> RedisWaiter::connect(Server& server, WaitResult& result) {
  server.poll_steps.clear();
  server.poll_candidates.clear();
  server.next_poll_at = {};
  server.poll_pause = kMinPollPause;
  for (WatchedQueue& queue : server.queues) {
    queue.is_blocked_on = false;
    queue.next_check_at = {};
  }
  for (WaitConnection& waiting : server.blocking) {
    waiting.pending_replies = 0;
    MJ_CHECK(waiting.connection->connect());
    waiting.database = waiting.connection->database();
  }
  if (server.poller) {
    server.poller->pending_replies = 0;
    MJ_CHECK(server.poller->connection->connect());
  }
  WaitConnection& channels = server.channels;
  channels.pending_replies = 0;
  MJ_CHECK(channels.connection->connect());
  MJ_CHECK(subscribe(server));
  channels.next_command_at = steady_clock::now() + kPingInterval;
  return process_input(server, channels, result);  // a hint may have been received with the reply
}

// Sends one command for all channels: between two, a hint could arrive, which looks like a closed connection. Only a
// waiter that polls subscribes to kQueueFilledChannel, so that a job costs a server without such waiters nothing.
Result<void> RedisWaiter::subscribe(Server& server) {
  RedisConnection& connection = *server.channels.connection;
  Arguments channels{"SUBSCRIBE"};
  if (!server.queues.empty()) channels.add(kWakeChannel);
  if (!topic_.empty()) channels.add(topic_);
  if (channels.list().size() == 1) return {};
  if (server.poller) {
    MJ_TRY(has_reports, request_reports(server));
    server.has_reports = has_reports;
    Arguments all{"SUBSCRIBE", kQueueFilledChannel};
    if (has_reports) all.add(kInvalidateChannel);
    for (const std::string_view channel : channels.list().subspan(1)) all.add(channel);
    const auto subscribed = connection.command(all);
    // A user with the rules of an older version may not subscribe to it. Polls find the jobs later.
    if (subscribed || subscribed.error().code != Code::denied) return check(subscribed);
  }
  return check(connection.command(channels));
}

// Returns false if the server or the rights of the user do not permit it. The pause between polls then delays jobs of
// plain clients. After a report, the server sends the next one for a key of that name when a poll has read it again.
Result<bool> RedisWaiter::request_reports(Server& server) {
  MJ_TRY(refusal, track_read_keys(*server.poller->connection, *server.channels.connection));
  if (refusal) log(LogLevel::debug, "store", "CLIENT TRACKING: {}", refusal->message);
  return !refusal;
}

void RedisWaiter::send_requests(Server& server, bool for_work) {
  Result<void> sent = send_ping(server);
  for (WaitConnection& waiting : server.blocking) {
    if (sent && for_work && waiting.pending_replies == 0) sent = send_blocking_wait(server, waiting);
  }
  if (sent && for_work && server.poller) sent = send_poll(server);
  if (!sent) drop_connection(server, std::move(sent).error());
}

Result<void> RedisWaiter::send_ping(Server& server) {
  WaitConnection& channels = server.channels;
  if (channels.pending_replies > 0 || steady_clock::now() < channels.next_command_at) return {};
  MJ_CHECK(channels.connection->send(Arguments{"PING"}));
  channels.pending_replies = 1;
  channels.reply_deadline = steady_clock::now() + kReplyTimeout;
  return {};
}

// Returns whether to block on queues. If other agents claim most entries first, polls cost less, since one poll looks
// at all queues, while each entry would end the blocking command of each agent.
bool RedisWaiter::can_block(const Server& server) const {
  return !server.poller || !server.has_reports || claim_delay_.limit() <= kMaxBlockingDelay;
}

// Blocks on the queue in which an entry was seen last, of those on which no other connection blocks. A connection keeps
// its queue unless another one had an entry later.
Result<void> RedisWaiter::send_blocking_wait(Server& server, WaitConnection& waiting) {
  if (!can_block(server)) return {};
  const Time now = steady_clock::now();
  const auto can_watch = [&](const WatchedQueue& queue) {
    return !queue.paused && !queue.is_blocked_on && queue.next_check_at <= now;
  };
  const WatchedQueue* best = can_watch(server.queues[waiting.queue]) ? &server.queues[waiting.queue] : nullptr;
  if (server.poller) {
    for (const WatchedQueue& queue : server.queues) {
      if (can_watch(queue) && (best == nullptr || queue.last_work > best->last_work)) best = &queue;
    }
  }
  if (best == nullptr) return {};
  waiting.queue = static_cast<std::size_t>(best - server.queues.data());
  WatchedQueue& queue = server.queues[waiting.queue];
  std::vector<Arguments> commands;
  // After a rejected SELECT, BLMOVE in another database changes nothing, and its reply is ignored.
  if (waiting.database != queue.database) commands.emplace_back(Arguments{"SELECT"}).add(std::uint64_t{queue.database});
  commands.emplace_back(
      Arguments{"BLMOVE", queue.key, queue.key, "RIGHT", "RIGHT", server.poller ? kShortBlockSeconds : kBlockSeconds});
  MJ_CHECK(waiting.connection->send_all(commands));
  waiting.pending_replies = commands.size();
  waiting.reply_deadline = now + kReplyTimeout;
  queue.is_blocked_on = true;
  queue.has_entries = false;
  return {};
}

// Polls the queues on which no connection blocks: all of them after the pause, and at once those that had an entry.
Result<void> RedisWaiter::send_poll(Server& server) {
  if (server.poller->pending_replies > 0) return {};
  const Time now = steady_clock::now();
  server.is_full_poll = now >= server.next_poll_at;
  if (server.is_full_poll) {
    server.earliest_requested_poll = now + kRequestedPollPause;
    server.is_requested_poll = std::exchange(server.is_poll_requested, false);
    server.is_poll_deferred = false;
    server.has_claimed = std::exchange(server.has_claimed_since_poll, false);
  }
  server.has_found_entries = server.is_select_rejected = false;
  std::map<std::uint32_t, std::vector<std::size_t>> queues_by_database;
  for (std::size_t i = 0; i < server.queues.size(); ++i) {
    const WatchedQueue& queue = server.queues[i];
    if (queue.is_blocked_on || queue.paused || queue.next_check_at > now) continue;
    if (server.is_full_poll || queue.has_entries) queues_by_database[queue.database].push_back(i);
  }
  std::deque<PollStep> steps;
  for (auto& [database, queues] : queues_by_database) {
    const auto kind = queues.size() == 1 ? PollStep::Kind::length : PollStep::Kind::exists;
    steps.push_back({PollStep::Kind::select, queues});
    steps.push_back({kind, std::move(queues)});
  }
  if (!steps.empty()) return send_poll_steps(server, std::move(steps));
  if (server.is_full_poll) server.next_poll_at = now + server.poll_pause;
  return {};
}

Result<void> RedisWaiter::send_poll_steps(Server& server, std::deque<PollStep> steps) {
  std::vector<Arguments> commands;
  commands.reserve(steps.size());
  for (const PollStep& step : steps) {
    const WatchedQueue& first = server.queues[step.queues.front()];
    if (step.kind == PollStep::Kind::select) {
      commands.emplace_back(Arguments{"SELECT"}).add(std::uint64_t{first.database});
    } else if (step.kind == PollStep::Kind::length) {
      commands.emplace_back(Arguments{"LLEN", first.key});
    } else {
      Arguments& exists = commands.emplace_back(Arguments{"EXISTS"});
      for (const std::size_t i : step.queues) exists.add(server.queues[i].key);
    }
  }
  MJ_CHECK(server.poller->connection->send_all(commands));
  server.poll_steps = std::move(steps);
  server.poller->pending_replies = commands.size();
  server.poller->reply_deadline = steady_clock::now() + kReplyTimeout;
  return {};
}

void RedisWaiter::drop_connection(Server& server, Error error) {
  server.channels.connection->close();
  for (WaitConnection& waiting : server.blocking) waiting.connection->close();
  if (server.poller) server.poller->connection->close();
  server.is_connected = false;
  ++server.failures;
  server.retry_at = steady_clock::now() + reconnect_delay(server.failures);
  errors_.push_back(std::move(error));
}

bool RedisWaiter::poll_once(Time until, bool for_work, WaitResult& result) {
  std::vector<pollfd> fds{{event_.get(), POLLIN, 0}};
  std::vector<std::pair<Server*, WaitConnection*>> owners;
  bool has_buffered_input = false;
  for (Server& server : servers_) {
    if (!server.is_connected) continue;
    const auto add = [&](WaitConnection& waiting) {
      fds.push_back({waiting.connection->fd(), POLLIN, 0});
      owners.emplace_back(&server, &waiting);
      has_buffered_input = has_buffered_input || waiting.connection->has_buffered_input();
    };
    add(server.channels);
    for (WaitConnection& waiting : server.blocking) add(waiting);
    if (server.poller) add(*server.poller);
  }
  const auto timeout_ms =
      has_buffered_input ? 0
                         : std::chrono::ceil<milliseconds>(next_wakeup(until, for_work) - steady_clock::now()).count();
  ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(timeout_ms, 0, 1 << 30)));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    auto [server, waiting] = owners[i];
    if (!server->is_connected) continue;  // the server failed on another connection
    Result<void> received;
    if (fds[i + 1].revents != 0 || waiting->connection->has_buffered_input()) {
      received = waiting->connection->read_some();
      if (received) received = process_input(*server, *waiting, result);
    }
    // Checked also after input, which may be endless parts of a reply, or messages before it.
    if (received && waiting->pending_replies > 0 && steady_clock::now() >= waiting->reply_deadline)
      received = fail(Code::unavailable, "Redis at " + server->options.endpoint.redacted_url() + ": no answer in time");
    if (!received) drop_connection(*server, std::move(received).error());
  }
  std::uint64_t count = 0;
  return ::read(event_.get(), &count, sizeof count) == sizeof count;
}

RedisWaiter::Time RedisWaiter::next_wakeup(Time until, bool for_work) const {
  const Time now = steady_clock::now();
  for (const Server& server : servers_) {
    if (!server.is_connected) {
      until = std::min(until, server.retry_at);
      continue;
    }
    const auto add_deadline = [&](const WaitConnection& waiting) {
      if (waiting.pending_replies > 0) until = std::min(until, waiting.reply_deadline);
    };
    add_deadline(server.channels);
    if (server.channels.pending_replies == 0) until = std::min(until, server.channels.next_command_at);
    for (const WaitConnection& waiting : server.blocking) add_deadline(waiting);
    if (server.poller) add_deadline(*server.poller);
    if (!for_work) continue;
    if (server.poller && server.poller->pending_replies == 0) until = std::min(until, server.next_poll_at);
    for (const WatchedQueue& queue : server.queues) {
      if (queue.next_check_at > now) until = std::min(until, queue.next_check_at);
    }
  }
  return until;
}

Result<void> RedisWaiter::process_input(Server& server, WaitConnection& waiting, WaitResult& result) {
  for (;;) {
    MJ_TRY(reply, waiting.connection->next_reply());
    if (!reply) return {};
    if (&waiting == &server.channels) {
      MJ_CHECK(process_channel_reply(server, *reply, result));
    } else if (server.poller && &waiting == &*server.poller) {
      MJ_CHECK(process_poll_reply(server, *reply));
    } else {
      MJ_CHECK(process_blocking_reply(server, waiting, *reply));
    }
  }
}

Result<void> RedisWaiter::process_channel_reply(Server& server, const Reply& reply, WaitResult& result) {
  if (reply.is_error()) return tl::unexpected<Error>(redis_error(reply.text()));
  if (reply.at(0).text() != "message") {  // the reply to PING
    server.channels.pending_replies = 0;
    server.channels.next_command_at = steady_clock::now() + kPingInterval;
  } else if (reply.at(1).text() == kInvalidateChannel) {
    request_poll(server);
  } else if (reply.at(1).text() == kWakeChannel || reply.at(1).text() == kQueueFilledChannel) {
    process_queue_hint(server, reply);
  } else {
    result.hints.emplace_back(reply.at(2).text());
  }
  return {};
}

// Requests a poll after a report or hint. The random delay gives other agents the time to claim the entry.
void RedisWaiter::request_poll(Server& server) {
  if (std::exchange(server.is_poll_requested, true)) return;
  server.requested_poll_at =
      std::max(server.earliest_requested_poll, steady_clock::now() + kReportDelay + poll_delay_.draw());
  server.next_poll_at = std::min(server.next_poll_at, server.requested_poll_at);
}

// A queue on which a connection blocks needs no hint for an entry of its list, since BLMOVE reports it. Jobs with a
// priority are not in the list.
void RedisWaiter::process_queue_hint(Server& server, const Reply& message) {
  const bool is_in_list = message.at(1).text() == kQueueFilledChannel;
  const auto hint = parse_queue_hint(message.at(2).text());
  if (!hint) {
    has_unnamed_work_ = true;
    return;
  }
  const auto queue = std::find_if(server.queues.begin(), server.queues.end(), [&](const WatchedQueue& candidate) {
    return candidate.context == hint->context && candidate.key == hint->queue;
  });
  if (queue == server.queues.end() || (is_in_list && queue->is_blocked_on)) return;
  if (is_in_list && claim_delay_.limit() > milliseconds(0) && server.has_reports) return request_poll(server);
  queue->has_entries = queue->has_entries || is_in_list;
  queue->is_announced = !is_in_list;
  add_work(*queue);
}

void RedisWaiter::clear_old_replies(Server& server) {
  for (WatchedQueue& queue : server.queues) queue.has_old_replies = false;
}

void RedisWaiter::add_work(WatchedQueue& queue) {
  queue.is_doubtful = queue.has_old_replies;
  queue.last_work = steady_clock::now();
  queue.is_unreported = has_unreported_work_ = true;
}

// Names the contexts of the entries that were seen since the last report.
void RedisWaiter::report_work(WaitResult& result) {
  result.has_work = result.has_work || has_unnamed_work_;
  if (!std::exchange(has_unreported_work_, false)) return;
  for (Server& server : servers_) {
    for (WatchedQueue& queue : server.queues) {
      if (!std::exchange(queue.is_unreported, false) || queue.paused) continue;
      result.has_work = queue.is_claim_due = true;
      const auto add_context = [&](std::vector<Id>& contexts) {
        if (std::find(contexts.begin(), contexts.end(), queue.context) == contexts.end())
          contexts.push_back(queue.context);
      };
      add_context(result.contexts);
      if (std::exchange(queue.is_announced, false)) add_context(result.announced_contexts);
    }
  }
}

Result<void> RedisWaiter::process_blocking_reply(Server& server, WaitConnection& waiting, const Reply& reply) {
  WatchedQueue& queue = server.queues[waiting.queue];
  const bool is_select = --waiting.pending_replies > 0;
  if (!is_select) queue.is_blocked_on = false;
  if (reply.is_error()) {
    if (is_select) waiting.database.reset();
    return handle_queue_error(queue, reply, is_select);
  }
  if (is_select) {
    waiting.database = queue.database;
  } else if (!reply.is_nil() && waiting.database && can_block(server)) {
    add_work(queue);
    defer_requested_poll(server);
  } else if (!reply.is_nil() && waiting.database) {
    request_poll(server);
  }
  return {};
}

// Defers the poll for a report that a blocking connection explains, since it would delay the claim: once, so that a
// queue with many entries does not prevent polls.
void RedisWaiter::defer_requested_poll(Server& server) {
  if (std::exchange(server.is_poll_deferred, true)) return;
  server.earliest_requested_poll = steady_clock::now() + kRequestedPollPause;
  server.requested_poll_at = std::max(server.requested_poll_at, server.earliest_requested_poll);
  if (server.is_poll_requested) server.next_poll_at = server.requested_poll_at;
}

Result<void> RedisWaiter::process_poll_reply(Server& server, const Reply& reply) {
  if (server.poll_steps.empty()) return fail(Code::unavailable, "redis: a reply without a request");
  const PollStep step = std::move(server.poll_steps.front());
  server.poll_steps.pop_front();
  --server.poller->pending_replies;
  if (step.kind == PollStep::Kind::select) server.is_select_rejected = reply.is_error();
  if (reply.is_error()) {
    const bool is_select = step.kind == PollStep::Kind::select;
    MJ_CHECK(handle_queue_error(server.queues[step.queues.front()], reply, is_select));
    for (const std::size_t i : step.queues) delay_check(server.queues[i]);
  } else if (step.kind == PollStep::Kind::select || server.is_select_rejected) {
    // The replies of the following commands count only if their database was selected.
  } else if (step.kind == PollStep::Kind::exists && reply.number() > 0) {
    server.poll_candidates.insert(server.poll_candidates.end(), step.queues.begin(), step.queues.end());
  } else {
    for (const std::size_t i : step.queues) {
      server.queues[i].has_entries = reply.number() > 0;
      if (!server.queues[i].has_entries) continue;
      server.has_found_entries = true;
      add_work(server.queues[i]);
    }
  }
  return server.poll_steps.empty() ? complete_poll(server) : Result<void>();
}

// Sends the second half of a poll if a context has an entry in one of several queues, which EXISTS does not name.
Result<void> RedisWaiter::complete_poll(Server& server) {
  std::deque<PollStep> steps;
  std::optional<std::uint32_t> database;
  for (const std::size_t i : server.poll_candidates) {
    if (database != server.queues[i].database) steps.push_back({PollStep::Kind::select, {i}});
    database = server.queues[i].database;
    steps.push_back({PollStep::Kind::length, {i}});
  }
  server.poll_candidates.clear();
  if (!steps.empty()) return send_poll_steps(server, std::move(steps));
  if (!server.is_full_poll) return {};
  // A report that this agent has caused with its own claim does not count.
  const bool is_too_late = server.is_requested_poll && !server.has_found_entries;
  if (is_too_late && !server.has_claimed && !server.has_claimed_since_poll) poll_delay_.on_failure();
  server.poll_pause = server.has_found_entries ? kMinPollPause : std::min(server.poll_pause * 3 / 2, kMaxPollPause);
  server.next_poll_at = server.is_poll_requested ? server.requested_poll_at : steady_clock::now() + server.poll_pause;
  return {};
}

// An error of one key or database does not end the wait for the others.
Result<void> RedisWaiter::handle_queue_error(WatchedQueue& queue, const Reply& reply, bool is_select) {
  Error error = redis_error(reply.text());
  if (error.code != Code::invalid && (!is_select || error.code == Code::unavailable))
    return tl::unexpected<Error>(std::move(error));
  log(LogLevel::warn, "store", "context {}: cannot wait for {}: {}", queue.context, queue.key, error.message);
  delay_check(queue);
  return {};
}

void RedisWaiter::delay_check(WatchedQueue& queue) {
  queue.next_check_at = steady_clock::now() + kQueueErrorDelay;
  queue.has_entries = false;
}

}  // namespace mycojobs
