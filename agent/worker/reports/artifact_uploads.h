// Uploads the artifacts of ended runs to the object storage (artifacts/bucket/artifact_bucket.h) before the ends of
// their jobs are reported. A run has no slot meanwhile. The agent keeps the lease of the job, so that no other agent
// runs it.
//
//   submit() --> save --> upload --> report --on_settled()--> the saved end is deleted
//                  |        ^  |
//                  |        |  '--failed--> pause, which doubles up to a minute; the job shows the reason
//                  |        '-----'    '--- after `timeout_ms`: report as `artifact_store`
//                  '--> mark: the store keeps the claim if the agent dies (DetailUpdate::is_end_saved)
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
  // Number of ends that were submitted and not settled.
  std::uint32_t pending_count() const { return pending_count_; }
  // Those of them whose latest upload has failed.
  std::uint32_t failing_count() const { return failing_count_; }

  std::uint64_t run_once();  // Returns the time in ms until the next call.

 private:
  using StopFlag = std::shared_ptr<std::atomic<bool>>;
  struct Upload {
    EndReport report;
    std::uint64_t started_unix_ms = 0;
    std::string store_name = {};  // empty until it was read from the store
    bool is_saved = false, is_working = false, is_cancelled = false;
    bool is_reported = false;  // the end was passed to the reporter
    bool is_dropped = false;   // erased when the strand has ended its work
    std::uint32_t failures = 0;
    std::uint64_t next_boot_ms = 0;
    std::string shown_reason = {};  // reason that the job shows
    StopFlag stop = std::make_shared<std::atomic<bool>>(false);
    // Hashes of the files that were uploaded. Used by the strand while is_working, and by the loop otherwise.
    std::shared_ptr<std::set<std::string>> uploaded = std::make_shared<std::set<std::string>>();
  };
  struct EndSubmitted {
    RunReport report;
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
  using Event = std::variant<EndSubmitted, EndSettled, ClaimLost, JobCancelled, EndSaved, UploadFinished>;

  void post(Event);
  void on(EndSubmitted&);
  void on(EndSettled&);
  void on(ClaimLost&);
  void on(JobCancelled&);
  void on(EndSaved&);
  void on(UploadFinished&);
  void load_saved_ends(Id context);
  const std::vector<std::string>* find_store_names(Id context);
  void advance(RunNumber, Upload&);
  void save(RunNumber, Upload&);
  void upload(RunNumber, Upload&);
  void on_failed(RunNumber, Upload&, const Error&);
  void show_reason(RunNumber, Upload&, const std::string& reason);
  void report_end(RunNumber, Upload&);
  void fail_end(Upload&, std::string detail, std::string error);
  bool has_timed_out(const Upload&) const;
  void erase(RunNumber);
  void post_to_strand(Id context, RunNumber, StrandPool::Work);
  void publish_counts();

  RecordStore& store_;
  const std::shared_ptr<const ArtifactBucket> bucket_;
  const Settings settings_;
  const Clock& clock_;
  const Callbacks callbacks_;
  const std::shared_ptr<Metrics> metrics_;
  const SavedEnds saved_ends_;
  std::map<RunNumber, Upload> uploads_;
  std::map<Id, std::vector<std::string>> store_names_;
  std::set<Id> contexts_to_load_;  // their saved ends were not loaded yet
  std::minstd_rand random_{std::random_device{}()};
  std::atomic<std::uint32_t> pending_count_{0}, failing_count_{0};
  Mailbox<Event> events_;
  MountTable mounts_;
  bool has_missing_threads_ = false;
  StrandPool strands_;
};

}  // namespace mycojobs
