// Stores the log of one run on the disk of the agent while the run produces output. The thread that receives the output
// only queues the entries. A thread for the disk (base/strands/strand_pool.h) writes them, since a disk can block.
//
//   RunOutput --add_entry--> queue --pop_write_task(), make_close_task()--> thread for the disk
//                              ^                                              |         |
//                              '---------------- on_write_done() <------------'         v
//                                                                  LogSpool::Writer, LogArchive
//
// The store keeps the beginning of each log. The spool contains only the later output, which the store can drop, so a
// job with little output has no files. The archive contains the complete output, if the policy requests it (log.full).
//
// A disk that hangs or is full delays the job for at most one second. If the queue is full, the spool drops output.
// After an error, the spool does not use the disk any more. In both cases, a note is added to the log, and readers of
// the log detect a gap in the numbers. LogQueueBytes limits all queues of an agent together, since the queues of ended
// runs remain in memory until the disk answers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "artifacts/artifact_store.h"
#include "artifacts/artifact_usage.h"
#include "artifacts/logs/log_sink.h"
#include "model/artifact.h"

namespace mycojobs {

// Counts and limits the bytes in the queues of several spools. Thread-safe.
class LogQueueBytes {
 public:
  explicit LogQueueBytes(std::size_t max_bytes) : max_bytes_(max_bytes) {}
  // Returns false, and adds nothing, if the limit would be exceeded.
  bool try_add(std::size_t bytes) {
    if (bytes_.fetch_add(bytes) + bytes <= max_bytes_) return true;
    bytes_ -= bytes;
    return false;
  }
  void remove(std::size_t bytes) { bytes_ -= bytes; }

 private:
  const std::size_t max_bytes_;
  std::atomic<std::size_t> bytes_{0};
};

class LogSpool final : public LogSink, public std::enable_shared_from_this<LogSpool> {
 public:
  struct Settings {
    std::string state_dir;
    Id context = 0;
    std::string store_name;  // artifact_store_name() of the context
    std::string job_key;
    std::uint64_t run = 0;                  // ClaimedJob::epoch
    std::uint64_t log_base = 0;             // added to the numbers of the entries (ClaimedJob::log_base)
    std::uint64_t max_bytes = 64ULL << 20;  // limit of all runs of the job; beyond it, the spool drops the middle
    ArtifactQuota quota;                    // limits on this host: all logs of a caller, all logs of a context
    std::size_t max_queued_bytes = 4U << 20;
    std::shared_ptr<LogQueueBytes> all_queued_bytes = {};  // null: only max_queued_bytes applies
    bool has_archive = false;
    std::uint64_t max_archive_bytes = 0;  // compressed size
  };
  struct WriteResult {
    std::vector<std::string> notes;  // new lines for the log of the job
  };
  static constexpr const char* kArchiveName = "job.log.gz";  // name of the artifact with the complete log
  class ArchiveFile;  // a complete archive: a temporary file, which the destructor deletes
  struct ArchiveResult {
    std::vector<std::string> notes = {};
    std::shared_ptr<const ArchiveFile> file = {};  // null if the run had no output, or if has_failed
    bool has_failed = false;
  };

  explicit LogSpool(Settings);
  ~LogSpool() override;

  // add_entry(), pop_write_task(), on_write_done(), make_archive_task() and make_close_task() are called by the thread
  // of the run loop. The returned functions are called by the thread for the disk.
  void add_entry(const Log& entry) override;
  // Returns a function that writes the queued entries. Returns no value if the queue is empty, or if on_write_done()
  // was not called for the previous function.
  std::optional<std::function<WriteResult()>> pop_write_task();
  void on_write_done() {
    is_writing_ = false;
    paused_since_ms_ = 0;
  }
  // Returns a function that writes the queued entries and completes the archive. REQUIRES: has_archive(), and the
  // output of the run has ended; called once.
  std::function<ArchiveResult()> make_archive_task();
  // Passes the archive to the sink as an artifact, or reports to the sink that the archive was dropped. Called by the
  // thread for the artifacts, which can use another disk than the logs.
  static void store_archive(const ArchiveResult&, const std::string& job_key, ArtifactSink&);
  // Returns a function that writes the queued entries and closes all files. REQUIRES: called once, as the last call
  // except abandon().
  std::function<WriteResult()> make_close_task();
  // Drops the queued entries and ignores further entries, because the disk does not answer. Does not wait for the disk.
  void abandon();

  // Returns the time at which the caller should read more output, or 0 if the caller should not pause. The caller
  // pauses while the queue is more than half full, but not if the disk has written nothing for kMaxPauseMs.
  std::uint64_t resume_at_ms(std::uint64_t boot_ms);
  static constexpr std::uint64_t kMaxPauseMs = 1000;

  // Returns whether an entry was queued, so that make_close_task() must be called.
  bool is_used() const { return is_used_; }
  bool has_archive() const { return settings_.has_archive; }

 private:
  class Writer;
  void write_queued(std::vector<std::string>& notes);
  // try_add_bytes(), queue_gap() and reset_bytes() REQUIRE that queue_mutex_ is locked.
  bool try_add_bytes(std::size_t bytes);
  void queue_gap(std::uint64_t ts_ms);        // queues a line that replaces dropped_bytes_ in the archive
  void reset_bytes(std::size_t& byte_count);  // sets the count to 0, and releases the bytes in all_queued_bytes

  const Settings settings_;
  bool is_used_ = false, is_writing_ = false;  // used by the run loop only
  std::uint64_t paused_since_ms_ = 0;          // used by the run loop only; 0: the caller does not pause
  std::mutex queue_mutex_;
  // Guarded by queue_mutex_:
  std::vector<Log> queue_;
  std::size_t queued_bytes_ = 0, writing_bytes_ = 0;  // sizes of queue_, and of the entries in write_queued()
  std::uint64_t dropped_bytes_ = 0;  // bytes of output that were dropped after the last entry of queue_
  bool has_dropped_output_ = false, has_reported_drop_ = false, is_abandoned_ = false;
  std::mutex writer_mutex_;  // held while the disk is used
  // Guarded by writer_mutex_:
  std::unique_ptr<Writer> writer_;  // null before the first write and after the close task
  bool is_closed_ = false;
};

}  // namespace mycojobs
