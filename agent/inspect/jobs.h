// Jobs as people read them. Reads records, changes nothing, survives whatever stands in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct JobView {
  std::string key;
  Job job;
  std::vector<std::string> problems;  // fields that could not be read
  std::uint64_t changed_ms = 0;       // of a list: when something happened to it last
};

// "12:2001", "job:12:2001", or "2001" for that job of the default caller.
Result<std::string> parse_job_key(std::string_view text, Id default_caller);

Result<JobView> load_job(RecordStore&, Id context, const std::string& key);

struct JobQuery {
  JobsWanted wanted;
  std::size_t limit = 50;          // those to which something happened last
  std::size_t max_looks = 100000;  // records that are looked at for them
};
struct JobList {
  std::vector<JobView> jobs;  // what happened last first; of each what a list shows: no script, no result, no log
  bool more = false;          // of those that are wanted
  bool truncated = false;     // max_looks records were looked at, and there are more
};
// Takes the memory of `limit` jobs and a page, and the time of what it looks at, however many jobs there are.
Result<JobList> list_jobs(RecordStore&, Id context, const JobQuery&,
                          const std::function<void(std::uint64_t done, std::uint64_t of)>& progress);

// A page of all that are wanted, for who goes through them from the front to the end: what happened last comes first. A
// job to which something happens meanwhile may come twice.
struct JobsSlice {
  std::vector<JobView> jobs;  // as JobList has them; at most `limit` and those that nobody has seen yet
  std::string after;          // JobsWanted::after of the next page; empty: this is the last one
  std::uint64_t looked_at = 0;
};
// Looks at so many records at most, and as many again as one step of the store, and answers with an empty page if need
// be: `after` goes on.
inline constexpr std::uint64_t kMostLooksOfASlice = 10000;
Result<JobsSlice> page_jobs(RecordStore&, Id context, JobsWanted, std::size_t limit);

// What a queue's journal tells of a job: at most the latest 200 facts.
Result<std::vector<Fact>> latest_facts(Store&, Id context, const ClaimView&);

// What happened to a job, by these facts.
struct JobMoment {
  std::uint64_t at_ms = 0;
  std::string kind;  // a FactKind (domain/dispatch_journal.h)
  std::uint32_t attempt = 0;
  Id runner = 0;
  std::uint64_t due_ms = 0;  // of retry: when the next attempt begins
  std::string detail;        // how an attempt ended; why it was given back, or what it waits for
};
Result<std::vector<JobMoment>> job_history(Store&, Id context, const std::string& key);
nlohmann::json to_json(const JobMoment&);

// How long it waited for its latest run, and how long that has taken, so far: by the store's clock. Nothing: it did
// not.
std::optional<std::uint64_t> waited_ms(const Job&, std::uint64_t now_ms);
std::optional<std::uint64_t> ran_ms(const Job&, std::uint64_t now_ms);

nlohmann::json to_json(const JobView&);
// "finished ok · wall 34 ms · cpu 20 ms · memory 9.8 MiB · all layers"; else those that were missing, and stragglers.
// Of a warm job "reused 7": its process had served so many before.
std::string receipt_line(const Job&);

}  // namespace mycojobs
