// Stores the log of one run on the disk of the agent while the run writes it. The thread that receives the output only
// queues it, and a thread for the disk (base/strands/strand_pool.h) writes it, since a disk can block.
//
//   RunOutput --add_entry--> queue --pop_write_task(), make_close_task()--> thread for the disk
//                              ^                                              |         |
//                              '---------------- on_write_done() <------------'         v
//                                                                     LogSpoolWriter, LogArchive
//
// The spool stores only the output that the store can drop: the output behind its head. So a job with little output has
// no files. The archive, if the policy requests it (log.full), has the complete output.
//
// A disk that hangs or is full does not delay the job for longer than a second: if the queue is full, output is
// dropped; after an error the disk is not used any more. Both are reported by a note for the log, and readers see the
// missing numbers as a gap. All queues that share a LogQueueBytes together are limited, too, since the queues of ended
// runs stay in memory until the disk answers.
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

// The number of bytes in the queues of several spools. Thread-safe.
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
    std::uint64_t max_bytes = 64ULL << 20;  // limit of all runs of the job; the middle beyond it is dropped
    ArtifactQuota quota;                    // limits of all logs of a caller, and of the context, on this host
    std::size_t max_queued_bytes = 4U << 20;
    std::shared_ptr<LogQueueBytes> all_queued_bytes = {};  // null: only max_queued_bytes applies
    bool has_archive = false;
    std::uint64_t max_archive_bytes = 0;  // compressed size
  };
  struct WriteResult {
    std::vector<std::string> notes;  // new lines for the log of the job
  };
  static constexpr const char* kArchiveName = "job.log.gz";  // name of the artifact with the complete log
  class ArchiveFile;  // the complete archive, a temporary file that is deleted with the object
  struct ArchiveResult {
    std::vector<std::string> notes = {};
    std::shared_ptr<const ArchiveFile> file = {};  // null without output, and if the archive has failed
    bool has_failed = false;
  };

  explicit LogSpool(Settings);
  ~LogSpool() override;

  // The next four functions are called by the thread of the run loop.
  void add_entry(const Log& entry) override;
  // Returns a function that writes the queued entries. Returns no value if nothing is queued, or if the result of the
  // previous function was not passed to on_write_done().
  std::optional<std::function<WriteResult()>> pop_write_task();
  void on_write_done() {
    is_writing_ = false;
    paused_since_ms_ = 0;
  }
  // Returns a function that writes the queued entries and completes the archive. REQUIRES: has_archive(), and the
  // output of the run has ended; called once.
  std::function<ArchiveResult()> make_archive_task();
  // Passes the archive to the sink as an artifact, or reports that it was dropped. Called by the thread for the
  // artifacts, which a hanging disk of the logs does not block.
  static void store_archive(const ArchiveResult&, const std::string& job_key, ArtifactSink&);
  // Returns a function that writes the queued entries and closes all files. REQUIRES: called once, as the last call
  // except abandon().
  std::function<WriteResult()> make_close_task();
  // Drops the queued entries and ignores further ones, because the disk does not answer. Does not wait for the disk.
  void abandon();

  // Returns the time until which the caller should not read more output, because the queue is half full; 0 means now.
  // If the disk has written nothing for kMaxPauseMs, the caller need not wait any more.
  std::uint64_t resume_at_ms(std::uint64_t boot_ms);
  static constexpr std::uint64_t kMaxPauseMs = 1000;

  // Returns true if make_close_task() must be called: something was queued.
  bool is_used() const { return is_used_; }
  bool has_archive() const { return settings_.has_archive; }

 private:
  class Writer;
  void write_queued(std::vector<std::string>& notes);
  // The next three functions REQUIRE queue_mutex_.
  bool try_add_bytes(std::size_t bytes);
  void queue_gap(std::uint64_t ts_ms);    // queues a line in the place of lost_bytes_, for the archive
  void remove_bytes(std::size_t& bytes);  // sets it to 0

  const Settings settings_;
  bool is_used_ = false, is_writing_ = false;  // used by the run loop only
  std::uint64_t paused_since_ms_ = 0;          // used by the run loop only; 0: the queue was not half full
  std::mutex queue_mutex_;
  // Guarded by queue_mutex_:
  std::vector<Log> queue_;
  std::size_t queued_bytes_ = 0, writing_bytes_ = 0;  // sizes of queue_ and of the entries that are being written
  std::uint64_t lost_bytes_ = 0;                      // dropped since the latest queued entry
  bool has_lost_ = false, has_reported_loss_ = false, is_abandoned_ = false;
  std::mutex writer_mutex_;  // held while the disk is used
  // Guarded by writer_mutex_:
  std::unique_ptr<Writer> writer_;  // null before the first entry and after the end
  bool is_closed_ = false;
};

}  // namespace mycojobs
