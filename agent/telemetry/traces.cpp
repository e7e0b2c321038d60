#include "telemetry/traces.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/thread.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxBatchSpans = 512;
constexpr milliseconds kBatchDelay{500};  // Maximum time that the first span of a batch waits for more spans.
constexpr milliseconds kRetryDelay{
    2000};  // Pause after a failed batch. New spans are queued while the queue has space.
constexpr milliseconds kFlushTimeout{500};  // Maximum time that the destructor waits until the queued spans are sent.

class NoTraces final : public Traces {
 public:
  bool is_enabled() const override { return false; }
  void add(Span /*span*/) override {}
};

class OtlpTraces final : public Traces {
 public:
  OtlpTraces(TraceSource source, SpanSender send, std::shared_ptr<Metrics> metrics)
      : source_(std::move(source)), sender_(std::move(send)), metrics_(std::move(metrics)) {}
  Result<void> start_sender() {
    MJ_TRY(thread, start_thread([this] { run_sender(); }));
    thread_ = std::move(thread);
    return {};
  }
  ~OtlpTraces() override {
    {
      std::unique_lock lock(mutex_);
      is_shutting_down_ = true;
      state_changed_.notify_all();
      if (thread_.joinable()) state_changed_.wait_for(lock, kFlushTimeout, [this] { return has_sender_ended_; });
    }
    cancel_send_ = true;
    if (thread_.joinable()) thread_.join();
  }

  bool is_enabled() const override { return true; }
  void add(Span span) override {
    std::unique_lock lock(mutex_);
    if (queue_.size() >= kMaxQueuedSpans) {
      lock.unlock();
      return count_spans("dropped", 1);
    }
    queue_.push_back(std::move(span));
    if (queue_.size() == 1 || queue_.size() == kMaxBatchSpans) state_changed_.notify_all();
  }

 private:
  void count_spans(const char* result, std::size_t spans) {
    metrics_->add(Metric::spans, {result}, static_cast<double>(spans));
  }
  // Waits for the first span, and then until the batch is full or kBatchDelay has passed. Returns an empty batch if the
  // object is being destroyed and the queue is empty.
  std::vector<Span> pop_batch() {
    std::unique_lock lock(mutex_);
    state_changed_.wait(lock, [this] { return is_shutting_down_ || !queue_.empty(); });
    state_changed_.wait_for(lock, kBatchDelay, [this] { return is_shutting_down_ || queue_.size() >= kMaxBatchSpans; });
    std::vector<Span> batch;
    while (!queue_.empty() && batch.size() < kMaxBatchSpans) {
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    return batch;
  }
  void run_sender() {
    bool is_failing = false;
    for (std::vector<Span> batch = pop_batch(); !batch.empty(); batch = pop_batch()) {
      const auto send_result = sender_(encode_otlp_request(source_, batch), cancel_send_);
      count_spans(send_result ? "exported" : "dropped", batch.size());
      if (!send_result && !is_failing)
        log(LogLevel::warn, "traces", "spans are dropped: {}", send_result.error().message);
      is_failing = !send_result;
      if (send_result) continue;
      std::unique_lock lock(mutex_);
      if (state_changed_.wait_for(lock, kRetryDelay, [this] { return is_shutting_down_; })) break;
    }
    const std::lock_guard lock(mutex_);
    if (!queue_.empty()) count_spans("dropped", queue_.size());
    has_sender_ended_ = true;
    state_changed_.notify_all();
  }

  const TraceSource source_;
  const SpanSender sender_;
  const std::shared_ptr<Metrics> metrics_;
  std::mutex mutex_;
  std::condition_variable state_changed_;
  std::deque<Span> queue_;
  bool is_shutting_down_ = false, has_sender_ended_ = false;
  std::atomic<bool> cancel_send_{false};
  std::thread thread_;  // The last member, since the thread uses all other members.
};

}  // namespace

std::shared_ptr<Traces> no_traces() { return std::make_shared<NoTraces>(); }

std::shared_ptr<Traces> start_traces(TraceSource source, SpanSender send, std::shared_ptr<Metrics> metrics) {
  auto traces = std::make_shared<OtlpTraces>(std::move(source), std::move(send), std::move(metrics));
  if (const auto start_result = traces->start_sender(); !start_result) {
    log(LogLevel::error, "traces", "no spans are sent: {}", start_result.error().message);
    return no_traces();
  }
  return traces;
}

std::uint64_t unix_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

void add_span(Traces& traces, const std::string& traceparent, std::string_view span_seed, Span span) {
  if (traceparent.empty() || !traces.is_enabled()) return;
  const auto parent = parse_traceparent(traceparent);
  if (!parent || !parent->sampled) return;
  span.trace_id = parent->trace_id;
  span.span_id = compute_span_id(parent->trace_id, span_seed, span.name);
  if (span.parent_id.empty()) span.parent_id = parent->span_id;
  traces.add(std::move(span));
}

}  // namespace mycojobs
