#include "support/redis/memory_server.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/redis/redis_connection.h"
#include "store/redis/redis_flows.h"
#include "store/redis/store_connection.h"
#include "support/redis/memory_command.h"

namespace mycojobs {
namespace {

using memory::MemoryReply;

// Returns how long an XREAD may wait for its first entry.
std::chrono::milliseconds block_time(memory::Words words) {
  constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365);
  if (words.empty() || !memory::is_word(words[0], "XREAD")) return {};
  for (std::size_t i = 1; i + 1 < words.size() && !memory::is_word(words[i], "STREAMS"); i += 2) {
    if (!memory::is_word(words[i], "BLOCK")) continue;
    const std::chrono::milliseconds asked(memory::to_integer(words[i + 1]).value_or(0));
    return asked.count() == 0 ? kForEver : std::min(asked, kForEver);
  }
  return {};
}

}  // namespace

// A connection of one thread to one database.
class MemoryLink final : public Link {
 public:
  MemoryLink(MemoryServer& server, Id context) : server_(server), context_(context) {}

  Result<Reply> command(const Arguments& arguments, std::uint32_t) override {
    const auto until = std::chrono::steady_clock::now() + block_time(arguments.list());
    return server_.perform(memory::command_kind(arguments.list()), until,
                           [&] { return server_.redis_.execute(context_, arguments.list()); });
  }
  Result<Reply> run(const Script& script, const Arguments& arguments) override {
    return server_.perform({script.name, script.name != scripts::load.name && script.name != scripts::load_some.name},
                           {},
                           [&] { return server_.redis_.run(context_, script.sha1, script.text, arguments.list()); });
  }
  const std::string& server_run_id() const override { return run_id_; }

 private:
  MemoryServer& server_;
  Id context_;
  std::string run_id_{memory::kRunId};
};

// Waits in real time; one condition variable of the server signals every change.
class MemoryWaiter final : public Waiter {
 public:
  MemoryWaiter(MemoryServer&, const std::vector<std::pair<Id, std::string>>& queues, const std::string& topic);
  ~MemoryWaiter() override;
  MemoryWaiter(const MemoryWaiter&) = delete;
  MemoryWaiter& operator=(const MemoryWaiter&) = delete;

  Result<WaitResult> wait(std::uint32_t timeout_ms, bool for_work) override;
  void set_paused(Id context, const std::vector<std::string>& queues) override;
  void wake() override;

 private:
  bool has_work() const;  // requires the server's lock

  MemoryServer& server_;
  const std::vector<std::pair<Id, std::string>> queues_;
  std::map<Id, std::set<std::string>> paused_;
  MemoryServer::PublicationQueue hints_;
  MemoryServer::PublicationQueue announced_;  // messages on mj:wake; the next wait for work reports them
  bool called_ = false;
};

// Calls its listener in the thread that publishes or writes, while that thread has the server's lock. Unlike a Redis
// server, it reports changes of the keys of its own context only.
class MemorySubscription final : public HintSubscription {
 public:
  MemorySubscription(MemoryServer& server, Id context, HintTopics topics, HintListener& listener)
      : server_(server), context_(context), topics_(std::move(topics)), listener_(listener) {
    const std::lock_guard lock(server_.mutex_);
    server_.subscriptions_.push_back(this);
  }
  ~MemorySubscription() override {
    const std::lock_guard lock(server_.mutex_);
    server_.subscriptions_.remove(this);
  }
  MemorySubscription(const MemorySubscription&) = delete;
  MemorySubscription& operator=(const MemorySubscription&) = delete;
  bool is_complete() const override { return true; }
  // The next two functions require the server's lock.
  bool publish(std::string_view channel, std::string_view text) {
    const bool is_subscribed =
        std::find(topics_.channels.begin(), topics_.channels.end(), channel) != topics_.channels.end();
    if (is_subscribed) listener_.on_message(channel, text);
    return is_subscribed;
  }
  void report_changed_keys() {
    for (const std::string& key : topics_.keys) {
      std::size_t& reported = reported_lengths_[key];
      const std::size_t length = list_length(key);
      if (std::exchange(reported, length) < length) listener_.on_key_changed(key);
    }
  }

 private:
  std::size_t list_length(const std::string& key) const {
    const auto database = server_.redis_.databases().find(context_);
    if (database == server_.redis_.databases().end()) return 0;
    const auto found = database->second.find(key);
    const auto* list = found == database->second.end() ? nullptr : std::get_if<memory::List>(&found->second);
    return list == nullptr ? 0 : list->size();
  }

  MemoryServer& server_;
  const Id context_;
  const HintTopics topics_;
  HintListener& listener_;
  std::map<std::string, std::size_t> reported_lengths_;  // lengths of the lists at the latest report
};

MemoryServer::MemoryServer(const Clock& clock)
    : redis_(clock, [this](std::string_view channel, std::string_view text) {
        return publish_to_subscribers(channel, text);
      }) {}

static OpenLink make_open_link(MemoryServer& server) {
  return [&server](Id context) -> Result<std::unique_ptr<Link>> { return server.open_link(context); };
}

Result<std::unique_ptr<Store>> MemoryServer::open() {
  return std::make_unique<Store>(std::make_unique<StoreConnection>(make_open_link(*this)));
}

Result<std::unique_ptr<Waiter>> MemoryServer::open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                                          const std::string& topic) {
  return std::make_unique<MemoryWaiter>(*this, queues, topic);
}

Result<std::unique_ptr<HintSubscription>> MemoryServer::subscribe(Id context, const HintTopics& topics,
                                                                  HintListener& listener) {
  return std::make_unique<MemorySubscription>(*this, context, topics, listener);
}

Result<std::unique_ptr<ObjectStore>> MemoryServer::open_objects() {
  return std::make_unique<ObjectStore>(std::make_unique<ContextLinks>(make_open_link(*this)));
}

Result<std::unique_ptr<FlowStore>> MemoryServer::open_flows() { return make_redis_flows(make_open_link(*this)); }

Result<std::unique_ptr<WorkflowStore>> MemoryServer::open_workflows() {
  return std::make_unique<WorkflowStore>(std::make_unique<ContextLinks>(make_open_link(*this)));
}

std::unique_ptr<Link> MemoryServer::open_link(Id context) { return std::make_unique<MemoryLink>(*this, context); }

Result<Reply> MemoryServer::perform(const memory::CommandKind& kind, Until until,
                                    const std::function<MemoryReply()>& step) {
  const auto broken = [&](std::string_view when) {
    return fail(Code::unavailable, "memory: a fault " + std::string(when) + " " + std::string(kind.name));
  };
  std::unique_lock lock(mutex_);
  const ServerCall call{kind.name, kind.writes ? ++writes_ : 0};
  const Fault fault = faults_ ? faults_(call) : Fault::none;
  if (fault == Fault::before) return broken("before");
  const std::uint64_t before = redis_.steps();
  MemoryReply answer = step();
  std::uint64_t& max = most_steps_[std::string(kind.name)];
  max = std::max(max, redis_.steps() - before);
  while (answer.kind == MemoryReply::Kind::nil && std::chrono::steady_clock::now() < until) {
    changed_.wait_until(lock, until);
    answer = step();
  }
  if (kind.writes) {
    changed_.notify_all();
    report_changed_keys();
  }
  if (fault == Fault::after) return broken("after");
  if (answer.kind == MemoryReply::Kind::error) return tl::unexpected<Error>(redis_error(answer.text));
  return memory::to_reply(answer);
}

void MemoryServer::set_faults(std::function<Fault(const ServerCall&)> faults) {
  std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
}

std::map<std::string, std::uint64_t, std::less<>> MemoryServer::max_steps() const {
  const std::lock_guard lock(mutex_);
  return most_steps_;
}

std::uint64_t MemoryServer::writes() const {
  std::lock_guard lock(mutex_);
  return writes_;
}

MemoryServer::Entries MemoryServer::entries(Id context, std::string_view stream) const {
  std::lock_guard lock(mutex_);
  const auto database = redis_.databases().find(context);
  if (database == redis_.databases().end()) return {};
  const auto found = database->second.find(stream);
  const auto* value = found == database->second.end() ? nullptr : std::get_if<memory::Stream>(&found->second);
  return value == nullptr ? Entries{} : Entries{value->added, value->entries.size()};
}

MemoryServer::Snapshot MemoryServer::snapshot() const {
  std::lock_guard lock(mutex_);
  Snapshot snapshot{redis_.databases(), writes_};
  // Remove databases that were only read.
  std::erase_if(snapshot.databases, [](const auto& each) { return each.second.empty(); });
  return snapshot;
}

void MemoryServer::restore(Snapshot snapshot) {
  std::lock_guard lock(mutex_);
  redis_.databases() = std::move(snapshot.databases);
  writes_ = snapshot.writes;
  changed_.notify_all();
}

Reply MemoryServer::run_command(Id context, const std::vector<std::string>& words) {
  const std::vector<std::string_view> views(words.begin(), words.end());
  std::lock_guard lock(mutex_);
  const MemoryReply answer = redis_.execute(context, views);
  changed_.notify_all();
  report_changed_keys();
  return memory::to_reply(answer);
}

void MemoryServer::push(Id context, const std::string& queue, const std::string& entry) {
  run_command(context, {"LPUSH", queue, entry});
}
void MemoryServer::put_text(Id context, const std::string& key, const std::string& text) {
  run_command(context, {"SET", key, text});
}
void MemoryServer::erase(Id context, const std::string& key) { run_command(context, {"DEL", key}); }
void MemoryServer::publish(const std::string& topic, const std::string& text) {
  run_command(0, {"PUBLISH", topic, text});
}

void MemoryServer::report_changed_keys() {
  for (MemorySubscription* subscription : subscriptions_) subscription->report_changed_keys();
}

std::size_t MemoryServer::publish_to_subscribers(std::string_view channel, std::string_view text) {
  const auto [begin, end] = subscribers_.equal_range(channel);
  std::size_t count = 0;
  for (auto each = begin; each != end; ++each, ++count) each->second->emplace_back(text);
  for (MemorySubscription* subscription : subscriptions_) count += subscription->publish(channel, text) ? 1 : 0;
  changed_.notify_all();
  return count;
}

MemoryWaiter::MemoryWaiter(MemoryServer& server, const std::vector<std::pair<Id, std::string>>& queues,
                           const std::string& topic)
    : server_(server), queues_(queues) {
  std::lock_guard lock(server_.mutex_);
  if (!topic.empty()) server_.subscribers_.emplace(topic, &hints_);
  server_.subscribers_.emplace("mj:wake", &announced_);
}

MemoryWaiter::~MemoryWaiter() {
  std::lock_guard lock(server_.mutex_);
  std::erase_if(server_.subscribers_,
                [&](const auto& each) { return each.second == &hints_ || each.second == &announced_; });
}

Result<WaitResult> MemoryWaiter::wait(std::uint32_t timeout_ms, bool for_work) {
  std::unique_lock lock(server_.mutex_);
  WaitResult woken;
  server_.changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    woken.has_work = for_work && (!announced_.empty() || has_work());
    return woken.has_work || called_ || !hints_.empty();
  });
  called_ = false;
  if (for_work) announced_.clear();
  woken.hints.assign(hints_.begin(), hints_.end());
  hints_.clear();
  return woken;
}

void MemoryWaiter::set_paused(Id context, const std::vector<std::string>& queues) {
  std::lock_guard lock(server_.mutex_);
  paused_[context] = {queues.begin(), queues.end()};
}

void MemoryWaiter::wake() {
  std::lock_guard lock(server_.mutex_);
  called_ = true;
  server_.changed_.notify_all();
}

bool MemoryWaiter::has_work() const {
  return std::any_of(queues_.begin(), queues_.end(), [&](const auto& each) {
    const auto& [context, queue] = each;
    const auto paused = paused_.find(context);
    if (paused != paused_.end() && paused->second.contains(queue)) return false;
    const auto& databases = server_.redis_.databases();
    const auto database = databases.find(context);
    if (database == databases.end()) return false;
    const auto found = database->second.find(queue);
    return found != database->second.end() && std::holds_alternative<memory::List>(found->second);
  });
}

}  // namespace mycojobs
