// explain(): jobs that wait for something other than a slot.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "domain/codec.h"
#include "inspect/explain_parts.h"
#include "inspect/runners.h"

namespace mycojobs::explaining {
namespace {

constexpr std::size_t kNamed = 10;  // jobs that are named one by one

std::string where_is(const JobPlaces& job) {
  if (job.record_type == "none" && !job.claim.present) return "does not exist";
  const std::string& state = job.claim.state;
  if (state == "ended") return fmt::format("ended as {} {}", job.claim.status, job.claim.detail);
  if (!state.empty()) return "is " + state;
  return job.in_queue > 0 ? "is in its queue" : "has not been claimed yet";
}

// The jobs that it waits for, the absent ones first.
const JobPlaces* tell_awaited(const Situation& about, Explanation& out) {
  std::vector<const JobPlaces*> jobs;
  for (const JobPlaces& job : about.awaited) jobs.push_back(&job);
  const auto absent = [](const JobPlaces* job) { return where_is(*job) == "does not exist"; };
  std::stable_partition(jobs.begin(), jobs.end(), absent);
  for (std::size_t i = 0; i < std::min(jobs.size(), kNamed); ++i) {
    out.evidence.push_back(fmt::format("{} {}", jobs[i]->job_key, where_is(*jobs[i])));
  }
  if (jobs.size() > kNamed) out.evidence.push_back(fmt::format("and {} more", jobs.size() - kNamed));
  return jobs.empty() ? nullptr : jobs.front();
}

std::vector<std::string> texts(const std::string& list) {
  std::vector<std::string> out;
  const auto parsed = parse_json(list.empty() ? "[]" : list);
  if (!parsed || !parsed->is_array()) return {list};
  for (const auto& item : *parsed) out.push_back(item.is_string() ? item.get<std::string>() : dump_json(item));
  return out;
}

// "job:12:9" -> "--caller 12 --id 9"
std::string flags_of(const std::string& job_key) {
  const auto colon = job_key.rfind(':');
  return fmt::format("--caller {} --id {}", job_key.substr(4, colon - 4), job_key.substr(colon + 1));
}

}  // namespace

std::string flow_of(const ClaimView& claim) {
  const auto blank = claim.flow.find(' ');
  return blank == std::string::npos ? "" : claim.flow.substr(blank + 1);
}

Explanation planned(const Situation& about) {
  Explanation out = begin(about, "planned");
  const std::string flow = flow_of(about.job.claim);
  out.cause = "flow";
  out.reason = fmt::format("it waits for its flow {}, which queues it when what comes before it has ended", flow);
  out.evidence.push_back("of flow:" + flow);
  out.next = "see " + command(about, "flow explain", flow);
  return out;
}

Explanation delayed(const Situation& about) {
  const JobPlaces& job = about.job;
  if (!job.due_ms) return place_lost(about, "delayed", "the index of delays");
  Explanation out = begin(about, "delayed");
  const bool retry = field(about, "detail") == "retry_wait";
  const std::string when = job.now_ms < *job.due_ms ? fmt::format("in {} ({})", span_text(*job.due_ms - job.now_ms),
                                                                  moment_text(*job.due_ms))
                                                    : fmt::format("since {}", span_text(job.now_ms - *job.due_ms));
  if (retry) {
    out.evidence.push_back(
        fmt::format("attempt {} of {} is due {}", std::max(job.claim.attempt, 1U), number(about, "retries") + 1, when));
    if (const std::string error = field(about, "error"); !error.empty()) out.evidence.push_back("last error: " + error);
  } else {
    out.evidence.push_back("due " + when);
  }
  if (job.now_ms >= *job.due_ms) {
    out.cause = "due";
    out.reason = anyone_alive(about) ? "its time has come" : "its time has come, and no agent is alive to queue it";
    out.next = anyone_alive(about) ? "ask again in a second: an agent puts it on its queue"
                                   : "start an agent of this context: any agent puts it on its queue";
    return out;
  }
  out.cause = retry ? "retry_wait" : "not_yet_due";
  out.reason = retry ? "its last attempt failed; the next one begins " + when : "it was asked to run later, " + when;
  out.next = "wait, or end it with " + command(about, "job cancel");
  return out;
}

Explanation waiting(const Situation& about) {
  if (about.job.waits_for.empty()) return place_lost(about, "waiting", "the index of jobs that wait for others");
  Explanation out = begin(about, "waiting");
  const JobPlaces* first = tell_awaited(about, out);
  if (!about.cycle.empty()) {
    out.cause = "cycle";
    out.reason = fmt::format("jobs wait for one another in a circle: {}", fmt::join(about.cycle, " -> "));
    out.next = "cancel one of the circle: " + command(about, "job cancel", about.cycle.back().substr(4));
    return out;
  }
  if (first != nullptr && where_is(*first) == "does not exist") {
    out.cause = "dependency_absent";
    out.reason = fmt::format("it depends on {}, which does not exist", first->job_key);
    out.next = fmt::format("submit it: {}; or end this one with {}",
                           command(about, "job submit FILE", flags_of(first->job_key)), command(about, "job cancel"));
    return out;
  }
  out.cause = "dependencies";
  out.reason =
      counted(about.job.waits_for.size(), "job that it depends on has", "jobs that it depends on have") + " not ended";
  out.next = "ask why of the first: " + command(about, "job explain", about.job.waits_for.front().substr(4));
  return out;
}

Explanation prerequisites(const Situation& about) {
  if (!about.job.check_ms) return place_lost(about, "prerequisites", "the index of prerequisites");
  Explanation out = begin(about, "prerequisites");
  const auto conditions = texts(field(about, "prerequisites"));
  for (const std::string& condition : conditions) out.evidence.push_back("prerequisite: " + condition);
  const std::uint64_t now = about.job.now_ms;
  const bool alive = anyone_alive(about) || about.coordinator_looks;
  out.evidence.push_back(*about.job.check_ms > now
                             ? fmt::format("looked at again in {}", span_text(*about.job.check_ms - now))
                             : fmt::format("to be looked at since {}", span_text(now - *about.job.check_ms)));
  out.cause = alive ? "not_met" : "not_checked";
  out.reason = fmt::format("{}: {}", alive ? "its prerequisites are not met" : "nobody is there to look at them",
                           fmt::join(conditions, ", "));
  out.next = (alive ? "make them true" : "start an agent of this context, or a coordinator that may look at them") +
             std::string(", or end it with ") + command(about, "job cancel");
  for (const std::string& condition : conditions) {
    if (!alive || !condition.starts_with("approval:")) continue;
    const std::string which = about.job.job_key.substr(4) + " " + condition.substr(9);
    out.next = command(about, "job approve", which) + ", or " + command(about, "job reject", which);
    break;
  }
  return out;
}

Explanation held(const Situation& about) {
  if (!about.job.held) return place_lost(about, "held", "the list of jobs that its concurrency key holds back");
  Explanation out = begin(about, "held");
  const std::string key = field(about, "concurrency_key");
  const std::uint64_t limit = std::max<std::uint64_t>(number(about, "concurrency_limit"), 1);
  const auto& takers = about.slot_takers;
  for (std::size_t i = 0; i < std::min(takers.size(), kNamed); ++i) out.evidence.push_back("runs: " + takers[i]);
  if (takers.size() > kNamed) out.evidence.push_back(fmt::format("and {} more", takers.size() - kNamed));
  if (takers.empty()) {
    out.cause = "slot_free";
    out.reason = fmt::format("it is held by concurrency key {}, though no job of that key runs", key);
    out.next = "ask again; if it stays so, put it right with " + command(about, "doctor --rebuild", "");
    return out;
  }
  out.cause = "slots_taken";
  out.reason = fmt::format("{} of {} that concurrency key {} allows {} now", takers.size(), counted(limit, "job"), key,
                           takers.size() == 1 ? "runs" : "run");
  out.next = "wait for one of them, or ask why it lasts: " + command(about, "job explain", takers.front().substr(4));
  return out;
}

}  // namespace mycojobs::explaining
