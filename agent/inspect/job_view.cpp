#include "inspect/job_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/parse.h"
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

JobView view_of(const std::string& key, const Fields& hash) {
  auto decoded = decode<Job>(hash);
  JobView view{key, std::move(decoded.record), {}};
  for (const FieldProblem& problem : decoded.problems) view.problems.push_back(problem.message);
  return view;
}

JobView view_of(const ListedJob& job) {
  if (job.type == "hash") return view_of(job.key, job.record);
  return {job.key, {}, {job.key + " is a " + job.type + " where a hash belongs: another client wrote it"}};
}

double number(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

std::string duration(double us) {
  return us < 1e6 ? fmt::format("{:.1f} ms", us / 1e3) : fmt::format("{:.2f} s", us / 1e6);
}

// Returns the missing layers; usually all layers are in force.
std::string layers_of(const Job& job) {
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
  std::string_view rest = text.starts_with("job:") ? text.substr(4) : text;
  std::uint64_t caller = default_caller;
  std::uint64_t id = 0;
  const std::size_t colon = rest.find(':');
  const bool caller_ok = colon == std::string_view::npos || parse_u64(rest.substr(0, colon), caller);
  if (colon != std::string_view::npos) rest.remove_prefix(colon + 1);
  if (!caller_ok || !parse_u64(rest, id) || caller == 0 || id == 0 || caller > UINT32_MAX || id > UINT32_MAX) {
    return fail(Code::invalid, "\"" + std::string(text) + "\" is not a job: give CALLER:ID, for example 12:2001");
  }
  return job_key(static_cast<Id>(caller), static_cast<Id>(id));
}

Result<JobView> load_job(RecordStore& store, Id context, const std::string& key) {
  MJ_TRY(hash, store.load(context, key));
  return view_of(key, hash);
}

namespace {

bool is_filter(const JobFilter& wanted) {
  return wanted.status || wanted.caller || !(wanted.state + wanted.name + wanted.script_type).empty();
}

}  // namespace

Result<JobList> list_jobs(RecordStore& store, Id context, const JobQuery& query,
                          const std::function<void(std::uint64_t done, std::uint64_t of)>& progress) {
  JobList list;
  JobFilter wanted = query.wanted;
  if (!is_filter(wanted))
    wanted.max_scanned = static_cast<std::uint32_t>(std::min<std::size_t>(wanted.max_scanned, query.limit + 1));
  std::vector<ListedJob> found, unseen;
  std::set<std::string> once;  // a job may move to the front between two pages
  for (std::size_t looked_at = 0;;) {
    MJ_TRY(page, store.jobs(context, wanted));
    looked_at += page.looked_at;
    for (ListedJob& job : page.jobs) {
      if (once.insert(job.key).second) found.push_back(std::move(job));
    }
    if (!page.unseen.empty()) unseen = std::move(page.unseen);
    wanted.after = std::move(page.after);
    if (wanted.after.empty() || found.size() > query.limit) break;
    list.truncated = looked_at >= query.max_scanned;
    if (list.truncated) break;
    progress(looked_at, query.max_scanned);
  }
  for (ListedJob& job : unseen) {
    if (once.insert(job.key).second) found.push_back(std::move(job));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const ListedJob& a, const ListedJob& b) { return a.changed_us > b.changed_us; });
  list.more = found.size() > query.limit;
  if (list.more) found.resize(query.limit);
  for (const ListedJob& job : found) {
    list.jobs.push_back(view_of(job));
    list.jobs.back().changed_ms = job.changed_us / 1000;
  }
  return list;
}

Result<JobsSlice> page_jobs(RecordStore& store, Id context, JobFilter wanted, std::size_t limit) {
  const bool filtered = is_filter(wanted);
  JobsSlice slice;
  const auto take = [&slice](const ListedJob& job) {
    slice.jobs.push_back(view_of(job));
    slice.jobs.back().changed_ms = job.changed_us / 1000;
  };
  for (std::size_t taken = 0; taken < limit && slice.looked_at < kMaxScansOfPage;) {
    wanted.max_jobs = static_cast<std::uint32_t>(limit - taken);
    if (!filtered) wanted.max_scanned = wanted.max_jobs;
    MJ_TRY(page, store.jobs(context, wanted));
    for (const ListedJob& job : page.unseen) take(job);
    for (const ListedJob& job : page.jobs) take(job);
    taken += page.jobs.size();
    slice.looked_at += page.looked_at;
    slice.after = wanted.after = std::move(page.after);
    if (slice.after.empty()) break;
  }
  return slice;
}

namespace {

JobTimelineEntry moment_of(const Fact& fact) {
  JobTimelineEntry moment;
  moment.at_ms = fact.at_ms;
  moment.kind = fact.kind;
  moment.attempt = static_cast<std::uint32_t>(number_of(fact.more, "a"));
  moment.runner = static_cast<Id>(number_of(fact.more, "r"));
  moment.due_ms = number_of(fact.more, "due");
  moment.detail = field_of(fact.more, field_of(fact.more, "detail").empty() ? "why" : "detail");
  return moment;
}

}  // namespace

Result<std::vector<Fact>> latest_facts(Store& store, Id context, const ClaimView& claim) {
  constexpr std::size_t kMaxFacts = 200;
  const std::span all(claim.revisions);
  std::vector<std::uint64_t> wanted;
  for (const std::uint64_t revision : all.last(std::min(all.size(), kMaxFacts))) {
    if (revision != 0) wanted.push_back(revision);
  }
  return store.journal_at(context, claim.queue, wanted);
}

Result<std::vector<JobTimelineEntry>> job_history(Store& store, Id context, const std::string& key) {
  MJ_TRY(places, store.job_states(context, std::span(&key, 1), false));
  std::vector<JobTimelineEntry> moments;
  if (places.empty() || places[0].claim.queue.empty()) return moments;
  MJ_TRY(facts, latest_facts(store, context, places[0].claim));
  for (const Fact& fact : facts) {
    if (fact.kind != "heartbeat") moments.push_back(moment_of(fact));
  }
  return moments;
}

nlohmann::json to_json(const JobTimelineEntry& moment) {
  json out{{"at_ms", moment.at_ms}, {"kind", to_utf8(moment.kind)}};
  if (moment.attempt > 0) out["attempt"] = moment.attempt;
  if (moment.runner > 0) out["runner_id"] = moment.runner;
  if (moment.due_ms > 0) out["due_ms"] = moment.due_ms;
  if (!moment.detail.empty()) out["detail"] = to_utf8(moment.detail);
  return out;
}

std::optional<std::uint64_t> waited_ms(const Job& job, std::uint64_t now_ms) {
  if (job.queued_ms == 0) return std::nullopt;
  const bool waits = job.status == JobStatus::dispatched || job.status == JobStatus::waiting_for_prerequisites;
  std::uint64_t until = waits ? now_ms : job.started_ms;
  if (until == 0) until = job.ended_ms;  // the job was never started
  const std::uint64_t due = std::max(job.queued_ms, job.run_at_ms);
  return until - std::min(until, due);
}

std::optional<std::uint64_t> ran_ms(const Job& job, std::uint64_t now_ms) {
  if (job.started_ms == 0 || job.status == JobStatus::dispatched) return std::nullopt;
  const std::uint64_t until = job.status == JobStatus::started ? now_ms : job.ended_ms;
  if (until < job.started_ms) return std::nullopt;
  return until - job.started_ms;
}

nlohmann::json to_json(const JobView& view) {
  json object = to_json(view.job);
  object["key"] = view.key;
  if (view.changed_ms > 0) object["changed_ms"] = view.changed_ms;
  object.erase("result_json");
  if (!view.job.result.empty()) object["result"] = typed_values(view.job.result, view.job.result_json);
  if (!view.problems.empty()) object["problems"] = view.problems;
  return object;
}

std::string receipt_line(const Job& job) {
  const json usage = parse_or_empty(job.usage);
  std::string line(to_string(job.status));
  if (!job.detail.empty()) line += " " + job.detail;
  if (usage.empty()) return line;  // the job has never run
  const double memory = number(usage, "memory_peak_bytes");
  line += fmt::format(" · wall {} · cpu {} · memory {}", duration(number(usage, "wall_us")),
                      duration(number(usage, "user_us") + number(usage, "system_us")),
                      memory > 0 ? fmt::format("{:.1f} MiB", memory / (1 << 20)) : "not measured");
  const json receipt = parse_or_empty(job.receipt);
  if (receipt.contains("reused")) line += fmt::format(" · reused {:.0f}", number(receipt, "reused"));
  const double stragglers = number(receipt, "stragglers");
  if (stragglers > 0) line += fmt::format(" · stragglers {:.0f}", stragglers);
  return line + " · " + layers_of(job);
}

}  // namespace mycojobs
