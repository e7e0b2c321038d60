// mycojobs job submit, list, show, logs, cancel, retry, explain, approve, reject, artifacts
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/artifact_files.h"
#include "cli/commands.h"
#include "cli/moment.h"
#include "cli/opened.h"
#include "cli/progress_line.h"
#include "cli/serve.h"
#include "cli/submission.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/transitions.h"
#include "domain/units.h"
#include "domain/utf8.h"
#include "inspect/draw_flow.h"
#include "inspect/explain.h"
#include "inspect/jobs.h"
#include "service/jobs.h"
#include "worker/artifacts.h"

namespace mycojobs {

namespace {

Result<int> submit_only(const Invocation& call) {
  MJ_TRY(submission, read_submission(call));
  MJ_TRY(opened, open_store(call, false));
  MJ_TRY(submitted, submit(call, opened, std::move(submission), false));
  const std::string key = redis_key(submitted);
  if (call.json) {
    print(dump_json(to_json(JobView{key, submitted, {}}), 2) + "\n");
  } else {
    print(key + "\n");
  }
  if (opened.session.embedded) {
    say(fmt::format("{} waits in {}: `mycojobs dev` or any `mycojobs run` there runs it", key,
                    call.settings.state_dir));
  }
  return 0;
}

}  // namespace

int job_submit_command(Invocation& call) { return call.has("follow") ? run_command(call) : finish(submit_only(call)); }

// mycojobs job list | show | logs: they read, and change nothing.

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

// mycojobs job cancel | retry | explain | approve | reject

namespace {

void answer(const Invocation& call, const std::string& key, const Job& job, const std::string& text) {
  if (!call.json) {
    print(key + " " + text + "\n");
    return;
  }
  print(dump_json({{"key", key}, {"status", word(job.status)}, {"detail", job.detail}, {"answer", text}}) + "\n");
}

Result<int> cancel(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(by, who_asks(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(job, service::cancel_job(by, *opened.store, key));
  if (job.status == JobStatus::started) {
    answer(call, key, job, "is told to end: TERM, and KILL after the runner's grace time");
  } else if (job.status == JobStatus::error && job.detail == "cancelled") {
    answer(call, key, job, "is cancelled");
  } else {
    answer(call, key, job, fmt::format("had ended before as {} {}", word(job.status), printable(job.detail)));
  }
  return 0;
}

Result<int> retry(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(by, who_asks(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(job, as_typed(call, service::retry_job(by, *opened.store, key)));
  answer(call, key, job, "is queued again, as its next attempt");
  return 0;
}

Result<int> answer_approval(const Invocation& call, bool approved) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(by, who_asks(call));
  service::AnswerJob wish{key, call.arguments.at(1), approved, call.get("comment")};
  if (wish.name.starts_with("approval:")) wish.name.erase(0, 9);
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(said, as_typed(call, service::answer_job(by, *opened.store, wish)));
  answer(call, key, said.job,
         !said.changed ? "is as it was: that approval had been given before"
         : approved    ? "has the approval"
                       : "has the rejection: it ends as error");
  return 0;
}

Tone tone_of(const Explanation& why) {
  if (why.cause == "finished" || why.cause == "running" || why.cause == "next") return Tone::good;
  return why.state == "ended" || why.state == "unknown" || why.cause == "place_lost" ? Tone::bad : Tone::warn;
}

Result<int> explain_job(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(why, explain(*opened.store, context_of(call), key));
  if (call.json) {
    print(dump_json({{"key", why.job_key},
                     {"state", why.state},
                     {"cause", why.cause},
                     {"reason", why.reason},
                     {"evidence", why.evidence},
                     {"next", why.next}},
                    2) +
          "\n");
  } else {
    print(fmt::format("{}  {} {}\n", why.job_key, paint(tone_of(why), why.state), why.cause));
    print(fmt::format("  {}   {}\n", paint(Tone::strong, "reason"), one_line(why.reason)));
    for (const std::string& line : why.evidence) {
      print(fmt::format("  {} {}\n", paint(Tone::faint, "evidence"), one_line(line)));
    }
    print(fmt::format("  {}     {}\n", paint(Tone::strong, "next"), one_line(why.next)));
  }
  return why.cause == "no_such_job" || why.cause == "in_database_0" ? EX_NOINPUT : 0;
}

}  // namespace

int job_cancel_command(Invocation& call) { return finish(cancel(call)); }
int job_retry_command(Invocation& call) { return finish(retry(call)); }
int job_explain_command(Invocation& call) { return finish(explain_job(call)); }
int job_approve_command(Invocation& call) { return finish(answer_approval(call, true)); }
int job_reject_command(Invocation& call) { return finish(answer_approval(call, false)); }

// mycojobs job artifacts JOB [NAME]: the files that a job left.

namespace {

constexpr std::size_t kMostOnTerminal = 1U << 20;

struct FoundArtifacts {
  std::string key;
  std::vector<StoredArtifact> all;
  std::string where;  // "runner 3 on host atlas"
};

std::string runner_of(Store& store, Id context, Id runner) {
  if (runner == 0) return "an unknown runner";
  const std::string named = fmt::format("runner {}", runner);
  const auto all = store.runners(context);
  if (!all) return named;
  const auto found = std::find_if(all->begin(), all->end(), [&](const auto& each) { return each.runner.id == runner; });
  const bool known = found != all->end() && !found->hold.host.empty();
  return known ? named + " on host " + one_line(found->hold.host) : named;
}

Result<FoundArtifacts> find(const Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  const Id context = context_of(call);
  MJ_TRY(view, load_job(*opened.store, context, key));
  FoundArtifacts found{key, read_artifacts(view.job.artifacts, context, call.settings.state_dir), {}};
  if (!std::all_of(found.all.begin(), found.all.end(), is_here))
    found.where = runner_of(*opened.store, context, view.job.runner_id);
  return found;
}

// What to do about an artifact that lies elsewhere.
Error explained(const FoundArtifacts& found, const StoredArtifact& artifact, Error error) {
  if (error.code == Code::not_found) {
    error.message += fmt::format("; the job ran at {}: call this there, with the --state-dir of its agent",
                                 found.where.empty() ? "another host" : found.where);
  }
  error.message.insert(0, found.key + ": artifact " + shown(artifact.name, 200) + ": ");
  return error;
}

nlohmann::json to_json(const StoredArtifact& artifact) {
  return {{"name", artifact.name},     {"bytes", artifact.bytes},
          {"sha256", artifact.sha256}, {"executable", artifact.executable},
          {"here", is_here(artifact)}, {"path", artifact.path}};
}

void list(const Invocation& call, const FoundArtifacts& found) {
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const auto& each : found.all) array.push_back(to_json(each));
    print(dump_json(array, 2) + "\n");
    return;
  }
  if (found.all.empty()) return say(found.key + " left no artifacts");
  std::vector<std::vector<std::string>> rows{{"NAME", "BYTES", "HERE", "SHA256"}};
  for (const auto& each : found.all)
    rows.push_back({one_line(each.name), std::to_string(each.bytes), is_here(each) ? "yes" : "no", each.sha256});
  print_table(rows);
  if (!found.where.empty()) say("what is not here lies at " + found.where);
}

// As it is, but for a terminal: what a stranger wrote may not speak to that.
Result<void> print_artifact(const StoredArtifact& artifact) {
  if (::isatty(STDOUT_FILENO) == 0)
    return read_artifact(artifact, [](std::string_view bytes) { return write_out(STDOUT_FILENO, bytes); });
  std::string text;
  MJ_CHECK(read_artifact(artifact, [&text](std::string_view bytes) -> Result<void> {
    text.append(bytes.substr(0, kMostOnTerminal + 1 - std::min(text.size(), kMostOnTerminal + 1)));
    return {};
  }));
  if (text.size() > kMostOnTerminal || !is_utf8(text) || text.find('\0') != std::string::npos)
    return fail(Code::invalid, "is nothing for a terminal: give --output FILE");
  print(printable(text));
  return {};
}

Result<void> write_one(const StoredArtifact& artifact, const std::string& output) {
  std::error_code unseen;  // opening it tells why
  if (std::filesystem::is_directory(output, unseen) || output.ends_with('/')) {
    MJ_TRY(folder, OutputFolder::open(output));
    return copy_artifact(artifact, folder);
  }
  const std::filesystem::path path(output);
  MJ_TRY(folder, OutputFolder::open(path.has_parent_path() ? path.parent_path().string() : "."));
  StoredArtifact renamed = artifact;
  renamed.name = path.filename().string();
  return copy_artifact(renamed, folder);
}

Result<int> artifacts(const Invocation& call) {
  const std::string output = call.get("output");
  if (call.has("output") && output.empty()) return fail(Code::invalid, "--output: is empty");
  MJ_TRY(found, find(call));
  const bool one = call.arguments.size() > 1;
  std::vector<StoredArtifact> wanted = found.all;
  if (one) {
    std::erase_if(wanted, [&](const auto& each) { return each.name != call.arguments[1]; });
    if (wanted.empty()) {
      return fail(Code::not_found, fmt::format("{} left no artifact {}: `mycojobs job artifacts {}` lists them",
                                               found.key, shown(call.arguments[1], 200), found.key.substr(4)));
    }
  }
  if (!call.has("output") && (call.json || !one)) {
    found.all = wanted;
    list(call, found);
    return 0;
  }
  for (const StoredArtifact& each : wanted) {
    Result<void> done;
    if (!call.has("output")) {
      done = print_artifact(each);
    } else if (one) {
      done = write_one(each, output);
    } else {
      MJ_TRY(folder, OutputFolder::open(output));
      done = copy_artifact(each, folder);
    }
    if (!done) return tl::unexpected<Error>(explained(found, each, std::move(done).error()));
    if (call.has("output")) say("wrote " + one_line(each.name) + " (" + size_text(each.bytes) + ")");
  }
  return 0;
}

}  // namespace

int job_artifacts_command(Invocation& call) { return finish(artifacts(call)); }

}  // namespace mycojobs
