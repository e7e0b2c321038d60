// explain(): jobs that have ended.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "inspect/explain_parts.h"
#include "inspect/runners.h"

namespace mycojobs::explaining {
namespace {

// What to do about a failure before the job is tried again. {0}: redis-cli words that set a field of it.
struct Remedy {
  std::string_view detail, what;
};
constexpr auto kRemedies = std::to_array<Remedy>({
    {"exit", "mend the script"},
    {"exception", "mend the script"},
    {"signal", "mend the script"},
    {"timeout", "give it more time (field `timeout`, in seconds), or make it faster"},
    {"timeout_cpu", "give it more CPU time (`cpu` in its policy), or make it faster"},
    {"oom", "use less, or ask for more (`memory` in its policy, or `sandbox.memory` of the runner)"},
    {"output_limit", "print less, or ask for more (`output.keep` in its policy, or leave out `output.kill`)"},
    {"file_limit", "write less, or ask for more (`file_size` in its policy)"},
    {"pids_limit",
     "start fewer processes and threads, or ask for more (`pids` in its policy, or `sandbox.pids` of the runner)"},
    {"violation", "take the call that its error names out of the script, or ask for it (`syscalls.add` in its policy)"},
    {"result_too_large", "hand back less, or raise `job.max_result_bytes` of the runner"},
    {"setup_error", "run `mycojobs doctor` on the runner's host and do what it says"},
});

std::string remedy_of(const std::string& detail) {
  const auto* found =
      std::find_if(kRemedies.begin(), kRemedies.end(), [&](const Remedy& each) { return each.detail == detail; });
  return std::string(found == kRemedies.end() ? "do what its error says" : found->what);
}

// In the words of the claim, which decides; a bare job has only its record.
struct End {
  std::string status, detail, error;
};
End end_of(const Situation& about) {
  const ClaimView& claim = about.job.claim;
  if (claim.state == "ended") return {claim.status, claim.detail, field(about, "error")};
  return {field(about, "status"), field(about, "detail"), field(about, "error")};
}

void judge_failure(const Situation& about, const End& end, Explanation& out) {
  const std::string because = end.error.empty() ? "" : ": " + end.error;
  const std::string retry = command(about, "job retry");
  if (end.detail == "cancelled") {
    out.cause = "cancelled";
    out.reason = "it was cancelled, which is for ever";
    out.next = "submit it anew to run it after all";
  } else if (end.detail == "dead_letter") {
    out.cause = "dead_letter";
    out.reason = "it is a dead letter" + because;
    out.next = "do what its error says, then " + retry;
  } else if (!about.job.claim.flow.empty() && about.job.claim.epoch == 0) {
    out.cause = "settled_by_flow";
    out.reason = fmt::format("its flow ended it as {}, and no runner ever had it{}", end.detail, because);
    out.next = "see " + command(about, "flow explain", flow_of(about.job.claim));
  } else if (end.detail == "dependency_failed") {
    out.cause = "dependency_failed";
    out.reason = "a job that it depends on failed" + because;
    out.next = "mend and retry that one first, then this one with " + retry;
  } else if (end.detail == "prerequisite") {
    out.cause = "prerequisite";
    out.reason = "its prerequisites will never be met" + because;
    out.next = "put them right, then " + retry;
  } else if (end.detail == "policy_refused") {
    out.cause = "policy_refused";
    out.reason = "what it asks of its sandbox was refused" + because;
    out.next = fmt::format("ask for less ({}), or let the operator of the runner allow it, then {}",
                           redis_cli(about, "HSET " + about.job.job_key + " policy '{...}'"), retry);
  } else if (end.detail == "timeout" && about.job.claim.state == "ended" && about.job.claim.epoch == 0) {
    out.cause = "queue_timeout";
    out.reason = "no runner took it in time" + because;
    out.next = fmt::format("see {} and {}, then {}", command(about, "queue list", ""),
                           command(about, "runner list", ""), retry);
  } else {
    out.cause = "failed";
    out.reason =
        fmt::format("its last attempt failed, {}{}", end.detail.empty() ? "without a reason" : end.detail, because);
    out.next = fmt::format("{}, then {}; {} has its output", remedy_of(end.detail), retry, command(about, "job logs"));
  }
}

}  // namespace

Explanation ended(const Situation& about) {
  const JobPlaces& job = about.job;
  const End end = end_of(about);
  Explanation out = begin(about, "ended");
  if (job.claim.ended_ms > 0) {
    out.evidence.push_back(fmt::format("ended {} ago ({})",
                                       span_text(job.now_ms - std::min(job.claim.ended_ms, job.now_ms)),
                                       moment_text(job.claim.ended_ms)));
  }
  if (job.claim.runner > 0) out.evidence.push_back(fmt::format("its last runner: {}", job.claim.runner));
  if (about.dead_letter) {
    out.evidence.push_back(fmt::format("dead letter {}: {}", about.dead_letter->id, about.dead_letter->reason));
  }
  if (job.record_type == "none") out.evidence.emplace_back("its record was deleted by another client");
  if (job.claim.state != "ended") {
    out.cause = "ended_elsewhere";
    out.reason = fmt::format("its record says {}, and no runner of mycojobs ran it", end.status);
    out.next = "submit it under another id to run it here";
    return out;
  }
  if (job.record_type == "hash" && field(about, "status") != end.status) {
    out.evidence.push_back(fmt::format("another client has overwritten its status; it ended as {}", end.status));
  }
  if (end.status != "finished") {
    judge_failure(about, end, out);
    return out;
  }
  out.cause = "finished";
  out.reason = "it has finished";
  out.next = "nothing; " + command(about, "job show") + " has its result";
  return out;
}

}  // namespace mycojobs::explaining
