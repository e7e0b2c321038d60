// Uploads the artifacts of ended runs to the object storage (artifacts/bucket/artifact_bucket.h), before the reporter
// stores the ends of the jobs. During an upload, the job occupies no slot, and the agent renews the lease of the job,
// so that no other agent runs the job.
//
//   submit() --> save --> upload --> report --on_settled()--> the saved end is deleted
//                 |  ^       |  '--- after `timeout_ms`: report the failure `artifact_store`
//                 |  |       '--failed--> pause, which doubles up to a minute; the record of the job shows the reason
//                 |  '------------------------' if the end could not be saved
//                 '--> mark: the store keeps the claim if the agent dies (DetailUpdate::is_end_saved)
//
// Each end is saved at once, on a strand of the disk: an end that is not saved is lost if the agent dies. At most
// kMaxParallelUploads jobs of a context are uploaded at the same time, each on a separate strand. Further uploads are
// started by the loop and not queued on strands, so that they can be cancelled.
//
// After a crash, the next agent of the runner loads the saved ends (saved_ends.h) and continues. If the claim of a
// saved end is not valid any more, the job was delivered again, and the end is dropped. The uploaded objects of the
// first delivery do not affect the second delivery, since the record of a job lists hashes. BucketSweep deletes the
// objects that no record lists. A loop of base/loop_thread.h.
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
#include "artifacts/store_name_cache.h"
#include "base/clock.h"
#include "base/loop_thread.h"
#include "base/mailbox.h"
#include "base/strands/mount_table.h"
#include "base/strands/strand_pool.h"
#include "store/record_store.h"
#include "worker/reports/saved_ends.h"
#include "worker/worker_types.h"

namespace mycojobs {

class EndUploads final : public TimedLoop {
 public:
  struct Settings {
    std::vector<Id> contexts;
    Id runner = 0;
    std::string state_dir;
    std::uint64_t timeout_ms = 0;
  };
  struct Callbacks {  // thread-safe; must not block
    std::function<void(RunReport)> report;
    // Receives the claim of an end that a previous agent has saved. The callee renews the lease of the claim.
    std::function<void(RunNumber, const ClaimRef&)> on_adopted;
  };
  // The store must have no other user, and outlive this object.
  EndUploads(RecordStore&, std::shared_ptr<const ArtifactBucket>, Settings, const Clock&, Callbacks,
             std::shared_ptr<Metrics>);
  ~EndUploads();

  // Returns whether the report is an end with artifacts.
  static bool has_artifacts(const RunReport&);

  // The following functions are thread-safe. Unknown runs are ignored.
  void submit(RunReport);                                 // REQUIRES: has_artifacts(); the receipt is complete
  void on_settled(std::span<const RunNumber>);            // the store has accepted or rejected the ends
  void on_stale(RunNumber run) { post(ClaimLost{run}); }  // the claim is not valid any more
  void on_cancelled(RunNumber run) { post(JobCancelled{run}); }
  // Returns the number of pending ends of jobs without a slot. An end is pending from submit() to on_settled(). If
  // the pending ends exceed kMaxPendingBytes of memory, the jobs of further ends occupy their slots until on_settled().
  std::uint32_t slotless_count() const { return slotless_count_; }
  // Returns the number of saved ends with a failed latest upload.
  std::uint32_t failing_count() const { return failing_count_; }

  std::uint64_t run_once();  // Returns the time in ms until the next call.

 private:
  static constexpr std::size_t kMaxParallelUploads = 4;  // jobs of one context
  static constexpr std::uint64_t kMaxPendingBytes = 64U
                                                    << 20;  // without the temporary copies of running tasks and reports

  using StopFlag = std::shared_ptr<std::atomic<bool>>;
  struct Upload {
    EndReport report;
    std::uint64_t started_unix_ms = 0;
    std::uint64_t bytes = 0;      // size that is counted in pending_bytes_; 0: the job occupies a slot
    std::string store_name = {};  // argument of SavedEnds::save(); empty until the first save
    bool needs_save = true;       // false after an attempt to save, until an upload fails
    bool is_saved = false, is_saving = false, is_uploading = false, is_cancelled = false;
    bool is_reported = false;          // the end was passed to the reporter
    bool is_dropped = false;           // the claim is not valid any more
    bool has_refreshed_names = false;  // the names of the store were read again after a missing file
    std::uint32_t failures = 0;
    std::uint64_t next_boot_ms = 0;
    std::string shown_reason = {};  // reason for the delay in the record of the job
    StopFlag stop = std::make_shared<std::atomic<bool>>(false);
    // Hashes of the uploaded files. Used by the strand while is_uploading is true, and by the loop otherwise.
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

  void post(Event);
  void on(EndSubmitted&);
  void on(EndsLoaded&);
  void on(EndSettled&);
  void on(ClaimLost&);
  void on(JobCancelled&);
  void on(EndSaved&);
  void on(UploadFinished&);
  std::uint64_t add_slotless(const EndReport&);
  void load_saved_ends(Id context);
  void advance(RunNumber, Upload&);
  std::uint64_t compute_pause_ms(const Upload&) const;
  void save(RunNumber, Upload&, const std::string& store_name);
  void upload(RunNumber, Upload&, const std::vector<std::string>& store_names);
  void on_failed(RunNumber, Upload&, const Error&);
  void show_reason(RunNumber, Upload&, const std::string& reason);
  void report_end(RunNumber, Upload&);
  void report_failure(RunNumber, Upload&, const std::string& reason, const char* remark);
  void set_failure(Upload&, std::string detail, std::string error);
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
  std::map<Id, std::size_t> uploading_counts_;  // number of running uploads by context
  StoreNameCache store_names_;
  std::set<Id> contexts_to_load_;  // contexts for which the loading of the saved ends was not started yet
  std::minstd_rand random_{std::random_device{}()};
  std::atomic<std::uint32_t> pending_count_{0}, slotless_count_{0}, failing_count_{0};
  std::atomic<std::uint64_t> pending_bytes_{0};
  Mailbox<Event> events_;
  MountTable mounts_;
  bool has_missing_threads_ = false;
  StrandPool strands_;
};

}  // namespace mycojobs
