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

constexpr std::size_t kBatch = 512;
constexpr milliseconds kGather{500};  // wait for further spans of a batch
constexpr milliseconds kAgain{2000};  // pause after a failed batch; new spans wait or are dropped
constexpr milliseconds kLastWords{500};

class NoTraces final : public Traces {
 public:
  bool wanted() const override { return false; }
  void add(Span /*span*/) override {}
};

class SendingTraces final : public Traces {
 public:
  SendingTraces(TraceSource source, SendSpans send, std::shared_ptr<Metrics> metrics)
      : source_(std::move(source)), send_(std::move(send)), metrics_(std::move(metrics)) {}
  Result<void> begin() {
    MJ_TRY(thread, start_thread([this] { loop(); }));
    thread_ = std::move(thread);
    return {};
  }
  ~SendingTraces() override {
    {
      std::unique_lock lock(mutex_);
      leaving_ = true;
      changed_.notify_all();
      if (thread_.joinable()) changed_.wait_for(lock, kLastWords, [this] { return over_; });
    }
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  bool wanted() const override { return true; }
  void add(Span span) override {
    std::unique_lock lock(mutex_);
    if (waiting_.size() >= kMaxWaiting) {
      lock.unlock();
      return count("dropped", 1);
    }
    waiting_.push_back(std::move(span));
    if (waiting_.size() == 1 || waiting_.size() == kBatch) changed_.notify_all();
  }

 private:
  void count(const char* result, std::size_t spans) {
    metrics_->add(Metric::spans, {result}, static_cast<double>(spans));
  }
  // Waits for spans, and a short time for more. Empty: the object is being destroyed and no spans are left.
  std::vector<Span> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return leaving_ || !waiting_.empty(); });
    changed_.wait_for(lock, kGather, [this] { return leaving_ || waiting_.size() >= kBatch; });
    std::vector<Span> batch;
    while (!waiting_.empty() && batch.size() < kBatch) {
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    return batch;
  }
  void loop() {
    bool failing = false;
    for (std::vector<Span> batch = next(); !batch.empty(); batch = next()) {
      const auto sent = send_(otlp_json(source_, batch), stop_);
      count(sent ? "exported" : "dropped", batch.size());
      if (!sent && !failing) log(LogLevel::warn, "traces", "spans are dropped: {}", sent.error().message);
      failing = !sent;
      if (sent) continue;
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kAgain, [this] { return leaving_; })) break;
    }
    const std::lock_guard lock(mutex_);
    if (!waiting_.empty()) count("dropped", waiting_.size());
    over_ = true;
    changed_.notify_all();
  }

  const TraceSource source_;
  const SendSpans send_;
  const std::shared_ptr<Metrics> metrics_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Span> waiting_;
  bool leaving_ = false, over_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last member, since the thread uses all others
};

}  // namespace

std::shared_ptr<Traces> no_traces() { return std::make_shared<NoTraces>(); }

std::shared_ptr<Traces> start_traces(TraceSource source, SendSpans send, std::shared_ptr<Metrics> metrics) {
  auto traces = std::make_shared<SendingTraces>(std::move(source), std::move(send), std::move(metrics));
  if (const auto start_result = traces->begin(); !start_result) {
    log(LogLevel::error, "traces", "no spans are sent: {}", start_result.error().message);
    return no_traces();
  }
  return traces;
}

std::uint64_t unix_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

void add_span(Traces& traces, const std::string& traceparent, std::string_view of, Span span) {
  if (traceparent.empty() || !traces.wanted()) return;
  const auto parent = parse_traceparent(traceparent);
  if (!parent || !parent->sampled) return;
  span.trace_id = parent->trace_id;
  span.span_id = span_id_of(parent->trace_id, of, span.name);
  if (span.parent_id.empty()) span.parent_id = parent->span_id;
  traces.add(std::move(span));
}

}  // namespace mycojobs
