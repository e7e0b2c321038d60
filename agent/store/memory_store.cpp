#include "store/memory_store.h"

#include <algorithm>
#include <chrono>

#include "store/memory_database.h"

namespace mycojobs {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(MemoryServer& server) : server_(server) {}

  Result<ClaimReply> claim(const ClaimRequest& request) override {
    return call("claim", request.context, [&](MemoryDatabase& db) { return db.claim(request); });
  }
  Result<std::vector<Renewal>> renew(Id context, std::span<const ClaimRef> claims, std::uint32_t lease_ms) override {
    return call("renew", context, [&](MemoryDatabase& db) { return db.renew(claims, lease_ms); });
  }
  Result<std::vector<Result<void>>> report(Id context, std::span<const Report> reports) override {
    return call("report", context, [&](MemoryDatabase& db) { return db.report(reports); });
  }
  Result<std::vector<Lease>> leases(Id context) override {
    return call("leases", context, [&](MemoryDatabase& db) { return db.leases(); });
  }
  Result<bool> expire(Id context, const Lease& lease) override {
    return call("expire", context, [&](MemoryDatabase& db) { return db.expire(lease); });
  }
  Result<std::uint32_t> sweep_missing(Id context, std::uint32_t wait_ms) override {
    return call("sweep_missing", context, [&](MemoryDatabase& db) { return db.sweep_missing(wait_ms); });
  }
  Result<Job> submit(const Job& job) override {
    return call("submit", job.context_id, [&](MemoryDatabase& db) { return db.submit(job); });
  }
  Result<void> cancel(Id context, const std::string& job) override {
    std::string topic;
    auto asked = call("cancel", context, [&](MemoryDatabase& db) {
      topic = db.owner_topic(job);
      return db.cancel(job);
    });
    if (asked && !topic.empty()) server_.publish(topic, "cancel:" + job);
    return asked;
  }
  Result<Fields> load(Id context, const std::string& key) override {
    return call("load", context, [&](MemoryDatabase& db) { return db.load(key); });
  }
  Result<void> save(Id context, const std::string& key, const Fields& fields) override {
    return call("save", context, [&](MemoryDatabase& db) { return db.save(key, fields); });
  }
  Result<std::vector<std::string>> keys(Id context, std::string_view prefix, std::size_t max) override {
    return call("keys", context, [&](MemoryDatabase& db) { return db.keys(prefix, max); });
  }
  Result<std::uint64_t> queue_length(Id context, const std::string& queue) override {
    return call("queue_length", context, [&](MemoryDatabase& db) { return db.queue_length(queue); });
  }
  Result<std::vector<DeadLetter>> dead_letters(Id context, std::size_t max) override {
    return call("dead_letters", context, [&](MemoryDatabase& db) { return db.dead_letters(max); });
  }
  Result<std::vector<std::string>> anomalies(Id context, std::size_t max) override {
    return call("anomalies", context, [&](MemoryDatabase& db) { return db.anomalies(max); });
  }
  Result<LogPage> logs(Id context, const std::string& job, std::uint64_t after_seq, std::size_t max,
                       std::uint32_t wait_ms) override {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    for (;;) {
      auto page = call("logs", context, [&](MemoryDatabase& db) { return db.logs(job, after_seq, max); });
      if (!page || page->ended || !page->lines.empty() || std::chrono::steady_clock::now() >= until) return page;
      std::unique_lock lock(server_.mutex_);
      // Woken by any change; one that came before the lock is met after 10 ms.
      server_.changed_.wait_until(lock,
                                  std::min(until, std::chrono::steady_clock::now() + std::chrono::milliseconds(10)));
    }
  }
  Result<void> hold_runner(Id context, const Runner& runner, const RunnerHold& self, std::uint32_t ttl_ms,
                           const std::string& replaces, RunnerHold& held_by) override {
    return call("hold_runner", context,
                [&](MemoryDatabase& db) { return db.hold_runner(runner, self, ttl_ms, replaces, held_by); });
  }
  Result<void> release_runner(Id context, Id runner, const RunnerHold& self) override {
    return call("release_runner", context, [&](MemoryDatabase& db) { return db.release_runner(runner, self); });
  }
  Result<std::vector<std::string>> topic_pending(Id context, const std::string& topic) override {
    return call("topic_pending", context, [&](MemoryDatabase& db) { return db.topic_pending(topic); });
  }
  Result<void> topic_send(Id context, const std::string& topic, const std::string& message,
                          const Fields& fields) override {
    auto sent = call("topic_send", context, [&](MemoryDatabase& db) { return db.topic_send(topic, message, fields); });
    if (sent) server_.publish(topic, message);
    return sent;
  }
  Result<MessageIntake> take_message(Id context, const std::string& topic, const std::string& message,
                                     std::span<const Job> jobs, const std::string& queue) override {
    return call("take_message", context,
                [&](MemoryDatabase& db) { return db.take_message(topic, message, jobs, queue); });
  }
  Result<void> refuse_message(Id context, const std::string& topic, const std::string& message,
                              const std::string& reason) override {
    return call("refuse_message", context,
                [&](MemoryDatabase& db) { return db.refuse_message(topic, message, reason); });
  }
  Result<ServerFacts> facts() override {
    ServerFacts facts;
    facts.product = "memory";
    facts.version = "1";
    facts.databases = 0xffffffff;
    return facts;
  }
  Result<std::uint64_t> now_ms() override { return server_.clock_.unix_ms(); }

 private:
  // One step under the lock, with the fault that the test asked for.
  template <class Step>
  auto call(std::string_view name, Id context, Step step) -> decltype(step(std::declval<MemoryDatabase&>())) {
    if (context == 0) return fail(Code::invalid, "context 0 is where actors live; contexts begin with 1");
    std::lock_guard lock(server_.mutex_);
    const Fault fault = server_.faults_ ? server_.faults_(name) : Fault::none;
    if (fault == Fault::before) return fail(Code::unavailable, "memory: a fault before " + std::string(name));
    auto result = step(server_.database(context));
    server_.changed_.notify_all();
    if (fault == Fault::after) return fail(Code::unavailable, "memory: a fault after " + std::string(name));
    return result;
  }

  MemoryServer& server_;
};

class MemoryWaiter final : public Waiter {
 public:
  MemoryWaiter(MemoryServer& server, std::vector<std::pair<Id, std::string>> queues, const std::string& topic)
      : server_(server), queues_(std::move(queues)) {
    std::lock_guard lock(server_.mutex_);
    subscription_ = server_.subscribers_.emplace(topic, &hints_);
  }
  ~MemoryWaiter() override {
    std::lock_guard lock(server_.mutex_);
    server_.subscribers_.erase(subscription_);
  }
  MemoryWaiter(const MemoryWaiter&) = delete;
  MemoryWaiter& operator=(const MemoryWaiter&) = delete;

  Result<Woken> wait(std::uint32_t timeout_ms, bool for_work) override {
    std::unique_lock lock(server_.mutex_);
    Woken woken;
    server_.changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
      woken.work = for_work && has_work();
      return woken.work || called_ || !hints_.empty();
    });
    called_ = false;
    woken.hints.assign(hints_.begin(), hints_.end());
    hints_.clear();
    return woken;
  }
  void wake() override {
    std::lock_guard lock(server_.mutex_);
    called_ = true;
    server_.changed_.notify_all();
  }

 private:
  bool has_work() {
    return std::any_of(queues_.begin(), queues_.end(), [&](const auto& queue) {
      return server_.database(queue.first).queue_length(queue.second).value_or(0) > 0;
    });
  }

  MemoryServer& server_;
  std::vector<std::pair<Id, std::string>> queues_;
  std::deque<std::string> hints_;
  std::multimap<std::string, std::deque<std::string>*>::iterator subscription_;
  bool called_ = false;
};

MemoryServer::MemoryServer(const Clock& clock) : clock_(clock) {}
MemoryServer::~MemoryServer() = default;

MemoryDatabase& MemoryServer::database(Id context) {
  auto& found = databases_[context];
  if (!found) found = std::make_unique<MemoryDatabase>();
  found->set_now(context, clock_.unix_ms());
  return *found;
}

Result<std::unique_ptr<Store>> MemoryServer::open() { return std::make_unique<MemoryStore>(*this); }

Result<std::unique_ptr<Waiter>> MemoryServer::open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                                          const std::string& topic) {
  return std::make_unique<MemoryWaiter>(*this, queues, topic);
}

void MemoryServer::set_faults(std::function<Fault(std::string_view)> faults) {
  std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
}

void MemoryServer::push(Id context, const std::string& queue, const std::string& entry) {
  std::lock_guard lock(mutex_);
  database(context).push(queue, entry);
  changed_.notify_all();
}

void MemoryServer::put_text(Id context, const std::string& key, const std::string& text) {
  std::lock_guard lock(mutex_);
  database(context).put_text(key, text);
}

void MemoryServer::erase(Id context, const std::string& key) {
  std::lock_guard lock(mutex_);
  database(context).erase(key);
}

void MemoryServer::publish(const std::string& topic, const std::string& text) {
  std::lock_guard lock(mutex_);
  const auto [begin, end] = subscribers_.equal_range(topic);
  for (auto each = begin; each != end; ++each) each->second->push_back(text);
  changed_.notify_all();
}

}  // namespace mycojobs
