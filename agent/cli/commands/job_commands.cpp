#include <fmt/format.h>
#include <poll.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "artifacts/job_artifacts.h"
#include "base/parse.h"
#include "cli/artifact_download.h"
#include "cli/artifact_output.h"
#include "cli/batch_submission.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/job_submission.h"
#include "cli/log_output.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/service_setup.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/explain.h"
#include "inspect/flow_drawing.h"
#include "inspect/job_view.h"
#include "inspect/log_lines.h"
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

constexpr std::uint32_t kFollowPollMs = 200;           // maximum delay of the reaction to Ctrl-C
constexpr std::uint64_t kMaxJobUnavailableMs = 30000;  // maximum time for which an unavailable store is retried
constexpr int kStoreRetryPauseMs = 100;
constexpr std::size_t kMaxShownArtifacts = 20;      // limit of the text output; --json has all
constexpr std::uint64_t kWaitReasonDelayMs = 3000;  // delay before the reason why a job waits is displayed

// Prints the log of a job until the end of the job.
class JobFollower {
 public:
  JobFollower(const Invocation& call, Id context, std::string key)
      : call_(call), context_(context), key_(std::move(key)), quiet_since_ms_(call.dependencies.clock.boot_ms()) {}

  Result<void> follow(StoreSession& session) {
    Store& store = *session.store;
    bool has_ended = false;
    for (std::uint32_t wait_ms = kFollowPollMs; !has_ended;) {
      MJ_CHECK(handle_signals(store));
      MJ_TRY(page, session.services.logs->read(store, context_, key_, last_seq_, 256, wait_ms));
      for (const Log& line : page.lines) add_line(line);
      has_ended = page.ended;
      wait_ms = page.lines.empty() ? kFollowPollMs : 0;  // further lines may be on a disk, and do not end a wait
      if (!has_ended && page.lines.empty()) MJ_CHECK(print_wait_reason(store));
    }
    return {};
  }
  const nlohmann::json& log_lines() const { return log_lines_; }
  bool is_abandoned() const { return stop_count_ > 1; }
  std::uint64_t last_seq() const { return last_seq_; }

 private:
  // The first stop signal requests cancellation, which is retried until the store accepts it. The second returns an
  // error, so that the command exits. A third, during the exit, ends the process at once.
  Result<void> handle_signals(Store& store) {
    const int signal = next_follower_signal(0);
    // SIGPIPE counts only as the first stop signal, because a Ctrl-C in a terminal also ends the reader of the pipe.
    const bool is_stop = signal == SIGPIPE ? stop_count_ == 0 : signal != 0;
    if (is_stop && ++stop_count_ > 1) {
      exit_on_stop_signals();
      return fail(Code::conflict,
                  "left " + key_ + " behind" + (is_cancel_requested_ ? ", with the request to cancel it" : ""));
    }
    if (stop_count_ == 0 || is_cancel_requested_) return {};
    if (!is_cancel_announced_) print_message("cancelling " + key_ + "; press Ctrl-C again to exit while it runs");
    is_cancel_announced_ = true;
    MJ_CHECK(store.cancel(context_, key_));
    is_cancel_requested_ = true;
    return {};
  }
  void add_line(const Log& line) {
    last_seq_ = line.seq;
    quiet_since_ms_ = call_.dependencies.clock.boot_ms();
    if (call_.json) {
      log_lines_.push_back(to_json(line));
      return;
    }
    print_log(line);
  }
  // Prints the reason why the job does not run: each cause once, and nothing for a running job.
  Result<void> print_wait_reason(Store& store) {
    const std::uint64_t now = call_.dependencies.clock.boot_ms();
    if (now - quiet_since_ms_ < kWaitReasonDelayMs) return {};
    quiet_since_ms_ = now;
    auto explanation = explain(store, context_, key_);
    if (!explanation && explanation.error().code == Code::unavailable) return tl::unexpected(explanation.error());
    const std::string cause = explanation ? explanation->cause : "unknown";
    if (cause == reported_cause_ || cause == "running" || cause == "next" ||
        (explanation && explanation->state == "ended"))
      return {};
    reported_cause_ = cause;
    print_message(explanation ? fmt::format("{} waits: {}; {}", key_, to_printable_line(explanation->reason),
                                            to_printable_line(explanation->next_action))
                              : fmt::format("{} waits; why is unknown: {}", key_,
                                            to_printable_line(explanation.error().message)));
    return {};
  }

  const Invocation& call_;
  Id context_;
  std::string key_;
  std::uint64_t quiet_since_ms_;
  std::uint64_t last_seq_ = 0;
  int stop_count_ = 0;
  bool is_cancel_announced_ = false, is_cancel_requested_ = false;
  std::string reported_cause_;
  nlohmann::json log_lines_ = nlohmann::json::array();
};

// Returns the receipt of a job in lines of at most 80 columns. print_message() indents the lines after the first.
std::string wrap_receipt(const JobView& view) {
  constexpr std::size_t kMaxColumns = 78;
  constexpr std::string_view kSeparator = " · ";
  const std::string text = view.key + " " + to_printable(format_receipt(view.job));
  std::string out;
  std::size_t line_columns = 0;
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t part_end = std::min(text.find(kSeparator, position), text.size());
    const std::string part = text.substr(position, part_end - position);
    const bool fits =
        line_columns == 0 || line_columns + count_columns(kSeparator) + count_columns(part) <= kMaxColumns;
    if (line_columns > 0) out += fits ? kSeparator : "\n";
    line_columns = count_columns(part) + (fits && line_columns > 0 ? line_columns + count_columns(kSeparator) : 0);
    out += part;
    position = part_end + kSeparator.size();
  }
  return out;
}

void print_job_end(const JobView& view, bool as_json, const nlohmann::json& log_lines) {
  if (as_json) {
    nlohmann::json object = to_json(view);
    object["logs"] = log_lines;
    print_json(object);
    return;
  }
  const Job& job = view.job;
  print_result_messages(job.result);
  for (const auto& line : format_artifacts(job.artifacts, kMaxShownArtifacts))
    print_message(paint(OutputStyle::strong, "artifact ", true) + line);
  for (const auto& line : format_dropped_artifacts(job.artifacts_dropped))
    print_message(paint(OutputStyle::warn, "artifact ", true) + to_printable(line));
  if (!job.error.empty()) print_message(paint(OutputStyle::bad, "error: ", true) + to_printable(job.error));
  const bool is_finished = job.status == JobStatus::finished;
  const std::string receipt = wrap_receipt(view);
  print_message(paint(is_finished ? OutputStyle::good : OutputStyle::bad, view.key, true) +
                paint(OutputStyle::faint, std::string_view(receipt).substr(view.key.size()), true));
}

// Follows the job to its end, with retries while the store is unavailable for a short time.
Result<JobView> wait_for_end(const Invocation& call, StoreSession& session, JobFollower& follower,
                             const std::string& key, bool with_agent) {
  const Id context = call.context();
  std::uint64_t unavailable_since_ms = 0;
  for (;;) {
    const std::uint64_t last_seq = follower.last_seq();
    auto result = follower.follow(session);
    if (result) return load_job(*session.store, context, key);
    if (result.error().code != Code::unavailable || follower.is_abandoned()) return tl::unexpected(result.error());
    const std::uint64_t now = call.dependencies.clock.boot_ms();
    if (unavailable_since_ms == 0 || follower.last_seq() > last_seq) unavailable_since_ms = now;
    if (now - unavailable_since_ms > kMaxJobUnavailableMs) {
      return fail(Code::unavailable, result.error().message + "; " + key + " continues: `mycojobs job show " +
                                         key.substr(4) + "` shows its end");
    }
    ::poll(nullptr, 0, kStoreRetryPauseMs);
    reopen_store(call, session, with_agent);
  }
}

// Returns true if the script is written for warm processes, but was run normally, so that its main(job) was not called.
bool has_uncalled_main(const Job& job) {
  const std::string_view text = job.script;
  const std::string_view definition = job.script_type == "python" ? "def main(" : "function main(";
  const bool supports_warm_scripts =
      job.script_type == "python" || job.script_type == "sal" || job.script_type == "osis";
  if (!supports_warm_scripts || job.status != JobStatus::finished || job.policy.find("warm") != std::string::npos)
    return false;
  const auto position = text.find(definition);
  if (position == text.npos || (position > 0 && text[position - 1] != '\n')) return false;
  const auto main_begin = position + definition.size() - std::string_view("main(").size();
  return text.find("main(") == main_begin && text.find("main(", main_begin + 1) == text.npos;
}

// Follows a job: prints its log, prints the reason if the job waits, requests cancellation at the first Ctrl-C and
// exits at the second, and retries while the store is unavailable for a short time. Then prints result and receipt, or
// one document with --json. Returns the ended job.
Result<Job> follow_job(const Invocation& call, StoreSession& session, const std::string& job_key, bool with_agent) {
  JobFollower follower(call, call.context(), job_key);
  MJ_TRY(view, wait_for_end(call, session, follower, job_key, with_agent));
  print_job_end(view, call.json, follower.log_lines());
  if (!call.json && view.job.result.empty() && has_uncalled_main(view.job))
    print_message(
        "the script defines main(job), which nothing has called: only that of a warm script is; see docs/warm.md");
  return view.job;
}

}  // namespace

// mycojobs run FILE

Result<int> run_command(Invocation& call) {
  MJ_TRY(submission, read_submission(call, true));
  MJ_TRY(session, open_store(call, true));
  MJ_CHECK(upload_large_files(call, *session.store, submission));
  MJ_CHECK(check_types_are_served(call, *session.store, {submission.job.script_type}));
  MJ_TRY(submitted_job, submit_once(call, session, std::move(submission), true));
  MJ_TRY(job, follow_job(call, session, redis_key(submitted_job), true));
  // Other clients may have sent jobs to the private server. Jobs that are still queued are left to its next user.
  if (session.services.agent) wait_for_drain(*session.services.agent);
  return call.has("exit-code") ? script_exit_code(job) : exit_code(job);
}

// mycojobs job submit

namespace {

Result<int> submit_job(const Invocation& call) {
  MJ_TRY(submission, read_submission(call, true));
  MJ_TRY(session, open_store(call, false));
  MJ_CHECK(upload_large_files(call, *session.store, submission));
  MJ_CHECK(check_types_are_served(call, *session.store, {submission.job.script_type}));
  MJ_TRY(job, submit_once(call, session, std::move(submission), false));
  const std::string key = redis_key(job);
  if (call.json) {
    print_json(to_json(JobView{key, job, {}}));
  } else {
    print(key + "\n");
  }
  if (session.services.embedded) {
    print_message(fmt::format("{} waits in {}: `mycojobs dev` or any `mycojobs run` there runs it", key,
                              call.settings.state_dir));
  }
  return 0;
}

}  // namespace

Result<int> job_submit_command(Invocation& call) {
  if (call.has("exit-code") && !call.has("follow")) return fail(Code::invalid, "--exit-code: needs --follow");
  if (call.has("batch")) return submit_batch(call);
  return call.has("follow") ? run_command(call) : submit_job(call);
}

// mycojobs job list | show | logs: read-only commands.

namespace {

constexpr std::size_t kMaxListedArtifacts = 20;  // limit of `job show`; `job artifacts` lists all

OutputStyle get_job_style(const Job& job) {
  if (job.status == JobStatus::finished) return OutputStyle::good;
  return job.status == JobStatus::error ? OutputStyle::bad : OutputStyle::plain;
}

std::string format_optional_duration(std::optional<std::uint64_t> ms) { return ms ? format_short_duration(*ms) : "-"; }

Result<service::ListJobs> read_job_query(const Invocation& call) {
  for (const char* flag : {"state", "name", "type"}) {
    if (call.has(flag) && call.get(flag).empty()) return fail(Code::invalid, std::string("--") + flag + ": is empty");
  }
  MJ_TRY(params, read_request(call));
  service::ListJobs query{service::parse_job_filter(params),
                          std::min<std::uint64_t>(params.number("limit"), service::kMaxJobChecks)};
  if (call.has("type") && !is_script_type(query.filter.script_type))
    return fail(Code::invalid, "--type: " + excerpt(query.filter.script_type) + " is not a script type such as python");
  return query;
}

}  // namespace

Result<int> job_list_command(Invocation& call) {
  MJ_TRY(query, read_job_query(call));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  ProgressLine progress(call.dependencies.clock);
  MJ_TRY(result, service::list_jobs(caller, *session.store, query, [&](std::uint64_t done, std::uint64_t total) {
           progress.show("reading jobs", done, total);
         }));
  MJ_TRY(now, session.store->now_ms());
  if (call.json) {
    nlohmann::json array = nlohmann::json::array();
    for (const JobView& view : result.jobs) {
      array.push_back(to_json(view));
      if (const auto ms = wait_duration_ms(view.job, now)) array.back()["waited_ms"] = *ms;
      if (const auto ms = run_duration_ms(view.job, now)) array.back()["ran_ms"] = *ms;
    }
    return print_json(array);
  }
  TableRows rows{{"JOB", "NAME", "TYPE", "STATUS", "DETAIL", "LAST", "WAITED", "RAN", "ERROR"}};
  for (const JobView& view : result.jobs) {
    const Job& job = view.job;
    const std::string problem = view.problems.empty() ? job.error : view.problems.front();
    rows.push_back({view.key.substr(4), to_printable(job.name), to_printable(job.script_type),
                    paint(get_job_style(job), to_string(job.status)), to_printable(job.detail),
                    format_local_time(view.changed_ms), format_optional_duration(wait_duration_ms(job, now)),
                    format_optional_duration(run_duration_ms(job, now)), to_printable(whole_characters(problem, 80))});
  }
  print_list(rows);
  if (result.has_more) print_message("there are more; --limit shows them");
  if (result.truncated)
    print_message(fmt::format("only the latest {} jobs were scanned; --since scans fewer", service::kMaxJobChecks));
  return 0;
}

Result<int> job_show_command(Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(view, load_job(*session.store, call.context(), key));
  if (call.json) return print_json(to_json(view));
  TableRows rows;
  for (const auto& [name, value] : encode(view.job)) {
    if (name == "script" || name == "error_info") continue;
    std::string text = to_printable(value);
    if (name == "artifacts") {
      text.clear();
      for (const auto& line : format_artifacts(value, kMaxListedArtifacts)) text += (text.empty() ? "" : ", ") + line;
    }
    if (name == "artifacts_dropped") {
      text.clear();
      for (const auto& line : format_dropped_artifacts(value)) text += (text.empty() ? "" : "; ") + to_printable(line);
    }
    rows.push_back({paint(OutputStyle::strong, to_printable(name)), text});
  }
  print_table(rows);
  for (const std::string& problem : view.problems)
    print_message(paint(OutputStyle::bad, "unreadable: ", true) + problem);
  auto info = parse_json(view.job.error_info.empty() ? "{}" : view.job.error_info);
  if (info && info->is_object() && info->contains("traceback") && (*info)["traceback"].is_string()) {
    print("\n" + to_printable((*info)["traceback"].get<std::string>()));
  }
  return 0;
}

Result<int> job_logs_command(Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(options, read_log_options(call));
  MJ_TRY(session, open_store(call, false));
  const Id context = call.context();
  MJ_CHECK(load_job(*session.store, context, key));  // a job that does not exist is an error, not an empty log
  const bool follow = call.has("follow");
  LogSelection selection(options.since_ms, options.max_lines);
  bool prints_parts = options.max_lines == LogSelection::kAllLines;  // otherwise after the present end of the log
  JobLogPrinter printer(options);
  std::uint64_t last_seq = 0;
  if (!prints_parts) {
    MJ_TRY(start_seq, JobLogReader::find_last_lines(*session.store, context, key, 0, options.max_lines));
    last_seq = start_seq;
  }
  bool had_lines = false;  // further lines may be on a disk, and do not end a wait
  for (bool has_ended = false; !has_ended;) {
    if (const int signal = next_follower_signal(0); signal != 0) return signal_exit_code(signal);
    const bool is_following = follow && prints_parts;
    MJ_TRY(page, session.services.logs->read(
                     *session.store, context, key, last_seq, 256, is_following && !had_lines ? kFollowPollMs : 0,
                     is_following ? JobLogReader::PendingLines::end_page : JobLogReader::PendingLines::report_missing));
    had_lines = !page.lines.empty();
    has_ended = page.ended || (!follow && page.lines.empty());
    prints_parts = prints_parts || has_ended || page.lines.empty();
    for (Log& line : page.lines) {
      last_seq = line.seq;
      selection.add_part(std::move(line));
    }
    if (!prints_parts) continue;
    for (const Log& part : selection.pop_selected()) printer.print_part(part);
  }
  printer.finish();
  return 0;
}

// mycojobs job cancel | retry | restart | explain | approve | reject

namespace {

int print_job_answer(const Invocation& call, const std::string& key, const Job& job, const std::string& text) {
  return print_answer(call, {{"key", key}, {"status", to_string(job.status)}, {"detail", job.detail}, {"answer", text}},
                      key + " " + text);
}

Result<int> answer_job_approval(const Invocation& call, bool approved) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(params, read_request(call, {{"id", key}, {"name", call.arguments.at(1)}}));
  service::AnswerJob request{key, params.text("name"), approved, params.text("comment")};
  if (request.name.starts_with("approval:")) request.name.erase(0, 9);
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(answer, to_command_line_error(call, service::answer_job(caller, *session.store, request)));
  return print_job_answer(call, key, answer.job,
                          !answer.changed ? "is as it was: that approval had been given before"
                          : approved      ? "has the approval"
                                          : "has the rejection: it ends as error");
}

OutputStyle explanation_style(const Explanation& explanation) {
  if (explanation.cause == "finished" || explanation.cause == "running" || explanation.cause == "next")
    return OutputStyle::good;
  return explanation.state == "ended" || explanation.state == "unknown" || explanation.cause == "place_lost"
             ? OutputStyle::bad
             : OutputStyle::warn;
}

}  // namespace

Result<int> job_cancel_command(Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(job, service::cancel_job(caller, *session.store, key));
  if (job.status == JobStatus::started)
    return print_job_answer(call, key, job, "is requested to end: TERM, and KILL after the runner's grace time");
  if (job.status == JobStatus::error && job.detail == "cancelled")
    return print_job_answer(call, key, job, "is cancelled");
  return print_job_answer(call, key, job,
                          fmt::format("had ended before as {} {}", to_string(job.status), to_printable(job.detail)));
}

Result<int> job_delete_command(Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_CHECK(to_command_line_error(call, service::delete_job(caller, *session.store, key)));
  return print_deleted(call, key);
}

Result<int> job_retry_command(Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(job, to_command_line_error(call, service::retry_job(caller, *session.store, key)));
  return print_job_answer(call, key, job, "is queued again, as its next attempt");
}

Result<int> job_restart_command(Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(params, read_request(call, {{"id", key}}));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(job, to_command_line_error(
                  call, service::restart_job(caller, *session.store, key, params.optional_text("idempotency_key"))));
  return print_answer(call, {{"key", redis_key(job)}, {"restart_of", key}, {"status", to_string(job.status)}},
                      redis_key(job));
}

Result<int> job_explain_command(Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(situation, inspect_job(*session.store, call.context(), key));
  // The store detects the death of the owner only when the lease expires, but on the host of a killed `run` it is known
  // now.
  const ClaimView& claim = situation.job.claim;
  situation.has_owner_ended =
      claim.state == kJobStateLive && InstanceFiles(call.settings.state_dir, claim.runner).has_ended(claim.instance);
  const Explanation explanation = explain(situation);
  if (call.json) {
    print_json(to_json(explanation));
  } else {
    print(fmt::format("{}  {} {}\n", explanation.job_key, paint(explanation_style(explanation), explanation.state),
                      explanation.cause));
    print_explanation(explanation.reason, explanation.evidence, explanation.next_action);
  }
  return explanation.cause == "no_such_job" || explanation.cause == "in_database_0" ? EX_NOINPUT : 0;
}
Result<int> job_approve_command(Invocation& call) { return answer_job_approval(call, true); }
Result<int> job_reject_command(Invocation& call) { return answer_job_approval(call, false); }

// mycojobs job artifacts JOB [NAME]: artifact files of a job.

namespace {

constexpr std::size_t kMaxTerminalBytes = 1U << 20;

struct JobArtifacts {
  std::string key;
  std::vector<StoredArtifact> artifacts;
  bool is_complete = false;  // true if all artifacts are on this host
  FileHolder holder;         // agent or coordinator that has the artifacts
  std::vector<std::string> store_names = {};
  StoreSession session;
};

// Returns the holder of the artifacts: "runner 3 on host atlas".
std::string describe_holder(const Invocation& call, const JobArtifacts& job_artifacts) {
  if (!job_artifacts.holder.is_known()) return "an unknown runner";
  const Id id = job_artifacts.holder.runner;
  const std::string name = describe(job_artifacts.holder);
  if (id == 0) return name;
  const auto runners = job_artifacts.session.store->runners(call.context());
  if (!runners) return name;
  const auto runner =
      std::find_if(runners->begin(), runners->end(), [&](const RunnerInfo& info) { return info.runner.id == id; });
  const bool has_host = runner != runners->end() && !runner->holder.host.empty();
  return has_host ? name + " on host " + to_printable_line(runner->holder.host) : name;
}

Result<JobArtifacts> find_job_artifacts(const Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  MJ_TRY(session, open_store_for_query(call));
  const Id context = call.context();
  MJ_TRY(view, load_job(*session.store, context, key));
  std::vector<std::string> store_names;
  if (!view.job.artifacts.empty()) {
    MJ_TRY(names, artifact_store_names(*session.store, context));
    store_names = std::move(names);
  }
  const auto folders = all_artifact_folders(call.settings.state_dir, context, key, store_names);
  std::vector<StoredArtifact> artifacts = read_artifacts(view.job.artifacts, folders);
  const bool is_complete = std::all_of(artifacts.begin(), artifacts.end(), is_local_artifact);
  FileHolder holder = view.job.runner_id;
  if (!is_complete) {
    MJ_TRY(found, find_artifact_holder(*session.store, context, key, view.job.runner_id));
    holder = std::move(found);
  }
  return JobArtifacts{
      key, std::move(artifacts), is_complete, std::move(holder), std::move(store_names), std::move(session)};
}

// Returns a folder on the disk of the output, which has space for the artifacts, or else that of temporary files.
Result<std::string> find_spool_folder(const std::string& output) {
  std::error_code error;
  if (!output.empty()) {
    if (std::filesystem::is_directory(output, error)) return output;
    std::filesystem::path path(output);
    if (!path.has_filename()) path = path.parent_path();  // "folder/"
    const std::filesystem::path parent = path.parent_path();
    if (parent.empty()) return std::string(".");
    if (std::filesystem::is_directory(parent, error)) return parent.string();
  }
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) return fail(Code::io, "the folder for temporary files (TMPDIR): " + error.message());
  return folder.string();
}

// Returns the object storage of this host if it has the artifact, or null. A user who may not read its credentials gets
// the artifact from the runner.
std::shared_ptr<const ArtifactBucket> open_bucket_of(const Invocation& call, const StoredArtifact& artifact) {
  if (artifact.object_store.empty() || artifact.object_store != call.settings.artifacts_store) return nullptr;
  auto bucket = make_artifact_bucket(call.settings);
  if (bucket) return std::move(*bucket);
  print_message(paint(OutputStyle::warn, "warning: ", true) + to_printable(bucket.error().message) +
                ": the artifact is requested from its runner");
  return nullptr;
}

// Fetches an artifact from the object storage or the runner of the job if it is not on this host, and sets its path.
Result<void> fetch_if_remote(const Invocation& call, const JobArtifacts& job_artifacts, StoredArtifact& artifact,
                             std::unique_ptr<ArtifactDownload>& download) {
  if (is_local_artifact(artifact) || (!job_artifacts.holder.is_known() && artifact.object_store.empty())) return {};
  if (!download) {
    MJ_TRY(folder, find_spool_folder(call.get("output")));
    MJ_TRY(networks, parse_artifact_networks(call.settings));
    MJ_TRY(opened,
           ArtifactDownload::open(*job_artifacts.session.services.stores, call.context(), call.dependencies.clock,
                                  folder, open_bucket_of(call, artifact), std::move(networks)));
    download = std::move(opened);
  }
  MJ_TRY(path, download->fetch({call.context(),
                                job_artifacts.holder,
                                job_artifacts.key,
                                {artifact.sha256, artifact.bytes},
                                job_artifacts.key,
                                artifact.object_store,
                                job_artifacts.store_names}));
  artifact.path = path;
  return {};
}

// Adds the names of the job and the artifact to an error. If the artifact cannot be fetched from the host of the job,
// also adds that host.
Error add_location(const Invocation& call, const JobArtifacts& job_artifacts, const StoredArtifact& artifact,
                   Error error) {
  const bool is_in_bucket = !artifact.object_store.empty() && artifact.object_store == call.settings.artifacts_store;
  if (!is_in_bucket && (error.code == Code::not_found || error.code == Code::unavailable)) {
    error.message += fmt::format("; the job ran at {}: start its agent, or call this there with its --state-dir",
                                 job_artifacts.is_complete ? "another host" : describe_holder(call, job_artifacts));
  }
  error.message.insert(0, job_artifacts.key + ": artifact " + excerpt(artifact.name, 200) + ": ");
  return error;
}

nlohmann::json to_json(const StoredArtifact& artifact) {
  return {{"name", artifact.name},
          {"bytes", artifact.bytes},
          {"sha256", artifact.sha256},
          {"executable", artifact.executable},
          {"here", is_local_artifact(artifact)},
          {"path", artifact.path}};
}

void list_artifacts(const Invocation& call, const JobArtifacts& job_artifacts) {
  if (!call.json && job_artifacts.artifacts.empty()) return print_message(job_artifacts.key + " stored no artifacts");
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"NAME", "BYTES", "HERE", "SHA256"}};
  for (const StoredArtifact& artifact : job_artifacts.artifacts) {
    array.push_back(to_json(artifact));
    rows.push_back({to_printable_line(artifact.name), std::to_string(artifact.bytes),
                    is_local_artifact(artifact) ? "yes" : "no", artifact.sha256});
  }
  print_listing(call, array, rows);
  if (!call.json && !job_artifacts.is_complete)
    print_message("the other artifacts are at " + describe_holder(call, job_artifacts));
}

// Prints the artifact unchanged, except to a terminal, where untrusted control characters must not have an effect.
Result<void> print_artifact(const StoredArtifact& artifact) {
  if (::isatty(STDOUT_FILENO) == 0)
    return read_artifact(artifact, [](std::string_view bytes) { return write_to_descriptor(STDOUT_FILENO, bytes); });
  std::string text;
  MJ_CHECK(read_artifact(artifact, [&text](std::string_view bytes) -> Result<void> {
    text.append(bytes.substr(0, kMaxTerminalBytes + 1 - std::min(text.size(), kMaxTerminalBytes + 1)));
    return {};
  }));
  if (text.size() > kMaxTerminalBytes || !is_utf8(text) || text.find('\0') != std::string::npos)
    return fail(Code::invalid, "cannot be shown on a terminal: give --output FILE");
  print(to_printable(text));
  return {};
}

Result<void> write_artifact(const StoredArtifact& artifact, const std::string& output) {
  std::error_code error;  // opening the path reports the error
  if (std::filesystem::is_directory(output, error) || output.ends_with('/')) {
    MJ_TRY(folder, OutputFolder::open(output));
    return copy_artifact(artifact, folder);
  }
  const std::filesystem::path path(output);
  MJ_TRY(folder, OutputFolder::open(path.has_parent_path() ? path.parent_path().string() : "."));
  StoredArtifact output_artifact = artifact;
  output_artifact.name = path.filename().string();
  return copy_artifact(output_artifact, folder);
}

}  // namespace

Result<int> job_artifacts_command(Invocation& call) {
  const std::string output = call.get("output");
  if (call.has("output") && output.empty()) return fail(Code::invalid, "--output: is empty");
  MJ_TRY(job_artifacts, find_job_artifacts(call));
  const bool is_single = call.arguments.size() > 1;
  std::vector<StoredArtifact> selected = job_artifacts.artifacts;
  if (is_single) {
    std::erase_if(selected, [&](const auto& artifact) { return artifact.name != call.arguments[1]; });
    if (selected.empty()) {
      return fail(Code::not_found,
                  fmt::format("{} stored no artifact {}: `mycojobs job artifacts {}` lists them", job_artifacts.key,
                              excerpt(call.arguments[1], 200), job_artifacts.key.substr(4)));
    }
  }
  if (!call.has("output") && (call.json || !is_single)) {
    job_artifacts.artifacts = selected;
    list_artifacts(call, job_artifacts);
    return 0;
  }
  std::unique_ptr<ArtifactDownload> download;
  for (StoredArtifact& artifact : selected) {
    Result<void> result = fetch_if_remote(call, job_artifacts, artifact, download);
    if (!result) {
      // reported below
    } else if (!call.has("output")) {
      result = print_artifact(artifact);
    } else if (is_single) {
      result = write_artifact(artifact, output);
    } else {
      MJ_TRY(folder, OutputFolder::open(output));
      result = copy_artifact(artifact, folder);
    }
    if (!result) return tl::unexpected<Error>(add_location(call, job_artifacts, artifact, std::move(result).error()));
    if (call.has("output"))
      print_message("wrote " + to_printable_line(artifact.name) + " (" + format_size(artifact.bytes) + ")");
  }
  return 0;
}

}  // namespace mycojobs
