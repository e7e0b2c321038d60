// mycojobs job list | show | logs: they read, and change nothing.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/artifact_files.h"
#include "cli/commands.h"
#include "cli/opened.h"
#include "cli/progress_line.h"
#include "cli/serve.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/transitions.h"
#include "inspect/jobs.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxKeys = 100000;
constexpr std::size_t kShownArtifacts = 20;  // by `job show`; `job artifacts` lists all

Tone tone_of(const Job& job) {
  if (job.status == JobStatus::finished) return Tone::good;
  return job.status == JobStatus::error ? Tone::bad : Tone::plain;
}

std::string when(std::uint32_t unix_s) {
  return unix_s == 0 ? "-" : fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(unix_s)));
}

Result<int> list(Invocation& call) {
  std::optional<JobStatus> status;
  if (call.has("status")) {
    status = parse<JobStatus>(call.get("status"));
    if (!status)
      return fail(Code::invalid, "--status: \"" + call.get("status") +
                                     "\" is none of dispatched, waiting_for_prerequisites, started, error, finished");
  }
  std::uint64_t limit = 0;
  if (!parse_u64(call.get("limit", "50"), limit)) return fail(Code::invalid, "--limit: a whole number");
  MJ_TRY(opened, open_to_answer(call));
  ProgressLine progress(call.parts.clock);
  MJ_TRY(found, list_jobs(*opened.store, context_of(call), {status, limit, kMaxKeys},
                          [&](std::uint64_t done, std::uint64_t of) { progress.show("reading jobs", done, of); }));
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const JobView& view : found.jobs) array.push_back(to_json(view));
    print(dump_json(array, 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"JOB", "NAME", "TYPE", "STATUS", "DETAIL", "CREATED", "ERROR"}};
  for (const JobView& view : found.jobs) {
    const Job& job = view.job;
    const std::string problem = view.problems.empty() ? job.error : view.problems.front();
    rows.push_back({view.key.substr(4), printable(job.name), printable(job.script_type),
                    paint(tone_of(job), word(job.status)), job.detail, when(job.created_at),
                    printable(problem.substr(0, 80))});
  }
  print_table(rows);
  const std::size_t more = found.matching - found.jobs.size();
  if (more > 0) say(fmt::format("{} more; --limit shows them", more));
  if (found.truncated) say(fmt::format("only {} records were looked at", kMaxKeys));
  return 0;
}

Result<int> show(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(view, load_job(*opened.store, context_of(call), key));
  if (call.json) {
    print(dump_json(to_json(view), 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : encode(view.job)) {
    if (name == "script" || name == "error_info") continue;
    std::string text = printable(value);
    if (name == "artifacts") {
      text.clear();
      for (const auto& line : artifact_lines(value, kShownArtifacts)) text += (text.empty() ? "" : ", ") + line;
    }
    rows.push_back({paint(Tone::strong, printable(name)), text});
  }
  print_table(rows);
  for (const std::string& problem : view.problems) say(paint(Tone::bad, "unreadable: ", true) + problem);
  auto info = parse_json(view.job.error_info.empty() ? "{}" : view.job.error_info);
  if (info && info->is_object() && info->contains("traceback") && (*info)["traceback"].is_string()) {
    print("\n" + printable((*info)["traceback"].get<std::string>()));
  }
  return 0;
}

Result<int> logs(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_store(call, false));
  const Id context = context_of(call);
  MJ_CHECK(load_job(*opened.store, context, key));  // a job that does not exist is an error, not an empty log
  const bool follow = call.has("follow");
  std::uint64_t after = 0;
  for (;;) {
    if (const int signal = next_stop_signal(0); signal != 0) return exit_of_signal(signal);
    MJ_TRY(page, opened.store->logs(context, key, after, 256, follow ? 200 : 0));
    for (const Log& line : page.lines) {
      after = line.seq;
      if (call.json) {
        print(dump_json(to_json(line)) + "\n");
      } else {
        print_log(line);
      }
    }
    if (page.ended || (!follow && page.lines.empty())) break;
  }
  return 0;
}

}  // namespace

int job_list_command(Invocation& call) { return finish(list(call)); }
int job_show_command(Invocation& call) { return finish(show(call)); }
int job_logs_command(Invocation& call) { return finish(logs(call)); }

}  // namespace mycojobs
