// Reads the data that explain() needs, then explains a job by its state.
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
#include "store/kept_usage.h"
#include "store/keys.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/shell_word.h"
#include "text/terminal_text.h"

namespace mycojobs {
namespace {

// Returns the common part of an explanation: key, record and claim.
Explanation begin(const JobSituation&, std::string_view state);

Explanation unknown(const JobSituation&);  // neither record nor claim
Explanation bare(const JobSituation&);     // a record without a claim
Explanation queued(const JobSituation&);
Explanation live(const JobSituation&);
Explanation delayed(const JobSituation&);
Explanation waiting(const JobSituation&);
Explanation prerequisites(const JobSituation&);
Explanation held(const JobSituation&);
Explanation planned(const JobSituation&);
Explanation ended(const JobSituation&);

std::string field(const JobSituation&, std::string_view name);  // field of the record; empty: absent
std::uint64_t number(const JobSituation&, std::string_view name);
// For example "`mycojobs job retry 12:2001 --context 3`".
std::string command(const JobSituation&, std::string_view verb, std::string_view rest);
std::string command(const JobSituation&, std::string_view verb);  // about this job
// For example "`redis-cli -n 3 LPUSH queue:python job:12:2001`".
std::string redis_cli(const JobSituation&, std::string_view words);
std::string flow_of(const ClaimView&);  // "7"; empty: not a job of a flow
bool anyone_alive(const JobSituation&);
void report_runners(const JobSituation&, Explanation&);  // as evidence
// Explains a job that is not where its claim says, which only another client can cause.
Explanation place_lost(const JobSituation&, std::string_view state, std::string_view where);

constexpr std::uint64_t kCheckedLatelyMs = 5000;  // as in prerequisites_due
constexpr const char* kNoneIsAlive =
    "start an agent: any agent of this context returns it to its queue, but none is alive";
constexpr int kExplainChecks = 5;            // attempts to read a job that changes during the read
constexpr std::uint32_t kQueuePage = 1000;   // number of queue entries
constexpr std::uint64_t kDeepest = 1000000;  // maximum position that is searched in a queue
// Maximum number of list entries that one step of the server searches. A search of a longer list would block all other
// clients.
constexpr std::uint64_t kMaxSearched = 20000;
constexpr std::size_t kStatesBatch = 100;  // jobs read in one step
constexpr std::size_t kMaxWaits = 10000;   // jobs that are followed to find a cycle
constexpr std::size_t kMaxDead = 10000;    // the newest; a longer answer would block Redis
constexpr std::size_t kMaxAnomalies = 1000;
constexpr std::size_t kShownAnomalies = 3;

Result<std::vector<JobStoreState>> index_entries_of(Store& store, Id context, std::span<const std::string> keys) {
  std::vector<JobStoreState> all;
  for (std::size_t from = 0; from < keys.size(); from += kStatesBatch) {
    MJ_TRY(batch, store.job_states(context, keys.subspan(from, std::min(kStatesBatch, keys.size() - from)), false));
    std::move(batch.begin(), batch.end(), std::back_inserter(all));
  }
  return all;
}

// is_searched: the read of the job has counted its entries in the list.
Result<void> read_queue(Store& store, bool is_searched, JobSituation& about) {
  if (about.queue.empty()) return {};
  MJ_TRY(queues, store.queues(about.context));
  for (const QueueInfo& info : queues) {
    if (info.queue != about.queue) continue;
    about.queue_paused = info.paused;
    about.queue_length = info.length;
    about.prioritised = info.prioritised;
  }
  if (is_searched && about.job.in_queue == 0) return {};
  for (std::uint64_t from = 0; from < kDeepest; from += kQueuePage) {
    MJ_TRY(entries, store.queue_entries(about.context, about.queue, from, kQueuePage));
    const auto found = std::find(entries.begin(), entries.end(), about.job.job_key);
    if (found != entries.end()) {
      about.job.in_queue = std::max(about.job.in_queue, 1U);
      about.ahead = from + static_cast<std::uint64_t>(found - entries.begin());
      about.queue_length = std::max(about.queue_length, *about.ahead + 1);  // the list has grown since
      return {};
    }
    if (entries.size() < kQueuePage) return {};
  }
  about.job.in_queue = std::max(about.job.in_queue, 1U);  // the job is deeper in the list, if present
  return {};
}

// Follows the jobs that this job waits for.
Result<void> read_waits(Store& store, JobSituation& about) {
  Waits waits{{about.job.job_key, about.job.waits_for}};
  std::set<std::string> seen{about.job.job_key};
  std::vector<std::string> next = about.job.waits_for;
  MJ_TRY(awaited, index_entries_of(store, about.context, next));
  about.awaited = awaited;
  while (!awaited.empty() && seen.size() < kMaxWaits) {
    next.clear();
    for (const JobStoreState& job : awaited) {
      if (!seen.insert(job.job_key).second) continue;
      waits.emplace_back(job.job_key, job.waits_for);
      next.insert(next.end(), job.waits_for.begin(), job.waits_for.end());
    }
    std::erase_if(next, [&](const std::string& key) { return seen.contains(key); });
    MJ_TRY(further, index_entries_of(store, about.context, next));
    awaited = std::move(further);
  }
  about.cycle = find_cycle(waits, about.job.job_key);
  return {};
}

Result<void> read_slots(Store& store, JobSituation& about) {
  const std::string key = slot_key(about.job);
  MJ_TRY(leases, store.leases(about.context));
  std::vector<std::string> keys;
  keys.reserve(leases.size());
  for (const Lease& lease : leases) keys.push_back(lease.job_key);
  MJ_TRY(running, index_entries_of(store, about.context, keys));
  for (const JobStoreState& job : running) {
    if (job.takes_slot && job.claim.concurrency_key == key) about.slot_takers.push_back(job.job_key);
  }
  return {};
}

bool names(const std::string& line, const std::string& job_key) {
  for (auto at = line.find(job_key); at != std::string::npos; at = line.find(job_key, at + 1)) {
    const auto end = at + job_key.size();
    if (end >= line.size() || line[end] < '0' || line[end] > '9') return true;
  }
  return false;
}

Result<void> read_letters(Store& store, JobSituation& about) {
  const ClaimView& claim = about.job.claim;
  if (claim.state.empty() || (claim.state == "ended" && claim.detail == "dead_letter")) {
    MJ_TRY(letters, store.dead_letters(about.context, kMaxDead));
    for (const DeadLetter& letter : letters) {
      if (letter.job_key == about.job.job_key) about.dead_letter = letter;
    }
  }
  MJ_TRY(anomalies, store.anomalies(about.context, kMaxAnomalies));
  std::erase_if(anomalies, [&](const std::string& line) { return !names(line, about.job.job_key); });
  if (anomalies.size() > kShownAnomalies) anomalies.erase(anomalies.begin(), anomalies.end() - kShownAnomalies);
  about.anomalies = std::move(anomalies);
  return {};
}

// Reads how often the process of a warm job had served before, which only the receipt contains.
Result<void> read_receipt(Store& store, JobSituation& about) {
  static constexpr std::string_view kFields[] = {"receipt"};
  auto fields = store.load_fields(about.context, about.job.job_key, kFields);
  if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
  if (fields) about.job.record.insert(about.job.record.end(), fields->begin(), fields->end());
  return {};
}

void check_database_0(Store& store, JobSituation& about) {
  static constexpr std::string_view kFields[] = {"script_type"};
  const auto there = store.load_fields(0, about.job.job_key, kFields);
  if (!there) return;
  about.in_database_0 = true;
  for (const auto& [name, value] : *there) {
    if (name == "script_type") about.queue = queue_key(value);
  }
}

// Reads whether the coordinator checks prerequisites instead of the agents.
Result<void> read_coordinator(Store& store, JobSituation& about) {
  static constexpr std::string_view kAt[] = {"at"};
  auto fields = store.load_fields(about.context, "mj:looking", kAt);
  if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
  std::uint64_t at = 0;
  const bool looked = fields && !fields->empty() && parse_u64(fields->front().second, at);
  about.coordinator_checks = looked && about.job.now_ms < at + kCheckedLatelyMs;
  return {};
}

Result<void> read_states(Store& store, const std::string& job_key, bool positions, JobSituation& about) {
  MJ_TRY(places, store.job_states(about.context, std::span(&job_key, 1), positions));
  if (places.size() != 1) return fail(Code::internal, "places: one job was asked about");
  about.job = std::move(places.front());
  const bool claimed = !about.job.claim.state.empty();
  const std::string type = field(about, "script_type");
  about.queue = claimed ? about.job.claim.queue : type.empty() ? "" : queue_key(type);
  return {};
}

Result<JobSituation> check_once(Store& store, Id context, const std::string& job_key) {
  JobSituation about;
  about.context = context;
  MJ_CHECK(read_states(store, job_key, false, about));
  const auto length = store.queue_length(context, about.queue);  // after an error the key is not a list
  const bool is_searched = about.queue.empty() || !length || *length <= kMaxSearched;
  if (is_searched) MJ_CHECK(read_states(store, job_key, true, about));
  const std::string& state = about.job.claim.state;
  MJ_TRY(runners, store.runners(context));
  about.runners = std::move(runners);
  if (state.empty() || state == "queued") MJ_CHECK(read_queue(store, is_searched, about));
  if (state == "waiting") MJ_CHECK(read_waits(store, about));
  if (state == "held") MJ_CHECK(read_slots(store, about));
  if (state == "prerequisites") MJ_CHECK(read_coordinator(store, about));
  MJ_CHECK(read_letters(store, about));
  if (state == "ended") MJ_CHECK(read_receipt(store, about));
  if (state.empty() && about.job.record_type == "none") check_database_0(store, about);
  return about;
}

std::string push_again(const JobSituation& about) {
  return redis_cli(about, fmt::format("LPUSH {} {}", quote_for_shell(about.queue), about.job.job_key));
}

// Returns the maximum number of jobs that are claimed before this job. Priorities above 0 are served before the list,
// priorities below 0 after the list; the number of jobs of each kind is not known here.
std::optional<std::uint64_t> most_ahead(const JobSituation& about) {
  if (about.ahead) return *about.ahead + about.prioritised;
  if (!about.job.in_priority) return std::nullopt;
  const std::uint64_t beside = about.prioritised - std::min<std::uint64_t>(about.prioritised, 1);
  return beside + (field(about, "priority").starts_with('-') ? about.queue_length : 0);
}

void report_position(const JobSituation& about, Explanation& out) {
  if (about.job.in_priority) {
    out.evidence.push_back(
        fmt::format("priority {}: beside {}, with {} that have one", field(about, "priority"), about.queue,
                    count_with_noun(about.prioritised - std::min<std::uint64_t>(about.prioritised, 1), "other job")));
  } else if (about.ahead) {
    out.evidence.push_back(fmt::format("position {} of {} in {}", *about.ahead + 1, about.queue_length, about.queue));
  } else {
    out.evidence.push_back(fmt::format("{} entries in {}; it is far behind", about.queue_length, about.queue));
  }
  if (about.prioritised > 0 && !about.job.in_priority) {
    out.evidence.push_back(count_with_noun(about.prioritised, "job") +
                           " with a priority beside them; those above 0 come first");
  }
  if (about.job.in_queue > 1) {
    out.evidence.push_back(
        fmt::format("its key is in the queue {} times; the duplicates will be dropped", about.job.in_queue));
  }
  const ClaimView& claim = about.job.claim;
  if (claim.reason == "released" || claim.reason == "expired") {
    out.evidence.push_back(fmt::format("delivery {} ended without a report ({})", claim.deliveries, claim.reason));
  } else if (!claim.reason.empty()) {
    out.evidence.push_back("was returned by " + claim.reason);
  }
}

std::string type_of_queue(const JobSituation& about) {
  return about.queue.starts_with("queue:") ? about.queue.substr(6) : about.queue;
}

void no_runner(const JobSituation& about, Explanation& out) {
  out.cause = "no_runner";
  out.reason = "no runner serves " + about.queue;
  const std::string others = served_by_live(about.runners);
  if (about.queue.starts_with(kRouterQueue)) {
    out.reason = "it is for a supervisor on another host, and no coordinator has sent it yet";
    out.next =
        "start `mycojobs coordinator`; if one runs, wait for other jobs at that supervisor or raise "
        "--coordinator-deliveries; its log has further errors";
    return;
  }
  out.evidence.push_back(others.empty() ? "no runner of this context is alive" : "live runners serve " + others);
  const bool own = !about.queue.starts_with("queue:");
  out.next = own ? "start the runner that this queue belongs to, or cancel the job with " + command(about, "job cancel")
                 : fmt::format(
                       "start an agent that runs {} for context {} (`mycojobs agent --redis URL --context {}`; "
                       "`mycojobs doctor` shows what its host can run)",
                       quote_for_shell(type_of_queue(about)), about.context, about.context);
}

// Returns whether the claims of the runner were denied recently: its actor has no right to run jobs here.
bool is_refused(const JobSituation& about, const RunnerInfo& info) {
  constexpr std::uint64_t kRefusedLatelyMs = 60000;  // a refused runner retries sooner than that
  std::uint64_t at = 0;
  return parse_u64(field_of(info.runner.unknown, "refused_ms"), at) && about.job.now_ms < at + kRefusedLatelyMs;
}

void all_refused(const JobSituation& about, const RunnerInfo& info, Explanation& out) {
  const std::string actor = info.runner.actor_id == 0 ? "" : std::to_string(info.runner.actor_id);
  out.cause = "runner_refused";
  out.reason = fmt::format("runner {} serves {}, and {} may not run jobs of context {}", info.runner.id, about.queue,
                           actor.empty() ? "without an actor it" : "its actor " + actor, about.context);
  out.evidence.push_back(
      fmt::format("the record context:{} lists the allowed actors: executors, admins", about.context));
  out.next = fmt::format("let an admin allow it: `mycojobs context grant {} --executor {}`", about.context,
                         actor.empty() ? "ID" : actor);
  if (actor.empty()) out.next += "; and give the agent that actor (setting runner_actor)";
}

// Explains a queue if all its runners are on hosts that lack a resource.
void all_paused(const JobSituation& about, const RunnerInfo& info, Explanation& out) {
  out.cause = "runner_paused";
  out.reason =
      fmt::format("runner {} serves {} but claims no jobs now: {}", info.runner.id, about.queue, pause_reason(info));
  out.next = fmt::format("check the host {}: the agent resumes when it can start jobs; or start another agent",
                         quote_for_shell(printable(info.hold.host)));
}

// Explains why a job waits in its queue.
void check_queue(const JobSituation& about, Explanation& out) {
  std::uint32_t serving = 0;
  std::uint32_t free = 0;
  const RunnerInfo* refused = nullptr;
  const RunnerInfo* paused = nullptr;
  for (const RunnerInfo& info : about.runners) {
    if (presence(info) != RunnerPresence::live || !serves(info, about.queue)) continue;
    if (is_refused(about, info)) {
      refused = &info;
      continue;
    }
    if (!pause_reason(info).empty()) {
      paused = &info;
      continue;
    }
    ++serving;
    free += info.runner.slots - std::min(info.claims, info.runner.slots);
  }
  if (about.queue_paused) {
    out.cause = "queue_paused";
    out.reason = about.queue + " is paused";
    out.next = "go on with " + command(about, "queue resume", quote_for_shell(type_of_queue(about)));
  } else if (serving == 0 && refused != nullptr) {
    all_refused(about, *refused, out);
  } else if (serving == 0 && paused != nullptr) {
    all_paused(about, *paused, out);
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
    out.next = "repeat the command in a second: a runner with a free slot claims it immediately";
  } else {
    out.cause = "behind_others";
    const auto max = most_ahead(about);
    const bool exact = about.ahead && about.prioritised == 0;
    out.reason = max ? fmt::format("{}{} in {}", exact ? "" : "at most ",
                                   count_with_noun(*max, "job precedes it", "jobs precede it"), about.queue)
                     : fmt::format("very many jobs precede it in {}", about.queue);
    out.next = "wait, or start another agent, or submit it with a --priority";
  }
}

Explanation unknown(const JobSituation& about) {
  if (about.job.missing || about.job.in_queue > 0) {
    Explanation out = begin(about, "missing");
    out.cause = "record_awaited";
    out.reason = "its key was in a queue, but its record has not been written yet";
    out.evidence.emplace_back("no record; its entry was moved aside");
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
    out.next =
        fmt::format("choose the database, as in redis-cli -n {}; for this job: `redis-cli MOVE {} {}`, then {}",
                    about.context, about.job.job_key, about.context,
                    redis_cli(about, "LPUSH " + (about.queue.empty() ? "queue:python" : quote_for_shell(about.queue)) +
                                         " " + about.job.job_key));
    return out;
  }
  out.cause = "no_such_job";
  out.reason = fmt::format("context {} has no data of {}", about.context, about.job.job_key);
  out.evidence.emplace_back("no record, no claim, no queue entry that waits for its record");
  out.next = fmt::format(
      "check CALLER:ID and --context; {} shows what there is. Jobs that have ended are forgotten "
      "after the retention time",
      command(about, "job list", ""));
  return out;
}

Explanation bare(const JobSituation& about) {
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
    out.next = "set its script type with " + redis_cli(about, "HSET " + about.job.job_key + " script_type python") +
               ", then LPUSH its key onto queue:python";
    return out;
  }
  out.evidence.push_back("not in " + about.queue);
  if (status == "started") {
    out.cause = "started_elsewhere";
    out.reason = "its record has the status started, but no runner of mycojobs has claimed it";
    out.next = "if no other program runs it, queue it with " + push_again(about);
    return out;
  }
  out.cause = "not_queued";
  out.reason = "its record exists, but its key is in no queue";
  out.next = "queue it with " + push_again(about) + "; `mycojobs job submit` does both in one step";
  return out;
}

Explanation queued(const JobSituation& about) {
  const JobStoreState& job = about.job;
  if (job.record_type == "none") {
    Explanation out = begin(about, "missing");
    out.cause = "record_deleted";
    out.reason = "its record was deleted while it was in " + about.queue;
    out.next = "write the record again before it is claimed; otherwise it becomes a dead letter";
    return out;
  }
  if (job.missing && job.in_queue == 0) {
    Explanation out = begin(about, "missing");
    out.cause = "record_awaited";
    out.reason = "its record was written after its key had been removed from " + about.queue;
    out.next = anyone_alive(about) ? "repeat the command in a second: an agent returns it to its queue"
                                   : "start an agent: any agent returns it to its queue";
    return out;
  }
  if (job.in_queue == 0 && !job.in_priority && !job.missing) return place_lost(about, "queued", about.queue);
  Explanation out = begin(about, "queued");
  report_position(about, out);
  check_queue(about, out);
  report_runners(about, out);
  return out;
}

// Explanations of jobs that wait for something other than a slot.

constexpr std::size_t kJobsNamed = 10;  // maximum number of jobs that are named one by one

std::string where_is(const JobStoreState& job) {
  if (job.record_type == "none" && !job.claim.present) return "does not exist";
  const std::string& state = job.claim.state;
  if (state == "ended") return fmt::format("ended as {} {}", job.claim.status, job.claim.detail);
  if (!state.empty()) return "is " + state;
  return job.in_queue > 0 ? "is in its queue" : "has not been claimed yet";
}

// Adds the jobs that this job waits for, missing jobs first.
const JobStoreState* report_awaited(const JobSituation& about, Explanation& out) {
  std::vector<const JobStoreState*> jobs;
  for (const JobStoreState& job : about.awaited) jobs.push_back(&job);
  const auto absent = [](const JobStoreState* job) { return where_is(*job) == "does not exist"; };
  std::stable_partition(jobs.begin(), jobs.end(), absent);
  for (std::size_t i = 0; i < std::min(jobs.size(), kJobsNamed); ++i) {
    out.evidence.push_back(fmt::format("{} {}", jobs[i]->job_key, where_is(*jobs[i])));
  }
  if (jobs.size() > kJobsNamed) out.evidence.push_back(fmt::format("and {} more", jobs.size() - kJobsNamed));
  return jobs.empty() ? nullptr : jobs.front();
}

std::vector<std::string> texts(const std::string& list) {
  std::vector<std::string> out;
  const auto parsed = parse_json(list.empty() ? "[]" : list);
  if (!parsed || !parsed->is_array()) return {list};
  for (const auto& item : *parsed) out.push_back(item.is_string() ? item.get<std::string>() : dump_json(item));
  return out;
}

// For example "job:12:9" -> "--caller 12 --id 9".
std::string flags_of(const std::string& job_key) {
  const auto colon = job_key.rfind(':');
  return fmt::format("--caller {} --id {}", job_key.substr(4, colon - 4), job_key.substr(colon + 1));
}

std::string flow_of(const ClaimView& claim) {
  const auto blank = claim.flow.find(' ');
  return blank == std::string::npos ? "" : claim.flow.substr(blank + 1);
}

Explanation planned(const JobSituation& about) {
  Explanation out = begin(about, "planned");
  const std::string flow = flow_of(about.job.claim);
  if (const std::string& message = about.job.claim.message; flow.empty() && !message.empty()) {
    out.cause = "away";
    out.reason = message + " sent it to another context, whose answer ends it";
    out.evidence.push_back("of " + message);
    out.next = "see " + command(about, "message show", message.substr(message.find(':') + 1));
    return out;
  }
  out.cause = "flow";
  out.reason = fmt::format("it waits for its flow {}, which queues it when the preceding nodes have ended", flow);
  out.evidence.push_back("of flow:" + flow);
  out.next = "see " + command(about, "flow explain", flow);
  return out;
}

Explanation delayed(const JobSituation& about) {
  const JobStoreState& job = about.job;
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
    out.reason = anyone_alive(about) ? "it is due" : "it is due, but no agent is alive to queue it";
    out.next = anyone_alive(about) ? "repeat the command in a second: an agent adds it to its queue"
                                   : "start an agent of this context: any agent adds it to its queue";
    return out;
  }
  if (field(about, "detail") == "quota") {
    out.cause = "quota";
    out.reason =
        "the jobs of its caller keep more than a quota allows: no further job of that caller starts until they keep "
        "less";
    out.next = "wait until jobs of the caller leave, delete ended ones (" + command(about, "job delete", "") +
               "), or raise the quota that the evidence names";
    return out;
  }
  out.cause = retry ? "retry_wait" : "postponed";
  const bool given_back = job.claim.reason == "released";
  out.reason =
      retry ? "its last attempt failed; the next one begins " + when
      : given_back
          ? "an agent released it before it started (the log of the agent has the reason); it is claimed again " + when
          : "it was submitted to run later, " + when;
  out.next = "wait, or end it with " + command(about, "job cancel");
  return out;
}

Explanation waiting(const JobSituation& about) {
  if (about.job.waits_for.empty()) return place_lost(about, "waiting", "the index of jobs that wait for others");
  Explanation out = begin(about, "waiting");
  const JobStoreState* first = report_awaited(about, out);
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
      count_with_noun(about.job.waits_for.size(), "job that it depends on has", "jobs that it depends on have") +
      " not ended";
  out.next = "ask why of the first: " + command(about, "job explain", about.job.waits_for.front().substr(4));
  return out;
}

Explanation prerequisites(const JobSituation& about) {
  if (!about.job.check_ms) return place_lost(about, "prerequisites", "the index of prerequisites");
  Explanation out = begin(about, "prerequisites");
  const auto conditions = texts(field(about, "prerequisites"));
  for (const std::string& condition : conditions) out.evidence.push_back("prerequisite: " + condition);
  const std::uint64_t now = about.job.now_ms;
  const bool alive = anyone_alive(about) || about.coordinator_checks;
  out.evidence.push_back(*about.job.check_ms > now
                             ? fmt::format("checked again in {}", span_text(*about.job.check_ms - now))
                             : fmt::format("to be checked since {}", span_text(now - *about.job.check_ms)));
  out.cause = alive ? "not_met" : "not_checked";
  out.reason = fmt::format("{}: {}", alive ? "its prerequisites are not met" : "no process is running that checks them",
                           fmt::join(conditions, ", "));
  out.next = (alive ? "make them true" : "start an agent of this context, or a coordinator that may check them") +
             std::string(", or end it with ") + command(about, "job cancel");
  for (const std::string& condition : conditions) {
    if (!alive || !condition.starts_with("approval:")) continue;
    const std::string which = about.job.job_key.substr(4) + " " + quote_for_shell(condition.substr(9));
    out.next = command(about, "job approve", which) + ", or " + command(about, "job reject", which);
    break;
  }
  return out;
}

Explanation held(const JobSituation& about) {
  if (!about.job.held) return place_lost(about, "held", "the list of jobs that its concurrency key holds back");
  Explanation out = begin(about, "held");
  const std::string key = slot_key(about.job);
  const std::uint64_t limit = std::max<std::uint64_t>(number(about, "concurrency_limit"), 1);
  const auto& takers = about.slot_takers;
  for (std::size_t i = 0; i < std::min(takers.size(), kJobsNamed); ++i) out.evidence.push_back("runs: " + takers[i]);
  if (takers.size() > kJobsNamed) out.evidence.push_back(fmt::format("and {} more", takers.size() - kJobsNamed));
  if (takers.empty()) {
    out.cause = "slot_free";
    out.reason = fmt::format("it is held by concurrency key {}, although no job of that key runs", key);
    out.next = "repeat the command; if the state persists, repair it with " + command(about, "doctor --rebuild", "");
    return out;
  }
  out.cause = "slots_taken";
  out.reason = fmt::format("{} of {} that concurrency key {} allows {} now", takers.size(),
                           count_with_noun(limit, "job"), key, takers.size() == 1 ? "runs" : "run");
  out.next = "wait for one of them, or find its reason: " + command(about, "job explain", takers.front().substr(4));
  return out;
}

// Explanations of jobs that a runner has claimed.

const RunnerInfo* runner_of(const JobSituation& about) {
  const auto found = std::find_if(about.runners.begin(), about.runners.end(),
                                  [&](const RunnerInfo& info) { return info.runner.id == about.job.claim.runner; });
  return found == about.runners.end() ? nullptr : &*found;
}

// Returns whether the process that claimed the job still holds the id of its runner.
bool owner_is_alive(const JobSituation& about, const RunnerInfo* info) {
  return !about.owner_ended && info != nullptr && presence(*info) == RunnerPresence::live &&
         info->hold.instance == about.job.claim.instance;
}

void report_owner(const JobSituation& about, const RunnerInfo* info, Explanation& out) {
  const ClaimView& claim = about.job.claim;
  if (info == nullptr) {
    out.evidence.push_back(fmt::format("runner {}, which has no registration", claim.runner));
  } else if (about.owner_ended) {
    out.evidence.push_back(fmt::format(
        "runner {}: the agent that claimed it has ended on this host with all its processes", claim.runner));
  } else if (!owner_is_alive(about, info) && presence(*info) == RunnerPresence::live) {
    out.evidence.push_back(fmt::format("runner {} was restarted on {}; its process that claimed the job has ended",
                                       claim.runner, info->hold.host));
  } else {
    out.evidence.push_back("runner " + describe(*info, about.job.now_ms) +
                           (info->hold.pid > 0 ? fmt::format(", process {}", info->hold.pid) : ""));
  }
}

std::string lease_text(std::uint64_t until_ms, std::uint64_t now_ms) {
  if (until_ms >= now_ms) return fmt::format("its lease ends in {} unless it is renewed", span_text(until_ms - now_ms));
  return fmt::format("its lease expired {} ago", span_text(now_ms - until_ms));
}

void check_live(const JobSituation& about, const RunnerInfo* info, Explanation& out) {
  const JobStoreState& job = about.job;
  const ClaimView& claim = job.claim;
  const std::string who = fmt::format("runner {}", claim.runner);
  if (job.now_ms > claim.until_ms) {
    out.cause = "lease_over";
    out.reason = "its lease has expired, and " + who + " has not reported an end";
    out.next = anyone_alive(about) ? "wait: any agent of this context returns it to its queue once it has observed the "
                                     "lease without renewal for a whole lease"
                                   : kNoneIsAlive;
  } else if (field(about, "detail") == "unkillable") {
    out.cause = "unkillable";
    out.reason = "one of its processes does not end on KILL; the job ends when that process has ended";
    out.next = fmt::format(
        "check the host of {} for a call that hangs in the kernel (a dead disk or network mount), or restart that host",
        who);
  } else if (about.owner_ended) {
    out.cause = "runner_silent";
    out.reason = "it is not running: the agent of " + who + " that claimed it has ended";
    out.next = fmt::format("start an agent, `mycojobs dev` or `run` on this state folder: it {} at once; any other {}",
                           claim.cancel ? "ends it" : "returns it to its queue",
                           "agent of this context does so when its lease has expired");
  } else if (!owner_is_alive(about, info)) {
    out.cause = "runner_silent";
    out.reason = who + " sends no heartbeat; the job may still run until its lease expires";
    out.next = anyone_alive(about) ? fmt::format("wait {}: then any agent returns it to its queue",
                                                 span_text(claim.until_ms - job.now_ms))
                                   : kNoneIsAlive;
  } else if (claim.cancel) {
    out.cause = "cancelling";
    out.reason = "a cancellation was requested; " + who + " ends it by TERM, and by KILL after its grace time";
    out.next = "wait for the grace time; repeat the command if it takes longer than that and a lease";
  } else {
    out.cause = "running";
    out.reason = who + " has it";
    out.next = fmt::format("wait; {} shows its output, {} ends it", command(about, "job logs --follow"),
                           command(about, "job cancel"));
  }
}

Explanation live(const JobSituation& about) {
  const JobStoreState& job = about.job;
  if (!job.lease_until_ms) return place_lost(about, "live", "the index of leases");
  Explanation out = begin(about, "live");
  const RunnerInfo* info = runner_of(about);
  report_owner(about, info, out);
  out.evidence.push_back(lease_text(job.claim.until_ms, job.now_ms));
  if (job.claim.cancel) out.evidence.emplace_back("a cancellation was requested: it is not run again");
  if (const std::uint64_t since = number(about, "started_ms"); since > 0) {
    const std::string limit = field(about, "timeout");
    out.evidence.push_back(fmt::format("claimed {} ago; time limit {}",
                                       span_text(job.now_ms - std::min(since, job.now_ms)),
                                       limit.empty() ? "the runner's default" : limit + " s"));
  }
  if (job.record_type == "none")
    out.evidence.emplace_back("its record was deleted; its end will be written all the same");
  check_live(about, info, out);
  return out;
}

// Explanations of ended jobs.

// The remedy for a failure before the job is retried.
struct Remedy {
  std::string_view detail, what;
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
    {"setup_error", "run `mycojobs doctor` on the runner's host and apply its remedies"},
});

// A retry runs the script in the record.
bool is_of_its_script(const std::string& detail) {
  return detail == "exception" || detail == "exit" || detail == "signal";
}

std::string remedy_of(const std::string& detail) {
  const auto* found =
      std::find_if(kRemedies.begin(), kRemedies.end(), [&](const Remedy& each) { return each.detail == detail; });
  return std::string(found == kRemedies.end() ? "apply the remedy in its error" : found->what);
}

// The end of a job. The claim decides; a job without a claim has only its record.
struct ObservedEnd {
  std::string status, detail, error;
};
ObservedEnd end_of(const JobSituation& about) {
  const ClaimView& claim = about.job.claim;
  if (claim.state == "ended") return {claim.status, claim.detail, field(about, "error")};
  return {field(about, "status"), field(about, "detail"), field(about, "error")};
}

void check_failure(const JobSituation& about, const ObservedEnd& end, Explanation& out) {
  const std::string because = end.error.empty() ? "" : ": " + end.error;
  const std::string retry = command(about, "job retry");
  if (end.detail == "cancelled") {
    out.cause = "cancelled";
    out.reason = "it was cancelled, which is permanent";
    out.next = "submit it again to run it";
  } else if (end.detail == "dead_letter") {
    out.cause = "dead_letter";
    out.reason = "it is a dead letter" + because;
    out.next = "apply the remedy in its error, then " + retry;
  } else if (!about.job.claim.flow.empty() && about.job.claim.epoch == 0) {
    out.cause = "settled_by_flow";
    out.reason = fmt::format("its flow ended it as {}, and no runner ever had it{}", end.detail, because);
    out.next = "see " + command(about, "flow explain", flow_of(about.job.claim));
  } else if (end.detail == "dependency_failed") {
    out.cause = "dependency_failed";
    out.reason = "a job that it depends on failed" + because;
    out.next = "fix and retry that job first, then this job with " + retry;
  } else if (end.detail == "prerequisite") {
    out.cause = "prerequisite";
    out.reason = "its prerequisites will never be met" + because;
    out.next = "correct them, then " + retry;
  } else if (end.detail == "policy_refused") {
    out.cause = "policy_refused";
    out.reason = "the policy that it requests for its sandbox was refused" + because;
    out.next = fmt::format("ask for less ({}), or let the operator of the runner allow it, then {}",
                           redis_cli(about, "HSET " + about.job.job_key + " policy '{...}'"), retry);
  } else if (end.detail == "timeout" && about.job.claim.state == "ended" && about.job.claim.epoch == 0) {
    out.cause = "queue_timeout";
    out.reason = "no runner claimed it in time" + because;
    out.next = fmt::format("see {} and {}, then {}", command(about, "queue list", ""),
                           command(about, "runner list", ""), retry);
  } else {
    out.cause = "failed";
    out.reason =
        fmt::format("its last attempt failed, {}{}", end.detail.empty() ? "without a reason" : end.detail, because);
    out.next = is_of_its_script(end.detail)
                   ? fmt::format("fix the script and submit it again; {} runs it again unchanged", retry)
                   : fmt::format("{}, then {}", remedy_of(end.detail), retry);
    out.next += "; " + command(about, "job logs") + " has its output";
  }
}

// Returns the number of uses of the process of a warm job.
std::optional<std::string> reused_text(const JobSituation& about) {
  const auto receipt = parse_json(field(about, "receipt"));
  if (!receipt || !receipt->is_object()) return {};
  const auto reused = receipt->find("reused");
  if (reused == receipt->end() || !reused->is_number_unsigned()) return {};
  return fmt::format("it was warm: its process had served {} before",
                     count_with_noun(reused->get<std::uint64_t>(), "job"));
}

Explanation ended(const JobSituation& about) {
  const JobStoreState& job = about.job;
  const ObservedEnd end = end_of(about);
  Explanation out = begin(about, "ended");
  if (job.claim.ended_ms > 0) {
    out.evidence.push_back(fmt::format("ended {} ago ({})",
                                       span_text(job.now_ms - std::min(job.claim.ended_ms, job.now_ms)),
                                       moment_text(job.claim.ended_ms)));
  }
  if (job.claim.runner > 0) out.evidence.push_back(fmt::format("its last runner: {}", job.claim.runner));
  if (const auto warm = reused_text(about)) out.evidence.push_back(*warm);
  if (about.dead_letter) {
    out.evidence.push_back(fmt::format("dead letter {}: {}", about.dead_letter->id, about.dead_letter->reason));
  }
  if (job.record_type == "none") out.evidence.emplace_back("its record was deleted by another client");
  if (job.claim.state != "ended") {
    out.cause = "ended_elsewhere";
    out.reason = fmt::format("its record has the status {}, but no runner of mycojobs ran it", end.status);
    out.next = "submit it under another id to run it here";
    return out;
  }
  if (job.record_type == "hash" && field(about, "status") != end.status) {
    out.evidence.push_back(fmt::format("another client has overwritten its status; it ended as {}", end.status));
  }
  if (end.status != "finished") {
    check_failure(about, end, out);
    return out;
  }
  out.cause = "finished";
  out.reason = "it has finished";
  out.next = "nothing; " + command(about, "job show") + " has its result";
  return out;
}

constexpr auto kCauses = std::to_array<CauseRow>({
    {"unknown", "no_such_job", "the job is unknown in this context"},
    {"unknown", "in_database_0", "its record is in database 0; the jobs of a context are in the database of its id"},
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
    {"live", "runner_silent", "its runner has ended or sends no heartbeat; its lease has not expired"},
    {"live", "lease_over", "its lease has expired; any agent returns it to its queue"},
    {"delayed", "postponed", "it was submitted to run later"},
    {"delayed", "retry_wait", "its last attempt failed; the next one is due later"},
    {"delayed", "quota", "the jobs of its caller keep more than a quota allows"},
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
    {"ended", "dead_letter", "it can never run, or not once more"},
    {"ended", "dependency_failed", "a job that it depends on failed"},
    {"ended", "prerequisite", "its prerequisites will never be met"},
    {"ended", "policy_refused", "it requests more than the ceiling of its context allows"},
    {"ended", "queue_timeout", "it waited in its queue for longer than it may"},
    {"ended", "settled_by_flow", "its flow ended it, and no runner ever had it"},
    {"ended", "ended_elsewhere", "its record has an end, but no runner of mycojobs ran it"},
});

Explanation wrong_type(const JobSituation& about, const std::string& key, const std::string& type) {
  Explanation out = begin(about, "unknown");
  out.cause = "wrong_type";
  out.reason = fmt::format("{} is a {} where a hash belongs: another client wrote it", key, type);
  out.evidence.push_back(fmt::format("type of {}: {}", key, type));
  out.next = "delete it with " + redis_cli(about, "DEL " + key) +
             (key == about.job.job_key ? ", then submit the job again" : ", then run `mycojobs doctor --rebuild`");
  return out;
}

Explanation judge(const JobSituation& about) {
  using Part = Explanation (*)(const JobSituation&);
  static const std::map<std::string, Part, std::less<>> kParts = {{"queued", queued},
                                                                  {"live", live},
                                                                  {"delayed", delayed},
                                                                  {"waiting", waiting},
                                                                  {"held", held},
                                                                  {"planned", planned},
                                                                  {"prerequisites", prerequisites},
                                                                  {"ended", ended}};
  const JobStoreState& job = about.job;
  if (job.record_type != "hash" && job.record_type != "none") return wrong_type(about, job.job_key, job.record_type);
  if (job.claim_type != "hash" && job.claim_type != "none") {
    return wrong_type(about, "mj:claim:" + job.job_key, job.claim_type);
  }
  const auto part = kParts.find(job.claim.state);
  if (part != kParts.end()) return part->second(about);
  return job.record_type == "none" ? unknown(about) : bare(about);
}

Explanation begin(const JobSituation& about, std::string_view state) {
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

std::string field(const JobSituation& about, std::string_view name) {
  for (const auto& [key, value] : about.job.record) {
    if (key == name) return value;
  }
  return "";
}

std::uint64_t number(const JobSituation& about, std::string_view name) {
  std::uint64_t value = 0;
  return parse_u64(field(about, name), value) ? value : 0;
}

std::string command(const JobSituation& about, std::string_view verb, std::string_view rest) {
  return fmt::format("`mycojobs {}{}{}{}`", verb, rest.empty() ? "" : " ", rest,
                     about.context == 1 ? "" : fmt::format(" --context {}", about.context));
}

std::string command(const JobSituation& about, std::string_view verb) {
  const std::string& key = about.job.job_key;
  return command(about, verb, key.starts_with("job:") ? key.substr(4) : key);
}

std::string redis_cli(const JobSituation& about, std::string_view words) {
  return fmt::format("`redis-cli -n {} {}`", about.context, words);
}

bool anyone_alive(const JobSituation& about) {
  return std::any_of(about.runners.begin(), about.runners.end(),
                     [](const RunnerInfo& info) { return presence(info) == RunnerPresence::live; });
}

void report_runners(const JobSituation& about, Explanation& out) {
  for (const RunnerInfo& info : about.runners) {
    if (serves(info, about.queue)) {
      out.evidence.push_back("serves " + about.queue + ": runner " + describe(info, about.job.now_ms));
    }
  }
}

Explanation place_lost(const JobSituation& about, std::string_view state, std::string_view where) {
  Explanation out = begin(about, state);
  out.cause = "place_lost";
  out.reason = fmt::format("{} should be in {} but is not: another client removed it", about.job.job_key, where);
  out.next = "restore it with " + command(about, "doctor --rebuild", "");
  return out;
}

}  // namespace

// Reads the data for explain(). Each answer of the store is atomic; all reads are repeated until they are consistent.

Result<JobSituation> inspect_job(Store& store, Id context, const std::string& job_key) {
  for (int look = 1;; ++look) {
    MJ_TRY(about, check_once(store, context, job_key));
    MJ_TRY(now, store.job_states(context, std::span(&job_key, 1), false));
    if (now.size() != 1) return fail(Code::internal, "places: one job was asked about");
    const ClaimView& before = about.job.claim;
    const ClaimView& after = now.front().claim;
    const bool same =
        before.state == after.state && before.epoch == after.epoch && about.job.record_type == now.front().record_type;
    if (same || look == kExplainChecks) return std::move(about);
  }
}

namespace {

// Reports the memory use of the caller when it is high: ended jobs are then retired early and output is dropped.
Result<void> report_quota(Store& store, const JobSituation& about, Explanation& out) {
  if (about.job.record_type == "none") return {};
  static constexpr std::array<std::string_view, 2> kMarks{"log_full", "quota"};
  auto claim = store.load_fields(about.context, "mj:claim:" + about.job.job_key, kMarks);
  if (!claim && claim.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(claim).error());
  const bool is_log_full = claim && !field_of(*claim, "log_full").empty();
  const std::string setting = claim ? std::string(field_of(*claim, "quota")) : "";
  MJ_TRY(usage, stored_usage(store, about.context));
  const Id caller = caller_of_job(about.job.job_key);
  MJ_TRY(bytes, stored_by_caller(store, about.context, caller));
  const auto tell = [&](const std::string& whose, std::uint64_t kept, std::uint64_t quota, std::string_view name) {
    if (quota > 0 && (is_log_full || !setting.empty() || kept > quota / 2))
      out.evidence.push_back(fmt::format("{} keep {} of {} bytes ({})", whose, kept, quota, name));
  };
  if (!setting.empty()) out.evidence.push_back("its caller exceeds " + setting);
  if (is_log_full) out.evidence.emplace_back("a part of its output was not kept, for the quota");
  tell("the jobs of caller " + std::to_string(caller), bytes, usage.caller_quota, "quota.caller_bytes");
  tell("the jobs of the context", usage.bytes, usage.context_quota, "quota.context_bytes");
  return {};
}

}  // namespace

Result<Explanation> explain(Store& store, Id context, const std::string& job_key) {
  MJ_TRY(about, inspect_job(store, context, job_key));
  Explanation out = explain(about);
  MJ_CHECK(report_quota(store, about, out));
  return out;
}

Result<std::uint64_t> store_now_ms(Store& store, Id context) {
  const std::string any = job_key(1, 1);
  MJ_TRY(places, store.job_states(context, std::span(&any, 1), false));
  if (places.size() != 1) return fail(Code::internal, "places: one job was asked about");
  return places.front().now_ms;
}

// The entry points of explain().

std::span<const CauseRow> causes() { return kCauses; }

Explanation explain(const JobSituation& about) {
  Explanation out = judge(about);
  for (const std::string& line : about.anomalies) out.evidence.push_back("recorded anomaly: " + line);
  return out;
}

std::vector<std::string> find_cycle(const Waits& waits, const std::string& start) {
  const std::map<std::string, std::vector<std::string>> edges(waits.begin(), waits.end());
  std::set<std::string> done, on_path{start};
  std::vector<std::string> path{start};
  std::vector<std::size_t> next{0};  // for each job on the path: index of the next edge
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

}  // namespace mycojobs
