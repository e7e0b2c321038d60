#include "inspect/explain.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/parse.h"
#include "inspect/invariants.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/stored_usage.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/shell_word.h"
#include "text/terminal_text.h"

namespace mycojobs {
namespace {

// Returns the common part of an explanation: key, record and claim.
Explanation make_explanation(const JobSituation&, std::string_view state);

Explanation explain_unknown(const JobSituation&);    // for a job with neither record nor claim
Explanation explain_unclaimed(const JobSituation&);  // for a record without a claim
Explanation explain_queued(const JobSituation&);
Explanation explain_live(const JobSituation&);
Explanation explain_delayed(const JobSituation&);
Explanation explain_waiting(const JobSituation&);
Explanation explain_prerequisites(const JobSituation&);
Explanation explain_held(const JobSituation&);
Explanation explain_planned(const JobSituation&);
Explanation explain_ended(const JobSituation&);

// Returns a field of the record, or an empty text if the field is absent.
std::string get_field(const JobSituation&, std::string_view name);
std::uint64_t get_number(const JobSituation&, std::string_view name);
// Formats a command for the user: "`mycojobs job retry 12:2001 --context 3`".
std::string format_command(const JobSituation&, std::string_view verb, std::string_view rest);
std::string format_command(const JobSituation&, std::string_view verb);  // with this job as the argument
// Formats a command for the user: "`redis-cli -n 3 LPUSH queue:python job:12:2001`".
std::string format_redis_cli(const JobSituation&, std::string_view arguments);
std::string get_flow_id(const ClaimView&);  // empty: not a job of a flow
bool has_live_runner(const JobSituation&);
void add_runner_evidence(const JobSituation&, Explanation&);
// Explains a job that is missing in the index of its claim's state, which only another client can cause.
Explanation explain_missing_index_entry(const JobSituation&, std::string_view state, std::string_view index_name);

constexpr std::uint64_t kMaxCheckAgeMs = 5000;  // same as in prerequisites_due (store/scripts)
constexpr const char* kStartAgentForLease =
    "start an agent: any agent of this context returns it to its queue, but none is alive";
constexpr int kMaxReadAttempts = 5;                    // attempts to read a job that changes during the read
constexpr std::uint32_t kMaxEntriesPerRead = 1000;     // entries of a queue
constexpr std::uint64_t kMaxSearchPosition = 1000000;  // maximum position that is searched in a queue
// Maximum number of list entries that one step of the server searches. A search of a longer list would block all other
// clients.
constexpr std::uint64_t kMaxSearchedEntries = 20000;
constexpr std::size_t kMaxStatesPerRead = 100;   // jobs read in one step
constexpr std::size_t kMaxFollowedJobs = 10000;  // jobs that are followed to find a cycle
constexpr std::size_t kMaxDeadLetters = 10000;   // reads the newest entries only; a longer reply would block Redis
constexpr std::size_t kMaxAnomalies = 1000;
constexpr std::size_t kMaxShownAnomalies = 3;

Result<std::vector<JobStoreState>> read_job_states(Store& store, Id context, std::span<const std::string> keys) {
  std::vector<JobStoreState> states;
  for (std::size_t offset = 0; offset < keys.size(); offset += kMaxStatesPerRead) {
    MJ_TRY(batch,
           store.job_states(context, keys.subspan(offset, std::min(kMaxStatesPerRead, keys.size() - offset)), false));
    std::move(batch.begin(), batch.end(), std::back_inserter(states));
  }
  return states;
}

// Reads the queue of the job and the position of the job in it. is_searched: the read of the job has counted its
// entries in the list.
Result<void> read_queue(Store& store, bool is_searched, JobSituation& situation) {
  if (situation.queue.empty()) return {};
  MJ_TRY(queues, store.queues(situation.context));
  for (const QueueInfo& info : queues) {
    if (info.queue != situation.queue) continue;
    situation.is_queue_paused = info.paused;
    situation.queue_length = info.length;
    situation.priority_count = info.prioritised;
  }
  if (is_searched && situation.job.queue_entry_count == 0) return {};
  for (std::uint64_t offset = 0; offset < kMaxSearchPosition; offset += kMaxEntriesPerRead) {
    MJ_TRY(entries, store.queue_entries(situation.context, situation.queue, offset, kMaxEntriesPerRead));
    const auto found = std::find(entries.begin(), entries.end(), situation.job.job_key);
    if (found != entries.end()) {
      situation.job.queue_entry_count = std::max(situation.job.queue_entry_count, 1U);
      situation.entries_ahead = offset + static_cast<std::uint64_t>(found - entries.begin());
      situation.queue_length =
          std::max(situation.queue_length, *situation.entries_ahead + 1);  // the list may have grown since
      return {};
    }
    if (entries.size() < kMaxEntriesPerRead) return {};
  }
  situation.job.queue_entry_count =
      std::max(situation.job.queue_entry_count, 1U);  // the job is deeper in the list, if present
  return {};
}

// Reads the jobs that this job waits for, and follows their dependencies to find a cycle.
Result<void> read_dependencies(Store& store, JobSituation& situation) {
  WaitGraph wait_graph{{situation.job.job_key, situation.job.awaited_jobs}};
  std::set<std::string> visited{situation.job.job_key};
  std::vector<std::string> next = situation.job.awaited_jobs;
  MJ_TRY(dependencies, read_job_states(store, situation.context, next));
  situation.dependencies = dependencies;
  while (!dependencies.empty() && visited.size() < kMaxFollowedJobs) {
    next.clear();
    for (const JobStoreState& job : dependencies) {
      if (!visited.insert(job.job_key).second) continue;
      wait_graph.emplace_back(job.job_key, job.awaited_jobs);
      next.insert(next.end(), job.awaited_jobs.begin(), job.awaited_jobs.end());
    }
    std::erase_if(next, [&](const std::string& key) { return visited.contains(key); });
    MJ_TRY(next_states, read_job_states(store, situation.context, next));
    dependencies = std::move(next_states);
  }
  situation.cycle = find_cycle(wait_graph, situation.job.job_key);
  return {};
}

Result<void> read_slot_owners(Store& store, JobSituation& situation) {
  const std::string key = get_slot_key(situation.job);
  MJ_TRY(leases, store.leases(situation.context));
  std::vector<std::string> keys;
  keys.reserve(leases.size());
  for (const Lease& lease : leases) keys.push_back(lease.job_key);
  MJ_TRY(running, read_job_states(store, situation.context, keys));
  for (const JobStoreState& job : running) {
    if (job.occupies_slot && job.claim.concurrency_key == key) situation.slot_owners.push_back(job.job_key);
  }
  return {};
}

bool mentions_job(const std::string& line, const std::string& job_key) {
  for (auto begin = line.find(job_key); begin != std::string::npos; begin = line.find(job_key, begin + 1)) {
    const auto end = begin + job_key.size();
    if (end >= line.size() || line[end] < '0' || line[end] > '9') return true;
  }
  return false;
}

Result<void> read_dead_letter_and_anomalies(Store& store, JobSituation& situation) {
  const ClaimView& claim = situation.job.claim;
  if (claim.state.empty() || (claim.state == kJobStateEnded && claim.detail == "dead_letter")) {
    MJ_TRY(letters, store.dead_letters(situation.context, kMaxDeadLetters));
    for (const DeadLetter& letter : letters) {
      if (letter.job_key == situation.job.job_key) situation.dead_letter = letter;
    }
  }
  MJ_TRY(anomalies, store.anomalies(situation.context, kMaxAnomalies));
  std::erase_if(anomalies, [&](const std::string& line) { return !mentions_job(line, situation.job.job_key); });
  if (anomalies.size() > kMaxShownAnomalies) anomalies.erase(anomalies.begin(), anomalies.end() - kMaxShownAnomalies);
  situation.anomalies = std::move(anomalies);
  return {};
}

// Reads the receipt, which contains the number of earlier jobs in the process of a warm job.
Result<void> read_receipt(Store& store, JobSituation& situation) {
  static constexpr std::string_view kFields[] = {"receipt"};
  auto fields = store.load_fields(situation.context, situation.job.job_key, kFields);
  if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
  if (fields) situation.job.record.insert(situation.job.record.end(), fields->begin(), fields->end());
  return {};
}

void check_database_0(Store& store, JobSituation& situation) {
  static constexpr std::string_view kFields[] = {"script_type"};
  const auto fields = store.load_fields(0, situation.job.job_key, kFields);
  if (!fields) return;
  situation.is_in_database_0 = true;
  for (const auto& [name, value] : *fields) {
    if (name == "script_type") situation.queue = queue_key(value);
  }
}

// Reads whether the coordinator checks prerequisites instead of the agents.
Result<void> read_prerequisite_checker(Store& store, JobSituation& situation) {
  static constexpr std::string_view kFields[] = {"at"};
  auto fields = store.load_fields(situation.context, kPrerequisiteCheckerKey, kFields);
  if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
  std::uint64_t check_ms = 0;
  const bool has_check_time = fields && !fields->empty() && parse_u64(fields->front().second, check_ms);
  situation.coordinator_checks_prerequisites = has_check_time && situation.job.now_ms < check_ms + kMaxCheckAgeMs;
  return {};
}

Result<void> read_states(Store& store, const std::string& job_key, bool with_positions, JobSituation& situation) {
  MJ_TRY(states, store.job_states(situation.context, std::span(&job_key, 1), with_positions));
  if (states.size() != 1) return fail(Code::internal, "places: one job was asked about");
  situation.job = std::move(states.front());
  const bool is_claimed = !situation.job.claim.state.empty();
  const std::string type = get_field(situation, "script_type");
  situation.queue = is_claimed ? situation.job.claim.queue : type.empty() ? "" : queue_key(type);
  return {};
}

Result<JobSituation> read_situation(Store& store, Id context, const std::string& job_key) {
  JobSituation situation;
  situation.context = context;
  situation.database = store.database_number(context);
  MJ_CHECK(read_states(store, job_key, false, situation));
  const auto length = store.queue_length(context, situation.queue);  // after an error the key is not a list
  const bool is_searched = situation.queue.empty() || !length || *length <= kMaxSearchedEntries;
  if (is_searched) MJ_CHECK(read_states(store, job_key, true, situation));
  const std::string& state = situation.job.claim.state;
  MJ_TRY(runners, store.runners(context));
  situation.runners = std::move(runners);
  if (state.empty() || state == kJobStateQueued) MJ_CHECK(read_queue(store, is_searched, situation));
  if (state == kJobStateWaiting) MJ_CHECK(read_dependencies(store, situation));
  if (state == kJobStateHeld) MJ_CHECK(read_slot_owners(store, situation));
  if (state == kJobStatePrerequisites) MJ_CHECK(read_prerequisite_checker(store, situation));
  MJ_CHECK(read_dead_letter_and_anomalies(store, situation));
  if (state == kJobStateEnded) MJ_CHECK(read_receipt(store, situation));
  if (state.empty() && situation.job.record_type == "none" && situation.database != 0)
    check_database_0(store, situation);
  return situation;
}

std::string format_push_command(const JobSituation& situation) {
  return format_redis_cli(situation,
                          fmt::format("LPUSH {} {}", quote_for_shell(situation.queue), situation.job.job_key));
}

// Returns the maximum number of jobs that are claimed before this job. Priorities above 0 are served before the list,
// priorities below 0 after the list; the number of jobs of each kind is not known here.
std::optional<std::uint64_t> get_max_jobs_ahead(const JobSituation& situation) {
  if (situation.entries_ahead) return *situation.entries_ahead + situation.priority_count;
  if (!situation.job.in_priority_index) return std::nullopt;
  const std::uint64_t other_priority_count =
      situation.priority_count - std::min<std::uint64_t>(situation.priority_count, 1);
  return other_priority_count + (get_field(situation, "priority").starts_with('-') ? situation.queue_length : 0);
}

void add_position_evidence(const JobSituation& situation, Explanation& out) {
  if (situation.job.in_priority_index) {
    out.evidence.push_back(fmt::format(
        "priority {}: beside {}, with {} that have one", get_field(situation, "priority"), situation.queue,
        count_with_noun(situation.priority_count - std::min<std::uint64_t>(situation.priority_count, 1), "other job")));
  } else if (situation.entries_ahead) {
    out.evidence.push_back(
        fmt::format("position {} of {} in {}", *situation.entries_ahead + 1, situation.queue_length, situation.queue));
  } else {
    out.evidence.push_back(fmt::format("{} entries in {}; it is far behind", situation.queue_length, situation.queue));
  }
  if (situation.priority_count > 0 && !situation.job.in_priority_index) {
    out.evidence.push_back(count_with_noun(situation.priority_count, "job") +
                           " with a priority beside them; those above 0 come first");
  }
  if (situation.job.queue_entry_count > 1) {
    out.evidence.push_back(fmt::format("its key is in the queue {} times; the duplicates will be dropped",
                                       situation.job.queue_entry_count));
  }
  const ClaimView& claim = situation.job.claim;
  if (claim.reason == kFactKindReleased || claim.reason == kFactKindExpired) {
    out.evidence.push_back(fmt::format("delivery {} ended without a report ({})", claim.deliveries, claim.reason));
  } else if (!claim.reason.empty()) {
    out.evidence.push_back("was returned by " + claim.reason);
  }
}

std::string get_queue_type(const JobSituation& situation) {
  return situation.queue.starts_with("queue:") ? situation.queue.substr(6) : situation.queue;
}

void explain_no_runner(const JobSituation& situation, Explanation& out) {
  out.cause = "no_runner";
  out.reason = "no runner serves " + situation.queue;
  const std::string live_queues = list_served_queues(situation.runners);
  if (situation.queue.starts_with(kRouterQueueKey)) {
    out.reason = "it is for a supervisor on another host, and no coordinator has sent it yet";
    out.next_action =
        "start `mycojobs coordinator`; if one runs, wait for other jobs at that supervisor or raise "
        "--coordinator-deliveries; its log has further errors";
    return;
  }
  out.evidence.push_back(live_queues.empty() ? "no runner of this context is alive"
                                             : "live runners serve " + live_queues);
  const bool is_own_queue = !situation.queue.starts_with("queue:");
  out.next_action = is_own_queue
                        ? "start the runner that this queue belongs to, or cancel the job with " +
                              format_command(situation, "job cancel")
                        : fmt::format(
                              "start an agent that runs {} for context {} (`mycojobs agent --redis URL --context {}`; "
                              "`mycojobs doctor` shows what its host can run)",
                              quote_for_shell(get_queue_type(situation)), situation.context, situation.context);
}

// Returns whether claims of the runner were denied recently, because its actor may not run jobs in this context.
bool was_refused_recently(const JobSituation& situation, const RunnerInfo& info) {
  constexpr std::uint64_t kMaxRefusalAgeMs = 60000;  // longer than the retry interval of such a runner
  std::uint64_t refusal_ms = 0;
  return parse_u64(field_of(info.runner.unknown, "refused_ms"), refusal_ms) &&
         situation.job.now_ms < refusal_ms + kMaxRefusalAgeMs;
}

void explain_refused_runner(const JobSituation& situation, const RunnerInfo& info, Explanation& out) {
  const std::string actor = info.runner.actor_id == 0 ? "" : std::to_string(info.runner.actor_id);
  out.cause = "runner_refused";
  out.reason =
      fmt::format("runner {} serves {}, and {} may not run jobs of context {}", info.runner.id, situation.queue,
                  actor.empty() ? "without an actor it" : "its actor " + actor, situation.context);
  out.evidence.push_back(
      fmt::format("the record context:{} lists the allowed actors: executors, admins", situation.context));
  out.next_action = fmt::format("let an admin allow it: `mycojobs context grant {} --executor {}`", situation.context,
                                actor.empty() ? "ID" : actor);
  if (actor.empty()) out.next_action += "; and give the agent that actor (setting runner_actor)";
}

// Explains a wait for a queue whose runners all are on hosts that lack a resource.
void explain_paused_runner(const JobSituation& situation, const RunnerInfo& info, Explanation& out) {
  out.cause = "runner_paused";
  out.reason = fmt::format("runner {} serves {} but claims no jobs now: {}", info.runner.id, situation.queue,
                           get_pause_reason(info));
  out.next_action = fmt::format("check the host {}: the agent resumes when it can start jobs; or start another agent",
                                quote_for_shell(to_printable(info.holder.host)));
}

// Explains why a job waits in its queue.
void explain_queue_wait(const JobSituation& situation, Explanation& out) {
  std::uint32_t serving_count = 0;
  std::uint32_t free_slots = 0;
  const RunnerInfo* refused = nullptr;
  const RunnerInfo* paused = nullptr;
  for (const RunnerInfo& info : situation.runners) {
    if (get_presence(info) != RunnerPresence::live || !serves_queue(info, situation.queue)) continue;
    if (was_refused_recently(situation, info)) {
      refused = &info;
      continue;
    }
    if (!get_pause_reason(info).empty()) {
      paused = &info;
      continue;
    }
    ++serving_count;
    free_slots += info.runner.slots - std::min(info.live_claim_count, info.runner.slots);
  }
  if (situation.is_queue_paused) {
    out.cause = "queue_paused";
    out.reason = situation.queue + " is paused";
    out.next_action =
        "go on with " + format_command(situation, "queue resume", quote_for_shell(get_queue_type(situation)));
  } else if (serving_count == 0 && refused != nullptr) {
    explain_refused_runner(situation, *refused, out);
  } else if (serving_count == 0 && paused != nullptr) {
    explain_paused_runner(situation, *paused, out);
  } else if (serving_count == 0) {
    explain_no_runner(situation, out);
  } else if (free_slots == 0) {
    out.cause = "slots_busy";
    out.reason = fmt::format("every slot of the {} that serve{} {} is busy",
                             serving_count == 1 ? "runner" : fmt::format("{} runners", serving_count),
                             serving_count == 1 ? "s" : "", situation.queue);
    out.next_action = "wait, or start another agent, or give the runners more --slots";
  } else if (get_max_jobs_ahead(situation) == 0U) {
    out.cause = "next";
    out.reason = "it is the next one in " + situation.queue;
    out.next_action = "repeat the command in a second: a runner with a free slot claims it immediately";
  } else {
    out.cause = "behind_others";
    const auto max_jobs_ahead = get_max_jobs_ahead(situation);
    const bool is_exact = situation.entries_ahead && situation.priority_count == 0;
    out.reason = max_jobs_ahead ? fmt::format("{}{} in {}", is_exact ? "" : "at most ",
                                              count_with_noun(*max_jobs_ahead, "job precedes it", "jobs precede it"),
                                              situation.queue)
                                : fmt::format("very many jobs precede it in {}", situation.queue);
    out.next_action = "wait, or start another agent, or submit it with a --priority";
  }
}

Explanation explain_unknown(const JobSituation& situation) {
  if (situation.job.awaits_record || situation.job.queue_entry_count > 0) {
    Explanation out = make_explanation(situation, "missing");
    out.cause = "record_awaited";
    out.reason = "its key was in a queue, but its record has not been written yet";
    out.evidence.emplace_back("no record; its entry was moved aside");
    out.next_action =
        fmt::format("write the record with {}; an entry waits two seconds for it, then it is a dead letter",
                    format_redis_cli(situation, "HSET " + situation.job.job_key + " ..."));
    return out;
  }
  if (situation.dead_letter) {
    Explanation out = make_explanation(situation, "missing");
    out.cause = "record_never_came";
    out.reason = "its key was in " + situation.dead_letter->queue + ", and it has no record";
    out.evidence.push_back(fmt::format("dead letter {}: {}, {}", situation.dead_letter->id,
                                       situation.dead_letter->reason, format_time(situation.dead_letter->at_ms)));
    out.next_action = "write the record, then " +
                      format_command(situation, "queue dead --requeue", situation.dead_letter->id) +
                      "; or strike it off with --drop";
    return out;
  }
  Explanation out = make_explanation(situation, "unknown");
  if (situation.is_in_database_0) {
    out.cause = "in_database_0";
    out.reason = fmt::format("{} is in database 0, and the jobs of context {} are in database {}",
                             situation.job.job_key, situation.context, situation.database);
    out.evidence.emplace_back("a record in database 0; in that of the context no record, no claim");
    out.next_action = fmt::format(
        "choose the database, as in redis-cli -n {}; for this job: `redis-cli MOVE {} {}`, then {}", situation.database,
        situation.job.job_key, situation.database,
        format_redis_cli(situation, "LPUSH " +
                                        (situation.queue.empty() ? "queue:python" : quote_for_shell(situation.queue)) +
                                        " " + situation.job.job_key));
    return out;
  }
  out.cause = "no_such_job";
  out.reason = fmt::format("context {} has no data of {}", situation.context, situation.job.job_key);
  out.evidence.emplace_back("no record, no claim, no queue entry that waits for its record");
  out.next_action = fmt::format(
      "check CALLER:ID and --context; {} shows what there is. Jobs that have ended are forgotten "
      "after the retention time",
      format_command(situation, "job list", ""));
  return out;
}

Explanation explain_unclaimed(const JobSituation& situation) {
  const std::string status = get_field(situation, "status");
  if (status == kJobStatusFinished || status == kJobStatusError) return explain_ended(situation);
  if (situation.job.queue_entry_count > 0 || situation.job.in_priority_index || situation.job.awaits_record)
    return explain_queued(situation);
  Explanation out = make_explanation(situation, "unqueued");
  if (situation.dead_letter) {
    out.evidence.push_back(fmt::format("dead letter {}: {}", situation.dead_letter->id, situation.dead_letter->reason));
  }
  if (situation.queue.empty()) {
    out.cause = "no_script_type";
    out.reason = "its record names no script_type, so it belongs to no queue";
    out.next_action = "set its script type with " +
                      format_redis_cli(situation, "HSET " + situation.job.job_key + " script_type python") +
                      ", then LPUSH its key onto queue:python";
    return out;
  }
  out.evidence.push_back("not in " + situation.queue);
  if (status == kJobStatusStarted) {
    out.cause = "started_elsewhere";
    out.reason = "its record has the status started, but no runner of mycojobs has claimed it";
    out.next_action = "if no other program runs it, queue it with " + format_push_command(situation);
    return out;
  }
  out.cause = "not_queued";
  out.reason = "its record exists, but its key is in no queue";
  out.next_action = "queue it with " + format_push_command(situation) + "; `mycojobs job submit` does both in one step";
  return out;
}

Explanation explain_queued(const JobSituation& situation) {
  const JobStoreState& job = situation.job;
  if (job.record_type == "none") {
    Explanation out = make_explanation(situation, "missing");
    out.cause = "record_deleted";
    out.reason = "its record was deleted while it was in " + situation.queue;
    out.next_action = "write the record again before it is claimed; otherwise it becomes a dead letter";
    return out;
  }
  if (job.awaits_record && job.queue_entry_count == 0) {
    Explanation out = make_explanation(situation, "missing");
    out.cause = "record_awaited";
    out.reason = "its record was written after its key had been removed from " + situation.queue;
    out.next_action = has_live_runner(situation) ? "repeat the command in a second: an agent returns it to its queue"
                                                 : "start an agent: any agent returns it to its queue";
    return out;
  }
  if (job.queue_entry_count == 0 && !job.in_priority_index && !job.awaits_record)
    return explain_missing_index_entry(situation, "queued", situation.queue);
  Explanation out = make_explanation(situation, "queued");
  add_position_evidence(situation, out);
  explain_queue_wait(situation, out);
  add_runner_evidence(situation, out);
  return out;
}

// Explanations of jobs that wait for something other than a slot.

constexpr std::size_t kMaxListedJobs = 10;  // further jobs are counted

std::string describe_state(const JobStoreState& job) {
  if (job.record_type == "none" && !job.claim.exists) return "does not exist";
  const std::string& state = job.claim.state;
  if (state == kJobStateEnded) return fmt::format("ended as {} {}", job.claim.status, job.claim.detail);
  if (!state.empty()) return "is " + state;
  return job.queue_entry_count > 0 ? "is in its queue" : "has not been claimed yet";
}

// Adds the jobs that this job waits for, missing jobs first. Returns the first of them, or null.
const JobStoreState* add_dependency_evidence(const JobSituation& situation, Explanation& out) {
  std::vector<const JobStoreState*> jobs;
  for (const JobStoreState& job : situation.dependencies) jobs.push_back(&job);
  const auto is_absent = [](const JobStoreState* job) { return describe_state(*job) == "does not exist"; };
  std::stable_partition(jobs.begin(), jobs.end(), is_absent);
  for (std::size_t i = 0; i < std::min(jobs.size(), kMaxListedJobs); ++i) {
    out.evidence.push_back(fmt::format("{} {}", jobs[i]->job_key, describe_state(*jobs[i])));
  }
  if (jobs.size() > kMaxListedJobs) out.evidence.push_back(fmt::format("and {} more", jobs.size() - kMaxListedJobs));
  return jobs.empty() ? nullptr : jobs.front();
}

std::vector<std::string> parse_list(const std::string& list) {
  std::vector<std::string> out;
  const auto parsed = parse_json(list.empty() ? "[]" : list);
  if (!parsed || !parsed->is_array()) return {list};
  for (const auto& item : *parsed) out.push_back(item.is_string() ? item.get<std::string>() : dump_json(item));
  return out;
}

// Formats "job:12:9" as "--caller 12 --id 9".
std::string format_job_flags(const std::string& job_key) {
  const auto colon = job_key.rfind(':');
  return fmt::format("--caller {} --id {}", job_key.substr(4, colon - 4), job_key.substr(colon + 1));
}

std::string get_flow_id(const ClaimView& claim) {
  const auto blank = claim.flow.find(' ');
  return blank == std::string::npos ? "" : claim.flow.substr(blank + 1);
}

Explanation explain_planned(const JobSituation& situation) {
  Explanation out = make_explanation(situation, "planned");
  const std::string flow = get_flow_id(situation.job.claim);
  if (const std::string& message = situation.job.claim.message; flow.empty() && !message.empty()) {
    out.cause = "away";
    out.reason = message + " sent it to another context, whose answer ends it";
    out.evidence.push_back("of " + message);
    out.next_action = "see " + format_command(situation, "message show", message.substr(message.find(':') + 1));
    return out;
  }
  out.cause = "flow";
  out.reason = fmt::format("it waits for its flow {}, which queues it when the preceding nodes have ended", flow);
  out.evidence.push_back("of flow:" + flow);
  out.next_action = "see " + format_command(situation, "flow explain", flow);
  return out;
}

// The inputs of the job are files of a runner or a coordinator that does not send them.
Explanation explain_awaited_inputs(const JobSituation& situation, Explanation out) {
  const JobStoreState& job = situation.job;
  const auto runner = field_of(job.claim_fields, "holder");
  const FileHolder holder = parse_file_holder(runner.empty() ? field_of(job.claim_fields, "coordinator") : runner);
  const std::uint64_t since_ms = number_of(job.claim_fields, "holder_since");
  const std::uint64_t until_ms = number_of(job.claim_fields, "holder_until");
  out.cause = "inputs";
  const std::string place = holder.is_known() ? "of " + describe(holder) : "in the object storage";
  out.reason = fmt::format("its inputs are artifacts {}, which has not sent them since {} ({} ago)", place,
                           format_time(since_ms), format_duration(job.now_ms - std::min(job.now_ms, since_ms)));
  out.evidence.push_back(
      fmt::format("it ends with artifact_lost at {} (artifacts.holder_timeout)", format_time(until_ms)));
  const std::string remedy = !holder.is_known()
                                 ? "check artifacts.store with `mycojobs doctor`"
                                 : (holder.runner == 0 ? "start " : "start the agent of ") + describe(holder);
  out.next_action = fmt::format("{}, or end the job with {} and run the jobs that it depends on again", remedy,
                                format_command(situation, "job cancel"));
  return out;
}

Explanation explain_delayed(const JobSituation& situation) {
  const JobStoreState& job = situation.job;
  if (!job.due_ms) return explain_missing_index_entry(situation, "delayed", "the index of delays");
  Explanation out = make_explanation(situation, "delayed");
  const bool is_retry = get_field(situation, "detail") == "retry_wait";
  const std::string due_text =
      job.now_ms < *job.due_ms
          ? fmt::format("in {} ({})", format_duration(*job.due_ms - job.now_ms), format_time(*job.due_ms))
          : fmt::format("since {}", format_duration(job.now_ms - *job.due_ms));
  if (is_retry) {
    out.evidence.push_back(fmt::format("attempt {} of {} is due {}", std::max(job.claim.attempt, 1U),
                                       get_number(situation, "retries") + 1, due_text));
    if (const std::string error = get_field(situation, "error"); !error.empty())
      out.evidence.push_back("last error: " + error);
  } else {
    out.evidence.push_back("due " + due_text);
  }
  const bool waits_for_inputs = get_field(situation, "detail") == kParkReasonInputs;
  if (waits_for_inputs) return explain_awaited_inputs(situation, std::move(out));
  if (job.now_ms >= *job.due_ms) {
    out.cause = "due";
    out.reason = has_live_runner(situation) ? "it is due" : "it is due, but no agent is alive to queue it";
    out.next_action = has_live_runner(situation) ? "repeat the command in a second: an agent adds it to its queue"
                                                 : "start an agent of this context: any agent adds it to its queue";
    return out;
  }
  if (get_field(situation, "detail") == "quota") {
    out.cause = "quota";
    out.reason =
        "the jobs of its caller keep more than a quota allows: no further job of that caller starts until they keep "
        "less";
    out.next_action = "wait until jobs of the caller leave, delete ended ones (" +
                      format_command(situation, "job delete", "") + "), or raise the quota that the evidence names";
    return out;
  }
  out.cause = is_retry ? "retry_wait" : "postponed";
  const bool was_released = job.claim.reason == kFactKindReleased;
  out.reason =
      is_retry ? "its last attempt failed; the next one begins " + due_text
      : was_released
          ? "an agent released it before it started (the log of the agent has the reason); it is claimed again " +
                due_text
          : "it was submitted to run later, " + due_text;
  out.next_action = "wait, or end it with " + format_command(situation, "job cancel");
  return out;
}

Explanation explain_waiting(const JobSituation& situation) {
  if (situation.job.awaited_jobs.empty())
    return explain_missing_index_entry(situation, "waiting", "the index of jobs that wait for others");
  Explanation out = make_explanation(situation, "waiting");
  const JobStoreState* first = add_dependency_evidence(situation, out);
  if (!situation.cycle.empty()) {
    out.cause = "cycle";
    out.reason = fmt::format("jobs wait for one another in a circle: {}", fmt::join(situation.cycle, " -> "));
    out.next_action =
        "cancel one of the circle: " + format_command(situation, "job cancel", situation.cycle.back().substr(4));
    return out;
  }
  if (first != nullptr && describe_state(*first) == "does not exist") {
    out.cause = "dependency_absent";
    out.reason = fmt::format("it depends on {}, which does not exist", first->job_key);
    out.next_action = fmt::format("submit it: {}; or end this one with {}",
                                  format_command(situation, "job submit FILE", format_job_flags(first->job_key)),
                                  format_command(situation, "job cancel"));
    return out;
  }
  out.cause = "dependencies";
  out.reason =
      count_with_noun(situation.job.awaited_jobs.size(), "job that it depends on has", "jobs that it depends on have") +
      " not ended";
  out.next_action =
      "ask why of the first: " + format_command(situation, "job explain", situation.job.awaited_jobs.front().substr(4));
  return out;
}

Explanation explain_prerequisites(const JobSituation& situation) {
  if (!situation.job.check_ms)
    return explain_missing_index_entry(situation, "prerequisites", "the index of prerequisites");
  Explanation out = make_explanation(situation, "prerequisites");
  const auto conditions = parse_list(get_field(situation, "prerequisites"));
  for (const std::string& condition : conditions) out.evidence.push_back("prerequisite: " + condition);
  const std::uint64_t now_ms = situation.job.now_ms;
  const bool is_checked = has_live_runner(situation) || situation.coordinator_checks_prerequisites;
  out.evidence.push_back(
      *situation.job.check_ms > now_ms
          ? fmt::format("checked again in {}", format_duration(*situation.job.check_ms - now_ms))
          : fmt::format("to be checked since {}", format_duration(now_ms - *situation.job.check_ms)));
  out.cause = is_checked ? "not_met" : "not_checked";
  out.reason =
      fmt::format("{}: {}", is_checked ? "its prerequisites are not met" : "no process is running that checks them",
                  fmt::join(conditions, ", "));
  out.next_action =
      (is_checked ? "make them true" : "start an agent of this context, or a coordinator that may check them") +
      std::string(", or end it with ") + format_command(situation, "job cancel");
  for (const std::string& condition : conditions) {
    if (!is_checked || !condition.starts_with("approval:")) continue;
    const std::string arguments = situation.job.job_key.substr(4) + " " + quote_for_shell(condition.substr(9));
    out.next_action = format_command(situation, "job approve", arguments) + ", or " +
                      format_command(situation, "job reject", arguments);
    break;
  }
  return out;
}

Explanation explain_held(const JobSituation& situation) {
  if (!situation.job.is_held)
    return explain_missing_index_entry(situation, "held", "the list of jobs that its concurrency key holds back");
  Explanation out = make_explanation(situation, "held");
  const std::string key = get_slot_key(situation.job);
  const std::uint64_t limit = std::max<std::uint64_t>(get_number(situation, "concurrency_limit"), 1);
  const auto& owners = situation.slot_owners;
  for (std::size_t i = 0; i < std::min(owners.size(), kMaxListedJobs); ++i)
    out.evidence.push_back("runs: " + owners[i]);
  if (owners.size() > kMaxListedJobs)
    out.evidence.push_back(fmt::format("and {} more", owners.size() - kMaxListedJobs));
  if (owners.empty()) {
    out.cause = "slot_free";
    out.reason = fmt::format("it is held by concurrency key {}, although no job of that key runs", key);
    out.next_action = "repeat the command; if the state persists, repair it with " +
                      format_command(situation, "doctor --rebuild", "");
    return out;
  }
  out.cause = "slots_taken";
  out.reason = fmt::format("{} of {} that concurrency key {} allows {} now", owners.size(),
                           count_with_noun(limit, "job"), key, owners.size() == 1 ? "runs" : "run");
  out.next_action =
      "wait for one of them, or find its reason: " + format_command(situation, "job explain", owners.front().substr(4));
  return out;
}

// Explanations of jobs that a runner has claimed.

const RunnerInfo* find_runner(const JobSituation& situation) {
  const auto found = std::find_if(situation.runners.begin(), situation.runners.end(),
                                  [&](const RunnerInfo& info) { return info.runner.id == situation.job.claim.runner; });
  return found == situation.runners.end() ? nullptr : &*found;
}

// Returns whether the process that claimed the job still holds the id of its runner.
bool is_owner_alive(const JobSituation& situation, const RunnerInfo* info) {
  return !situation.has_owner_ended && info != nullptr && get_presence(*info) == RunnerPresence::live &&
         info->holder.instance == situation.job.claim.instance;
}

void add_owner_evidence(const JobSituation& situation, const RunnerInfo* info, Explanation& out) {
  const ClaimView& claim = situation.job.claim;
  if (info == nullptr) {
    out.evidence.push_back(fmt::format("runner {}, which has no registration", claim.runner));
  } else if (situation.has_owner_ended) {
    out.evidence.push_back(fmt::format(
        "runner {}: the agent that claimed it has ended on this host with all its processes", claim.runner));
  } else if (!is_owner_alive(situation, info) && get_presence(*info) == RunnerPresence::live) {
    out.evidence.push_back(fmt::format("runner {} was restarted on {}; its process that claimed the job has ended",
                                       claim.runner, info->holder.host));
  } else {
    out.evidence.push_back("runner " + describe(*info, situation.job.now_ms) +
                           (info->holder.pid > 0 ? fmt::format(", process {}", info->holder.pid) : ""));
  }
}

std::string format_lease(std::uint64_t until_ms, std::uint64_t now_ms) {
  if (until_ms >= now_ms)
    return fmt::format("its lease ends in {} unless it is renewed", format_duration(until_ms - now_ms));
  return fmt::format("its lease expired {} ago", format_duration(now_ms - until_ms));
}

void explain_live_state(const JobSituation& situation, const RunnerInfo* info, Explanation& out) {
  const JobStoreState& job = situation.job;
  const ClaimView& claim = job.claim;
  const std::string runner_name = fmt::format("runner {}", claim.runner);
  if (job.now_ms > claim.lease_until_ms) {
    out.cause = "lease_over";
    out.reason = "its lease has expired, and " + runner_name + " has not reported an end";
    out.next_action = has_live_runner(situation)
                          ? "wait: any agent of this context returns it to its queue once it has observed the "
                            "lease without renewal for a whole lease"
                          : kStartAgentForLease;
  } else if (get_field(situation, "detail") == "unkillable") {
    out.cause = "unkillable";
    out.reason = "one of its processes does not end on KILL; the job ends when that process has ended";
    out.next_action = fmt::format(
        "check the host of {} for a call that hangs in the kernel (a dead disk or network mount), or restart that host",
        runner_name);
  } else if (get_field(situation, "detail") == "artifact_store") {
    const std::string reason(field_of(job.claim_fields, "mark_reason"));
    const std::uint64_t since_ms = number_of(job.claim_fields, "mark_since");
    out.cause = "artifact_store";
    out.reason = fmt::format("its run has ended, and {} uploads its artifacts to the object storage", runner_name);
    if (!reason.empty()) {
      out.reason += fmt::format(", which has failed since {} ({} ago)", format_time(since_ms),
                                format_duration(job.now_ms - std::min(job.now_ms, since_ms)));
      out.evidence.push_back("the latest error: " + to_printable_line(reason));
    }
    out.next_action = reason.empty() ? "wait"
                                     : "run `mycojobs doctor` on the host of " + runner_name +
                                           "; the upload is repeated until artifacts.store_timeout";
  } else if (situation.has_owner_ended) {
    out.cause = "runner_silent";
    out.reason = "it is not running: the agent of " + runner_name + " that claimed it has ended";
    out.next_action =
        fmt::format("start an agent, `mycojobs dev` or `run` on this state folder: it {} at once; any other {}",
                    claim.cancel_requested ? "ends it" : "returns it to its queue",
                    "agent of this context does so when its lease has expired");
  } else if (!is_owner_alive(situation, info)) {
    out.cause = "runner_silent";
    out.reason = runner_name + " sends no heartbeat; the job may still run until its lease expires";
    out.next_action = has_live_runner(situation) ? fmt::format("wait {}: then any agent returns it to its queue",
                                                               format_duration(claim.lease_until_ms - job.now_ms))
                                                 : kStartAgentForLease;
  } else if (claim.cancel_requested) {
    out.cause = "cancelling";
    out.reason = "a cancellation was requested; " + runner_name + " ends it by TERM, and by KILL after its grace time";
    out.next_action = "wait for the grace time; repeat the command if it takes longer than that and a lease";
  } else {
    out.cause = "running";
    out.reason = runner_name + " has it";
    out.next_action =
        fmt::format("wait; {} shows its output, {} ends it", format_command(situation, "job logs --follow"),
                    format_command(situation, "job cancel"));
  }
}

Explanation explain_live(const JobSituation& situation) {
  const JobStoreState& job = situation.job;
  if (!job.lease_until_ms) return explain_missing_index_entry(situation, "live", "the index of leases");
  Explanation out = make_explanation(situation, "live");
  const RunnerInfo* info = find_runner(situation);
  add_owner_evidence(situation, info, out);
  out.evidence.push_back(format_lease(job.claim.lease_until_ms, job.now_ms));
  if (job.claim.cancel_requested) out.evidence.emplace_back("a cancellation was requested: it is not run again");
  if (const std::uint64_t started_ms = get_number(situation, "started_ms"); started_ms > 0) {
    const std::string limit = get_field(situation, "timeout");
    out.evidence.push_back(fmt::format("claimed {} ago; time limit {}",
                                       format_duration(job.now_ms - std::min(started_ms, job.now_ms)),
                                       limit.empty() ? "the runner's default" : limit + " s"));
  }
  if (job.record_type == "none")
    out.evidence.emplace_back("its record was deleted; its end will be written all the same");
  explain_live_state(situation, info, out);
  return out;
}

// Explanations of ended jobs.

// The remedy for a failure, to be applied before the job is retried.
struct Remedy {
  std::string_view detail, text;
};
constexpr auto kRemedies = std::to_array<Remedy>({
    {"timeout", "give it more time (field `timeout`, in seconds), or make it faster"},
    {"timeout_cpu", "give it more CPU time (`cpu` in its policy), or make it faster"},
    {"oom", "use less, or ask for more (`memory` in its policy, or `sandbox.memory` of the runner)"},
    {"output_limit", "print less, or request more (`output.keep` in its policy, or omit `output.kill`)"},
    {"file_limit", "write less, or ask for more (`file_size` in its policy)"},
    {"pids_limit",
     "start fewer processes and threads, or ask for more (`pids` in its policy, or `sandbox.pids` of the runner)"},
    {"violation",
     "remove the call that its error names from the script, or request it as described in its error (`syscalls.add` in "
     "its policy)"},
    {"result_too_large", "return less, or raise `job.max_result_bytes` of the runner"},
    {"result_quota", "delete ended jobs of its caller, or raise `quota.caller_bytes` or `quota.context_bytes`"},
    {"quota", "delete ended jobs of its caller, or raise `quota.caller_bytes` or `quota.context_bytes`"},
    {"artifact_lost", "run the jobs that it depends on again, then this job"},
    {"artifact_store", "run `mycojobs doctor` on the runner's host and apply its remedies, then run the job again"},
    {"setup_error", "run `mycojobs doctor` on the runner's host and apply its remedies"},
});

// Returns whether the script itself failed, so that a retry without a change would fail again.
bool is_script_failure(const std::string& detail) {
  return detail == "exception" || detail == "exit" || detail == "signal";
}

std::string find_remedy(const std::string& detail) {
  const auto* found =
      std::find_if(kRemedies.begin(), kRemedies.end(), [&](const Remedy& remedy) { return remedy.detail == detail; });
  return std::string(found == kRemedies.end() ? "apply the remedy in its error" : found->text);
}

// The end of a job according to its claim, or without a claim according to its record.
struct JobEndFields {
  std::string status, detail, error;
};
JobEndFields get_end(const JobSituation& situation) {
  const ClaimView& claim = situation.job.claim;
  if (claim.state == kJobStateEnded) return {claim.status, claim.detail, get_field(situation, "error")};
  return {get_field(situation, "status"), get_field(situation, "detail"), get_field(situation, "error")};
}

void explain_failure(const JobSituation& situation, const JobEndFields& end, Explanation& out) {
  const std::string error_suffix = end.error.empty() ? "" : ": " + end.error;
  const std::string retry_command = format_command(situation, "job retry");
  if (end.detail == "cancelled") {
    out.cause = "cancelled";
    out.reason = "it was cancelled, which is permanent";
    out.next_action = "submit it again to run it";
  } else if (end.detail == "dead_letter") {
    out.cause = "dead_letter";
    out.reason = "it is a dead letter" + error_suffix;
    out.next_action = "apply the remedy in its error, then " + retry_command;
  } else if (!situation.job.claim.flow.empty() && situation.job.claim.epoch == 0) {
    out.cause = "settled_by_flow";
    out.reason = fmt::format("its flow ended it as {}, and no runner ever had it{}", end.detail, error_suffix);
    out.next_action = "see " + format_command(situation, "flow explain", get_flow_id(situation.job.claim));
  } else if (end.detail == "dependency_failed") {
    out.cause = "dependency_failed";
    out.reason = "a job that it depends on failed" + error_suffix;
    out.next_action = "fix and retry that job first, then this job with " + retry_command;
  } else if (end.detail == "prerequisite") {
    out.cause = "prerequisite";
    out.reason = "its prerequisites will never be met" + error_suffix;
    out.next_action = "correct them, then " + retry_command;
  } else if (end.detail == "policy_refused") {
    out.cause = "policy_refused";
    out.reason = "the policy that it requests for its sandbox was refused" + error_suffix;
    out.next_action =
        fmt::format("ask for less ({}), or let the operator of the runner allow it, then {}",
                    format_redis_cli(situation, "HSET " + situation.job.job_key + " policy '{...}'"), retry_command);
  } else if (end.detail == "timeout" && situation.job.claim.state == kJobStateEnded && situation.job.claim.epoch == 0) {
    out.cause = "queue_timeout";
    out.reason = "no runner claimed it in time" + error_suffix;
    out.next_action = fmt::format("see {} and {}, then {}", format_command(situation, "queue list", ""),
                                  format_command(situation, "runner list", ""), retry_command);
  } else {
    out.cause = "failed";
    out.reason = fmt::format("its last attempt failed, {}{}", end.detail.empty() ? "without a reason" : end.detail,
                             error_suffix);
    out.next_action = is_script_failure(end.detail)
                          ? fmt::format("fix the script and submit it again; {} runs it again unchanged", retry_command)
                          : fmt::format("{}, then {}", find_remedy(end.detail), retry_command);
    out.next_action += "; " + format_command(situation, "job logs") + " has its output";
  }
}

// Returns a text with the number of earlier jobs in the process of a warm job.
std::optional<std::string> format_reuse(const JobSituation& situation) {
  const auto receipt = parse_json(get_field(situation, "receipt"));
  if (!receipt || !receipt->is_object()) return {};
  const auto reused = receipt->find("reused");
  if (reused == receipt->end() || !reused->is_number_unsigned()) return {};
  return fmt::format("it was warm: its process had served {} before",
                     count_with_noun(reused->get<std::uint64_t>(), "job"));
}

Explanation explain_ended(const JobSituation& situation) {
  const JobStoreState& job = situation.job;
  const JobEndFields end = get_end(situation);
  Explanation out = make_explanation(situation, "ended");
  if (job.claim.ended_ms > 0) {
    out.evidence.push_back(fmt::format("ended {} ago ({})",
                                       format_duration(job.now_ms - std::min(job.claim.ended_ms, job.now_ms)),
                                       format_time(job.claim.ended_ms)));
  }
  if (job.claim.runner > 0) out.evidence.push_back(fmt::format("its last runner: {}", job.claim.runner));
  if (const auto reuse = format_reuse(situation)) out.evidence.push_back(*reuse);
  if (situation.dead_letter) {
    out.evidence.push_back(fmt::format("dead letter {}: {}", situation.dead_letter->id, situation.dead_letter->reason));
  }
  if (job.record_type == "none") out.evidence.emplace_back("its record was deleted by another client");
  if (job.claim.state != kJobStateEnded) {
    out.cause = "ended_elsewhere";
    out.reason = fmt::format("its record has the status {}, but no runner of mycojobs ran it", end.status);
    out.next_action = "submit it under another id to run it here";
    return out;
  }
  if (job.record_type == "hash" && get_field(situation, "status") != end.status) {
    out.evidence.push_back(fmt::format("another client has overwritten its status; it ended as {}", end.status));
  }
  if (end.status != kJobStatusFinished) {
    explain_failure(situation, end, out);
    return out;
  }
  out.cause = "finished";
  out.reason = "it has finished";
  out.next_action = "nothing; " + format_command(situation, "job show") + " has its result";
  return out;
}

constexpr auto kCauses = std::to_array<CauseRow>({
    {"unknown", "no_such_job", "the job is unknown in this context"},
    {"unknown", "in_database_0", "its record is in database 0; the jobs of a context are in its own database"},
    {"unknown", "wrong_type", "its key, or the key of its claim, has another type: another client wrote it"},
    {"missing", "record_awaited", "its key was in a queue before its record; it waits two seconds for it"},
    {"missing", "record_never_came", "its key was in a queue and no record was written: a dead letter"},
    {"missing", "record_deleted", "it has a claim, and another client has deleted its record"},
    {"unqueued", "not_queued", "its record exists and its key is in no queue"},
    {"unqueued", "no_script_type", "its record names no script type, so it belongs to no queue"},
    {"unqueued", "started_elsewhere", "its record has the status started, but no runner of mycojobs has claimed it"},
    {"queued", "queue_paused", "its queue is paused"},
    {"queued", "no_runner", "no live runner serves its queue"},
    {"queued", "runner_refused", "the actors of the runners that serve its queue may not run jobs of its context"},
    {"queued", "runner_paused", "the hosts of the runners that serve its queue are out of a resource"},
    {"queued", "slots_busy", "every slot of the runners that serve its queue is busy"},
    {"queued", "behind_others", "other jobs precede it"},
    {"queued", "next", "it is the next one to be taken"},
    {"live", "running", "a runner has it"},
    {"live", "cancelling", "a cancellation was requested, and its runner has not reported its end yet"},
    {"live", "unkillable", "a process of it does not end on KILL"},
    {"live", "artifact_store", "its artifacts are not in the object storage yet"},
    {"live", "runner_silent", "its runner has ended or sends no heartbeat; its lease has not expired"},
    {"live", "lease_over", "its lease has expired; any agent returns it to its queue"},
    {"delayed", "postponed", "it was submitted to run later"},
    {"delayed", "retry_wait", "its last attempt failed; the next one is due later"},
    {"delayed", "quota", "the jobs of its caller keep more than a quota allows"},
    {"delayed", "inputs", "the runner that has the artifacts of its inputs does not send them"},
    {"delayed", "due", "it is due; any agent adds it to its queue"},
    {"waiting", "dependencies", "jobs that it depends on have not ended"},
    {"waiting", "dependency_absent", "a job that it depends on does not exist"},
    {"waiting", "cycle", "jobs wait for one another in a circle"},
    {"prerequisites", "not_met", "its prerequisites are not met"},
    {"prerequisites", "not_checked", "no process is running that checks its prerequisites"},
    {"planned", "flow", "its flow has not started it yet"},
    {"planned", "away", "a message sent it to another context, whose answer ends it"},
    {"held", "slots_taken", "as many jobs of its concurrency key run as may"},
    {"held", "slot_free", "it is held although no job of its concurrency key runs"},
    {"*", "place_lost", "it is not in the index of its claim's state: another client changed it"},
    {"ended", "finished", "it has finished"},
    {"ended", "failed", "its last attempt failed"},
    {"ended", "cancelled", "it was cancelled"},
    {"ended", "dead_letter", "it can never run, or not again"},
    {"ended", "dependency_failed", "a job that it depends on failed"},
    {"ended", "prerequisite", "its prerequisites will never be met"},
    {"ended", "policy_refused", "it requests more than the ceiling of its context allows"},
    {"ended", "queue_timeout", "it waited in its queue for longer than it may"},
    {"ended", "settled_by_flow", "its flow ended it, and no runner ever had it"},
    {"ended", "ended_elsewhere", "its record has an end, but no runner of mycojobs ran it"},
});

Explanation explain_wrong_type(const JobSituation& situation, const std::string& key, const std::string& type) {
  Explanation out = make_explanation(situation, "unknown");
  out.cause = "wrong_type";
  out.reason = fmt::format("{} is a {} where a hash belongs: another client wrote it", key, type);
  out.evidence.push_back(fmt::format("type of {}: {}", key, type));
  out.next_action =
      "delete it with " + format_redis_cli(situation, "DEL " + key) +
      (key == situation.job.job_key ? ", then submit the job again" : ", then run `mycojobs doctor --rebuild`");
  return out;
}

Explanation explain_state(const JobSituation& situation) {
  using StateExplainer = Explanation (*)(const JobSituation&);
  static const std::map<std::string_view, StateExplainer> kExplainers = {
      {kJobStateQueued, explain_queued},
      {kJobStateLive, explain_live},
      {kJobStateDelayed, explain_delayed},
      {kJobStateWaiting, explain_waiting},
      {kJobStateHeld, explain_held},
      {kJobStatePlanned, explain_planned},
      {kJobStatePrerequisites, explain_prerequisites},
      {kJobStateEnded, explain_ended}};
  const JobStoreState& job = situation.job;
  if (job.record_type != "hash" && job.record_type != "none")
    return explain_wrong_type(situation, job.job_key, job.record_type);
  if (job.claim_type != "hash" && job.claim_type != "none") {
    return explain_wrong_type(situation, kClaimKey + job.job_key, job.claim_type);
  }
  const auto explainer = kExplainers.find(job.claim.state);
  if (explainer != kExplainers.end()) return explainer->second(situation);
  return job.record_type == "none" ? explain_unknown(situation) : explain_unclaimed(situation);
}

Explanation make_explanation(const JobSituation& situation, std::string_view state) {
  Explanation out;
  out.job_key = situation.job.job_key;
  out.state = state;
  const ClaimView& claim = situation.job.claim;
  if (situation.job.record_type == "hash") {
    const std::string status = get_field(situation, "status"), detail = get_field(situation, "detail");
    out.evidence.push_back(fmt::format("record: status {}{}", status.empty() ? "(none)" : status,
                                       detail.empty() ? "" : ", detail " + detail));
  }
  if (!claim.state.empty()) {
    out.evidence.push_back(fmt::format("claim: {}, attempt {}, deliveries {}, queue {}", claim.state,
                                       std::max(claim.attempt, 1U), claim.deliveries, claim.queue));
  }
  return out;
}

std::string get_field(const JobSituation& situation, std::string_view name) {
  return std::string(field_of(situation.job.record, name));
}

std::uint64_t get_number(const JobSituation& situation, std::string_view name) {
  return number_of(situation.job.record, name);
}

std::string format_command(const JobSituation& situation, std::string_view verb, std::string_view rest) {
  return fmt::format("`mycojobs {}{}{}{}`", verb, rest.empty() ? "" : " ", rest,
                     situation.context == 1 ? "" : fmt::format(" --context {}", situation.context));
}

std::string format_command(const JobSituation& situation, std::string_view verb) {
  const std::string& key = situation.job.job_key;
  return format_command(situation, verb, key.starts_with("job:") ? key.substr(4) : key);
}

std::string format_redis_cli(const JobSituation& situation, std::string_view arguments) {
  return fmt::format("`redis-cli -n {} {}`", situation.database, arguments);
}

bool has_live_runner(const JobSituation& situation) {
  return std::any_of(situation.runners.begin(), situation.runners.end(),
                     [](const RunnerInfo& info) { return get_presence(info) == RunnerPresence::live; });
}

void add_runner_evidence(const JobSituation& situation, Explanation& out) {
  for (const RunnerInfo& info : situation.runners) {
    if (serves_queue(info, situation.queue)) {
      out.evidence.push_back("serves " + situation.queue + ": runner " + describe(info, situation.job.now_ms));
    }
  }
}

Explanation explain_missing_index_entry(const JobSituation& situation, std::string_view state,
                                        std::string_view index_name) {
  Explanation out = make_explanation(situation, state);
  out.cause = "place_lost";
  out.reason =
      fmt::format("{} should be in {} but is not: another client removed it", situation.job.job_key, index_name);
  out.next_action = "restore it with " + format_command(situation, "doctor --rebuild", "");
  return out;
}

}  // namespace

// Each reply of the store is atomic, but the job may change between two replies. Therefore the reads are repeated until
// the job is unchanged.

Result<JobSituation> inspect_job(Store& store, Id context, const std::string& job_key) {
  for (int attempt = 1;; ++attempt) {
    MJ_TRY(situation, read_situation(store, context, job_key));
    MJ_TRY(states, store.job_states(context, std::span(&job_key, 1), false));
    if (states.size() != 1) return fail(Code::internal, "places: one job was asked about");
    const ClaimView& first_claim = situation.job.claim;
    const ClaimView& second_claim = states.front().claim;
    const bool is_unchanged = first_claim.state == second_claim.state && first_claim.epoch == second_claim.epoch &&
                              situation.job.record_type == states.front().record_type;
    if (is_unchanged || attempt == kMaxReadAttempts) return std::move(situation);
  }
}

namespace {

// Adds the memory use of the caller and of the context if it is high, because ended jobs are then deleted early and
// output is dropped.
Result<void> report_quota(Store& store, const JobSituation& situation, Explanation& out) {
  if (situation.job.record_type == "none") return {};
  static constexpr std::array<std::string_view, 2> kClaimFields{"log_full", "quota"};
  auto claim = store.load_fields(situation.context, kClaimKey + situation.job.job_key, kClaimFields);
  if (!claim && claim.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(claim).error());
  const bool is_log_full = claim && !field_of(*claim, "log_full").empty();
  const std::string setting = claim ? std::string(field_of(*claim, "quota")) : "";
  MJ_TRY(usage, stored_usage(store, situation.context));
  const Id caller = parse_job_caller(situation.job.job_key);
  MJ_TRY(bytes, stored_by_caller(store, situation.context, caller));
  const auto add_usage = [&](const std::string& owner, std::uint64_t stored_bytes, std::uint64_t quota,
                             std::string_view name) {
    if (quota > 0 && (is_log_full || !setting.empty() || stored_bytes > quota / 2))
      out.evidence.push_back(fmt::format("{} keep {} of {} bytes ({})", owner, stored_bytes, quota, name));
  };
  if (!setting.empty()) out.evidence.push_back("its caller exceeds " + setting);
  if (is_log_full) out.evidence.emplace_back("a part of its output was not kept, for the quota");
  add_usage("the jobs of caller " + std::to_string(caller), bytes, usage.caller_quota, "quota.caller_bytes");
  add_usage("the jobs of the context", usage.bytes, usage.context_quota, "quota.context_bytes");
  return {};
}

}  // namespace

Result<Explanation> explain(Store& store, Id context, const std::string& job_key) {
  MJ_TRY(situation, inspect_job(store, context, job_key));
  Explanation out = explain(situation);
  MJ_CHECK(report_quota(store, situation, out));
  return out;
}

Result<std::uint64_t> store_now_ms(Store& store, Id context) {
  const std::string any_key = job_key(1, 1);
  MJ_TRY(states, store.job_states(context, std::span(&any_key, 1), false));
  if (states.size() != 1) return fail(Code::internal, "places: one job was asked about");
  return states.front().now_ms;
}

std::span<const CauseRow> causes() { return kCauses; }

Explanation explain(const JobSituation& situation) {
  Explanation out = explain_state(situation);
  for (const std::string& line : situation.anomalies) out.evidence.push_back("recorded anomaly: " + line);
  return out;
}

std::vector<std::string> find_cycle(const WaitGraph& wait_graph, const std::string& start) {
  const std::map<std::string, std::vector<std::string>> edges(wait_graph.begin(), wait_graph.end());
  std::set<std::string> finished, on_path{start};
  std::vector<std::string> path{start};
  std::vector<std::size_t> next_edges{0};  // for each job on the path: index of the next edge
  while (!path.empty()) {
    const auto outgoing = edges.find(path.back());
    if (outgoing == edges.end() || next_edges.back() >= outgoing->second.size()) {
      finished.insert(path.back());
      on_path.erase(path.back());
      path.pop_back();
      next_edges.pop_back();
      continue;
    }
    const std::string& successor = outgoing->second[next_edges.back()++];
    if (finished.contains(successor)) continue;
    path.push_back(successor);
    next_edges.push_back(0);
    if (!on_path.insert(successor).second) return path;
  }
  return {};
}

nlohmann::json to_json(const Explanation& explanation) {
  return {{"key", explanation.job_key},   {"state", explanation.state},       {"cause", explanation.cause},
          {"reason", explanation.reason}, {"evidence", explanation.evidence}, {"next", explanation.next_action}};
}

}  // namespace mycojobs
