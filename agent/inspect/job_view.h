// Views of jobs for display: single jobs, lists, pages and histories. The functions only read, and they accept any
// content of the records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "store/store.h"

namespace mycojobs {

struct JobView {
  std::string key;
  Job job;
  std::vector<std::string> problems;  // fields that could not be parsed
  std::uint64_t changed_ms = 0;       // in a list: time of the last change
};

// Parses "12:2001", "job:12:2001", or "2001" for that job of the default caller.
Result<std::string> parse_job_key(std::string_view text, Id default_caller);

Result<JobView> load_job(RecordStore&, Id context, const std::string& key);

struct JobQuery {
  JobFilter filter;
  std::size_t limit = 50;            // the jobs that changed last
  std::size_t max_scanned = 100000;  // maximum number of records read for the list
};
struct JobList {
  std::vector<JobView> jobs;  // last change first; without script, result and log
  bool has_more = false;      // there are more matching jobs
  bool truncated = false;     // max_scanned records were read, and there are more
};
// Lists the jobs that match the query. The memory is bounded by `limit` jobs and a page, and the time by max_scanned
// records, for any number of jobs.
Result<JobList> list_jobs(RecordStore&, Id context, const JobQuery&,
                          const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);

// A page of the matching jobs, for a client that reads all pages. The job that changed last is first. A job that
// changes between two pages may be returned twice.
struct JobsSlice {
  std::vector<JobView> jobs;  // see JobList; at most `limit`, and on the first page JobsPage::unprocessed_jobs
  std::string after;          // JobFilter::cursor of the next page; empty on the last page
  std::uint64_t rows_read = 0;
};
// Maximum number of records read for a page, exceeded by at most one step of the store. If none of them matches, the
// page is empty and `after` continues.
inline constexpr std::uint64_t kMaxRowsPerPage = 10000;
Result<JobsSlice> page_jobs(RecordStore&, Id context, JobFilter, std::size_t limit);

// Returns at most the latest 200 facts about a job from the journal of its queue.
Result<std::vector<Fact>> read_latest_facts(Store&, Id context, const ClaimView&);

// A fact about a job.
struct JobTimelineEntry {
  std::uint64_t at_ms = 0;
  std::string kind;  // a FactKind (jobs/dispatch_journal.h)
  std::uint32_t attempt = 0;
  Id runner = 0;
  std::uint64_t due_ms = 0;  // retry: start of the next attempt
  std::string detail;        // result of an attempt; reason of a release, or the awaited prerequisite
};
Result<std::vector<JobTimelineEntry>> read_job_history(Store&, Id context, const std::string& key);
nlohmann::json to_json(const JobTimelineEntry&);

// Return the waiting time before the latest run, and the duration of that run so far, by the clock of the store. No
// value: the job was never in a queue, or has not run.
std::optional<std::uint64_t> wait_duration_ms(const Job&, std::uint64_t now_ms);
std::optional<std::uint64_t> run_duration_ms(const Job&, std::uint64_t now_ms);

nlohmann::json to_json(const JobView&);
// Formats the receipt of a job: "finished ok · wall 34 ms · cpu 20 ms · memory 9.8 MiB · all layers". If sandbox layers
// are missing, the text lists them. It has "stragglers 2" if processes were left over, and "reused 7" for a warm job
// whose process had served 7 jobs before.
std::string format_receipt(const Job&);

}  // namespace mycojobs
