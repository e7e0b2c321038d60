#include "worker/logs/log_export.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"
#include "model/trace_context.h"
#include "text/json.h"
#include "text/timestamp.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kStandardOutput = "stdout";
constexpr milliseconds kMaxShutdownTime{1000}, kRetryPause{1000};
// Assumed size of an entry in memory in addition to its text.
constexpr std::size_t kQueueEntryBytes = 128;

std::string to_text(LogStream stream) {
  return stream == LogStream::out ? "stdout" : stream == LogStream::err ? "stderr" : "agent";
}

}  // namespace

// The queue and the thread that empties it. Thread-safe.
class LogExport::Writer {
 public:
  explicit Writer(std::string target) : target_(std::move(target)) {}

  // Queues an entry of the run that `run_fields` describes, or counts its bytes as dropped.
  void add(const std::shared_ptr<const nlohmann::json>& run_fields, const Log& entry) {
    const std::lock_guard lock(mutex_);
    if (queued_bytes_ + entry.text.size() + kQueueEntryBytes > kMaxQueuedBytes) {
      dropped_bytes_ += entry.text.size();
      return;
    }
    queued_bytes_ += entry.text.size() + kQueueEntryBytes;
    queue_.push_back({run_fields, entry});
    state_changed_.notify_one();
  }
  // Writes entries until end() was called and the queue is empty.
  void run() {
    for (std::string lines = pop_lines(); !lines.empty(); lines = pop_lines()) {
      Result<void> written = write_lines(lines);
      for (; !written && !is_abandoned(); written = write_lines(lines)) {
        if (!std::exchange(is_failing_, true))
          log(LogLevel::warn, "worker", "job.log_export: lines wait: {}", written.error().message);
        std::unique_lock lock(mutex_);
        state_changed_.wait_for(lock, kRetryPause, [this] { return is_ending_; });
        if (is_ending_) break;
      }
      is_failing_ = !written;
    }
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    state_changed_.notify_all();
  }
  // Makes run() return. Waits for it at most kMaxShutdownTime, and returns false if it has not returned.
  bool end() {
    std::unique_lock lock(mutex_);
    is_ending_ = true;
    state_changed_.notify_all();
    const bool has_ended = state_changed_.wait_for(lock, kMaxShutdownTime, [this] { return has_ended_; });
    is_abandoned_ = true;
    return has_ended;
  }
  std::thread thread;

 private:
  struct QueuedEntry {
    std::shared_ptr<const nlohmann::json> run_fields;
    Log entry;
  };
  bool is_abandoned() {
    const std::lock_guard lock(mutex_);
    return is_abandoned_;
  }

  // Waits for entries, and returns the lines of those of the same day. Empty after end(), if the queue is empty.
  std::string pop_lines() {
    constexpr std::size_t kMaxBatchEntries = 512;
    std::unique_lock lock(mutex_);
    state_changed_.wait(lock, [this] { return is_ending_ || !queue_.empty(); });
    const std::uint64_t dropped_bytes = std::exchange(dropped_bytes_, 0);
    std::deque<QueuedEntry> batch;
    day_ = queue_.empty() ? day_ : get_day(queue_.front().entry);
    while (!queue_.empty() && batch.size() < kMaxBatchEntries && get_day(queue_.front().entry) == day_) {
      queued_bytes_ -= queue_.front().entry.text.size() + kQueueEntryBytes;
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    lock.unlock();
    std::string lines;
    for (const QueuedEntry& queued : batch) append_lines(lines, queued);
    if (dropped_bytes > 0 && !batch.empty()) {
      lines +=
          dump_json({{"time", format_utc_time_ms(batch.back().entry.ts_ms)}, {"dropped_bytes", dropped_bytes}}) + '\n';
      log(LogLevel::warn, "worker", "job.log_export: {} bytes of output were dropped: {} is too slow", dropped_bytes,
          target_);
    }
    return lines;
  }
  static std::string get_day(const Log& entry) { return format_utc_time_ms(entry.ts_ms).substr(0, 10); }
  static void append_lines(std::string& lines, const QueuedEntry& queued) {
    nlohmann::json object = *queued.run_fields;
    object["time"] = format_utc_time_ms(queued.entry.ts_ms);
    object["stream"] = to_text(queued.entry.stream);
    std::string_view text = queued.entry.text;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      object["text"] = text.substr(0, end);
      if (end == text.npos) object["partial"] = true;
      lines += dump_json(object) + '\n';
      text.remove_prefix(end == text.npos ? text.size() : end + 1);
    }
  }

  Result<void> write_lines(std::string& lines) {
    if (target_ == kStandardOutput) return write_all(STDOUT_FILENO, lines, PIPE_BUF);
    // The file is opened for each batch, so that it can be moved or deleted at any time.
    const std::string path = target_ + "/jobs-" + day_ + ".jsonl";
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0640));
    if (!file) return fail(Code::io, path + ": " + errno_text(errno));
    return write_all(file.get(), lines, SIZE_MAX);
  }
  // Writes the lines in calls of at most max_bytes, and removes the written part from them. A pipe that is ready
  // accepts PIPE_BUF bytes without waiting for its reader.
  Result<void> write_all(int fd, std::string& lines, std::size_t max_bytes) {
    std::size_t written = 0;
    Result<void> result;
    while (written < lines.size()) {
      pollfd request{fd, POLLOUT, 0};
      if (::poll(&request, 1, 100) <= 0) {
        if (is_abandoned()) break;
        continue;
      }
      const ssize_t count = ::write(fd, lines.data() + written, std::min(lines.size() - written, max_bytes));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        result = fail(Code::io, target_ + ": " + errno_text(errno));
        break;
      }
      written += static_cast<std::size_t>(count);
    }
    lines.erase(0, written);
    return result;
  }

  const std::string target_;
  std::string day_;          // day of the lines that pop_lines() returned last; used by the thread only
  bool is_failing_ = false;  // used by the thread only
  std::mutex mutex_;
  std::condition_variable state_changed_;
  std::deque<QueuedEntry> queue_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t dropped_bytes_ = 0;
  bool is_ending_ = false, has_ended_ = false, is_abandoned_ = false;
};

class LogExport::Sink final : public LogSink {
 public:
  Sink(std::shared_ptr<Writer> writer, std::shared_ptr<const nlohmann::json> run_fields)
      : writer_(std::move(writer)), run_fields_(std::move(run_fields)) {}
  void add_entry(const Log& entry) override { writer_->add(run_fields_, entry); }

 private:
  const std::shared_ptr<Writer> writer_;
  const std::shared_ptr<const nlohmann::json> run_fields_;
};

Result<std::shared_ptr<LogExport>> LogExport::start(const std::string& target) {
  if (target != kStandardOutput) {
    if (!target.starts_with('/'))
      return fail(Code::invalid, "job.log_export: \"" + target + "\" is neither stdout nor the whole path of a folder");
    if (::access(target.c_str(), W_OK | X_OK) != 0)
      return fail(Code::invalid, "job.log_export: " + target + ": " + errno_text(errno) +
                                     ": create the folder, and let the user of the agent write to it");
  }
  auto writer = std::make_shared<Writer>(target);
  MJ_TRY(thread, start_thread([writer] { writer->run(); }, "log export"));
  writer->thread = std::move(thread);
  return std::shared_ptr<LogExport>(new LogExport(std::move(writer)));
}

LogExport::~LogExport() { writer_->end() ? writer_->thread.join() : writer_->thread.detach(); }

std::shared_ptr<LogSink> LogExport::make_sink(const ExportedRun& run) {
  nlohmann::json fields{{"context", run.context},
                        {"job", run.job_key},
                        {"attempt", run.attempt},
                        {"runner", run.runner},
                        {"claim_id", run.claim_id}};
  if (run.flow > 0) fields["flow"] = run.flow;
  if (run.flow > 0) fields["node"] = run.node;
  if (const auto trace = parse_traceparent(run.traceparent)) {
    fields["trace_id"] = trace->trace_id;
    fields["span_id"] = trace->span_id;
  }
  return std::make_shared<Sink>(writer_, std::make_shared<const nlohmann::json>(std::move(fields)));
}

}  // namespace mycojobs
