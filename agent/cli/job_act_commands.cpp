// mycojobs job cancel | retry | explain | approve | reject
#include <fmt/format.h>
#include <sysexits.h>

#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/commands.h"
#include "cli/flow_opened.h"
#include "cli/opened.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/rights.h"
#include "domain/transitions.h"
#include "inspect/explain.h"
#include "inspect/jobs.h"
#include "store/keys.h"
#include "store/place.h"
#include "store/prerequisite_answer.h"

namespace mycojobs {
namespace {

void answer(const Invocation& call, const std::string& key, const Fields& record, const std::string& text) {
  if (!call.json) {
    print(key + " " + text + "\n");
    return;
  }
  const Job job = decode<Job>(record).record;
  print(dump_json({{"key", key}, {"status", word(job.status)}, {"detail", job.detail}, {"answer", text}}) + "\n");
}

constexpr std::string_view kShort[] = {"status", "detail"};

Result<int> cancel(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  const Id context = context_of(call);
  MJ_CHECK(opened.store->cancel(context, key));
  auto record = opened.store->load_fields(context, key, kShort);
  if (!record && record.error().code != Code::not_found) return tl::unexpected(record.error());
  const Fields fields = record ? *record : Fields();
  const Job job = decode<Job>(fields).record;
  if (job.status == JobStatus::started) {
    answer(call, key, fields, "is told to end: TERM, and KILL after the runner's grace time");
  } else if (job.status == JobStatus::error && job.detail == "cancelled") {
    answer(call, key, fields, "is cancelled");
  } else {
    answer(call, key, fields, fmt::format("had ended before as {} {}", word(job.status), printable(job.detail)));
  }
  return 0;
}

Result<int> retry(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  const Id context = context_of(call);
  auto requeued = opened.store->requeue(context, key);
  // Nothing that time would mend.
  if (!requeued && requeued.error().code == Code::conflict) return fail(Code::invalid, requeued.error().message);
  MJ_CHECK(requeued);
  MJ_TRY(record, opened.store->load_fields(context, key, kShort));
  answer(call, key, record, "is queued again, as its next attempt");
  return 0;
}

// Who says so: the operator, or as whom it does (--actor), who is asked for its rights before all else.
Result<Id> who_answers(const Invocation& call, Store& store, const std::string& key) {
  MJ_TRY(actor, id_flag(call, "actor", kDefaultCaller));
  if (!call.has("actor")) return actor;
  MJ_TRY(place, read_place(store, context_of(call), WayIn::command));
  MJ_CHECK(may(actor, Action::answer, place, {.name = "job " + key.substr(4), .maker = caller_of_job(key)}));
  return actor;
}

Result<int> answer_approval(const Invocation& call, bool approved) {
  MJ_TRY(key, job_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  PrerequisiteAnswer said;
  said.name = call.arguments.at(1);
  if (said.name.starts_with("approval:")) said.name.erase(0, 9);
  said.approved = approved;
  said.comment = call.get("comment");
  MJ_TRY(actor, who_answers(call, *opened.store, key));
  said.actor = actor;
  auto changed = answer_prerequisite(*opened.store, context_of(call), key, said);
  // Nothing that time would mend.
  if (!changed && changed.error().code == Code::conflict) return fail(Code::invalid, changed.error().message);
  MJ_CHECK(changed);
  MJ_TRY(record, opened.store->load_fields(context_of(call), key, kShort));
  answer(call, key, record,
         !*changed  ? "is as it was: that approval had been given before"
         : approved ? "has the approval"
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
