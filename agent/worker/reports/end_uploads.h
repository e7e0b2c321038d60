// Uploads the artifacts of ended runs to the object storage (artifacts/bucket/artifact_bucket.h) before the ends of
// their jobs are reported. A run has no slot meanwhile. The agent keeps the lease of the job, so that no other agent
// runs it.
//
//   submit() --> save --> upload --> report --on_settled()--> the saved end is deleted
//                 |  ^       |  '--- after `timeout_ms`: report as `artifact_store`
//                 |  |       '--failed--> pause, which doubles up to a minute; the job shows the reason
//                 |  '------------------------' if the end could not be saved
//                 '--> mark: the store keeps the claim if the agent dies (DetailUpdate::is_end_saved)
//
// Ends are saved at once, on a strand of their disk, since all others are lost if the agent dies. At most
// kMaxParallelUploads jobs of a context are uploaded at a time, each on a strand of its own; the others wait here, so
// that they can be cancelled.
//
// After a crash, the next agent of the runner loads the saved ends (saved_ends.h) and continues. An end whose claim is
// no longer valid is dropped: the job was delivered again. Its objects do not affect the second delivery, since the
// record lists hashes; BucketSweep deletes those that the record does not list. A loop of base/loop_thread.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "artifacts/bucket/artifact_bucket.h"
#include "base/clock.h"
#include "base/loop_thread.h"
#include "base/mailbox.h"
#include "base/strands/mount_table.h"
#include "base/strands/strand_pool.h"
#include "store/record_store.h"
#include "worker/reports/saved_ends.h"
#include "worker/worker_types.h"

namespace mycojobs {

class ArtifactUploads final : public TimedLoop {
 public:
  struct Settings {
    std::vector<Id> contexts;
    Id runner = 0;
    std::string state_dir;
    std::uint64_t timeout_ms = 0;
  };
  struct Callbacks {  // thread-safe; must not block
    std::function<void(RunReport)> report;
    // Receives the claim of an end that a previous agent has saved. Its lease must be renewed from now on.
    std::function<void(RunNumber, const ClaimRef&)> on_adopted;
  };
  // The store must have no other user, and outlive this object.
  ArtifactUploads(RecordStore&, std::shared_ptr<const ArtifactBucket>, Settings, const Clock&, Callbacks,
                  std::shared_ptr<Metrics>);
  ~ArtifactUploads();

  // Returns whether the report is an end with artifacts.
  static bool has_artifacts(const RunReport&);

  // The following functions are thread-safe. Unknown runs are ignored.
  void submit(RunReport);                                 // REQUIRES: has_artifacts(); the receipt is complete
  void on_settled(std::span<const RunNumber>);            // the ends were stored or refused
  void on_stale(RunNumber run) { post(ClaimLost{run}); }  // the claim is not valid any more
  void on_cancelled(RunNumber run) { post(JobCancelled{run}); }
  // Number of ends that were submitted and not settled, and whose jobs need no slot: together they have at most
  // kMaxPendingBytes in memory.
  std::uint32_t slotless_count() const { return slotless_count_; }
  // Number of saved ends whose latest upload has failed.
  std::uint32_t failing_count() const { return failing_count_; }

  std::uint64_t run_once();  // Returns the time in ms until the next call.

 private:
  static constexpr std::size_t kMaxParallelUploads = 4;         // of one context
  static constexpr std::uint64_t kMaxPendingBytes = 64U << 20;  // without the copies that are being saved or reported

  using StopFlag = std::shared_ptr<std::atomic<bool>>;
  struct Upload {
    EndReport report;
    std::uint64_t started_unix_ms = 0;
    std::uint64_t bytes = 0;      // counted in pending_bytes_; 0: the job occupies a slot
    std::string store_name = {};  // of the saved end; empty until the first save
    bool needs_save = true;       // false after an attempt to save, until an upload fails
    bool is_saved = false, is_saving = false, is_uploading = false, is_cancelled = false;
    bool is_reported = false;    // the end was passed to the reporter
    bool is_dropped = false;     // the claim is not valid any more
    bool has_new_names = false;  // whether the names of the store were read again since a file was not found
    std::uint32_t failures = 0;
    std::uint64_t next_boot_ms = 0;
    std::string shown_reason = {};  // reason that the job shows
    StopFlag stop = std::make_shared<std::atomic<bool>>(false);
    // Hashes of the files that were uploaded. Used by the strand while is_uploading, and by the loop otherwise.
    std::shared_ptr<std::set<std::string>> uploaded = std::make_shared<std::set<std::string>>();
  };
  struct EndSubmitted {
    RunReport report;
    std::uint64_t bytes;
  };
  struct EndsLoaded {
    Id context;
    std::string store_name;
    std::vector<SavedEnd> ends;
  };
  struct EndSettled {
    RunNumber run;
  };
  struct ClaimLost {
    RunNumber run;
  };
  struct JobCancelled {
    RunNumber run;
  };
  struct EndSaved {
    RunNumber run;
    Result<void> result;
  };
  struct UploadFinished {
    RunNumber run;
    Result<void> result;
  };
  using Event = std::variant<EndSubmitted, EndsLoaded, EndSettled, ClaimLost, JobCancelled, EndSaved, UploadFinished>;
  struct StoreNames {
    std::vector<std::string> names;
    std::uint64_t read_boot_ms = 0;
  };

  void post(Event);
  void on(EndSubmitted&);
  void on(EndsLoaded&);
  void on(EndSettled&);
  void on(ClaimLost&);
  void on(JobCancelled&);
  void on(EndSaved&);
  void on(UploadFinished&);
  std::uint64_t count_slotless(const EndReport&);
  void load_saved_ends(Id context);
  const std::vector<std::string>* find_store_names(Id context);
  void advance(RunNumber, Upload&);
  std::uint64_t find_pause_ms(const Upload&) const;
  void save(RunNumber, Upload&, const std::string& store_name);
  void upload(RunNumber, Upload&, const std::vector<std::string>& store_names);
  void on_failed(RunNumber, Upload&, const Error&);
  void show_reason(RunNumber, Upload&, const std::string& reason);
  void report_end(RunNumber, Upload&);
  void report_failure(RunNumber, Upload&, const std::string& reason, const char* remark);
  void fail_end(Upload&, std::string detail, std::string error);
  bool has_timed_out(const Upload&) const;
  void erase(RunNumber);
  void post_to_disk(Id context, StrandPool::Work);
  void post_to_strand(const StrandPool::Strand&, StrandPool::Work);
  void publish_counts();

  RecordStore& store_;
  const std::shared_ptr<const ArtifactBucket> bucket_;
  const Settings settings_;
  const Clock& clock_;
  const Callbacks callbacks_;
  const std::shared_ptr<Metrics> metrics_;
  const SavedEnds saved_ends_;
  std::map<RunNumber, Upload> uploads_;
  std::map<Id, std::size_t> uploading_counts_;  // jobs of each context that are being uploaded
  std::map<Id, StoreNames> store_names_;
  std::set<Id> contexts_to_load_;  // the strand was not asked yet to load their saved ends
  std::minstd_rand random_{std::random_device{}()};
  std::atomic<std::uint32_t> pending_count_{0}, slotless_count_{0}, failing_count_{0};
  std::atomic<std::uint64_t> pending_bytes_{0};
  Mailbox<Event> events_;
  MountTable mounts_;
  bool has_missing_threads_ = false;
  StrandPool strands_;
};

}  // namespace mycojobs
