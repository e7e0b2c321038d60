// explain(): jobs that nobody has claimed yet, and those that stand in a queue.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/counted.h"
#include "inspect/explain_parts.h"
#include "inspect/runners.h"

namespace mycojobs::explaining {
namespace {

std::string push_again(const Situation& about) {
  return redis_cli(about, fmt::format("LPUSH {} {}", about.queue, about.job.job_key));
}

// Jobs that are taken before it, at most: priorities above 0 come before the list, those below 0 after it, and how many
// of each kind there are is not known here.
std::optional<std::uint64_t> most_ahead(const Situation& about) {
  if (about.ahead) return *about.ahead + about.prioritised;
  if (!about.job.in_priority) return std::nullopt;
  const std::uint64_t beside = about.prioritised - std::min<std::uint64_t>(about.prioritised, 1);
  return beside + (field(about, "priority").starts_with('-') ? about.queue_length : 0);
}

void tell_position(const Situation& about, Explanation& out) {
  if (about.job.in_priority) {
    out.evidence.push_back(
        fmt::format("priority {}: beside {}, with {} that have one", field(about, "priority"), about.queue,
                    counted(about.prioritised - std::min<std::uint64_t>(about.prioritised, 1), "other job")));
  } else if (about.ahead) {
    out.evidence.push_back(fmt::format("position {} of {} in {}", *about.ahead + 1, about.queue_length, about.queue));
  } else {
    out.evidence.push_back(fmt::format("{} entries in {}; it is far behind", about.queue_length, about.queue));
  }
  if (about.prioritised > 0 && !about.job.in_priority) {
    out.evidence.push_back(counted(about.prioritised, "job") +
                           " with a priority beside them; those above 0 come first");
  }
  if (about.job.in_queue > 1) {
    out.evidence.push_back(
        fmt::format("its key stands there {} times; the others will be dropped", about.job.in_queue));
  }
  const ClaimView& claim = about.job.claim;
  if (claim.reason == "released" || claim.reason == "expired") {
    out.evidence.push_back(fmt::format("delivery {} ended without a report ({})", claim.deliveries, claim.reason));
  } else if (!claim.reason.empty()) {
    out.evidence.push_back("came back by " + claim.reason);
  }
}

std::string type_of_queue(const Situation& about) {
  return about.queue.starts_with("queue:") ? about.queue.substr(6) : about.queue;
}

void no_runner(const Situation& about, Explanation& out) {
  out.cause = "no_runner";
  out.reason = "no runner serves " + about.queue;
  const std::string others = served_by_live(about.runners);
  if (about.queue == "mj:queue:router") {
    out.reason = "it goes to a supervisor elsewhere, and no coordinator has sent it there yet";
    out.next = "start `mycojobs coordinator`; if one runs, look at its log";
    return;
  }
  out.evidence.push_back(others.empty() ? "no runner of this context is alive" : "live runners serve " + others);
  const bool own = !about.queue.starts_with("queue:");
  out.next = own ? "start the runner that this queue belongs to, or cancel the job with " + command(about, "job cancel")
                 : fmt::format(
                       "start an agent that runs {} for context {} (`mycojobs agent --redis URL --context {}`; "
                       "`mycojobs doctor` says what its host can run)",
                       type_of_queue(about), about.context, about.context);
}

// Of a job that stands in its queue: what keeps it there.
void judge_queue(const Situation& about, Explanation& out) {
  std::uint32_t serving = 0;
  std::uint32_t free = 0;
  for (const RunnerInfo& info : about.runners) {
    if (presence(info) != Presence::live || !serves(info, about.queue)) continue;
    ++serving;
    free += info.runner.slots - std::min(info.claims, info.runner.slots);
  }
  if (about.queue_paused) {
    out.cause = "queue_paused";
    out.reason = about.queue + " is paused";
    out.next = "go on with " + command(about, "queue resume", type_of_queue(about));
  } else if (serving == 0) {
    no_runner(about, out);
  } else if (free == 0) {
    out.cause = "slots_busy";
    out.reason =
        fmt::format("every slot of the {} that serve{} {} is busy",
                    serving == 1 ? "runner" : fmt::format("{} runners", serving), serving == 1 ? "s" : "", about.queue);
    out.next = "wait, or start another agent, or give the runners more --slots";
  } else if (most_ahead(about) == 0U) {
    out.cause = "next";
    out.reason = "it is the next one in " + about.queue;
    out.next = "ask again in a second: a runner with a free slot takes it at once";
  } else {
    out.cause = "behind_others";
    const auto most = most_ahead(about);
    const bool exact = about.ahead && about.prioritised == 0;
    out.reason = most ? fmt::format("{}{} before it in {}", exact ? "" : "at most ",
                                    counted(*most, "job comes", "jobs come"), about.queue)
                      : fmt::format("very many jobs come before it in {}", about.queue);
    out.next = "wait, or start another agent, or submit it with a --priority";
  }
}

}  // namespace

Explanation unknown(const Situation& about) {
  if (about.job.missing || about.job.in_queue > 0) {
    Explanation out = begin(about, "missing");
    out.cause = "record_awaited";
    out.reason = "its key was in a queue, and nobody has written its record yet";
    out.evidence.emplace_back("no record; its entry was put aside");
    out.next = fmt::format("write the record with {}; an entry waits two seconds for it, then it is a dead letter",
                           redis_cli(about, "HSET " + about.job.job_key + " ..."));
    return out;
  }
  if (about.dead_letter) {
    Explanation out = begin(about, "missing");
    out.cause = "record_never_came";
    out.reason = "its key was in " + about.dead_letter->queue + ", and it has no record";
    out.evidence.push_back(fmt::format("dead letter {}: {}, {}", about.dead_letter->id, about.dead_letter->reason,
                                       moment_text(about.dead_letter->at_ms)));
    out.next = "write the record, then " + command(about, "queue dead --requeue", about.dead_letter->id) +
               "; or strike it off with --drop";
    return out;
  }
  Explanation out = begin(about, "unknown");
  if (about.in_database_0) {
    out.cause = "in_database_0";
    out.reason = fmt::format("{} is in database 0, and the jobs of context {} are in database {}", about.job.job_key,
                             about.context, about.context);
    out.evidence.emplace_back("a record in database 0; in that of the context no record, no claim");
    out.next = fmt::format(
        "choose the database, as in redis-cli -n {}; for this job: `redis-cli MOVE {} {}`, then {}", about.context,
        about.job.job_key, about.context,
        redis_cli(about, "LPUSH " + (about.queue.empty() ? "queue:python" : about.queue) + " " + about.job.job_key));
    return out;
  }
  out.cause = "no_such_job";
  out.reason = fmt::format("nothing in context {} knows {}", about.context, about.job.job_key);
  out.evidence.emplace_back("no record, no claim, no queue entry that waits for its record");
  out.next = fmt::format(
      "check CALLER:ID and --context; {} shows what there is. Jobs that have ended are forgotten "
      "after the retention time",
      command(about, "job list", ""));
  return out;
}

Explanation bare(const Situation& about) {
  const std::string status = field(about, "status");
  if (status == "finished" || status == "error") return ended(about);
  if (about.job.in_queue > 0 || about.job.in_priority || about.job.missing) return queued(about);
  Explanation out = begin(about, "unqueued");
  if (about.dead_letter) {
    out.evidence.push_back(fmt::format("dead letter {}: {}", about.dead_letter->id, about.dead_letter->reason));
  }
  if (about.queue.empty()) {
    out.cause = "no_script_type";
    out.reason = "its record names no script_type, so it belongs to no queue";
    out.next = "say what it is with " + redis_cli(about, "HSET " + about.job.job_key + " script_type python") +
               ", then LPUSH its key onto queue:python";
    return out;
  }
  out.evidence.push_back("not in " + about.queue);
  if (status == "started") {
    out.cause = "started_elsewhere";
    out.reason = "its record says started, and no runner of mycojobs has claimed it";
    out.next = "if nothing else runs it, queue it with " + push_again(about);
    return out;
  }
  out.cause = "not_queued";
  out.reason = "its record is written, and its key stands in no queue";
  out.next = "queue it with " + push_again(about) + "; `mycojobs job submit` does both in one step";
  return out;
}

Explanation queued(const Situation& about) {
  const JobPlaces& job = about.job;
  if (job.record_type == "none") {
    Explanation out = begin(about, "missing");
    out.cause = "record_deleted";
    out.reason = "its record was deleted while it was in " + about.queue;
    out.next = "write the record again before its turn comes, or leave it: it becomes a dead letter";
    return out;
  }
  if (job.missing && job.in_queue == 0) {
    Explanation out = begin(about, "missing");
    out.cause = "record_awaited";
    out.reason = "its record came after its key had been taken off " + about.queue;
    out.next = anyone_alive(about) ? "ask again in a second: an agent puts it back on its queue"
                                   : "start an agent: any agent puts it back on its queue";
    return out;
  }
  if (job.in_queue == 0 && !job.in_priority && !job.missing) return place_lost(about, "queued", about.queue);
  Explanation out = begin(about, "queued");
  tell_position(about, out);
  judge_queue(about, out);
  tell_runners(about, out);
  return out;
}

}  // namespace mycojobs::explaining
