#include "store/record_store.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/parse.h"
#include "model/codec.h"
#include "model/output_gap.h"
#include "store/job_fields.h"
#include "store/journal_store.h"
#include "store/keys.h"
#include "store/redis/store_connection.h"

namespace mycojobs {
namespace {

// Maximum size of a record that is read, as memory of Redis. Reading a record needs a multiple of this in the process.
constexpr std::uint64_t kMaxLoadBytes = 64ULL << 20;

// Database 0 contains only actors, which do not belong to a context.
Result<void> check_context(Id context, const std::string& key) {
  if (context != 0 || key.starts_with("actor:")) return {};
  return fail(Code::invalid, key + ": only actors live in context 0");
}

// Checks the reply of a script that reads a record. Errors: not_found; too_large, whose message names the longest
// field.
Result<void> check_load_reply(const Reply& reply, Id context, const std::string& key) {
  if (reply.at(0).number() == 0) return {};
  if (reply.at(0).number() == 1) return tl::unexpected<Error>(record_not_found(context, key));
  return fail(Code::too_large, key + ": " + std::string(reply.at(1).text()) + ": " + std::string(reply.at(2).text()) +
                                   " bytes are more than is read of a record: shorten it");
}

}  // namespace

Result<Fields> RecordStore::load(Id context, const std::string& key) { return load_fields(context, key, {}); }

Result<Fields> RecordStore::load_fields(Id context, const std::string& key, std::span<const std::string_view> names) {
  MJ_TRY(redis, connection_.link(context));
  // Database 0 contains actors. Single fields of other records can be read there too, since `explain` detects a job
  // that a client has written to the wrong database.
  const bool is_global = context == 0 && (key.starts_with("actor:") || key == kActorKeysKey || !names.empty());
  Arguments arguments{key};
  arguments.add(kMaxLoadBytes).add(std::uint64_t{names.size()});
  for (std::string_view name : names) arguments.add(name);
  auto reply = is_global ? redis->run(scripts::load, arguments) : connection_.run(context, scripts::load, arguments);
  if (!reply) return fail(std::move(reply).error(), key);
  MJ_CHECK(check_load_reply(*reply, context, key));
  return reply->at(1).fields();
}

Result<std::vector<Fields>> RecordStore::load_batch(Id context, std::span<const std::string> keys,
                                                    std::span<const std::string_view> names) {
  constexpr std::size_t kMaxKeysBatch = 200;
  std::vector<Fields> records;
  while (records.size() < keys.size()) {
    const auto batch = keys.subspan(records.size(), std::min(kMaxKeysBatch, keys.size() - records.size()));
    Arguments arguments;
    arguments.add(std::uint64_t{batch.size()});
    for (const std::string& key : batch) arguments.add(key);
    arguments.add(std::uint64_t{names.size()});
    for (const std::string_view name : names) arguments.add(name);
    MJ_TRY(reply, connection_.run(context, scripts::load_some, arguments));
    for (std::size_t i = 0; i < reply.size(); ++i) records.push_back(reply.at(i).fields());
  }
  return records;
}

namespace {

void verify_end(EndedJob& job, const ClaimView& claim, bool is_system_end_unchanged) {
  if (claim.state.empty()) {
    const Job record = decode<Job>(job.fields).record;
    job.ended = record.status == JobStatus::finished || record.status == JobStatus::error;
    job.status = to_string(record.status);
    job.detail = record.detail;
    job.idempotency_key = record.idempotency_key;
    job.runner = record.runner_id;
    return;
  }
  job.ended = claim.state == kJobStateEnded;
  job.status = claim.status;
  job.detail = claim.detail;
  job.claim_id = claim.claim_id;
  job.idempotency_key = claim.idempotency_key;
  job.runner = claim.runner;
  const bool was_ended_by_system = claim.claim_id.empty();
  // A claim that was rebuilt from the journal has no digest of an end that the system wrote. Such a record counts as
  // unchanged, with the status and detail of the claim.
  const bool has_no_digest = claim.end_digest.empty();
  if (has_no_digest && !(was_ended_by_system && claim.status == kJobStatusError)) return;
  const bool is_unchanged = was_ended_by_system
                                ? has_no_digest || is_system_end_unchanged
                                : compute_end_digest(extract_end_fields(job.fields)) == claim.end_digest;
  job.record_state = is_unchanged ? EndedJob::RecordState::unchanged : EndedJob::RecordState::changed;
}

}  // namespace

Result<EndedJob> RecordStore::ended_job(Id context, const std::string& job_key) {
  auto reply = connection_.run(context, scripts::ended_job, Arguments{job_key}.add(kMaxLoadBytes));
  if (!reply) return fail(std::move(reply).error(), job_key);
  MJ_CHECK(check_load_reply(*reply, context, job_key));
  EndedJob job;
  job.fields = reply->at(1).fields();
  verify_end(job, parse_claim(reply->at(2).fields()), reply->at(3).number() == 1);
  return job;
}

Result<void> RecordStore::save(Id context, const std::string& key, const Fields& fields) {
  if (fields.empty()) return {};
  Arguments arguments{"HSET", key};
  for (const auto& [name, value] : fields) arguments.add(name).add(value);
  MJ_CHECK(connection_.command(context, arguments));
  return {};
}

namespace {

std::string glob_escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

Result<std::vector<std::string>> RecordStore::keys(Id context, std::string_view prefix, std::size_t max) {
  if (context == 0 && prefix != "actor:") return fail(Code::invalid, "only actors live in context 0");
  const std::string pattern = glob_escaped(prefix) + "*";
  return connection_.scan_keys(context, {"MATCH", pattern}, max);
}

namespace {

constexpr std::uint32_t kMaxScannedJobs = 1000;  // scanned jobs in one step of the server

std::vector<ListedJob> parse_listed_jobs(const Reply& rows) {
  std::vector<ListedJob> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Reply row = rows.at(i);
    out.push_back(
        {std::string(row.at(0).text()), row.at(1).number(), std::string(row.at(2).text()), row.at(3).fields()});
  }
  return out;
}

}  // namespace

Result<JobsPage> RecordStore::jobs(Id context, const JobFilter& request) {
  std::string score;
  std::uint64_t skip = 0;
  if (!request.cursor.empty()) {
    const std::size_t blank = request.cursor.find(' ');
    std::uint64_t number = 0;
    score = request.cursor.substr(0, blank);
    if (blank == std::string::npos || !parse_u64(score, number) || !parse_u64(request.cursor.substr(blank + 1), skip))
      return fail(Code::invalid, "after: is not a value that a page of jobs returned");
  }
  Arguments arguments;
  arguments.add(std::uint64_t{std::clamp(request.max_scanned, 1U, kMaxScannedJobs)})
      .add(std::uint64_t{std::max(request.max_jobs, 1U)})
      .add(score)
      .add(skip);
  arguments.add(std::min<std::uint64_t>(request.since_ms, UINT32_MAX * 1000ULL) * 1000);
  arguments.add(request.status ? to_string(*request.status) : std::string_view()).add(request.state).add(request.name);
  arguments.add(request.script_type).add(request.caller ? std::to_string(*request.caller) : std::string());
  arguments.add(std::uint64_t{kBuiltInQueues.size()});
  for (const std::string_view queue : kBuiltInQueues) arguments.add(queue);
  MJ_TRY(reply, connection_.run(context, scripts::job_list, arguments));
  JobsPage page;
  page.rows_read = reply.at(0).number();
  if (!reply.at(1).text().empty())
    page.next_cursor = std::string(reply.at(1).text()) + ' ' + std::to_string(reply.at(2).number());
  page.jobs = parse_listed_jobs(reply.at(3));
  page.unprocessed_jobs = parse_listed_jobs(reply.at(4));
  return page;
}

namespace {

// Returns the line that stands for bytes which are missing before `line`, if any. last_seq: number of the entry before.
std::optional<Log> find_gap(const Log& line, std::uint64_t last_seq) {
  const std::uint64_t seq = line.seq - std::min(line.size, line.seq);
  if (line.size == 0 || seq <= last_seq) return std::nullopt;
  return Log{line.ts_ms, seq, LogStream::system, format_output_gap(seq - last_seq), seq - last_seq};
}

// Parses an entry of a log. Returns false if the entry is not a log line: it marks an end, or another client wrote it.
bool read_line(const Reply& entry, Log& line) {
  const std::string id(entry.at(0).text());
  const Reply body = entry.at(1);
  bool has_text = false;
  parse_u64(id.substr(0, id.find('-')), line.seq);
  for (const auto& [name, value] : body.fields()) {
    if (name == "ts") parse_u64(value, line.ts_ms);
    if (name == "stream") line.stream = parse<LogStream>(value).value_or(LogStream::system);
    if (name == "text") line.text = value, has_text = true;
    if (name == "size") parse_u64(value, line.size);
    if (name == "run") line.begins_run = true;
  }
  return has_text;
}

// Reads entries until there is a line, since the log of a job that ran often can contain many marks of earlier ends.
// LogPage::ended is set if the last entry that was read marks an end.
Result<LogPage> read_log(StoreConnection& connection, Id context, const std::string& job_key, std::uint64_t after_seq,
                         std::size_t max, std::uint32_t wait_ms) {
  const std::string key = log_key(job_key);
  max = std::max<std::size_t>(max, 1);
  LogPage page;
  for (std::uint64_t last_seq = after_seq;; wait_ms = 0) {
    Arguments arguments{"XREAD", "COUNT"};
    arguments.add(std::uint64_t{max});
    if (wait_ms > 0) arguments.add("BLOCK").add(std::uint64_t{wait_ms});
    arguments.add("STREAMS").add(key).add(std::to_string(last_seq) +
                                          "-18446744073709551615");  // also skips 7-1 after 7
    MJ_TRY(reply, connection.command(context, arguments, wait_ms));
    const Reply entries = reply.at(0).at(1);
    const std::uint64_t seq_before = last_seq;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Log line;
      const bool is_line = read_line(entries.at(i), line);
      if (auto gap = find_gap(line, last_seq)) page.lines.push_back(std::move(*gap));
      last_seq = line.seq;
      if (is_line)
        page.lines.push_back(std::move(line));
      else
        page.skipped_seqs.push_back(last_seq);
      page.ended = entries.at(i).at(1).at(0).text() == "end";
    }
    if (!page.lines.empty() || entries.size() < max || last_seq <= seq_before) return page;
  }
}

}  // namespace

// Creates the log that the end of the job wakes this wait with. Returns the time in ms that the wait may take: if the
// server or the rights of the user permit no writes, the caller looks at the state of the job from time to time.
Result<std::uint32_t> RecordStore::prepare_wait(Id context, const std::string& job_key, std::uint32_t wait_ms) {
  constexpr std::uint32_t kMaxUnpreparedWaitMs = 500;
  if (may_create_logs_) {
    auto exists = connection_.run(context, scripts::await_log, Arguments{job_key});
    if (exists) return exists->number() == 0 ? 0 : wait_ms;
    if (exists.error().code == Code::invalid) return tl::unexpected<Error>(std::move(exists).error());
    if (exists.error().code == Code::denied) may_create_logs_ = false;
  }
  return std::min(wait_ms, kMaxUnpreparedWaitMs);
}

Result<LogPage> RecordStore::logs(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                                  std::uint32_t wait_ms) {
  if (wait_ms > 0 && after_seq == 0) {
    MJ_TRY(possible_wait_ms, prepare_wait(context, job_key, wait_ms));
    wait_ms = possible_wait_ms;
  }
  MJ_TRY(page, read_log(connection_, context, job_key, after_seq, max, wait_ms));
  if (!page.lines.empty() && !page.ended) return page;
  // A mark of an end is not final if the job was queued again, so the state of the job decides. Without a mark, another
  // client has ended the job, or it has not ended.
  MJ_TRY(status, connection_.command(context, {"HMGET", job_key, "status", "script"}));
  if (status.at(0).is_nil() && status.at(1).is_nil()) return fail(Code::not_found, job_key + " does not exist");
  MJ_TRY(state, connection_.command(context, {"HGET", kClaimKey + job_key, "state"}));
  const std::string_view status_text = status.at(0).text();
  const bool ended = state.text() == kJobStateEnded ||
                     (state.is_nil() && (status_text == kJobStatusFinished || status_text == kJobStatusError));
  if (ended && !page.ended) {  // lines may have been added between the two reads
    MJ_TRY(new_page, read_log(connection_, context, job_key, after_seq, max, 0));
    page = std::move(new_page);
  }
  page.ended = ended && (page.ended || page.lines.empty());
  return page;
}

namespace {

tl::unexpected<Error> key_conflict_error() {
  return fail(Code::conflict,
              "pubkey: another actor has this key, and a key is of one: make a new one with "
              "`mycojobs key new`");
}

// Scans all records of actors and indexes their public keys. scan_start is the start time of a scan that the script
// actor_of_key has requested, and that is recorded as complete at the end. If it is empty, the scan is not recorded.
Result<void> index_actors(StoreConnection& connection, const std::string& scan_start) {
  constexpr int kMaxPages = 10000;
  MJ_TRY(redis, connection.link(0));
  std::string cursor = "0";
  for (int page = 0; page < kMaxPages; ++page) {
    MJ_TRY(next_cursor, redis->run(scripts::index_actors, Arguments{cursor, scan_start}));
    cursor = next_cursor.text();
    if (cursor == "0") return {};
  }
  return fail(Code::unavailable, "database 0 has too many keys to scan for actors");
}

}  // namespace

Result<KeyOwner> RecordStore::owner_of_key(const std::string& pubkey) {
  MJ_TRY(redis, connection_.link(0));
  KeyOwner owner;
  for (;;) {
    MJ_TRY(reply, redis->run(scripts::actor_of_key, Arguments{pubkey}));
    owner.actor_count = static_cast<std::uint32_t>(reply.at(0).number());
    owner.id = static_cast<Id>(reply.at(1).number());
    owner.checked_ms = reply.at(2).number();
    owner.record = reply.at(4).fields();
    const std::string scan_start(reply.at(3).text());
    if (scan_start.empty() || owner.checked_now) return owner;
    MJ_CHECK(index_actors(connection_, scan_start));
    owner.checked_now = true;
  }
}

Result<CreatedRecord> RecordStore::create_record(Id context, const NewRecord& request) {
  Arguments arguments;
  arguments.add(request.prefix).add(kNextIdKey + request.counter).add(std::uint64_t{request.id});
  arguments.add_list(request.fields);
  connection_.add_quota(arguments);
  // Actors are the only records without a context, so nothing else is written to database 0.
  if (context == 0 && request.prefix != "actor:") return fail(Code::invalid, "only actors live in context 0");
  if (context == 0 && !field_of(request.fields, "pubkey").empty()) MJ_CHECK(index_actors(connection_, ""));
  MJ_TRY(redis, connection_.link(context));
  MJ_TRY(reply, redis->run(scripts::create_record, arguments));
  CreatedRecord result{std::string(reply.at(1).text()), reply.at(2).fields(), reply.at(0).text() != "new"};
  if (reply.at(0).text() == "taken") return key_conflict_error();
  if (reply.at(0).text() == "used")
    return fail(Code::conflict, result.key + " was used before and its record was deleted; use another id");
  if (context != 0) MJ_CHECK(connection_.await_replicas(context));
  return result;
}

Result<Fields> RecordStore::change_record(Id context, const std::string& key, const Fields& fields) {
  return change_record_if(context, key, fields, {});
}

Result<Fields> RecordStore::change_record_if(Id context, const std::string& key, const Fields& fields,
                                             const Fields& expected) {
  MJ_CHECK(check_context(context, key));
  if (context == 0 && !field_of(fields, "pubkey").empty()) MJ_CHECK(index_actors(connection_, ""));
  MJ_TRY(redis, connection_.link(context));
  auto reply = redis->run(scripts::change_record, Arguments{key}.add_list(fields).add_list(expected));
  if (!reply) return fail(std::move(reply).error(), key);
  if (reply->at(0).number() == 1) return tl::unexpected<Error>(record_not_found(context, key));
  if (reply->at(0).number() == 2) return key_conflict_error();
  if (reply->at(0).number() == 3)
    return fail(Code::conflict,
                key + ": " + std::string(reply->at(1).text()) +
                    " was changed by another client in the meantime: read it again and repeat the call");
  return reply->at(1).fields();
}

Result<void> RecordStore::delete_record(Id context, const std::string& key) {
  MJ_CHECK(check_context(context, key));
  MJ_TRY(redis, connection_.link(context));
  auto reply = redis->run(is_job_key(key) ? scripts::delete_job : scripts::delete_record, Arguments{key});
  if (!reply) return fail(std::move(reply).error(), key);
  const std::string_view answer = reply->text();
  if (answer == "gone") return {};
  if (answer == "missing") return tl::unexpected<Error>(record_not_found(context, key));
  return fail(Code::conflict, key + " is not deleted: " + std::string(answer));
}

Result<std::string> RecordStore::context_revision(Id context) {
  MJ_TRY(reply, connection_.run(context, scripts::context_revision, Arguments{}.add(std::uint64_t{context})));
  return std::string(reply.text());
}

Result<bool> RecordStore::delete_context_if(Id context, const std::string& revision) {
  MJ_TRY(reply,
         connection_.run(context, scripts::delete_context, Arguments{}.add(std::uint64_t{context}).add(revision)));
  return reply.number() == 1;
}

Result<bool> RecordStore::delete_actor_if(Id actor, std::span<const ExpectedContext> expected) {
  std::uint64_t argument_count = 0;
  for (const ExpectedContext& entry : expected)
    argument_count += connection_.address(entry.context).is_on_default_server ? 4 * entry.fields.size() : 0;
  Arguments arguments;
  arguments.add(std::uint64_t{actor}).add(argument_count);
  for (const ExpectedContext& entry : expected) {
    const auto address = connection_.address(entry.context);
    if (!address.is_on_default_server) continue;
    for (const auto& [name, value] : entry.fields)
      arguments.add(std::uint64_t{address.database}).add(std::uint64_t{entry.context}).add(name).add(value);
  }
  const std::string key = "actor:" + std::to_string(actor);
  MJ_TRY(redis, connection_.link(0));
  auto reply = redis->run(scripts::delete_actor, arguments);
  if (!reply) return fail(std::move(reply).error(), key);
  if (reply->text() == "missing") return tl::unexpected<Error>(record_not_found(0, key));
  return reply->text() == "gone";
}

}  // namespace mycojobs
