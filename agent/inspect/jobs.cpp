#include "inspect/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "domain/codec.h"
#include "sandbox/layers.h"

namespace mycojobs {
namespace {

using nlohmann::json;

json parse_or_empty(const std::string& text) {
  auto parsed = parse_json(text.empty() ? "{}" : text);
  return parsed && parsed->is_object() ? std::move(*parsed) : json::object();
}

constexpr std::string_view kListed[] = {"id",         "caller_id",  "context_id", "script_type", "status",
                                        "detail",     "error",      "name",       "flow_id",     "created_at",
                                        "updated_at", "attempt",    "deliveries", "runner_id",   "priority",
                                        "queued_ms",  "started_ms", "ended_ms",   "run_at_ms"};

JobView view_of(const std::string& key, const Fields& hash) {
  auto decoded = decode<Job>(hash);
  JobView view{key, std::move(decoded.record), {}};
  for (const FieldProblem& problem : decoded.problems) view.problems.push_back(problem.message);
  return view;
}

bool is_newer(const JobView& a, const JobView& b) {
  return std::tie(a.job.created_at, a.job.caller_id, a.job.id, a.key) >
         std::tie(b.job.created_at, b.job.caller_id, b.job.id, b.key);
}

double number(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

std::string duration(double us) {
  return us < 1e6 ? fmt::format("{:.1f} ms", us / 1e3) : fmt::format("{:.2f} s", us / 1e6);
}

// Which of the layers were missing; all of them in force is the usual case.
std::string layers_of(const Job& job) {
  if (job.layers.empty()) return "no layers";
  const std::string in_force = " " + job.layers + " ";
  std::string missing;
  for (std::string_view layer : sandbox::kLayers) {
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
    return fail(Code::invalid, "\"" + std::string(text) + "\" is no job: give CALLER:ID, as in 12:2001");
  }
  return job_key(static_cast<Id>(caller), static_cast<Id>(id));
}

Result<JobView> load_job(Store& store, Id context, const std::string& key) {
  MJ_TRY(hash, store.load(context, key));
  return view_of(key, hash);
}

Result<JobList> list_jobs(Store& store, Id context, const JobQuery& query,
                          const std::function<void(std::uint64_t done, std::uint64_t of)>& progress) {
  const std::string prefix = query.caller ? "job:" + std::to_string(*query.caller) + ':' : "job:";
  MJ_TRY(keys, store.keys(context, prefix, query.max_keys + 1));
  JobList list;
  list.truncated = keys.size() > query.max_keys;
  if (list.truncated) keys.resize(query.max_keys);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    progress(i, keys.size());
    auto fields = store.load_fields(context, keys[i], kListed);
    if (!fields && fields.error().code != Code::not_found && fields.error().code != Code::invalid) {
      return tl::unexpected(fields.error());
    }
    if (!fields && fields.error().code == Code::not_found) continue;  // it went while we were reading
    JobView view{keys[i], {}, {}};
    if (fields) {
      view = view_of(keys[i], *fields);
    } else {
      view.problems.push_back(fields.error().message);
    }
    if (query.status && view.job.status != *query.status) continue;
    ++list.matching;
    list.jobs.push_back(std::move(view));
    std::push_heap(list.jobs.begin(), list.jobs.end(), is_newer);  // the oldest in front
    if (list.jobs.size() <= query.limit) continue;
    std::pop_heap(list.jobs.begin(), list.jobs.end(), is_newer);
    list.jobs.pop_back();
  }
  std::sort_heap(list.jobs.begin(), list.jobs.end(), is_newer);
  return list;
}

nlohmann::json to_json(const JobView& view) {
  json object = to_json(view.job);
  object["key"] = view.key;
  if (!view.problems.empty()) object["problems"] = view.problems;
  return object;
}

std::string receipt_line(const Job& job) {
  const json usage = parse_or_empty(job.usage);
  std::string line(word(job.status));
  if (!job.detail.empty()) line += " " + job.detail;
  if (usage.empty()) return line;  // it never ran
  const double memory = number(usage, "memory_peak_bytes");
  line += fmt::format(" · wall {} · cpu {} · memory {}", duration(number(usage, "wall_us")),
                      duration(number(usage, "user_us") + number(usage, "system_us")),
                      memory > 0 ? fmt::format("{:.1f} MiB", memory / (1 << 20)) : "not measured");
  const double stragglers = number(parse_or_empty(job.receipt), "stragglers");
  if (stragglers > 0) line += fmt::format(" · stragglers {:.0f}", stragglers);
  return line + " · " + layers_of(job);
}

}  // namespace mycojobs
