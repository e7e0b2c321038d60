// Records, logs and lists of jobs. Errors and thread-safety: store/store.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// A record to be created.
struct NewRecord {
  std::string prefix;   // "actor:", "message:12:"
  std::string counter;  // name of the id counter: "actor", "message:12"
  Id id = 0;            // 0 allocates the next free id
  Fields fields;        // without id, created_at, updated_at
};
// Result of RecordStore::create_record().
struct CreatedRecord {
  std::string key;
  Fields record;
  bool existed = false;
};

// Fields of a context's record as read by the caller. An empty text means that the field is absent.
struct ExpectedContext {
  Id context = 0;
  Fields fields;
};

// End of a job, verified against the record. Any client may write to the record; a digest of the end's fields is stored
// separately.
struct EndedJob {
  enum class RecordState {
    unknown,    // there is no separate information about the end
    unchanged,  // the record has the values of the end
    changed     // the record was changed after the end
  };
  Fields fields;  // fields of the record
  RecordState record_state = RecordState::unknown;
  bool ended = false;          // from the separately stored claim; without it, from the record
  std::string status, detail;  // from the same source as `ended`
  std::string claim_id;        // claim that has ended the job, or empty if the system has ended it
  std::string idempotency_key;
  Id runner = 0;
};

// Owner of a public key, from the records of actors.
struct KeyOwner {
  std::uint32_t actor_count = 0;  // number of actors with the key; 2 means two or more
  Id id = 0;                      // id of the only actor, whose record follows
  Fields record = {};
  std::uint64_t checked_ms = 0;  // start time of the last complete scan of all records, or 0 if there was no such scan
  bool checked_now = false;      // a scan was made for this call
};

// Filter of a job list. Empty or 0 members do not restrict the list.
struct JobFilter {
  std::optional<JobStatus> status;
  std::string state;  // a JobStatus, or a value of `detail`
  std::string name;   // substring of the job's name
  std::string script_type;
  std::optional<Id> caller;
  std::uint64_t since_ms = 0;  // changed at or after this time
  std::uint32_t max_scanned = 1000;
  std::uint32_t max_jobs = 1000;  // limit for the scanned jobs; unprocessed_jobs are not counted
  std::string cursor = {};        // JobsPage::next_cursor of the previous page
};
// A row of a job list.
struct ListedJob {
  std::string key;
  std::uint64_t changed_us = 0;  // time of the last change
  std::string type;              // type of the key: hash; another type was written by another client
  Fields record;                 // without script, result, error_info, inputs
};
// Result of RecordStore::jobs().
struct JobsPage {
  std::vector<ListedJob> jobs;  // most recent change first
  // On the first page: jobs of other clients that no agent has processed yet. Their times are those of the record.
  std::vector<ListedJob> unprocessed_jobs;
  std::uint64_t rows_read = 0;
  std::string next_cursor;  // argument for the next page, or empty if this is the last page
};

// Consecutive lines of the log of a job.
struct LogPage {
  std::vector<Log> lines;
  std::vector<std::uint64_t> skipped_seqs;  // line numbers that were skipped at the ends of earlier runs
  bool ended = false;                       // no line will follow
};

// Access to records and logs, changes of records, and lists of jobs by their last change.
class RecordStore {
 public:
  explicit RecordStore(StoreConnection& connection) : connection_(connection) {}

  // Loads a hash. Errors: not_found; invalid: the key has another type.
  Result<Fields> load(Id context, const std::string& key);
  // Loads these fields of a hash. Missing fields are omitted.
  Result<Fields> load_fields(Id context, const std::string& key, std::span<const std::string_view> names);
  // load_fields() for many keys, in their order. An entry is empty if the key is missing, is not a hash, or has none of
  // these fields. A value of more than 1 MiB is treated as missing.
  Result<std::vector<Fields>> load_batch(Id context, std::span<const std::string> keys,
                                         std::span<const std::string_view> names);
  Result<EndedJob> ended_job(Id context, const std::string& job_key);    // errors as load()
  Result<void> save(Id context, const std::string& key, const Fields&);  // sets these fields of a hash
  // Finds the actor with a public key. Records that other clients wrote are found within a minute, and sooner if no
  // actor of the index has the key.
  Result<KeyOwner> owner_of_key(const std::string& pubkey);
  // Returns at most max keys with this prefix, unordered, without duplicates.
  Result<std::vector<std::string>> keys(Id context, std::string_view prefix, std::size_t max);
  // Returns a page of a job list. The cost is bounded by max_scanned, regardless of the number of jobs.
  Result<JobsPage> jobs(Id context, const JobFilter&);
  // Returns lines after after_seq; waits up to wait_ms for the first line or the end of the job. A wait from the start
  // creates the log of a job that has written nothing yet, since its end is appended to an existing log only.
  Result<LogPage> logs(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                       std::uint32_t wait_ms);

  // Creates a record other than a job. An existing record with that id is returned for comparison.
  Result<CreatedRecord> create_record(Id context, const NewRecord&);
  // Sets these fields of an existing record and returns the record. An empty text removes a field. Errors: not_found;
  // conflict: another actor has this `pubkey`, as in create_record().
  Result<Fields> change_record(Id context, const std::string& key, const Fields&);
  // As change_record(), if each field in `expected` still has this value (an empty text means that the field is
  // absent). The comparison and the change are one step, so that no change of another client is overwritten. Error
  // conflict: a field has another value, and nothing was changed.
  Result<Fields> change_record_if(Id context, const std::string& key, const Fields&, const Fields& expected);
  // Deletes an actor, context, runner, message or job with all data that the store keeps for it. Errors: not_found;
  // conflict: the record is in use; the message names the use.
  Result<void> delete_record(Id context, const std::string& key);
  // Returns a short text that differs after each change of the context's record, of a job, of an active flow and of the
  // lists of messages. The cost does not depend on the amount of data in the context.
  Result<std::string> context_revision(Id context);
  // Deletes the context's record if its revision is still this revision. Returns false and changes nothing otherwise.
  Result<bool> delete_context_if(Id context, const std::string& revision);
  // Deletes the record of an actor if the fields of these contexts still have these values. The comparison and the
  // deletion are one step for all contexts of the default server. Contexts with a server of their own are not compared.
  // Returns false and changes nothing if a field has another value. Error not_found.
  Result<bool> delete_actor_if(Id actor, std::span<const ExpectedContext>);

 private:
  Result<std::uint32_t> prepare_wait(Id context, const std::string& job_key, std::uint32_t wait_ms);

  StoreConnection& connection_;
  bool may_create_logs_ = true;  // false after the server has refused it
};

}  // namespace mycojobs
