// Reads the complete log of a job: the lines of the store, with each gap replaced by the lines on the disk of the
// runner (artifacts/logs/spooled_log.h). The claim of the job names the runs and their runners. If this host has files
// of the run, the reader uses them directly; otherwise the lines are requested from the runner (log_fetcher.h). The
// caller must check the permission to read the record of the job. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "artifacts/transfer/log_fetcher.h"
#include "base/clock.h"
#include "store/record_store.h"

namespace mycojobs {

class JobLogReader {
 public:
  // state_dir: folder of this host, or an empty text without such a folder. REQUIRES: stores and clock outlive the
  // reader.
  JobLogReader(StoreFactory& stores, const Clock& clock, std::string state_dir)
      : clock_(clock), state_dir_(std::move(state_dir)), fetcher_(stores, clock) {}

  // Handling of pending lines, which the runner has not written to its disk yet. Lines are not pending if the run has
  // ended, has stopped writing, or has written nothing for kMaxDiskWaitMs.
  enum class PendingLines {
    end_page,        // the page ends before pending lines, and LogPage::ended is false: a later call returns the lines
    report_missing,  // after a short wait, a line of the stream `system` reports the number of missing bytes
    skip_disks,      // reports all gaps by such a line, without reading a disk
  };
  static constexpr std::uint64_t kMaxDiskWaitMs = 30000;

  // Returns lines after after_seq, as RecordStore::logs(). A line of the stream `system` reports missing output: output
  // that neither the store nor the runner has, or output on a runner that does not answer.
  Result<LogPage> read(RecordStore&, Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                       std::uint32_t wait_ms, PendingLines pending_lines = PendingLines::end_page);

  // The two parts of read(). load() uses the store of the caller. complete() does not, and can wait for disks and for
  // other hosts: some seconds for each runner that does not answer.
  class StoredPage;
  Result<StoredPage> load(RecordStore&, Id context, const std::string& job_key, std::uint64_t after_seq,
                          std::size_t max, std::uint32_t wait_ms) const;
  LogPage complete(StoredPage, PendingLines = PendingLines::end_page);

  // Returns a value of after_seq from which the store contains at least the last `lines` lines without a gap. Returns
  // after_seq if the store has fewer lines after the last gap.
  static Result<std::uint64_t> find_last_lines(RecordStore&, Id context, const std::string& job_key,
                                               std::uint64_t after_seq, std::size_t lines);

 private:
  struct Run {                   // a run of a job with output
    std::uint64_t last_seq = 0;  // number of the last byte of the run; UINT64_MAX for the latest run
    std::uint64_t epoch = 0;     // epoch of the claim
    Id runner = 0;
    bool is_live = false;  // the run can write further lines
  };
  struct LogLocation {  // the places of the spooled log of a job
    Id context = 0;
    std::string key;
    std::vector<Run> runs;             // ascending
    std::vector<std::string> folders;  // folders of the log on this host
    std::string error;                 // set if the runs and folders could not be determined
  };
  static Result<std::vector<Run>> load_runs(RecordStore&, Id context, const std::string& job_key);
  static Result<LogLocation> find_location(RecordStore&, Id context, const std::string& job_key,
                                           const std::string& state_dir);
  Result<SpooledLines> read_range(const LogLocation&, const Run&, const LogRange&);

  enum class FillResult { filled, page_full, pending };
  // Appends the lines of a gap with numbers above after_seq, until `lines` has max lines.
  FillResult fill_gap(const LogLocation&, const Log& gap, std::uint64_t after_seq, std::size_t max, PendingLines,
                      std::vector<Log>& lines);

  // Appends the spooled lines of a range, without a report of missing lines. Errors: those of read_range().
  Result<FillResult> append_spooled_lines(const LogLocation&, const Run&, LogRange, std::size_t max,
                                          std::vector<Log>& lines);

  const Clock& clock_;
  const std::string state_dir_;
  LogFetcher fetcher_;
};

// A page of the store. The lines of the disks are not added yet.
class JobLogReader::StoredPage {
 public:
  bool has_gaps() const { return has_gaps_; }

 private:
  friend class JobLogReader;
  LogPage page_;
  LogLocation location_;
  std::uint64_t after_seq_ = 0;
  std::size_t max_ = 0;
  bool has_gaps_ = false;
  bool is_end_missing_ = false;  // the store has dropped the end of the output because of a quota
};

}  // namespace mycojobs
