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

constexpr std::size_t kEntryOverheadBytes = 128;  // counted for each queued entry in addition to its text
constexpr std::size_t kWriteBytes = 256U << 10;   // size of Writer::buffer_ after which it is written
constexpr std::uint64_t kMinSegmentBytes = 4096, kMaxSegmentBytes = 1U << 20;
constexpr std::uint64_t kSegmentsPerLog = 32;  // for a max_bytes of 128 KiB to 32 MiB

// Returns whether the text of `next` may be appended to `entry`, so that many short entries become one record.
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

class LogSpool::ArchiveFile {
 public:
  ArchiveFile(std::unique_ptr<Spool> folder, std::string path) : folder_(std::move(folder)), path_(std::move(path)) {}
  // Error io: the file cannot be opened. If a later read fails, the sink drops the incomplete artifact.
  Result<void> store(ArtifactSink& sink) const {
    const Fd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) return fail(Code::io, path_ + ": " + errno_text(errno));
    if (!sink.open(kArchiveName, false)) return {};
    std::array<char, 65536> buffer{};
    for (ssize_t size = 0; (size = ::read(fd.get(), buffer.data(), buffer.size())) != 0;) {
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) return log(LogLevel::error, "worker", "{}: {}", path_, errno_text(errno)), Result<void>();
      sink.write({buffer.data(), static_cast<std::size_t>(size)});
    }
    sink.close();
    return {};
  }

 private:
  std::unique_ptr<Spool> folder_;
  std::string path_;
};

// Writes the segments and the archive. Used under LogSpool::writer_mutex_.
class LogSpool::Writer {
 public:
  explicit Writer(const Settings& settings)
      : settings_(settings),
        folder_(settings.state_dir, settings.context),
        job_folder_(folder_.log_folder(settings.store_name, settings.job_key)),
        usage_(ArtifactUsage::of_logs(folder_, settings.store_name)),
        segment_bytes_(std::clamp(settings.max_bytes / kSegmentsPerLog, kMinSegmentBytes, kMaxSegmentBytes)) {}

  // Writes the entries to the segments and to the archive. After an error, the segments or the archive ignore all
  // entries. Adds a note for the first error of each.
  void write(const std::vector<Log>& entries, std::vector<std::string>& notes) {
    if (auto result = write_segments(entries); !result) stop_segments(result.error(), notes);
    if (!settings_.has_archive || has_archive_error_ || is_archive_complete_) return;
    if (auto result = write_archive(entries); !result) fail_archive(result.error(), notes);
  }
  ArchiveResult finish_archive() {
    ArchiveResult result;
    is_archive_complete_ = true;  // later entries, such as the notes of the close task, are ignored
    if (archive_) {
      if (auto finished = archive_->finish(); !finished) fail_archive(finished.error(), result.notes);
    }
    result.has_failed = has_archive_error_;
    if (!archive_) return result;
    const std::string path = archive_->path();
    archive_.reset();
    result.file = std::make_shared<const ArchiveFile>(std::move(archive_folder_), path);
    return result;
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
      if (entry.size == 0 || entry.stream == LogStream::system) continue;  // the store never drops these entries
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
    if (!std::exchange(is_folder_open_, true)) MJ_CHECK(open_folder());
    MJ_CHECK(flush());
    end_segment();
    MJ_CHECK(reserve_segment(bytes));
    const std::string path = make_segment_path(job_folder_, settings_.run, first_seq);
    segment_fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!segment_fd_) {
      const std::string reason = errno_text(errno);
      release_quota(std::exchange(reserved_bytes_, 0));
      return fail(Code::io, path + ": " + reason);
    }
    segments_.push_back({settings_.run, first_seq, 0, path});
    return {};
  }
  // Closes the last segment, and releases the quota that it has not used.
  void end_segment() {
    if (segment_fd_) release_quota(reserved_bytes_ - std::min(reserved_bytes_, accounted_artifact_bytes(last_bytes())));
    reserved_bytes_ = 0;
    segment_fd_.reset();
  }
  // Creates the folder of the job, or reads the segments of its earlier runs.
  Result<void> open_folder() {
    MJ_CHECK(folder_.create(settings_.store_name));
    MJ_CHECK(create_folder_if_missing(job_folder_));
    segments_ = list_log_segments(job_folder_);
    std::erase_if(segments_, [&](const LogSegment& segment) { return segment.run > settings_.run; });
    return {};
  }
  // Reserves quota for a new segment, and deletes segments from the middle of the log until max_bytes and the quota
  // permit the segment. The first half of max_bytes is never deleted.
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
  // Returns the index of the first segment after the first half of max_bytes.
  std::size_t find_oldest_of_tail() const {
    std::uint64_t head_bytes = 0;
    std::size_t index = 0;
    while (index < segments_.size() && head_bytes + segment_bytes_ <= settings_.max_bytes / 2)
      head_bytes += segments_[index++].bytes;
    return index;
  }
  Result<void> delete_segment(std::size_t index) {
    const LogSegment& segment = segments_[index];
    const bool is_deleted = ::unlink(segment.path.c_str()) == 0;
    if (!is_deleted && errno != ENOENT) return fail(Code::io, segment.path + ": " + errno_text(errno));
    if (is_deleted)
      release_quota(accounted_artifact_bytes(
          segment.bytes));  // otherwise another run has deleted the file and released its quota
    segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(index));
    return {};
  }
  // Errors are ignored, since ArtifactCleanup corrects the count later.
  void release_quota(std::uint64_t bytes) const {
    (void)usage_.release_bytes(parse_job_caller(settings_.job_key), bytes);
  }
  void fail_archive(const Error& error, std::vector<std::string>& notes) {
    has_archive_error_ = true;
    archive_.reset();
    notes.push_back(std::string(kArchiveName) + " is not kept: " + error.message);
  }
  // Ends the segments of this run after an error. Readers ignore an incomplete record at the end of the last segment.
  void stop_segments(const Error& error, std::vector<std::string>& notes) {
    has_error_ = true;
    buffer_ = {};
    mark_log_stopped(job_folder_, settings_.run);
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
  bool has_error_ = false, has_archive_error_ = false, is_archive_complete_ = false, is_folder_open_ = false;
  std::vector<LogSegment> segments_;  // segments of all runs of the job; the last segment is open
  Fd segment_fd_;                     // the last segment; not open before the first record
  std::uint64_t reserved_bytes_ = 0;  // quota of the last segment
  std::string buffer_;                // records for the last segment
  std::unique_ptr<Spool> archive_folder_;
  std::unique_ptr<LogArchive> archive_;
};

LogSpool::LogSpool(Settings settings) : settings_(std::move(settings)) {}
LogSpool::~LogSpool() {
  reset_bytes(queued_bytes_);
  reset_bytes(writing_bytes_);
}

bool LogSpool::try_add_bytes(std::size_t bytes) {
  if (queued_bytes_ + writing_bytes_ + bytes > settings_.max_queued_bytes) return false;
  if (settings_.all_queued_bytes && !settings_.all_queued_bytes->try_add(bytes)) return false;
  queued_bytes_ += bytes;
  return true;
}

void LogSpool::reset_bytes(std::size_t& byte_count) {
  if (settings_.all_queued_bytes) settings_.all_queued_bytes->remove(byte_count);
  byte_count = 0;
}

void LogSpool::queue_gap(std::uint64_t ts_ms) {
  if (dropped_bytes_ == 0) return;
  queue_.push_back(Log{ts_ms, 0, LogStream::system, format_output_gap(std::exchange(dropped_bytes_, 0))});
}

void LogSpool::add_entry(const Log& entry) {
  // These entries are only for the archive, since the store never drops them.
  if (!settings_.has_archive && (entry.size == 0 || entry.stream == LogStream::system)) return;
  const std::lock_guard lock(queue_mutex_);
  if (is_abandoned_) return;
  is_used_ = true;
  if (!try_add_bytes(entry.text.size() + kEntryOverheadBytes)) {
    dropped_bytes_ += entry.text.size();
    has_dropped_output_ = true;
    return;
  }
  queue_gap(entry.ts_ms);
  if (!queue_.empty() && can_append(queue_.back(), entry)) {
    queued_bytes_ -= kEntryOverheadBytes;
    if (settings_.all_queued_bytes) settings_.all_queued_bytes->remove(kEntryOverheadBytes);
    queue_.back().text += entry.text;
    queue_.back().size += entry.size;
    queue_.back().seq = entry.seq;
    return;
  }
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
    if (queued_bytes_ + writing_bytes_ <= settings_.max_queued_bytes / 2) return 0;
  }
  if (paused_since_ms_ == 0) paused_since_ms_ = boot_ms;
  return boot_ms < paused_since_ms_ + kMaxPauseMs ? boot_ms + kPauseMs : 0;
}

std::function<LogSpool::ArchiveResult()> LogSpool::make_archive_task() {
  return [self = shared_from_this()] {
    std::vector<std::string> notes;
    self->write_queued(notes);
    ArchiveResult result;
    const std::lock_guard lock(self->writer_mutex_);
    if (self->writer_) result = self->writer_->finish_archive();
    result.notes.insert(result.notes.begin(), notes.begin(), notes.end());
    return result;
  };
}

void LogSpool::store_archive(const ArchiveResult& archive, const std::string& job_key, ArtifactSink& sink) {
  if (archive.has_failed) return sink.report_dropped({kArchiveName, DropReason::disk, 0});
  if (!archive.file) return;
  if (auto result = archive.file->store(sink); !result) {
    log(LogLevel::error, "worker", "{}: {} is not kept: {}", job_key, kArchiveName, result.error().message);
    sink.report_dropped({kArchiveName, DropReason::disk, 0});
  }
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

void LogSpool::abandon() {
  std::vector<Log> dropped_entries;  // destroyed while the mutex is not held
  const std::lock_guard lock(queue_mutex_);
  is_abandoned_ = true;
  dropped_entries.swap(queue_);
  reset_bytes(queued_bytes_);
}

void LogSpool::write_queued(std::vector<std::string>& notes) {
  const std::lock_guard writer_lock(writer_mutex_);
  std::vector<Log> entries;
  bool adds_note = false;
  {
    const std::lock_guard lock(queue_mutex_);
    queue_gap(queue_.empty() ? 0 : queue_.back().ts_ms);
    entries = std::exchange(queue_, {});
    writing_bytes_ = std::exchange(queued_bytes_, 0);
    if (has_dropped_output_) adds_note = !std::exchange(has_reported_drop_, true);
  }
  if (adds_note) notes.emplace_back("the disk of this host is too slow for the log, so its middle may be dropped");
  if (!entries.empty() && !is_closed_) {
    if (!writer_) writer_ = std::make_unique<Writer>(settings_);
    writer_->write(entries, notes);
  }
  const std::lock_guard lock(queue_mutex_);
  reset_bytes(writing_bytes_);
}

}  // namespace mycojobs
