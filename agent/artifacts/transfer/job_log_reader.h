// Reads the complete log of a job: the lines of the store, and in the place of each gap the lines that a runner of the
// job has on its disk (artifacts/logs/spooled_log.h). The claim of the job names the runs and their runners. The disk
// is read directly if this host has files of the run; otherwise the lines are requested from the runner
// (log_fetcher.h). The caller has checked that its client may read the record of the job. Thread-safe.
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
  // state_dir: folder of this host; empty: none. REQUIRES: stores and clock outlive the reader.
  JobLogReader(StoreFactory& stores, const Clock& clock, std::string state_dir)
      : clock_(clock), state_dir_(std::move(state_dir)), fetcher_(stores, clock) {}

  // Replacement in a page for lines that the runner has not written to its disk yet. A run that writes nothing
  // for kMaxDiskWaitMs, or that has stopped to write, does not count as a run that will write them.
  enum class LateLines {
    wait,  // the page ends before them, and `ended` is false: a later call returns them
    name,  // after a short wait, a line that names their number
    skip,  // that line; no disk is read at all
  };
  static constexpr std::uint64_t kMaxDiskWaitMs = 30000;

  // Returns lines after after_seq, as RecordStore::logs(). Output that neither the store nor the runner has, or whose
  // runner is away, is named by a line of the stream `system`.
  Result<LogPage> read(RecordStore&, Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                       std::uint32_t wait_ms, LateLines late_lines = LateLines::wait);

  // The two parts of read(). Only the first one uses the store of the caller. The second can wait for a disk and for
  // other hosts, for some seconds for each of their runners that is away.
  class StoredPage;
  Result<StoredPage> load(RecordStore&, Id context, const std::string& job_key, std::uint64_t after_seq,
                          std::size_t max, std::uint32_t wait_ms) const;
  LogPage complete(StoredPage, LateLines = LateLines::wait);

  // Returns a number from which read() finds the last `lines` lines without reading the disk, because the store has
  // them. Returns after_seq if the store has fewer lines behind its last gap.
  static Result<std::uint64_t> find_last_lines(RecordStore&, Id context, const std::string& job_key,
                                               std::uint64_t after_seq, std::size_t lines);

 private:
  struct Run {                   // a run of a job that wrote output
    std::uint64_t last_seq = 0;  // its last number
    std::uint64_t epoch = 0;     // epoch of its claim
    Id runner = 0;
    bool is_live = false;  // can write lines
  };
  struct Job {  // the parts of the store that locate a spooled log
    Id context = 0;
    std::string key;
    std::vector<Run> runs;             // ascending
    std::vector<std::string> folders;  // folders of the log on this host
    std::string problem;               // reason why the other members are not known
  };
  static Result<std::vector<Run>> load_runs(RecordStore&, Id context, const std::string& job_key);
  static Result<Job> locate(RecordStore&, Id context, const std::string& job_key, const std::string& state_dir);
  Result<SpooledLines> read_range(const Job&, const Run&, const LogRange&);

  enum class GapEnd { filled, page_full, late };
  // Appends the lines of a gap that have numbers above after_seq, until there are max lines.
  GapEnd fill_gap(const Job&, const Log& gap, std::uint64_t after_seq, std::size_t max, LateLines,
                  std::vector<Log>& lines);

  // Appends the lines of a range that are on a disk. Lines that are not there are not named. Errors: of read_range().
  Result<GapEnd> append_spooled_lines(const Job&, const Run&, LogRange, std::size_t max, std::vector<Log>& lines);

  const Clock& clock_;
  const std::string state_dir_;
  LogFetcher fetcher_;
};

// A page whose gaps are not filled.
class JobLogReader::StoredPage {
 public:
  bool has_gaps() const { return has_gaps_; }

 private:
  friend class JobLogReader;
  LogPage page_;
  Job job_;
  std::uint64_t after_seq_ = 0;
  std::size_t max_ = 0;
  bool has_gaps_ = false;
  bool is_end_missing_ = false;  // the store has dropped the end of the output, because of a quota
};

}  // namespace mycojobs
