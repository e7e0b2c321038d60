// explain(): jobs that a runner has.
#include <fmt/format.h>

#include <algorithm>

#include "inspect/explain_parts.h"
#include "inspect/runners.h"

namespace mycojobs::explaining {
namespace {

const RunnerInfo* runner_of(const Situation& about) {
  const auto found = std::find_if(about.runners.begin(), about.runners.end(),
                                  [&](const RunnerInfo& info) { return info.runner.id == about.job.claim.runner; });
  return found == about.runners.end() ? nullptr : &*found;
}

// Whether the very process that claimed the job still holds its runner's id.
bool owner_is_alive(const Situation& about, const RunnerInfo* info) {
  return info != nullptr && presence(*info) == Presence::live && info->hold.instance == about.job.claim.instance;
}

void tell_owner(const Situation& about, const RunnerInfo* info, Explanation& out) {
  const ClaimView& claim = about.job.claim;
  if (info == nullptr) {
    out.evidence.push_back(fmt::format("runner {}, which has no registration", claim.runner));
  } else if (!owner_is_alive(about, info) && presence(*info) == Presence::live) {
    out.evidence.push_back(fmt::format("runner {} was started anew on {}; its process that had the job is gone",
                                       claim.runner, info->hold.host));
  } else {
    out.evidence.push_back("runner " + describe(*info, about.job.now_ms) +
                           (info->hold.pid > 0 ? fmt::format(", process {}", info->hold.pid) : ""));
  }
}

std::string lease_text(std::uint64_t until_ms, std::uint64_t now_ms) {
  if (until_ms >= now_ms) return fmt::format("its lease ends in {} unless it is renewed", span_text(until_ms - now_ms));
  return fmt::format("its lease ran out {} ago", span_text(now_ms - until_ms));
}

void judge_live(const Situation& about, const RunnerInfo* info, Explanation& out) {
  const JobPlaces& job = about.job;
  const ClaimView& claim = job.claim;
  const std::string who = fmt::format("runner {}", claim.runner);
  if (job.now_ms > claim.until_ms) {
    out.cause = "lease_over";
    out.reason = "its lease has run out, and " + who + " has not reported an end";
    out.next =
        anyone_alive(about)
            ? "wait: any agent of this context puts it back on its queue once it has seen the lease unrenewed for "
              "a whole lease itself"
            : "start an agent: any agent of this context puts it back on its queue, and none is alive";
  } else if (field(about, "detail") == "unkillable") {
    out.cause = "unkillable";
    out.reason = "a process of it does not end on KILL; it has no end before that process is gone";
    out.next = fmt::format(
        "look at the host of {}: what hangs in the kernel (a dead disk or network mount), or "
        "restart that host",
        who);
  } else if (!owner_is_alive(about, info)) {
    out.cause = "runner_silent";
    out.reason = who + " has not been heard of; the job may still run until its lease is over";
    out.next = fmt::format("wait {}: then any agent puts it back on its queue", span_text(claim.until_ms - job.now_ms));
  } else if (claim.cancel) {
    out.cause = "cancelling";
    out.reason = "somebody wants it cancelled; " + who + " ends it by TERM, and by KILL after its grace time";
    out.next = "wait for the grace time; ask again if it lasts longer than that and a lease";
  } else {
    out.cause = "running";
    out.reason = who + " has it";
    out.next = fmt::format("wait; {} shows its output, {} ends it", command(about, "job logs --follow"),
                           command(about, "job cancel"));
  }
}

}  // namespace

Explanation live(const Situation& about) {
  const JobPlaces& job = about.job;
  if (!job.lease_until_ms) return place_lost(about, "live", "the index of leases");
  Explanation out = begin(about, "live");
  const RunnerInfo* info = runner_of(about);
  tell_owner(about, info, out);
  out.evidence.push_back(lease_text(job.claim.until_ms, job.now_ms));
  if (const std::uint64_t since = number(about, "started_ms"); since > 0) {
    const std::string limit = field(about, "timeout");
    out.evidence.push_back(fmt::format("claimed {} ago; time limit {}",
                                       span_text(job.now_ms - std::min(since, job.now_ms)),
                                       limit.empty() ? "the runner's default" : limit + " s"));
  }
  if (job.record_type == "none")
    out.evidence.emplace_back("its record was deleted; its end will be written all the same");
  judge_live(about, info, out);
  return out;
}

}  // namespace mycojobs::explaining
