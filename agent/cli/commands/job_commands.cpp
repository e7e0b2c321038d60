#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "artifacts/job_artifacts.h"
#include "base/parse.h"
#include "cli/artifact_output.h"
#include "cli/batch_submission.h"
#include "cli/commands/command_table.h"
#include "cli/job_submission.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/draw_flow.h"
#include "inspect/explain.h"
#include "inspect/job_view.h"
#include "jobs/state_machines.h"
#include "model/codec.h"
#include "service/job_service.h"
#include "text/json.h"
#include "text/timestamp.h"
#include "text/units.h"
#include "text/utf8.h"
#include "worker/leases/instance_lock.h"

namespace mycojobs {
namespace {

// Follows a job to its end.

constexpr std::uint32_t kFollowMs = 200;            // maximum delay of the reaction to Ctrl-C
constexpr std::uint64_t kJobUnavailableMs = 30000;  // maximum time for which an unavailable store is retried
constexpr int kCheckAgainMs = 100;
constexpr std::size_t kShownValueBytes = 1000;  // maximum of displayed bytes of a result value; not for JSON
constexpr std::size_t kShownArtifacts = 20;     // maximum of displayed artifacts; not for JSON
constexpr std::uint64_t kJobTimeoutMs = 3000;   // delay before the reason why a job waits is displayed

class JobFollower {
 public:
  JobFollower(const Invocation& call, Id context, std::string key)
      : call_(call), context_(context), key_(std::move(key)), quiet_since_ms_(call.parts.clock.boot_ms()) {}

  Result<void> follow(Store& store) {
    bool ended = false;
    while (!ended) {
      MJ_CHECK(obey_signals(store));
      MJ_TRY(page, store.logs(context_, key_, last_seq_, 256, kFollowMs));
      for (const Log& line : page.lines) show(line);
      ended = page.ended;
      if (!ended && page.lines.empty()) MJ_CHECK(print_wait_reason(store));
    }
    return {};
  }
  const nlohmann::json& lines() const { return lines_; }
  bool left() const { return stops_ > 1; }
  std::uint64_t lines_seen() const { return last_seq_; }

 private:
  // The first signal requests cancellation, which is retried until the store accepts it. A third signal, during the
  // exit, ends the process at once.
  Result<void> obey_signals(Store& store) {
    const int signal = next_follower_signal(0);
    // A lost reader counts as the first Ctrl-C only, because a Ctrl-C in a terminal also ends the reader of the pipe.
    const bool stop = signal == SIGPIPE ? stops_ == 0 : signal != 0;
    if (stop && ++stops_ > 1) {
      exit_on_stop_signals();
      return fail(Code::conflict,
                  "left " + key_ + " behind" + (cancel_asked_ ? ", with the request to cancel it" : ""));
    }
    if (stops_ == 0 || cancel_asked_) return {};
    if (!cancel_shown_) print_message("cancelling " + key_ + "; press Ctrl-C again to exit while it runs");
    cancel_shown_ = true;
    MJ_CHECK(store.cancel(context_, key_));
    cancel_asked_ = true;
    return {};
  }
  void show(const Log& line) {
    last_seq_ = line.seq;
    quiet_since_ms_ = call_.parts.clock.boot_ms();
    if (call_.json) {
      lines_.push_back(to_json(line));
      return;
    }
    print_log(line);
  }
  // Prints each cause once, and nothing for a running job.
  Result<void> print_wait_reason(Store& store) {
    const std::uint64_t now = call_.parts.clock.boot_ms();
    if (now - quiet_since_ms_ < kJobTimeoutMs) return {};
    quiet_since_ms_ = now;
    auto why = explain(store, context_, key_);
    if (!why && why.error().code == Code::unavailable) return tl::unexpected(why.error());
    const std::string cause = why ? why->cause : "unknown";
    if (cause == shown_cause_ || cause == "running" || cause == "next" || (why && why->state == "ended")) return {};
    shown_cause_ = cause;
    print_message(why ? fmt::format("{} waits: {}; {}", key_, one_line(why->reason), one_line(why->next))
                      : fmt::format("{} waits; why is unknown: {}", key_, one_line(why.error().message)));
    return {};
  }

  const Invocation& call_;
  Id context_;
  std::string key_;
  std::uint64_t quiet_since_ms_;
  std::uint64_t last_seq_ = 0;
  int stops_ = 0;
  bool cancel_shown_ = false, cancel_asked_ = false;
  std::string shown_cause_;
  nlohmann::json lines_ = nlohmann::json::array();
};

// Breaks a receipt longer than 80 columns between its parts; print_message() indents the further lines.
std::string receipt_of(const JobView& view) {
  constexpr std::size_t kColumns = 78;
  constexpr std::string_view kBetween = " · ";
  const std::string text = view.key + " " + printable(receipt_line(view.job));
  std::string out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(kBetween, at), text.size());
    const std::string part = text.substr(at, end - at);
    const bool fits = used == 0 || used + columns(kBetween) + columns(part) <= kColumns;
    if (used > 0) out += fits ? kBetween : "\n";
    used = columns(part) + (fits && used > 0 ? used + columns(kBetween) : 0);
    out += part;
    at = end + kBetween.size();
  }
  return out;
}

void print_end(const JobView& view, bool as_json, const nlohmann::json& lines) {
  if (as_json) {
    nlohmann::json object = to_json(view);
    object["logs"] = lines;
    print(dump_json(object, 2) + "\n");
    return;
  }
  const Job& job = view.job;
  for (const auto& [key, value] : job.result) {
    const std::string more =
        value.size() > kShownValueBytes ? fmt::format("... ({} bytes; --json has all)", value.size()) : "";
    print_message(paint(OutputStyle::strong, one_line(key), true) + " = " +
                  printable(whole_characters(value, kShownValueBytes)) + more);
  }
  for (const auto& line : artifact_lines(job.artifacts, kShownArtifacts))
    print_message(paint(OutputStyle::strong, "artifact ", true) + line);
  for (const auto& line : dropped_lines(job.artifacts_dropped))
    print_message(paint(OutputStyle::warn, "artifact ", true) + printable(line));
  if (!job.error.empty()) print_message(paint(OutputStyle::bad, "error: ", true) + printable(job.error));
  const bool good = job.status == JobStatus::finished;
  const std::string receipt = receipt_of(view);
  print_message(paint(good ? OutputStyle::good : OutputStyle::bad, view.key, true) +
                paint(OutputStyle::faint, std::string_view(receipt).substr(view.key.size()), true));
}

// Follows the job; retries while the store is unavailable for a short time.
Result<JobView> end_of(const Invocation& call, OpenedStore& opened, JobFollower& follower, const std::string& key,
                       bool with_agent) {
  const Id context = context_of(call);
  std::uint64_t unavailable_since_ms = 0;
  for (;;) {
    const std::uint64_t seen = follower.lines_seen();
    auto followed = follower.follow(*opened.store);
    if (followed) return load_job(*opened.store, context, key);
    if (followed.error().code != Code::unavailable || follower.left()) return tl::unexpected(followed.error());
    const std::uint64_t now = call.parts.clock.boot_ms();
    if (unavailable_since_ms == 0 || follower.lines_seen() > seen) unavailable_since_ms = now;
    if (now - unavailable_since_ms > kJobUnavailableMs) {
      return fail(Code::unavailable, followed.error().message + "; " + key + " continues: `mycojobs job show " +
                                         key.substr(4) + "` shows its end");
    }
    ::poll(nullptr, 0, kCheckAgainMs);
    reopen(call, opened, with_agent);
  }
}

// Returns true if the script is written for warm processes, but was run normally, so that its main(job) was not called.
bool only_defines_main(const Job& job) {
  const std::string_view text = job.script;
  const std::string_view defines = job.script_type == "python" ? "def main(" : "function main(";
  const bool knows_warm = job.script_type == "python" || job.script_type == "sal" || job.script_type == "osis";
  if (!knows_warm || job.status != JobStatus::finished || job.policy.find("warm") != std::string::npos) return false;
  const auto at = text.find(defines);
  if (at == text.npos || (at > 0 && text[at - 1] != '\n')) return false;
  const auto call = at + defines.size() - std::string_view("main(").size();
  return text.find("main(") == call && text.find("main(", call + 1) == text.npos;
}

// Follows a job: prints its log, prints the reason if the job waits, requests cancellation at the first Ctrl-C and
// exits at the second, and retries while the store is unavailable for a short time. Then prints result and receipt, or
// one document with --json. Returns the ended job.
Result<Job> follow_to_the_end(const Invocation& call, OpenedStore& opened, const std::string& job_key,
                              bool with_agent) {
  JobFollower follower(call, context_of(call), job_key);
  MJ_TRY(view, end_of(call, opened, follower, job_key, with_agent));
  print_end(view, call.json, follower.lines());
  if (!call.json && view.job.result.empty() && only_defines_main(view.job))
    print_message(
        "the script defines main(job), which nothing has called: only that of a warm script is; see docs/warm.md");
  return view.job;
}

}  // namespace

// mycojobs run FILE

namespace {

Result<int> run(const Invocation& call) {
  MJ_TRY(submission, read_submission(call));
  MJ_TRY(opened, open_store(call, true));
  MJ_CHECK(check_served(call, *opened.store, {submission.job.script_type}));
  MJ_TRY(submitted, submit(call, opened, std::move(submission), true));
  MJ_TRY(ended, follow_to_the_end(call, opened, redis_key(submitted), true));
  // Other clients may have sent jobs to the private server. Jobs that are still queued are left to its next user.
  if (opened.session.agent) wait_for_drain(*opened.session.agent);
  return exit_code(ended);
}

}  // namespace

int run_command(Invocation& call) { return finish(run(call)); }

// mycojobs job submit, list, show, logs, cancel, retry, explain, approve, reject, artifacts

namespace {

Result<int> submit_only(const Invocation& call) {
  MJ_TRY(submission, read_submission(call));
  MJ_TRY(opened, open_store(call, false));
  MJ_CHECK(check_served(call, *opened.store, {submission.job.script_type}));
  MJ_TRY(submitted, submit(call, opened, std::move(submission), false));
  const std::string key = redis_key(submitted);
  if (call.json) {
    print(dump_json(to_json(JobView{key, submitted, {}}), 2) + "\n");
  } else {
    print(key + "\n");
  }
  if (opened.session.embedded) {
    print_message(fmt::format("{} waits in {}: `mycojobs dev` or any `mycojobs run` there runs it", key,
                              call.settings.state_dir));
  }
  return 0;
}

}  // namespace

int job_submit_command(Invocation& call) {
  if (call.has("batch")) return finish(submit_batch(call));
  return call.has("follow") ? run_command(call) : finish(submit_only(call));
}

// mycojobs job list | show | logs: read-only commands.

namespace {

constexpr std::size_t kArtifactsOfShow = 20;  // limit of `job show`; `job artifacts` lists all

OutputStyle tone_of(const Job& job) {
  if (job.status == JobStatus::finished) return OutputStyle::good;
  return job.status == JobStatus::error ? OutputStyle::bad : OutputStyle::plain;
}

std::string took(std::optional<std::uint64_t> ms) { return ms ? short_span(*ms) : "-"; }

Result<std::uint64_t> since_ms(const Invocation& call) {
  if (!call.has("since")) return 0;
  const std::string text = call.get("since");
  const std::uint64_t now = call.parts.clock.unix_ms();
  if (const auto ago = parse_duration_ms(text)) return now - std::min(now, *ago);
  if (auto moment = parse_time_ms(text)) return *moment;
  return fail(Code::invalid,
              "--since: " + excerpt(text) + " is neither a time ago (30m, 2h, 1d) nor a time " + "(2030-01-31 12:00)");
}

Result<service::ListJobs> query_of(const Invocation& call) {
  service::ListJobs query;
  if (call.has("status")) {
    MJ_TRY(status, with_original_arguments(call, service::read_job_status(call.get("status"))));
    query.wanted.status = status;
  }
  for (const char* flag : {"state", "name", "type"}) {
    if (call.has(flag) && call.get(flag).empty()) return fail(Code::invalid, std::string("--") + flag + ": is empty");
  }
  query.wanted.state = call.get("state");
  query.wanted.name = call.get("name");
  query.wanted.script_type = call.get("type");
  if (call.has("type") && !is_script_type(query.wanted.script_type))
    return fail(Code::invalid, "--type: " + excerpt(query.wanted.script_type) + " is not a script type such as python");
  std::uint64_t caller = 0;
  if (call.has("caller") && (!parse_u64(call.get("caller"), caller) || caller == 0 || caller > UINT32_MAX))
    return fail(Code::invalid, "--caller: the id of an actor, 1 or more");
  if (call.has("caller")) query.wanted.caller = static_cast<Id>(caller);
  MJ_TRY(since, since_ms(call));
  query.wanted.since_ms = since;
  MJ_TRY(limit, count_flag(call, "limit", 50));
  query.limit = std::min<std::uint64_t>(limit, service::kMaxJobChecks);
  return query;
}

Result<int> list_all_jobs(Invocation& call) {
  MJ_TRY(query, query_of(call));
  MJ_TRY(by, request_context(call));
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
                    paint(tone_of(job), to_string(job.status)), printable(job.detail), local_time(view.changed_ms),
                    took(waited_ms(job, now)), took(ran_ms(job, now)), printable(whole_characters(problem, 80))});
  }
  print_list(rows);
  if (found.more) print_message("there are more; --limit shows them");
  if (found.truncated)
    print_message(fmt::format("only the latest {} jobs were scanned; --since scans fewer", service::kMaxJobChecks));
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
    if (name == "artifacts_dropped") {
      text.clear();
      for (const auto& line : dropped_lines(value)) text += (text.empty() ? "" : "; ") + printable(line);
    }
    rows.push_back({paint(OutputStyle::strong, printable(name)), text});
  }
  print_table(rows);
  for (const std::string& problem : view.problems)
    print_message(paint(OutputStyle::bad, "unreadable: ", true) + problem);
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
    if (const int signal = next_follower_signal(0); signal != 0) return exit_of_signal(signal);
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

// mycojobs job cancel | retry | restart | explain | approve | reject

namespace {

void answer(const Invocation& call, const std::string& key, const Job& job, const std::string& text) {
  if (!call.json) {
    print(key + " " + text + "\n");
    return;
  }
  print(dump_json({{"key", key}, {"status", to_string(job.status)}, {"detail", job.detail}, {"answer", text}}) + "\n");
}

Result<int> remove_job(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_CHECK(with_original_arguments(call, service::delete_job(by, *opened.store, key)));
  print_deleted(call, key);
  return 0;
}

Result<int> cancel(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(job, service::cancel_job(by, *opened.store, key));
  if (job.status == JobStatus::started) {
    answer(call, key, job, "is requested to end: TERM, and KILL after the runner's grace time");
  } else if (job.status == JobStatus::error && job.detail == "cancelled") {
    answer(call, key, job, "is cancelled");
  } else {
    answer(call, key, job, fmt::format("had ended before as {} {}", to_string(job.status), printable(job.detail)));
  }
  return 0;
}

Result<int> retry(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(job, with_original_arguments(call, service::retry_job(by, *opened.store, key)));
  answer(call, key, job, "is queued again, as its next attempt");
  return 0;
}

Result<int> restart(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(job, with_original_arguments(call, service::restart_job(by, *opened.store, key, std::nullopt)));
  if (call.json) {
    print(dump_json({{"key", redis_key(job)}, {"restart_of", key}, {"status", to_string(job.status)}}) + "\n");
  } else {
    print(redis_key(job) + "\n");
  }
  return 0;
}

Result<int> answer_approval(const Invocation& call, bool approved) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(by, request_context(call));
  service::AnswerJob request{key, call.arguments.at(1), approved, call.get("comment")};
  if (request.name.starts_with("approval:")) request.name.erase(0, 9);
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(answered, with_original_arguments(call, service::answer_job(by, *opened.store, request)));
  answer(call, key, answered.job,
         !answered.changed ? "is as it was: that approval had been given before"
         : approved        ? "has the approval"
                           : "has the rejection: it ends as error");
  return 0;
}

OutputStyle tone_of(const Explanation& why) {
  if (why.cause == "finished" || why.cause == "running" || why.cause == "next") return OutputStyle::good;
  return why.state == "ended" || why.state == "unknown" || why.cause == "place_lost" ? OutputStyle::bad
                                                                                     : OutputStyle::warn;
}

Result<int> explain_job(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(about, inspect_job(*opened.store, context_of(call), key));
  // The store detects the death of the owner only when the lease expires, but on the host of a killed `run` it is known
  // now.
  const ClaimView& claim = about.job.claim;
  about.owner_ended =
      claim.state == "live" && InstanceFiles(call.settings.state_dir, claim.runner).has_ended(claim.instance);
  const Explanation why = explain(about);
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
    print(fmt::format("  {}   {}\n", paint(OutputStyle::strong, "reason"), one_line(why.reason)));
    for (const std::string& line : why.evidence) {
      print(fmt::format("  {} {}\n", paint(OutputStyle::faint, "evidence"), one_line(line)));
    }
    print(fmt::format("  {}     {}\n", paint(OutputStyle::strong, "next"), one_line(why.next)));
  }
  return why.cause == "no_such_job" || why.cause == "in_database_0" ? EX_NOINPUT : 0;
}

}  // namespace

int job_cancel_command(Invocation& call) { return finish(cancel(call)); }
int job_delete_command(Invocation& call) { return finish(remove_job(call)); }
int job_retry_command(Invocation& call) { return finish(retry(call)); }
int job_restart_command(Invocation& call) { return finish(restart(call)); }
int job_explain_command(Invocation& call) { return finish(explain_job(call)); }
int job_approve_command(Invocation& call) { return finish(answer_approval(call, true)); }
int job_reject_command(Invocation& call) { return finish(answer_approval(call, false)); }

// mycojobs job artifacts JOB [NAME]: artifact files of a job.

namespace {

constexpr std::size_t kMaxOnTerminal = 1U << 20;

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
  std::vector<std::string> store_names;
  if (!view.job.artifacts.empty()) {
    MJ_TRY(names, artifact_store_names(*opened.store, context));
    store_names = std::move(names);
  }
  const auto folders = artifact_folders(call.settings.state_dir, context, key, store_names);
  FoundArtifacts found{key, read_artifacts(view.job.artifacts, folders), {}};
  if (!std::all_of(found.all.begin(), found.all.end(), is_on_this_host))
    found.where = runner_of(*opened.store, context, view.job.runner_id);
  return found;
}

// Adds the remedy for an artifact that is on another host.
Error explained(const FoundArtifacts& found, const StoredArtifact& artifact, Error error) {
  if (error.code == Code::not_found) {
    error.message += fmt::format("; the job ran at {}: call this there, with the --state-dir of its agent",
                                 found.where.empty() ? "another host" : found.where);
  }
  error.message.insert(0, found.key + ": artifact " + excerpt(artifact.name, 200) + ": ");
  return error;
}

nlohmann::json to_json(const StoredArtifact& artifact) {
  return {{"name", artifact.name},
          {"bytes", artifact.bytes},
          {"sha256", artifact.sha256},
          {"executable", artifact.executable},
          {"here", is_on_this_host(artifact)},
          {"path", artifact.path}};
}

void list(const Invocation& call, const FoundArtifacts& found) {
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const auto& each : found.all) array.push_back(to_json(each));
    print(dump_json(array, 2) + "\n");
    return;
  }
  if (found.all.empty()) return print_message(found.key + " stored no artifacts");
  std::vector<std::vector<std::string>> rows{{"NAME", "BYTES", "HERE", "SHA256"}};
  for (const auto& each : found.all)
    rows.push_back(
        {one_line(each.name), std::to_string(each.bytes), is_on_this_host(each) ? "yes" : "no", each.sha256});
  print_table(rows);
  if (!found.where.empty()) print_message("the other artifacts are at " + found.where);
}

// Prints the artifact unchanged, except to a terminal, where untrusted control characters must not have an effect.
Result<void> print_artifact(const StoredArtifact& artifact) {
  if (::isatty(STDOUT_FILENO) == 0)
    return read_artifact(artifact, [](std::string_view bytes) { return write_out(STDOUT_FILENO, bytes); });
  std::string text;
  MJ_CHECK(read_artifact(artifact, [&text](std::string_view bytes) -> Result<void> {
    text.append(bytes.substr(0, kMaxOnTerminal + 1 - std::min(text.size(), kMaxOnTerminal + 1)));
    return {};
  }));
  if (text.size() > kMaxOnTerminal || !is_utf8(text) || text.find('\0') != std::string::npos)
    return fail(Code::invalid, "cannot be shown on a terminal: give --output FILE");
  print(printable(text));
  return {};
}

Result<void> write_one(const StoredArtifact& artifact, const std::string& output) {
  std::error_code unseen;  // opening the path reports the error
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
      return fail(Code::not_found, fmt::format("{} stored no artifact {}: `mycojobs job artifacts {}` lists them",
                                               found.key, excerpt(call.arguments[1], 200), found.key.substr(4)));
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
    if (call.has("output")) print_message("wrote " + one_line(each.name) + " (" + size_text(each.bytes) + ")");
  }
  return 0;
}

}  // namespace

int job_artifacts_command(Invocation& call) { return finish(artifacts(call)); }

}  // namespace mycojobs
