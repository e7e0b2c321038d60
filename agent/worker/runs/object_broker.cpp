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
#include "base/token_bucket.h"
#include "model/trace_context.h"
#include "worker/runs/object_task.h"
#include "worker/runs/read_budget.h"
#include "worker/runs/run_rate.h"

namespace mycojobs {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
using std::chrono::milliseconds;

constexpr std::size_t kMaxIdleStrands = 16;

std::uint64_t thread_cpu_ns() { return cpu_time_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace

class ObjectBroker::ContextStrand {
 public:
  ContextStrand(StoreFactory& stores, const Answer& answer, const ObjectBrokerLimits& limits)
      : stores_(stores), answer_(answer), limits_(limits) {}
  Result<void> start() {
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
      std::size_t& waiting = waiting_calls_[call.run];
      if (waiting >= limits_.max_calls_per_run || calls_ >= limits_.max_calls ||
          bytes_ + call.json.size() > limits_.max_bytes) {
        if (waiting == 0) waiting_calls_.erase(call.run);
        return false;
      }
      ++waiting;
      ++calls_;
      bytes_ += call.json.size();
      submitted_.push_back(std::move(call));
    }
    changed_.notify_one();
    return true;
  }
  // Returns whether the thread waits and has no run, so that the destructor does not block.
  bool is_idle() {
    std::lock_guard lock(mutex_);
    return waits_without_runs_ && submitted_.empty() && ended_.empty();
  }
  void end_run(RunNumber run) {
    {
      std::lock_guard lock(mutex_);
      ended_.push_back(run);
    }
    changed_.notify_one();
  }

 private:
  // The calls of one run, in order.
  struct Run {
    explicit Run(const ObjectBrokerLimits& limits) : cpu_budget(limits.cpu_ns_per_s, limits.cpu_burst_ns) {}

    ObjectCaller caller;
    std::deque<ObjectTask> tasks;
    std::string name = random_hex(8);  // the names of writes are this prefix and a number
    std::uint64_t call_count = 0;
    bool has_written = false;       // whether the run may hold the write lock, or wait for it
    SteadyTime retry_at{};          // earliest time of the next step of the first task
    SteadyTime cpu_paused_until{};  // no step before this time, since the share of CPU time is used up
    std::uint32_t pause_ms = 0;
    TokenBucket cpu_budget;

    SteadyTime next_step_time() const { return std::max(retry_at, cpu_paused_until); }
  };

  // Charges the run for CPU time of this thread since `since_ns`.
  static void charge(Run& run, std::uint64_t since_ns) {
    const std::uint64_t now_ms = steady_now_us() / 1000;
    run.cpu_budget.consume(thread_cpu_ns() - since_ns, now_ms);
    if (const std::uint64_t ms = run.cpu_budget.empty_ms(now_ms); ms > 0)
      run.cpu_paused_until = std::chrono::steady_clock::now() + milliseconds(ms);
  }

  void serve() {
    while (receive_calls()) {
      if (!open_stores()) continue;
      for (auto& [number, run] : runs_) {
        if (stopping_) return;
        if (!run.tasks.empty() && run.next_step_time() <= std::chrono::steady_clock::now()) step(number, run);
      }
    }
  }

  // Waits until there is work. Returns false if the thread must end.
  bool receive_calls() {
    std::vector<RunNumber> ended;
    std::deque<BrokerCall> submitted;
    {
      std::unique_lock lock(mutex_);
      const auto has_input = [this] { return stopping_ || !submitted_.empty() || !ended_.empty(); };
      const auto step_time = next_step_time();
      waits_without_runs_ = runs_.empty();
      if (step_time) {
        changed_.wait_until(lock, *step_time, has_input);
      } else {
        changed_.wait(lock, has_input);
      }
      waits_without_runs_ = false;
      if (stopping_) return false;
      submitted.swap(submitted_);
      ended.swap(ended_);
    }
    for (BrokerCall& call : submitted) {
      Run& run = runs_.try_emplace(call.run, limits_).first->second;
      run.caller = {call.context, call.caller, std::move(call.claim)};
      const std::uint64_t since_ns = thread_cpu_ns();
      run.tasks.emplace_back(run.name + "-" + std::to_string(++run.call_count), call.json);
      charge(run, since_ns);
    }
    for (RunNumber number : ended) drop_run(number);
    return true;
  }

  std::optional<SteadyTime> next_step_time() const {
    std::optional<SteadyTime> first;
    for (const auto& [number, run] : runs_) {
      if (!run.tasks.empty()) first = std::min(first.value_or(run.next_step_time()), run.next_step_time());
    }
    return first;
  }

  bool open_stores() {
    if (objects_) return true;
    auto store = stores_.open();
    auto objects = stores_.open_objects();
    if (store && objects) {
      records_ = std::move(*store);
      objects_ = std::move(*objects);
      return true;
    }
    const Error error = store ? objects.error() : store.error();
    for (auto& [number, run] : runs_) {
      while (!run.tasks.empty()) {
        run.tasks.front().finish_with_error(error);
        deliver_answer(number, run);
      }
    }
    return false;
  }

  // Records a denied call like service/service_caller.h does. In a context without a record nothing is recorded.
  void record_refusal(const ObjectTask& task, const ObjectCaller& caller) {
    if (!task.refusal() || !task.refusal()->has_context_record) return;
    RefusalNote note;
    note.actor = caller.actor;
    note.action = to_string(task.refusal()->action);
    note.resource = task.refusal()->resource;
    note.access_list = task.refusal()->list;
    if (auto noted = records_->record_refusal(caller.context, note); !noted)
      log(LogLevel::warn, "worker", "context {}: a refusal was not recorded: {}", caller.context,
          noted.error().message);
  }

  void step(RunNumber number, Run& run) {
    const std::uint64_t since_ns = thread_cpu_ns();
    run_step(number, run);
    charge(run, since_ns);
  }

  void run_step(RunNumber number, Run& run) {
    ObjectTask& task = run.tasks.front();
    const auto state = task.step(*records_, *objects_, run.caller);
    run.has_written = run.has_written || task.may_write();
    switch (state) {
      case ObjectTask::State::done:
        record_refusal(task, run.caller);
        return deliver_answer(number, run);
      case ObjectTask::State::in_progress:
        run.pause_ms = 0;
        run.retry_at = {};
        return;
      case ObjectTask::State::lock_busy:
        return pause(run, limits_.lock_retry_ms, limits_.lock_retry_ms * 8);
      case ObjectTask::State::store_unavailable:
        return pause(run, limits_.store_retry_ms, limits_.store_retry_ms * 32);
    }
  }

  static void pause(Run& run, std::uint32_t first_ms, std::uint32_t max_ms) {
    run.pause_ms = std::clamp(run.pause_ms * 2, first_ms, max_ms);
    run.retry_at = std::chrono::steady_clock::now() + milliseconds(run.pause_ms);
  }

  // Removes the first call of the run and delivers its answer.
  void deliver_answer(RunNumber number, Run& run) {
    const ObjectTask task = std::move(run.tasks.front());
    run.tasks.pop_front();
    run.pause_ms = 0;
    run.retry_at = {};
    release_quota(number, 1, task.bytes());
    answer_(number, task.answer());
  }
  void release_quota(RunNumber number, std::size_t calls, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    calls_ -= calls;
    bytes_ -= bytes;
    const auto waiting = waiting_calls_.find(number);
    waiting->second -= calls;
    if (waiting->second == 0) waiting_calls_.erase(waiting);
  }

  void drop_run(RunNumber number) {
    const auto entry = runs_.find(number);
    if (entry == runs_.end()) return;
    Run& run = entry->second;
    std::size_t bytes = 0;
    for (const ObjectTask& task : run.tasks) bytes += task.bytes();
    if (!run.tasks.empty()) release_quota(number, run.tasks.size(), bytes);
    if (run.has_written && objects_) {
      // If the release fails, the end of the claim releases the write lock.
      if (auto released = objects_->release(run.caller.claim); !released) {
        log(LogLevel::info, "broker", "{}: its writer lock was not released yet: {}",
            append_trace_id(run.caller.claim.job_key, run.caller.claim.traceparent), released.error().message);
      }
      for (auto& [other, other_run] : runs_) other_run.retry_at = {};  // another run may be able to write now
    }
    runs_.erase(entry);
  }

  StoreFactory& stores_;
  const Answer& answer_;
  const ObjectBrokerLimits& limits_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopping_ = false;
  std::deque<BrokerCall> submitted_;
  std::vector<RunNumber> ended_;
  std::map<RunNumber, std::size_t> waiting_calls_;  // number of waiting calls by run
  std::size_t calls_ = 0, bytes_ = 0;               // sums of all runs
  bool waits_without_runs_ = false;                 // whether the thread waits for the first call of a run

  // The following members are used by the thread only.
  std::unique_ptr<Store> records_;  // to check rights
  std::unique_ptr<ObjectStore> objects_;
  std::map<RunNumber, Run> runs_;

  std::thread thread_;  // last, since the thread uses the other members
};

ObjectBroker::ObjectBroker(StoreFactory& stores, Answer answer, ObjectBrokerLimits limits)
    : stores_(stores), answer_(std::move(answer)), limits_(limits) {}
ObjectBroker::~ObjectBroker() = default;

Result<ObjectBroker::ContextStrand*> ObjectBroker::find_or_create_strand(Id context) {
  auto found = strands_.find(context);
  if (found == strands_.end()) {
    if (strands_.size() >= kMaxIdleStrands)
      std::erase_if(strands_, [](const auto& entry) { return entry.second->is_idle(); });
    auto strand = std::make_unique<ContextStrand>(stores_, answer_, limits_);
    MJ_CHECK(strand->start());
    found = strands_.emplace(context, std::move(strand)).first;
  }
  return found->second.get();
}

void ObjectBroker::submit(BrokerCall call) {
  Error error{Code::unavailable,
              "too many calls of this job, or of all jobs of the context, wait "
              "for their answers: await some before the next"};
  {
    std::lock_guard lock(mutex_);
    auto strand = find_or_create_strand(call.context);
    if (strand) contexts_[call.run] = call.context;
    if (strand && (*strand)->add(call)) return;
    if (!strand) error = std::move(strand).error();
  }
  answer_(call.run, build_error_answer(parse_object_call(call.json).id, error));
}

void ObjectBroker::end_run(RunNumber run) {
  std::lock_guard lock(mutex_);
  const auto found = contexts_.find(run);
  if (found == contexts_.end()) return;
  // A strand that has rejected all calls of the run may be gone.
  if (const auto strand = strands_.find(found->second); strand != strands_.end()) strand->second->end_run(run);
  contexts_.erase(found);
}

}  // namespace mycojobs
