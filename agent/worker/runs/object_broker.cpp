#include "worker/runs/object_broker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#include "base/cpu_time.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "model/trace_context.h"
#include "worker/runs/object_task.h"
#include "worker/runs/read_budget.h"
#include "worker/runs/run_rate.h"

namespace mycojobs {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
using std::chrono::milliseconds;

std::uint64_t thread_cpu_ns() { return cpu_time_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace

class Broker::ContextStrand {
 public:
  ContextStrand(StoreFactory& stores, const Answer& answer, const BrokerLimits& limits)
      : stores_(stores), answer_(answer), limits_(limits) {}
  Result<void> begin() {
    MJ_TRY(thread, start_thread([this] { serve(); }));
    thread_ = std::move(thread);
    return {};
  }
  ~ContextStrand() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  // Queues the call. Returns false if too many calls are waiting.
  bool add(BrokerCall& call) {
    {
      std::lock_guard lock(mutex_);
      std::size_t& waiting = waiting_of_[call.run];
      if (waiting >= limits_.calls_of_run || calls_ >= limits_.calls || bytes_ + call.json.size() > limits_.bytes) {
        if (waiting == 0) waiting_of_.erase(call.run);
        return false;
      }
      ++waiting;
      ++calls_;
      bytes_ += call.json.size();
      asked_.push_back(std::move(call));
    }
    changed_.notify_one();
    return true;
  }
  void forget(RunNumber run) {
    {
      std::lock_guard lock(mutex_);
      forgotten_.push_back(run);
    }
    changed_.notify_one();
  }

 private:
  // The calls of one run, in order.
  struct Run {
    explicit Run(const BrokerLimits& limits) : cpu(limits.cpu_ns, limits.burst_ns) {}

    ObjectCaller who;
    std::deque<ObjectTask> tasks;
    std::string name = random_hex(8);  // prefix of the names of its writes; a number is appended
    std::uint64_t asked = 0;
    bool wrote = false;       // may hold the write lock, or wait for it
    SteadyTime due{};         // time of the next step of the first task
    SteadyTime rest_until{};  // no step before this time, since the share of CPU time is used up
    std::uint32_t pause_ms = 0;
    TokenBucket cpu;

    SteadyTime next_step() const { return std::max(due, rest_until); }
  };

  // Charges the run for CPU time of this thread since `since_ns`.
  static void charge(Run& run, std::uint64_t since_ns) {
    const std::uint64_t now_ms = steady_us() / 1000;
    run.cpu.consume(thread_cpu_ns() - since_ns, now_ms);
    if (const std::uint64_t ms = run.cpu.empty_ms(now_ms); ms > 0)
      run.rest_until = std::chrono::steady_clock::now() + milliseconds(ms);
  }

  void serve() {
    while (take_in()) {
      if (!open()) continue;
      for (auto& [number, run] : runs_) {
        if (stopping_) return;
        if (!run.tasks.empty() && run.next_step() <= std::chrono::steady_clock::now()) step(number, run);
      }
    }
  }

  // Waits until there is work. Returns false if the thread must end.
  bool take_in() {
    std::vector<RunNumber> forgotten;
    std::deque<BrokerCall> asked;
    {
      std::unique_lock lock(mutex_);
      const auto come = [this] { return stopping_ || !asked_.empty() || !forgotten_.empty(); };
      const auto due = next_due();
      if (due) {
        changed_.wait_until(lock, *due, come);
      } else {
        changed_.wait(lock, come);
      }
      if (stopping_) return false;
      asked.swap(asked_);
      forgotten.swap(forgotten_);
    }
    for (BrokerCall& call : asked) {
      Run& run = runs_.try_emplace(call.run, limits_).first->second;
      run.who = {call.context, call.caller, std::move(call.claim)};
      const std::uint64_t since_ns = thread_cpu_ns();
      run.tasks.emplace_back(run.name + "-" + std::to_string(++run.asked), call.json);
      charge(run, since_ns);
    }
    for (RunNumber number : forgotten) drop(number);
    return true;
  }

  std::optional<SteadyTime> next_due() const {
    std::optional<SteadyTime> first;
    for (const auto& [number, run] : runs_) {
      if (!run.tasks.empty()) first = std::min(first.value_or(run.next_step()), run.next_step());
    }
    return first;
  }

  bool open() {
    if (objects_) return true;
    auto store = stores_.open();
    auto objects = stores_.open_objects();
    if (store && objects) {
      records_ = std::move(*store);
      objects_ = std::move(*objects);
      return true;
    }
    const Error why = store ? objects.error() : store.error();
    for (auto& [number, run] : runs_) {
      while (!run.tasks.empty()) {
        run.tasks.front().cancel_task(why);
        settle(number, run);
      }
    }
    return false;
  }

  // Records a denied call like service/service_caller.h does. In a context without a record nothing is recorded.
  void note_refusal(const ObjectTask& task, const ObjectCaller& who) {
    if (!task.refusal() || !task.refusal()->recorded) return;
    RefusalNote note;
    note.actor = who.caller;
    note.action = to_string(task.refusal()->action);
    note.thing = task.refusal()->thing;
    note.list = task.refusal()->list;
    if (auto noted = records_->record_refusal(who.context, note); !noted)
      log(LogLevel::warn, "worker", "context {}: a refusal was not recorded: {}", who.context, noted.error().message);
  }

  void step(RunNumber number, Run& run) {
    const std::uint64_t since_ns = thread_cpu_ns();
    take_step(number, run);
    charge(run, since_ns);
  }

  void take_step(RunNumber number, Run& run) {
    ObjectTask& task = run.tasks.front();
    const auto state = task.step(*records_, *objects_, run.who);
    run.wrote = run.wrote || task.may_write();
    switch (state) {
      case ObjectTask::State::done:
        note_refusal(task, run.who);
        return settle(number, run);
      case ObjectTask::State::more:
        run.pause_ms = 0;
        run.due = {};
        return;
      case ObjectTask::State::busy:
        return pause(run, limits_.busy_ms, limits_.busy_ms * 8);
      case ObjectTask::State::away:
        return pause(run, limits_.unavailable_ms, limits_.unavailable_ms * 32);
    }
  }

  static void pause(Run& run, std::uint32_t first_ms, std::uint32_t most_ms) {
    run.pause_ms = std::clamp(run.pause_ms * 2, first_ms, most_ms);
    run.due = std::chrono::steady_clock::now() + milliseconds(run.pause_ms);
  }

  // Removes the first call of the run and delivers its answer.
  void settle(RunNumber number, Run& run) {
    const ObjectTask task = std::move(run.tasks.front());
    run.tasks.pop_front();
    run.pause_ms = 0;
    run.due = {};
    settled(number, 1, task.bytes());
    answer_(number, task.answer());
  }
  void settled(RunNumber number, std::size_t calls, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    calls_ -= calls;
    bytes_ -= bytes;
    const auto waiting = waiting_of_.find(number);
    waiting->second -= calls;
    if (waiting->second == 0) waiting_of_.erase(waiting);
  }

  void drop(RunNumber number) {
    const auto found = runs_.find(number);
    if (found == runs_.end()) return;
    Run& run = found->second;
    std::size_t bytes = 0;
    for (const ObjectTask& task : run.tasks) bytes += task.bytes();
    if (!run.tasks.empty()) settled(number, run.tasks.size(), bytes);
    if (run.wrote && objects_) {
      // If the release fails, the end of the claim releases the write lock.
      if (auto released = objects_->release(run.who.claim); !released) {
        log(LogLevel::info, "broker", "{}: its writer lock was not released yet: {}",
            in_trace(run.who.claim.job_key, run.who.claim.traceparent), released.error().message);
      }
      for (auto& [other, waiting] : runs_) waiting.due = {};  // another run may be able to write now
    }
    runs_.erase(found);
  }

  StoreFactory& stores_;
  const Answer& answer_;
  const BrokerLimits& limits_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopping_ = false;
  std::deque<BrokerCall> asked_;
  std::vector<RunNumber> forgotten_;
  std::map<RunNumber, std::size_t> waiting_of_;  // waiting calls of each run
  std::size_t calls_ = 0, bytes_ = 0;            // sums of all runs

  // The following members are used by the thread only.
  std::unique_ptr<Store> records_;  // to check rights
  std::unique_ptr<ObjectStore> objects_;
  std::map<RunNumber, Run> runs_;

  std::thread thread_;  // last, since the thread uses the other members
};

Broker::Broker(StoreFactory& stores, Answer answer, BrokerLimits limits)
    : stores_(stores), answer_(std::move(answer)), limits_(limits) {}
Broker::~Broker() = default;

Result<Broker::ContextStrand*> Broker::strand_of(Id context) {
  auto found = strands_.find(context);
  if (found == strands_.end()) {
    auto strand = std::make_unique<ContextStrand>(stores_, answer_, limits_);
    MJ_CHECK(strand->begin());
    found = strands_.emplace(context, std::move(strand)).first;
  }
  return found->second.get();
}

void Broker::ask(BrokerCall call) {
  Error why{Code::unavailable,
            "too many calls of this job, or of all jobs of the context, wait "
            "for their answers: await some before the next"};
  {
    std::lock_guard lock(mutex_);
    auto strand = strand_of(call.context);
    if (strand) contexts_[call.run] = call.context;
    if (strand && (*strand)->add(call)) return;
    if (!strand) why = std::move(strand).error();
  }
  answer_(call.run, error_answer(read_object_call(call.json).id, why));
}

void Broker::forget(RunNumber run) {
  std::lock_guard lock(mutex_);
  const auto found = contexts_.find(run);
  if (found == contexts_.end()) return;
  strands_.at(found->second)->forget(run);
  contexts_.erase(found);
}

}  // namespace mycojobs
