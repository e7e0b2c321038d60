// mycojobs job list | show | logs: they read, and change nothing.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/artifact_files.h"
#include "cli/commands.h"
#include "cli/moment.h"
#include "cli/opened.h"
#include "cli/progress_line.h"
#include "cli/serve.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/transitions.h"
#include "domain/units.h"
#include "domain/utf8.h"
#include "inspect/draw_flow.h"
#include "inspect/jobs.h"
#include "service/jobs.h"

namespace mycojobs {
namespace {

constexpr std::size_t kArtifactsOfShow = 20;  // by `job show`; `job artifacts` lists all

Tone tone_of(const Job& job) {
  if (job.status == JobStatus::finished) return Tone::good;
  return job.status == JobStatus::error ? Tone::bad : Tone::plain;
}

std::string took(std::optional<std::uint64_t> ms) { return ms ? short_span(*ms) : "-"; }

Result<std::uint64_t> since_ms(const Invocation& call) {
  if (!call.has("since")) return 0;
  const std::string text = call.get("since");
  const std::uint64_t now = call.parts.clock.unix_ms();
  if (const auto ago = parse_duration_ms(text)) return now - std::min(now, *ago);
  if (auto moment = parse_moment_ms(text)) return *moment;
  return fail(Code::invalid,
              "--since: " + shown(text) + " is neither a time ago (30m, 2h, 1d) nor a moment " + "(2030-01-31 12:00)");
}

Result<service::ListJobs> query_of(const Invocation& call) {
  service::ListJobs query;
  if (call.has("status")) {
    MJ_TRY(status, as_typed(call, service::read_job_status(call.get("status"))));
    query.wanted.status = status;
  }
  for (const char* flag : {"state", "name", "type"}) {
    if (call.has(flag) && call.get(flag).empty()) return fail(Code::invalid, std::string("--") + flag + ": is empty");
  }
  query.wanted.state = call.get("state");
  query.wanted.name = call.get("name");
  query.wanted.script_type = call.get("type");
  if (call.has("type") && !is_script_type(query.wanted.script_type))
    return fail(Code::invalid, "--type: " + shown(query.wanted.script_type) + " is no script type, as python is");
  std::uint64_t caller = 0, limit = 0;
  if (call.has("caller") && (!parse_u64(call.get("caller"), caller) || caller == 0 || caller > UINT32_MAX))
    return fail(Code::invalid, "--caller: the id of an actor, 1 or more");
  if (call.has("caller")) query.wanted.caller = static_cast<Id>(caller);
  MJ_TRY(since, since_ms(call));
  query.wanted.since_ms = since;
  if (!parse_u64(call.get("limit", "50"), limit)) return fail(Code::invalid, "--limit: a whole number");
  query.limit = std::min<std::uint64_t>(limit, service::kMaxJobLooks);
  return query;
}

Result<int> list_all_jobs(Invocation& call) {
  MJ_TRY(query, query_of(call));
  MJ_TRY(by, who_asks(call));
  MJ_TRY(opened, open_to_answer(call));
  ProgressLine progress(call.parts.clock);
  MJ_TRY(found, service::list_jobs(by, *opened.store, query, [&](std::uint64_t done, std::uint64_t of) {
           progress.show("reading jobs", done, of);
         }));
  MJ_TRY(now, opened.store->now_ms());
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const JobView& view : found.jobs) {
      array.push_back(to_json(view));
      if (const auto ms = waited_ms(view.job, now)) array.back()["waited_ms"] = *ms;
      if (const auto ms = ran_ms(view.job, now)) array.back()["ran_ms"] = *ms;
    }
    print(dump_json(array, 2) + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows{
      {"JOB", "NAME", "TYPE", "STATUS", "DETAIL", "LAST", "WAITED", "RAN", "ERROR"}};
  for (const JobView& view : found.jobs) {
    const Job& job = view.job;
    const std::string problem = view.problems.empty() ? job.error : view.problems.front();
    rows.push_back({view.key.substr(4), printable(job.name), printable(job.script_type),
                    paint(tone_of(job), word(job.status)), printable(job.detail), local_time(view.changed_ms),
                    took(waited_ms(job, now)), took(ran_ms(job, now)), printable(problem.substr(0, 80))});
  }
  print_table(rows);
  if (found.more) say("there are more; --limit shows them");
  if (found.truncated)
    say(fmt::format("only the latest {} jobs were looked at; --since looks at fewer", service::kMaxJobLooks));
  return 0;
}

Result<int> show_job(Invocation& call) {
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
      for (const auto& line : artifact_lines(value, kArtifactsOfShow)) text += (text.empty() ? "" : ", ") + line;
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

int job_list_command(Invocation& call) { return finish(list_all_jobs(call)); }
int job_show_command(Invocation& call) { return finish(show_job(call)); }
int job_logs_command(Invocation& call) { return finish(logs(call)); }

}  // namespace mycojobs
