// Reads the complete log of a job: the lines of the store, and in the place of each gap the lines that the runner of
// the job has on its disk (artifacts/logs/spooled_log.h). The disk is read directly if this host has the folder;
// otherwise the lines are requested from the runner (log_fetcher.h). The caller has checked that its client may read
// the record of the job. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
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

  // Returns lines after after_seq, as RecordStore::logs(). Output that neither the store nor the runner has, or whose
  // runner is away, is named by a line of the stream `system`.
  Result<LogPage> read(RecordStore&, Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                       std::uint32_t wait_ms);

  // Returns a number from which read() finds the last `lines` lines without reading the disk, because the store has
  // them. Returns after_seq if the store has fewer lines behind its last gap.
  static Result<std::uint64_t> find_last_lines(RecordStore&, Id context, const std::string& job_key,
                                               std::uint64_t after_seq, std::size_t lines);

 private:
  struct Job {  // the parts of the store that locate a spooled log
    Id context = 0, runner = 0;
    std::string key;
    bool has_ended = false;            // no line will be added
    std::vector<std::string> folders;  // on this host
  };
  static Result<Job> locate(RecordStore&, Id context, const std::string& job_key, const std::string& state_dir);
  Result<SpooledLines> read_range(const Job&, const LogRange&);
  // Appends the lines of a gap, up to max lines. Returns false if max was reached before the end of the gap.
  bool fill_gap(const Job&, const Log& gap, std::size_t max, std::vector<Log>& lines);

  const Clock& clock_;
  const std::string state_dir_;
  LogFetcher fetcher_;
  std::mutex mutex_;
  std::map<Id, std::uint64_t> silent_until_ms_;  // runners that have not answered; guarded by mutex_
};

}  // namespace mycojobs
