#include "inspect/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/ids.h"
#include "inspect/explain_parts.h"
#include "inspect/runners.h"

namespace mycojobs {
namespace {

constexpr auto kCauses = std::to_array<CauseRow>({
    {"unknown", "no_such_job", "nothing in the context knows this job"},
    {"unknown", "in_database_0", "its record is in database 0; the jobs of a context are in the database of its id"},
    {"unknown", "wrong_type", "its key, or that of its claim, holds something else: another client wrote it"},
    {"missing", "record_awaited", "its key was in a queue before its record; it waits two seconds for it"},
    {"missing", "record_never_came", "its key was in a queue and no record came: a dead letter"},
    {"missing", "record_deleted", "it has a claim, and another client has deleted its record"},
    {"unqueued", "not_queued", "its record is written and its key stands in no queue"},
    {"unqueued", "no_script_type", "its record names no script type, so it belongs to no queue"},
    {"unqueued", "started_elsewhere", "its record says started, and no runner of mycojobs has claimed it"},
    {"queued", "queue_paused", "its queue is paused"},
    {"queued", "no_runner", "no live runner serves its queue"},
    {"queued", "slots_busy", "every slot of the runners that serve its queue is busy"},
    {"queued", "behind_others", "other jobs come before it"},
    {"queued", "next", "it is the next one to be taken"},
    {"live", "running", "a runner has it"},
    {"live", "cancelling", "somebody wants it cancelled, and its runner has not reported its end yet"},
    {"live", "unkillable", "a process of it does not end on KILL"},
    {"live", "runner_silent", "its runner has not been heard of; its lease still lasts"},
    {"live", "lease_over", "its lease has run out; any agent puts it back on its queue"},
    {"delayed", "not_yet_due", "it was asked to run later"},
    {"delayed", "retry_wait", "its last attempt failed; the next one is due later"},
    {"delayed", "due", "its time has come; any agent puts it on its queue"},
    {"waiting", "dependencies", "jobs that it depends on have not ended"},
    {"waiting", "dependency_absent", "a job that it depends on does not exist"},
    {"waiting", "cycle", "jobs wait for one another in a circle"},
    {"prerequisites", "not_met", "its prerequisites are not met"},
    {"prerequisites", "not_checked", "nobody is there to look at its prerequisites"},
    {"planned", "flow", "its flow has not come to it yet"},
    {"held", "slots_taken", "as many jobs of its concurrency key run as may"},
    {"held", "slot_free", "it is held although no job of its concurrency key runs"},
    {"*", "place_lost", "it is not where its claim says: another client's doing"},
    {"ended", "finished", "it has finished"},
    {"ended", "failed", "its last attempt failed"},
    {"ended", "cancelled", "it was cancelled"},
    {"ended", "dead_letter", "it can never run, or not once more"},
    {"ended", "dependency_failed", "a job that it depends on failed"},
    {"ended", "prerequisite", "its prerequisites will never be met"},
    {"ended", "policy_refused", "it asks for more than its context's ceiling allows"},
    {"ended", "queue_timeout", "it waited in its queue for longer than it may"},
    {"ended", "settled_by_flow", "its flow ended it, and no runner ever had it"},
    {"ended", "ended_elsewhere", "its record says that it has ended, and no runner of mycojobs ran it"},
});

Explanation wrong_type(const Situation& about, const std::string& key, const std::string& type) {
  Explanation out = explaining::begin(about, "unknown");
  out.cause = "wrong_type";
  out.reason = fmt::format("{} is a {} where a hash belongs: another client wrote it", key, type);
  out.evidence.push_back(fmt::format("type of {}: {}", key, type));
  out.next = "delete it with " + explaining::redis_cli(about, "DEL " + key) +
             (key == about.job.job_key ? ", then submit the job again" : ", then run `mycojobs doctor --rebuild`");
  return out;
}

Explanation judge(const Situation& about) {
  using Part = Explanation (*)(const Situation&);
  static const std::map<std::string, Part, std::less<>> kParts = {{"queued", explaining::queued},
                                                                  {"live", explaining::live},
                                                                  {"delayed", explaining::delayed},
                                                                  {"waiting", explaining::waiting},
                                                                  {"held", explaining::held},
                                                                  {"planned", explaining::planned},
                                                                  {"prerequisites", explaining::prerequisites},
                                                                  {"ended", explaining::ended}};
  const JobPlaces& job = about.job;
  if (job.record_type != "hash" && job.record_type != "none") return wrong_type(about, job.job_key, job.record_type);
  if (job.claim_type != "hash" && job.claim_type != "none") {
    return wrong_type(about, "mj:claim:" + job.job_key, job.claim_type);
  }
  const auto part = kParts.find(job.claim.state);
  if (part != kParts.end()) return part->second(about);
  return job.record_type == "none" ? explaining::unknown(about) : explaining::bare(about);
}

}  // namespace

std::span<const CauseRow> causes() { return kCauses; }

Explanation explain(const Situation& about) {
  Explanation out = judge(about);
  for (const std::string& line : about.anomalies) out.evidence.push_back("recorded anomaly: " + line);
  return out;
}

std::vector<std::string> find_cycle(const Waits& waits, const std::string& start) {
  const std::map<std::string, std::vector<std::string>> edges(waits.begin(), waits.end());
  std::set<std::string> done, on_path{start};
  std::vector<std::string> path{start};
  std::vector<std::size_t> next{0};  // of each job on the path: which of its edges is looked at next
  while (!path.empty()) {
    const auto found = edges.find(path.back());
    if (found == edges.end() || next.back() >= found->second.size()) {
      done.insert(path.back());
      on_path.erase(path.back());
      path.pop_back();
      next.pop_back();
      continue;
    }
    const std::string& to = found->second[next.back()++];
    if (done.contains(to)) continue;
    path.push_back(to);
    next.push_back(0);
    if (!on_path.insert(to).second) return path;
  }
  return {};
}

namespace explaining {

Explanation begin(const Situation& about, std::string_view state) {
  Explanation out;
  out.job_key = about.job.job_key;
  out.state = state;
  const ClaimView& claim = about.job.claim;
  if (about.job.record_type == "hash") {
    const std::string status = field(about, "status"), detail = field(about, "detail");
    out.evidence.push_back(fmt::format("record: status {}{}", status.empty() ? "(none)" : status,
                                       detail.empty() ? "" : ", detail " + detail));
  }
  if (!claim.state.empty()) {
    out.evidence.push_back(fmt::format("claim: {}, attempt {}, deliveries {}, queue {}", claim.state,
                                       std::max(claim.attempt, 1U), claim.deliveries, claim.queue));
  }
  return out;
}

std::string field(const Situation& about, std::string_view name) {
  for (const auto& [key, value] : about.job.record) {
    if (key == name) return value;
  }
  return "";
}

std::uint64_t number(const Situation& about, std::string_view name) {
  std::uint64_t value = 0;
  return parse_u64(field(about, name), value) ? value : 0;
}

std::string command(const Situation& about, std::string_view verb, std::string_view rest) {
  return fmt::format("`mycojobs {}{}{}{}`", verb, rest.empty() ? "" : " ", rest,
                     about.context == 1 ? "" : fmt::format(" --context {}", about.context));
}

std::string command(const Situation& about, std::string_view verb) {
  const std::string& key = about.job.job_key;
  return command(about, verb, key.starts_with("job:") ? key.substr(4) : key);
}

std::string redis_cli(const Situation& about, std::string_view words) {
  return fmt::format("`redis-cli -n {} {}`", about.context, words);
}

bool anyone_alive(const Situation& about) {
  return std::any_of(about.runners.begin(), about.runners.end(),
                     [](const RunnerInfo& info) { return presence(info) == Presence::live; });
}

void tell_runners(const Situation& about, Explanation& out) {
  for (const RunnerInfo& info : about.runners) {
    if (serves(info, about.queue)) {
      out.evidence.push_back("serves " + about.queue + ": runner " + describe(info, about.job.now_ms));
    }
  }
}

Explanation place_lost(const Situation& about, std::string_view state, std::string_view where) {
  Explanation out = begin(about, state);
  out.cause = "place_lost";
  out.reason = fmt::format("{} should be in {}, and is not: another client took it out", about.job.job_key, where);
  out.next = "put it back with " + command(about, "doctor --rebuild", "");
  return out;
}

}  // namespace explaining
}  // namespace mycojobs
