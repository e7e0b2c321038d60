#include "inspect/job_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/parse.h"
#include "jobs/transitions.h"
#include "model/codec.h"
#include "model/result_values.h"
#include "sandbox/outcome.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

json parse_or_empty(const std::string& text) {
  auto parsed = parse_json(text.empty() ? "{}" : text);
  return parsed && parsed->is_object() ? std::move(*parsed) : json::object();
}

JobView make_view(const std::string& key, const Fields& hash) {
  auto decoded = decode<Job>(hash);
  JobView view{key, std::move(decoded.record), {}};
  for (const FieldProblem& problem : decoded.problems) view.problems.push_back(problem.message);
  return view;
}

JobView make_view(const ListedJob& job) {
  if (job.type == "hash") return make_view(job.key, job.record);
  return {job.key, {}, {job.key + " is a " + job.type + " where a hash belongs: another client wrote it"}};
}

double get_double(const json& object, const char* name) {
  const auto value = object.find(name);
  return value != object.end() && value->is_number() ? value->get<double>() : 0;
}

std::string format_us(double us) {
  return us < 1e6 ? fmt::format("{:.1f} ms", us / 1e3) : fmt::format("{:.2f} s", us / 1e6);
}

// Formats the layers of the sandbox that were in force: "all layers", "no layers", or "without" the missing layers.
std::string format_layers(const Job& job) {
  if (job.layers.empty()) return "no layers";
  const std::string in_force = " " + job.layers + " ";
  std::string missing;
  for (std::string_view layer : kLayers) {
    const std::string name = " " + std::string(layer);
    if (in_force.find(name + " ") == std::string::npos && in_force.find(name + ":") == std::string::npos)
      missing += name;
  }
  return missing.empty() ? "all layers" : "without" + missing;
}

}  // namespace

Result<std::string> parse_job_key(std::string_view text, Id default_caller) {
  std::string_view id_text = text.starts_with("job:") ? text.substr(4) : text;
  std::uint64_t caller = default_caller;
  std::uint64_t id = 0;
  const std::size_t colon = id_text.find(':');
  const bool is_valid_caller = colon == std::string_view::npos || parse_u64(id_text.substr(0, colon), caller);
  if (colon != std::string_view::npos) id_text.remove_prefix(colon + 1);
  if (!is_valid_caller || !parse_u64(id_text, id) || caller == 0 || id == 0 || caller > UINT32_MAX || id > UINT32_MAX) {
    return fail(Code::invalid, "\"" + std::string(text) + "\" is not a job: give CALLER:ID, for example 12:2001");
  }
  return job_key(static_cast<Id>(caller), static_cast<Id>(id));
}

Result<JobView> load_job(RecordStore& store, Id context, const std::string& key) {
  MJ_TRY(hash, store.load(context, key));
  return make_view(key, hash);
}

namespace {

bool has_criteria(const JobFilter& filter) {
  return filter.status || filter.caller || !(filter.state + filter.name + filter.script_type).empty();
}

}  // namespace

Result<JobList> list_jobs(RecordStore& store, Id context, const JobQuery& query,
                          const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  JobList list;
  JobFilter filter = query.filter;
  if (!has_criteria(filter))
    filter.max_scanned = static_cast<std::uint32_t>(std::min<std::size_t>(filter.max_scanned, query.limit + 1));
  std::vector<ListedJob> jobs, unprocessed_jobs;
  std::set<std::string> seen_keys;  // a job may move to the front between two pages
  for (std::size_t rows_read = 0;;) {
    MJ_TRY(page, store.jobs(context, filter));
    rows_read += page.rows_read;
    for (ListedJob& job : page.jobs) {
      if (seen_keys.insert(job.key).second) jobs.push_back(std::move(job));
    }
    if (!page.unprocessed_jobs.empty()) unprocessed_jobs = std::move(page.unprocessed_jobs);
    filter.cursor = std::move(page.next_cursor);
    if (filter.cursor.empty() || jobs.size() > query.limit) break;
    list.truncated = rows_read >= query.max_scanned;
    if (list.truncated) break;
    progress(rows_read, query.max_scanned);
  }
  for (ListedJob& job : unprocessed_jobs) {
    if (seen_keys.insert(job.key).second) jobs.push_back(std::move(job));
  }
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const ListedJob& a, const ListedJob& b) { return a.changed_us > b.changed_us; });
  list.has_more = jobs.size() > query.limit;
  if (list.has_more) jobs.resize(query.limit);
  for (const ListedJob& job : jobs) {
    list.jobs.push_back(make_view(job));
    list.jobs.back().changed_ms = job.changed_us / 1000;
  }
  return list;
}

Result<JobsSlice> page_jobs(RecordStore& store, Id context, JobFilter filter, std::size_t limit) {
  const bool is_filtered = has_criteria(filter);
  JobsSlice slice;
  const auto add_job = [&slice](const ListedJob& job) {
    slice.jobs.push_back(make_view(job));
    slice.jobs.back().changed_ms = job.changed_us / 1000;
  };
  for (std::size_t job_count = 0; job_count < limit && slice.rows_read < kMaxRowsPerPage;) {
    filter.max_jobs = static_cast<std::uint32_t>(limit - job_count);
    if (!is_filtered) filter.max_scanned = filter.max_jobs;
    MJ_TRY(page, store.jobs(context, filter));
    for (const ListedJob& job : page.unprocessed_jobs) add_job(job);
    for (const ListedJob& job : page.jobs) add_job(job);
    job_count += page.jobs.size();
    slice.rows_read += page.rows_read;
    slice.after = filter.cursor = std::move(page.next_cursor);
    if (slice.after.empty()) break;
  }
  return slice;
}

namespace {

JobTimelineEntry make_entry(const Fact& fact) {
  JobTimelineEntry entry;
  entry.at_ms = fact.at_ms;
  entry.kind = fact.kind;
  entry.attempt = static_cast<std::uint32_t>(number_of(fact.fields, kFactAttemptField));
  entry.runner = static_cast<Id>(number_of(fact.fields, kFactRunnerField));
  entry.due_ms = number_of(fact.fields, kFactDueField);
  entry.detail =
      field_of(fact.fields, field_of(fact.fields, kFactDetailField).empty() ? kFactReasonField : kFactDetailField);
  return entry;
}

}  // namespace

Result<std::vector<Fact>> read_latest_facts(Store& store, Id context, const ClaimView& claim) {
  constexpr std::size_t kMaxFacts = 200;
  const std::span revisions(claim.revisions);
  std::vector<std::uint64_t> filter;
  for (const std::uint64_t revision : revisions.last(std::min(revisions.size(), kMaxFacts))) {
    if (revision != 0) filter.push_back(revision);
  }
  return store.journal_at(context, claim.queue, filter);
}

Result<std::vector<JobTimelineEntry>> read_job_history(Store& store, Id context, const std::string& key) {
  MJ_TRY(states, store.job_states(context, std::span(&key, 1), false));
  std::vector<JobTimelineEntry> entries;
  if (states.empty() || states[0].claim.queue.empty()) return entries;
  MJ_TRY(facts, read_latest_facts(store, context, states[0].claim));
  for (const Fact& fact : facts) {
    if (fact.kind != kFactKindHeartbeat) entries.push_back(make_entry(fact));
  }
  return entries;
}

nlohmann::json to_json(const JobTimelineEntry& entry) {
  json out{{"at_ms", entry.at_ms}, {"kind", to_utf8(entry.kind)}};
  if (entry.attempt > 0) out["attempt"] = entry.attempt;
  if (entry.runner > 0) out["runner_id"] = entry.runner;
  if (entry.due_ms > 0) out["due_ms"] = entry.due_ms;
  if (!entry.detail.empty()) out["detail"] = to_utf8(entry.detail);
  return out;
}

std::optional<std::uint64_t> wait_duration_ms(const Job& job, std::uint64_t now_ms) {
  if (job.queued_ms == 0) return std::nullopt;
  const bool is_waiting = job.status == JobStatus::dispatched || job.status == JobStatus::waiting_for_prerequisites;
  std::uint64_t end_ms = is_waiting ? now_ms : job.started_ms;
  if (end_ms == 0) end_ms = job.ended_ms;  // the job was never started
  const std::uint64_t due_ms = std::max(job.queued_ms, job.run_at_ms);
  return end_ms - std::min(end_ms, due_ms);
}

std::optional<std::uint64_t> run_duration_ms(const Job& job, std::uint64_t now_ms) {
  if (job.started_ms == 0 || job.status == JobStatus::dispatched) return std::nullopt;
  const std::uint64_t end_ms = job.status == JobStatus::started ? now_ms : job.ended_ms;
  if (end_ms < job.started_ms) return std::nullopt;
  return end_ms - job.started_ms;
}

nlohmann::json to_json(const JobView& view) {
  json object = to_json(view.job);
  object["key"] = view.key;
  if (view.changed_ms > 0) object["changed_ms"] = view.changed_ms;
  object.erase("result_json");
  if (!view.job.result.empty()) object["result"] = to_typed_json(view.job.result, view.job.result_json);
  if (!view.problems.empty()) object["problems"] = view.problems;
  return object;
}

std::string format_receipt(const Job& job) {
  const json usage = parse_or_empty(job.usage);
  std::string line(to_string(job.status));
  if (!job.detail.empty()) line += " " + job.detail;
  if (usage.empty()) return line;  // the job has never run
  const double memory = get_double(usage, "memory_peak_bytes");
  line += fmt::format(" · wall {} · cpu {} · memory {}", format_us(get_double(usage, "wall_us")),
                      format_us(get_double(usage, "user_us") + get_double(usage, "system_us")),
                      memory > 0 ? fmt::format("{:.1f} MiB", memory / (1 << 20)) : "not measured");
  const json receipt = parse_or_empty(job.receipt);
  if (receipt.contains("reused")) line += fmt::format(" · reused {:.0f}", get_double(receipt, "reused"));
  const double stragglers = get_double(receipt, "stragglers");
  if (stragglers > 0) line += fmt::format(" · stragglers {:.0f}", stragglers);
  return line + " · " + format_layers(job);
}

}  // namespace mycojobs
