#include "scenarios.h"

#include <array>
#include <ostream>

#include "inspect/invariants.h"
#include "inspect/verify/job_verify.h"
#include "model/codec.h"

namespace mycojobs::sim {
namespace {

using Change = std::function<void(Job&)>;

void submit(Stage& stage, Id id, const std::string& script, const Change& change = {},
            std::function<bool()> condition = {}) {
  Job job = Stage::job(id, script);
  if (change) change(job);
  stage.client.enqueue({"submits " + std::to_string(id),
                        [job](Store& store) -> Result<void> {
                          MJ_CHECK(store.submit(job));
                          return {};
                        },
                        std::move(condition)});
}
// Holds once the job has reached the state or has ended.
std::function<bool()> reaches_state(Stage& stage, Id id, JobState state) {
  return [&stage, id, state] {
    const JobState current = stage.checker.job(make_job_key(id)).state;
    return current == state || current == JobState::ended;
  };
}
void cancel(Stage& stage, Id id, std::function<bool()> condition = {}) {
  stage.client.enqueue({"cancels " + std::to_string(id),
                        [id](Store& store) { return store.cancel(kContext, make_job_key(id)); }, std::move(condition)});
}
// Uses the server's clock, which is constant while requests are queued.
std::uint64_t server_time_after(Stage& stage, Ms ms) { return stage.world.server_clock().unix_ms() + ms; }

void push_without_submit(Stage& stage, Id id, const std::vector<Id>& dependends) {
  Job job = Stage::job(id, "ok 20");
  job.dependends = dependends;
  stage.push(job);
}

void send_message_with_two_jobs(Stage& stage) {
  Message message;
  message.id = 1;
  message.caller_id = 12;
  message.context_id = kContext;
  message.job = {Stage::job(1, "ok 20"), Stage::job(2, "ok 30")};
  stage.client.enqueue({"sends a message", [message](Store& store) {
                          return store.send_to_topic(kContext, "runner1", redis_key(message), encode(message));
                        }});
}

void requeue(Stage& stage, Id id) {
  stage.client.enqueue({"requeues", [id](Store& store) { return store.requeue(kContext, make_job_key(id)); },
                        reaches_state(stage, id, JobState::ended)});
}

// Runs the only dead letter again.
void settle_dead_letter(Stage& stage, Id id) {
  const auto settle = [](Store& store) -> Result<void> {
    MJ_TRY(letters, store.dead_letters(kContext, 1));
    return letters.empty() ? Result<void>() : store.resolve_dead_letter(kContext, letters.front().id, true);
  };
  stage.client.enqueue({"runs the dead letter again", settle, reaches_state(stage, id, JobState::ended)});
}

const auto kScenarios = std::to_array<Scenario>({
    {"plain job", [](Stage& s) { submit(s, 1, "ok 50"); }, {1}},
    {"plain client's job", [](Stage& s) { push_without_submit(s, 1, {}); }, {1}},
    {"job with output", [](Stage& s) { submit(s, 1, "lines 100"); }, {1}},
    {"longer than its lease", [](Stage& s) { submit(s, 1, "ok 3000"); }, {1}},
    {"failure with a retry", [](Stage& s) { submit(s, 1, "flaky 20", [](Job& j) { j.retries = 2; }); }, {1}},
    {"failure to the last", [](Stage& s) { submit(s, 1, "fail 20", [](Job& j) { j.retries = 1; }); }, {1}},
    {"dependends of three, pushed in reverse",
     [](Stage& s) {
       push_without_submit(s, 3, {1, 2}), push_without_submit(s, 2, {1}), submit(s, 1, "ok 20");
     },
     {1, 2, 3}},
    {"a dependency fails",
     [](Stage& s) {
       submit(s, 2, "ok 20", [](Job& j) { j.dependends = {1}; });
       submit(s, 1, "fail 20");
     },
     {1, 2}},
    {"cancel while queued", [](Stage& s) { submit(s, 1, "ok 600000"), cancel(s, 1); }, {1}, false, 1000},
    {"cancel while live",
     [](Stage& s) { submit(s, 1, "ok 600000"), cancel(s, 1, reaches_state(s, 1, JobState::live)); },
     {1}},
    {"cancel of one that does not listen",
     [](Stage& s) { submit(s, 1, "stubborn 600000"), cancel(s, 1, reaches_state(s, 1, JobState::live)); },
     {1}},
    {"cancel while delayed",
     [](Stage& s) {
       submit(s, 1, "ok 20", [&](Job& j) { j.run_at_ms = server_time_after(s, 3600000); });
       cancel(s, 1);
     },
     {1}},
    {"cancel between attempts",
     [](Stage& s) {
       submit(s, 1, "fail 20", [](Job& j) { j.retries = 255; });
       cancel(s, 1, reaches_state(s, 1, JobState::delayed));
     },
     {1}},
    {"concurrency key",
     [](Stage& s) {
       for (const Id id : {1, 2}) submit(s, id, "ok 60", [](Job& j) { j.concurrency_key = "db"; });
     },
     {1, 2}},
    {"delayed job",
     [](Stage& s) { submit(s, 1, "ok 20", [&](Job& j) { j.run_at_ms = server_time_after(s, 400); }); },
     {1}},
    {"prerequisite", [](Stage& s) { submit(s, 1, "ok 20", [](Job& j) { j.prerequisites = {"wait:1s"}; }); }, {1}},
    {"dead letter by a crash loop", [](Stage& s) { submit(s, 1, "poison 20"); }, {1}},
    {"dead letter that runs again", [](Stage& s) { submit(s, 1, "poison 20"), settle_dead_letter(s, 1); }, {1}},
    {"requeue", [](Stage& s) { submit(s, 1, "flaky 20"), requeue(s, 1); }, {1}},
    {"purge",
     [](Stage& s) {
       submit(s, 1, "ok 20");
       submit(s, 2, "ok 20", [](Job& j) { j.priority = 4; });
       s.client.enqueue({"purges", [](Store& store) -> Result<void> {
                           MJ_CHECK(store.purge_queue(kContext, "queue:sim", 10));
                           return {};
                         }});
     },
     {1, 2},
     false,
     1500},
    {"release by a lost launcher", [](Stage& s) { submit(s, 1, "lost 20"); }, {1}},
    {"release of what could not be started",
     [](Stage& s) { s.hosts[0]->failing_launches = 1, submit(s, 1, "ok 20"); },
     {1}},
    {"priority",
     [](Stage& s) {
       submit(s, 1, "ok 20", [](Job& j) { j.priority = -1; });
       submit(s, 2, "ok 20", [](Job& j) { j.priority = 7; });
     },
     {1, 2}},
    {"idempotent submit",
     [](Stage& s) {
       for (int i = 0; i < 2; ++i) submit(s, 0, "ok 20", [](Job& j) { j.idempotency_key = "once"; });
     },
     {1}},
    {"message with two jobs", send_message_with_two_jobs, {1, 2}, false, 0, {}, true},
    {"retention", [](Stage& s) { submit(s, 1, "lines 40"); }, {1}, true, 0, {1, 2000, Retention::same_for_all(300), 0}},
    {"retention by count",
     [](Stage& s) {
       submit(s, 1, "ok 20");
       submit(s, 2, "ok 20", {}, reaches_state(s, 1, JobState::ended));
     },
     {1},
     true,
     0,
     {1, 2000, Retention::same_for_all(0), 1}},
    {"a restart of the server, and grant",
     [](Stage& s) {
       submit(s, 1, "ok 900");
       s.world.schedule(300, [&s] { s.world.restart_server(200); });
     },
     {1}},
    {"expire",
     [](Stage& s) {
       submit(s, 1, "ok 600");
       s.services[1]->start(0);
       s.services[0]->set_restart_delay(kNever);
       s.world.schedule(300, [&s] {
         if (SimAgent* agent = s.services[0]->agent()) s.world.kill(*agent);
       });
     },
     {1}},
    {"an agent that is stopped for longer than its lease",
     [](Stage& s) {
       submit(s, 1, "ok 2500");
       s.services[1]->start(0);
       s.world.schedule(300, [&s] {
         if (SimAgent* agent = s.services[0]->agent()) s.world.stop(*agent, 6000);
       });
     },
     {1}},
    {"drain and a new agent",
     [](Stage& s) {
       submit(s, 1, "ok 300");
       submit(s, 2, "ok 20", {}, reaches_state(s, 1, JobState::live));
       s.world.schedule(100, [&s] {
         if (SimAgent* agent = s.services[0]->agent()) agent->drain();
       });
     },
     {1, 2}},
    {"waited too long",
     [](Stage& s) { submit(s, 1, "ok 20", [](Job& j) { j.queue_timeout_ms = 100; }); },
     {1},
     false,
     5000},
});

std::map<std::string, std::string> collect_outcome(Store& store) {
  static constexpr std::array<std::string_view, 4> kComparedFields{"status", "detail", "result", "script"};
  std::map<std::string, std::string> out;
  for (const char* prefix : {"job:", "message:"}) {
    const auto keys = store.keys(kContext, prefix, 1000);
    for (const std::string& key : keys.value_or(std::vector<std::string>{})) {
      const auto fields = store.load_fields(kContext, key, kComparedFields);
      for (const auto& [name, value] : fields.value_or(Fields{})) out[key] += value + ' ';
    }
  }
  return out;
}

}  // namespace

std::span<const Scenario> scenarios() { return kScenarios; }

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

std::string to_text(const std::vector<Crash>& crashes) {
  std::string out;
  for (const Crash& crash : crashes) {
    const char* description = crash.fault == CallFault::killed_before  ? "killed before write "
                              : crash.fault == CallFault::killed_after ? "killed after write "
                              : crash.fault == CallFault::reply_lost   ? "reply lost of write "
                                                                       : "request lost of write ";
    out += (out.empty() ? "" : ", then ") + (description + std::to_string(crash.write));
  }
  return out.empty() ? "undisturbed" : out;
}

CrashRunResult play(const Scenario& scenario, const std::vector<Crash>& crashes, bool use_other_agent) {
  constexpr Ms kMaxDurationMs = 120000;
  const std::string at_the_end = "at the end";
  Stage stage(scenario.settings);
  Service& first = stage.add_service();
  Service& second = stage.add_service();
  CrashRunResult out;
  const auto check = [&](const std::string& when) {
    for (const std::string& each : find_violations(stage.store())) {
      // The agent that checks leases may be the one with the fault: an expiry may be late by a further lease.
      if (when == at_the_end || !each.starts_with("lease-overdue")) stage.world.report_violation(when + ": " + each);
    }
  };
  stage.world.choose_fault = [&](const Program&, const ServerCall&, std::uint64_t write) {
    if (out.crashes == crashes.size() || write != crashes[out.crashes].write) return CallFault::none;
    stage.world.schedule(stage.world.now(), [&check] { check("after the crash"); });
    return crashes[out.crashes++].fault;
  };
  if (use_other_agent) {
    first.set_restart_delay(kNever);
    first.on_end = [&second] { second.start(300); };
  }
  first.start(scenario.agent_start_ms);
  scenario.play(stage);
  const auto has_finished = [&] {
    if (!stage.client.is_done()) return false;
    for (const Id id : scenario.jobs) {
      if (stage.checker.job(make_job_key(id)).state != JobState::ended || stage.checker.is_running(make_job_key(id)))
        return false;
      if (scenario.must_be_retired && stage.get_job_state(make_job_key(id)).record_type != "none") return false;
    }
    return first.is_quiet() && second.is_quiet();
  };
  if (!stage.world.run_until(kMaxDurationMs, has_finished))
    stage.world.report_violation("the scenario does not end within the time limit");
  check(at_the_end);
  out.violation = stage.world.violation();
  out.writes = stage.world.writes();
  out.outcome = collect_outcome(stage.store());
  return out;
}

}  // namespace mycojobs::sim
