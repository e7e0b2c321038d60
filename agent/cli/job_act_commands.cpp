// mycojobs job cancel | retry | explain | approve | reject
#include <fmt/format.h>
#include <sysexits.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/opened.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "inspect/explain.h"
#include "service/jobs.h"

namespace mycojobs {
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

}  // namespace mycojobs
