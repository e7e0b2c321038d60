#include "artifacts/logs/log_spool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "artifacts/logs/log_archive.h"
#include "artifacts/logs/log_record.h"
#include "artifacts/logs/spooled_log.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "model/artifact.h"
#include "model/output_gap.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::size_t kEntryOverheadBytes = 128;  // accounted in the queue in addition to the text
constexpr std::size_t kWriteBytes = 256U << 10;   // size of the buffer of records
constexpr std::uint64_t kMinSegmentBytes = 4096, kMaxSegmentBytes = 1U << 20;
constexpr std::uint64_t kSegmentsPerLog = 32;  // of a log that is shorter than 32 MiB

// Returns whether the next entry continues this entry, so that many short entries become one record.
bool can_append(const Log& entry, const Log& next) {
  constexpr std::size_t kMaxJoinedBytes = 8192;
  constexpr std::uint64_t kMaxJoinedMs = 20;
  return entry.stream == next.stream && entry.stream != LogStream::system && entry.size > 0 && next.size > 0 &&
         entry.seq + next.size == next.seq && entry.text.size() + next.text.size() <= kMaxJoinedBytes &&
         next.ts_ms <= entry.ts_ms + kMaxJoinedMs;
}

Result<void> write_segment_bytes(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return fail(Code::io, path + ": " + errno_text(errno));
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> create_folder_if_missing(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return fail(Code::io, path + ": " + errno_text(errno));
}

}  // namespace

// Writes the segments and the archive. Used under LogSpool::writer_mutex_.
class LogSpool::Writer {
 public:
  explicit Writer(const Settings& settings)
      : settings_(settings),
        folder_(settings.state_dir, settings.context),
        job_folder_(folder_.log_folder(settings.store_name, settings.job_key)),
        usage_(ArtifactUsage::of_logs(folder_, settings.store_name)),
        segment_bytes_(std::clamp(settings.max_bytes / kSegmentsPerLog, kMinSegmentBytes, kMaxSegmentBytes)) {}

  // After an error, the output is ignored. Adds a note for the first error.
  void write(const std::vector<Log>& entries, std::vector<std::string>& notes) {
    if (auto result = write_segments(entries); !result) stop_segments(result.error(), notes);
    if (!settings_.has_archive || has_archive_error_) return;
    if (auto result = write_archive(entries); !result) {
      has_archive_error_ = true;
      archive_.reset();
      notes.push_back(std::string(kArchiveName) + " is not kept: " + result.error().message);
    }
  }
  // Completes the archive and passes it to the sink.
  Result<void> store_archive(ArtifactSink& sink) {
    if (!archive_) return {};
    MJ_CHECK(archive_->finish());
    const Fd fd(::open(archive_->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) return fail(Code::io, archive_->path() + ": " + errno_text(errno));
    archive_.reset();
    if (!sink.open(kArchiveName, false)) return {};
    std::array<char, 65536> buffer{};
    for (ssize_t size = 0; (size = ::read(fd.get(), buffer.data(), buffer.size())) != 0;) {
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) return fail(Code::io, errno_text(errno));
      sink.write({buffer.data(), static_cast<std::size_t>(size)});
    }
    sink.close();
    return {};
  }
  void close() {
    end_segment();
    archive_.reset();
    archive_folder_.reset();
  }

 private:
  Result<void> write_segments(const std::vector<Log>& entries) {
    if (has_error_) return {};
    for (const Log& entry : entries) {
      if (entry.size == 0 || entry.stream == LogStream::system) continue;  // stored by the store, and not dropped there
      Log stored = entry;
      stored.seq += settings_.log_base;
      const std::uint64_t record_bytes = stored.text.size() + kMaxRecordHeadBytes;
      if (!segment_fd_ || last_bytes() + buffer_.size() + record_bytes > reserved_bytes_)
        MJ_CHECK(begin_segment(stored, std::max(segment_bytes_, record_bytes)));
      append_log_record(buffer_, stored);
      if (buffer_.size() >= kWriteBytes) MJ_CHECK(flush());
    }
    return flush();
  }
  std::uint64_t last_bytes() const { return segments_.empty() ? 0 : segments_.back().bytes; }
  Result<void> flush() {
    if (buffer_.empty()) return {};
    MJ_CHECK(write_segment_bytes(segment_fd_.get(), buffer_, segments_.back().path));
    segments_.back().bytes += buffer_.size();
    buffer_.clear();
    return {};
  }
  Result<void> begin_segment(const Log& first_entry, std::uint64_t bytes) {
    const std::uint64_t first_seq = first_entry.seq - first_entry.text.size() + 1;
    if (!std::exchange(is_folder_open_, true)) MJ_CHECK(open_folder(first_seq));
    MJ_CHECK(flush());
    end_segment();
    MJ_CHECK(reserve_segment(bytes));
    const std::string path = make_segment_path(job_folder_, first_seq);
    segment_fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!segment_fd_) return fail(Code::io, path + ": " + errno_text(errno));
    segments_.push_back({first_seq, 0, path});
    return {};
  }
  // Closes the last segment, and releases the quota that it has not used.
  void end_segment() {
    if (segment_fd_) release_quota(reserved_bytes_ - std::min(reserved_bytes_, accounted_artifact_bytes(last_bytes())));
    reserved_bytes_ = 0;
    segment_fd_.reset();
  }
  // Creates the folder of the job, or reads the segments of its earlier runs. Segments with higher numbers are of a log
  // that the store has lost.
  Result<void> open_folder(std::uint64_t first_seq) {
    MJ_CHECK(folder_.create(settings_.store_name));
    MJ_CHECK(create_folder_if_missing(job_folder_));
    segments_ = list_log_segments(job_folder_);
    while (!segments_.empty() && segments_.back().first_seq >= first_seq)
      MJ_CHECK(delete_segment(segments_.size() - 1));
    return {};
  }
  // Deletes segments from the middle of the log until there is space for a new one. The first half of max_bytes is
  // never deleted. If the quota is used up, the oldest segment behind this half makes space, too.
  Result<void> reserve_segment(std::uint64_t bytes) {
    std::uint64_t total_bytes = bytes;
    for (const LogSegment& segment : segments_) total_bytes += segment.bytes;
    while (total_bytes > settings_.max_bytes) {
      const std::size_t oldest = find_oldest_of_tail();
      if (oldest >= segments_.size()) break;
      total_bytes -= segments_[oldest].bytes;
      MJ_CHECK(delete_segment(oldest));
    }
    const Id caller = parse_job_caller(settings_.job_key);
    for (;;) {
      MJ_TRY(results, usage_.reserve(caller, {bytes}, settings_.quota));
      if (results.front() == ArtifactUsage::QuotaResult::accepted) {
        reserved_bytes_ = accounted_artifact_bytes(bytes);
        return {};
      }
      const std::size_t oldest = find_oldest_of_tail();
      if (oldest >= segments_.size()) return make_quota_error(results.front());
      MJ_CHECK(delete_segment(oldest));
    }
  }
  tl::unexpected<Error> make_quota_error(ArtifactUsage::QuotaResult result) const {
    const bool is_caller = result == ArtifactUsage::QuotaResult::caller_full;
    const std::uint64_t limit = is_caller ? settings_.quota.caller_bytes : settings_.quota.context_bytes;
    return fail(Code::io, fmt::format("the logs of its {} may have {} bytes on this host (quota.{}_artifact_bytes)",
                                      is_caller ? "caller" : "context", limit, is_caller ? "caller" : "context"));
  }
  // Returns the index of the first segment behind the first half of max_bytes.
  std::size_t find_oldest_of_tail() const {
    std::uint64_t head_bytes = 0;
    std::size_t index = 0;
    while (index < segments_.size() && head_bytes + segment_bytes_ <= settings_.max_bytes / 2)
      head_bytes += segments_[index++].bytes;
    return index;
  }
  Result<void> delete_segment(std::size_t index) {
    const LogSegment& segment = segments_[index];
    if (::unlink(segment.path.c_str()) != 0 && errno != ENOENT)
      return fail(Code::io, segment.path + ": " + errno_text(errno));
    release_quota(accounted_artifact_bytes(segment.bytes));
    segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(index));
    return {};
  }
  // After an error, ArtifactCleanup corrects the count.
  void release_quota(std::uint64_t bytes) const {
    (void)usage_.release_bytes(parse_job_caller(settings_.job_key), bytes);
  }
  // An incomplete record at the end of the segment is ignored by readers.
  void stop_segments(const Error& error, std::vector<std::string>& notes) {
    has_error_ = true;
    buffer_ = {};
    notes.push_back("the log is not kept on the disk of this host from here on, so its middle may be dropped: " +
                    error.message);
  }

  Result<void> write_archive(const std::vector<Log>& entries) {
    if (!archive_ && entries.empty()) return {};
    if (!archive_) {
      MJ_CHECK(folder_.create(settings_.store_name));
      MJ_TRY(folder, Spool::make(folder_.spool_folder()));
      archive_folder_ = std::make_unique<Spool>(std::move(folder));
      MJ_TRY(archive, LogArchive::create(archive_folder_->path() + '/' + kArchiveName, settings_.max_archive_bytes));
      archive_ = std::make_unique<LogArchive>(std::move(archive));
    }
    for (const Log& entry : entries) MJ_CHECK(archive_->write(entry.text));
    return {};
  }

  const Settings& settings_;
  const ArtifactFolder folder_;
  const std::string job_folder_;
  const ArtifactUsage usage_;
  const std::uint64_t segment_bytes_;
  bool has_error_ = false, has_archive_error_ = false, is_folder_open_ = false;
  std::vector<LogSegment> segments_;  // of all runs; the last one is being written
  Fd segment_fd_;                     // not open before the first record
  std::uint64_t reserved_bytes_ = 0;  // quota of the last segment
  std::string buffer_;                // records for the last segment
  std::unique_ptr<Spool> archive_folder_;
  std::unique_ptr<LogArchive> archive_;
};

LogSpool::LogSpool(Settings settings) : settings_(std::move(settings)) {}
LogSpool::~LogSpool() = default;

void LogSpool::add_entry(const Log& entry) {
  // Only the archive has the entries that the store does not drop.
  if (!settings_.has_archive && (entry.size == 0 || entry.stream == LogStream::system)) return;
  const std::lock_guard lock(queue_mutex_);
  const std::size_t bytes = entry.text.size() + kEntryOverheadBytes;
  is_used_ = true;
  if (queued_bytes_ + bytes > settings_.max_queued_bytes) {
    lost_bytes_ += entry.text.size();
    return;
  }
  if (lost_bytes_ > 0) {
    queue_.push_back(Log{entry.ts_ms, 0, LogStream::system, format_output_gap(lost_bytes_)});
    lost_bytes_ = 0;
  }
  if (!queue_.empty() && can_append(queue_.back(), entry)) {
    queued_bytes_ += entry.text.size();
    queue_.back().text += entry.text;
    queue_.back().size += entry.size;
    queue_.back().seq = entry.seq;
    return;
  }
  queued_bytes_ += bytes;
  queue_.push_back(entry);
}

std::optional<std::function<LogSpool::WriteResult()>> LogSpool::pop_write_task() {
  if (is_writing_) return std::nullopt;
  {
    const std::lock_guard lock(queue_mutex_);
    if (queue_.empty()) return std::nullopt;
  }
  is_writing_ = true;
  return [self = shared_from_this()] {
    WriteResult result;
    self->write_queued(result.notes);
    return result;
  };
}

std::uint64_t LogSpool::resume_at_ms(std::uint64_t boot_ms) {
  constexpr std::uint64_t kPauseMs = 5;
  {
    const std::lock_guard lock(queue_mutex_);
    if (queued_bytes_ <= settings_.max_queued_bytes / 2) return 0;
  }
  if (paused_since_ms_ == 0) paused_since_ms_ = boot_ms;
  return boot_ms < paused_since_ms_ + kMaxPauseMs ? boot_ms + kPauseMs : 0;
}

std::function<LogSpool::WriteResult()> LogSpool::make_close_task() {
  return [self = shared_from_this()] {
    WriteResult result;
    self->write_queued(result.notes);
    const std::lock_guard lock(self->writer_mutex_);
    if (self->writer_) self->writer_->close();
    self->writer_.reset();
    self->is_closed_ = true;
    return result;
  };
}

void LogSpool::write_queued(std::vector<std::string>& notes) {
  const std::lock_guard writer_lock(writer_mutex_);
  std::vector<Log> entries;
  std::size_t bytes = 0;
  bool reports_loss = false;
  {
    const std::lock_guard lock(queue_mutex_);
    entries = std::exchange(queue_, {});
    bytes = queued_bytes_;
    if (lost_bytes_ > 0) reports_loss = !std::exchange(has_reported_loss_, true);
  }
  if (reports_loss) notes.emplace_back("the disk of this host is too slow for the log, so its middle may be dropped");
  if (entries.empty() || is_closed_) return;
  if (!writer_) writer_ = std::make_unique<Writer>(settings_);
  writer_->write(entries, notes);
  const std::lock_guard lock(queue_mutex_);
  queued_bytes_ -= bytes;
}

void LogSpool::store_archive(ArtifactSink& sink) {
  std::vector<std::string> notes;
  write_queued(notes);
  const std::lock_guard lock(writer_mutex_);
  if (!writer_) return;
  if (auto result = writer_->store_archive(sink); !result) {
    log(LogLevel::error, "worker", "{}: {} is not kept: {}", settings_.job_key, kArchiveName, result.error().message);
    sink.report_dropped({kArchiveName, DropReason::disk, 0});
  }
}

}  // namespace mycojobs
