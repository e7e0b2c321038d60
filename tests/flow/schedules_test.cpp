// Schedules over the in-memory Redis: the same scheduled time never starts two flows, at whatever point a coordinator
// is killed.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "coordinator/context_loop.h"
#include "flow/moments.h"
#include "flows/schedules.h"
#include "model/codec.h"
#include "support/hand_clock.h"
#include "support/redis/memory_server.h"
#include "text/cron.h"

namespace mycojobs {
namespace {

using test::ManualClock;

constexpr Id kContext = 1;

// A definition whose flow ends as soon as it starts, or waits to be resumed if `waits` is set.
FlowPlan plan(const std::string& line, bool waits = false) {
  const nlohmann::json node = waits ? nlohmann::json{{"pause", line}} : nlohmann::json{{"log", line}};
  return read_plan({{"name", "nightly"}, {"jobs", {{"say", node}}}}).plan.value();
}

class Schedules : public testing::Test {
 protected:
  Schedules() : flows_(server_.open_flows().value()) { clock_.unix = clock_.boot = kNoon - kMinute / 2; }

  Schedule one(const char* name, const FlowPlan& plan, const char* overlap = "allow", const char* missed = "all") {
    Schedule out;
    out.name = name;
    out.caller = 12;
    out.cron = "* * * * *";
    out.zone = "UTC";
    out.overlap = overlap;
    out.missed = missed;
    out.next_start_ms = kNoon;
    out.definition_hash = plan.hash;
    return out;
  }
  void put(const Schedule& schedule, const FlowPlan& plan, std::uint64_t revision = 0) {
    const auto put = flows_->put_schedule(kContext, schedule, plan.canonical, revision);
    ASSERT_TRUE(put) << put.error().message;
  }
  Schedule stored(const std::string& name = "nightly") {
    const auto all = flows_->schedules(kContext);
    for (const Schedule& each : all.value()) {
      if (each.name == name) return each;
    }
    return {};
  }
  // Runs the schedules once, as a coordinator without cached state.
  Result<std::uint64_t> look() {
    const auto flows = server_.open_flows().value();
    RunCache cache;
    return run_schedules(*flows, cache, kContext);
  }
  // Returns "1 finished 1795348800000 <line>" for each flow, oldest first.
  std::vector<std::string> runs() {
    std::vector<std::string> out;
    const auto all = flows_->list(kContext, "", 0, 100);
    for (const FlowSummary& each : all.value()) {
      const Fields record = flows_->read(kContext, each.flow, 9'007'199'254'740'991).value().record;
      const Flow flow = decode<Flow>(record).record;
      const std::string text = flows_->definition(kContext, flow.definition_hash).value_or("gone");
      const auto moment = flow.env_vars.find("MYCOJOBS_SCHEDULED_MS");
      out.insert(out.begin(), std::string(to_string(flow.status)) + ' ' +
                                  (moment == flow.env_vars.end() ? "?" : moment->second) + ' ' +
                                  (text.find("new") != std::string::npos ? "new" : "old"));
    }
    return out;
  }
  static std::string run(const char* status, std::uint64_t moment, const char* definition = "old") {
    return std::string(status) + ' ' + std::to_string(moment) + ' ' + definition;
  }

  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<FlowStore> flows_;
};
using Runs = std::vector<std::string>;

TEST_F(Schedules, StartTheirFlowOnTimeAndReportTheNextPoll) {
  const FlowPlan old = plan("old");
  put(one("nightly", old), old);
  EXPECT_EQ(look().value(), kMinute / 2);
  EXPECT_EQ(runs(), Runs{});
  clock_.unix = clock_.boot = kNoon;
  EXPECT_EQ(look().value(), kMinute);
  EXPECT_EQ(runs(), Runs{run("finished", kNoon)});
  EXPECT_EQ(look().value(), kMinute);
  EXPECT_EQ(runs().size(), 1U);
  const Schedule now = stored();
  EXPECT_EQ(now.next_start_ms, kNoon + kMinute);
  EXPECT_EQ(now.last_start_ms, kNoon);
  EXPECT_EQ(now.last_flow, 1U);
}

TEST_F(Schedules, NoScheduleMeansNoPoll) { EXPECT_EQ(look().value(), 3600000U); }

// Every writing call fails in turn: before it has an effect, or with a lost reply. The next coordinator finds one flow
// for each scheduled time.
TEST_F(Schedules, KilledCoordinatorStartsEachTimeOnce) {
  const FlowPlan old = plan("old");
  put(one("nightly", old), old);
  clock_.unix = clock_.boot = kNoon + 2 * kMinute;  // three scheduled times
  const MemoryServer::Snapshot begin = server_.snapshot();
  ASSERT_TRUE(look());
  const std::uint64_t writes = server_.writes() - begin.writes;
  const Runs expected = runs();
  ASSERT_EQ(expected.size(), 3U);
  ASSERT_GE(writes, 10U);
  for (const Fault fault : {Fault::before, Fault::after}) {
    for (std::uint64_t at = 1; at <= writes; ++at) {
      server_.restore(begin);
      bool dead = false;
      server_.set_faults([&](const ServerCall& call) {
        if (dead) return Fault::before;
        if (call.write != begin.writes + at) return Fault::none;
        dead = true;
        return fault;
      });
      (void)look();
      EXPECT_TRUE(dead);
      server_.set_faults(nullptr);
      ASSERT_TRUE(look()) << at;
      EXPECT_EQ(runs(), expected) << "call " << at;
      EXPECT_EQ(stored().next_start_ms, kNoon + 3 * kMinute) << at;
    }
  }
}

TEST_F(Schedules, TwoLeadersStartOneFlow) {
  const FlowPlan old = plan("old");
  put(one("nightly", old), old);
  clock_.unix = clock_.boot = kNoon;
  // The second coordinator uses the schedule as it was before the first started a flow.
  const Schedule as_read = stored();
  ASSERT_TRUE(look());
  RunCache cache;
  ASSERT_TRUE(complete_schedule(*flows_, cache, kContext, as_read)) << "the completion has the same schedule";
  EXPECT_EQ(runs(), Runs{run("finished", kNoon)});
}

// A changed definition, zone or expression under the same id does not restart flows of earlier times.
TEST_F(Schedules, ChangedDefinitionAppliesFromTheNextTime) {
  const FlowPlan old = plan("old");
  const FlowPlan changed = plan("new");
  put(one("nightly", old), old);
  clock_.unix = clock_.boot = kNoon;
  RunCache cache;
  ASSERT_TRUE(complete_schedule(*flows_, cache, kContext, stored()));
  Schedule other = one("nightly", changed);
  const Schedule settled = stored();
  other.next_start_ms = next_time(parse_cron(other.cron).value(), other.zone, settled.last_start_ms).value();
  put(other, changed, settled.revision);
  ASSERT_TRUE(look());
  EXPECT_EQ(runs(), Runs{run("finished", kNoon)});
  clock_.unix = clock_.boot = kNoon + kMinute;
  ASSERT_TRUE(look());
  EXPECT_EQ(runs(), (Runs{run("finished", kNoon), run("finished", kNoon + kMinute, "new")}));
}

TEST_F(Schedules, RecreatedScheduleDoesNotRepeatATime) {
  const FlowPlan old = plan("old");
  put(one("nightly", old), old);
  clock_.unix = clock_.boot = kNoon;
  ASSERT_TRUE(look());
  ASSERT_TRUE(flows_->remove_schedule(kContext, "nightly"));
  const FlowPlan changed = plan("new");
  put(one("nightly", changed), changed);
  ASSERT_TRUE(look());
  EXPECT_EQ(runs(), Runs{run("finished", kNoon)});
  EXPECT_NE(stored().skip_reason.find("was not started"), std::string::npos) << stored().skip_reason;
  EXPECT_EQ(stored().next_start_ms, kNoon + kMinute);
}

TEST_F(Schedules, QueuedTimeStartsAfterThePreviousRun) {
  const FlowPlan slow = plan("old", true);
  put(one("nightly", slow, "queue", "skip"), slow);
  clock_.unix = clock_.boot = kNoon;
  ASSERT_TRUE(look());
  clock_.unix = clock_.boot = kNoon + 2 * kMinute;
  EXPECT_EQ(look().value(), 1000U) << "one check in each second";
  EXPECT_EQ(runs(), Runs{run("started", kNoon)});
  EXPECT_EQ(stored().skip_reason, "2 moments wait for the end of flow 1");
  for (Id flow = 1; flow <= 3; ++flow) {
    RunCache cache;
    ProgressRequest resume;
    resume.context = kContext;
    resume.flow = flow;
    FlowControl control;
    control.verb = FlowControl::Verb::resume;
    control.target = "say";
    control.actor = 12;
    resume.control = control;
    clock_.advance(1000);
    const auto resumed = advance_run(*flows_, cache, resume);
    ASSERT_TRUE(resumed) << resumed.error().message;
    ASSERT_TRUE(look());
    EXPECT_EQ(runs().size(), std::min<std::size_t>(flow + 1, 3));
  }
  EXPECT_EQ(runs(),
            (Runs{run("finished", kNoon), run("finished", kNoon + kMinute), run("finished", kNoon + 2 * kMinute)}));
}

TEST_F(Schedules, FailedStartDelaysNoOther) {
  const FlowPlan old = plan("old");
  put(one("a", old), old);
  put(one("b", old), old);
  put(one("c", old), old);
  server_.run_command(kContext, {"HSET", "mj:schedule:a", "cron", "nonsense"});
  server_.run_command(kContext, {"HSET", "mj:schedule:b", "definition_hash", std::string(64, 'f')});
  clock_.unix = clock_.boot = kNoon;
  ASSERT_TRUE(look());
  EXPECT_EQ(runs(), Runs{run("finished", kNoon)}) << "the run of c";
  EXPECT_NE(stored("a").skip_reason.find("cron: "), std::string::npos) << stored("a").skip_reason;
  EXPECT_EQ(stored("a").next_start_ms, 0U);
}

// Limits are checked when the flow starts; other limits applied when the schedule was created.
TEST_F(Schedules, FlowOverTheLimitsIsSkippedWithTheField) {
  const FlowPlan greedy =
      read_plan({{"name", "greedy"},
                 {"jobs", {{"a", {{"type", "python"}, {"script", "pass"}, {"policy", {{"memory", "2 GiB"}}}}}}}})
          .plan.value();
  put(one("nightly", greedy), greedy);
  clock_.unix = clock_.boot = kNoon;
  ContextSettings settings;
  settings.context = kContext;
  settings.instance = "coordinator";
  settings.limits.ceiling = Ceilings().get(kContext);
  ContextLoop rounds(server_.open_flows().value(), server_.open().value(), clock_, settings);
  ASSERT_TRUE(rounds.run_round());
  EXPECT_EQ(runs(), Runs{});
  EXPECT_NE(
      stored().skip_reason.find("was not started: jobs.a: policy.memory: 2 GiB is more than the ceiling of 1 GiB for "
                                "context 1"),
      std::string::npos)
      << stored().skip_reason;
  EXPECT_GT(stored().next_start_ms, kNoon);
}

// The roles of the context are also checked when the flow starts.
TEST_F(Schedules, RevokedCallerStartsNothing) {
  const FlowPlan logs = plan("old");
  put(one("nightly", logs), logs);
  server_.run_command(kContext, {"HSET", "context:1", "id", "1", "admins", "[1]", "submitters", "[13]"});
  clock_.unix = clock_.boot = kNoon;
  ContextSettings settings;
  settings.context = kContext;
  settings.instance = "coordinator";
  ContextLoop rounds(server_.open_flows().value(), server_.open().value(), clock_, settings);
  ASSERT_TRUE(rounds.run_round());
  EXPECT_EQ(runs(), Runs{});
  EXPECT_NE(stored().skip_reason.find("actor 12 may not create flows"), std::string::npos) << stored().skip_reason;
  server_.run_command(kContext, {"HSET", "context:1", "submitters", "[12]"});
  clock_.unix = clock_.boot = kNoon + kMinute;
  ASSERT_TRUE(rounds.run_round());
  EXPECT_EQ(runs().size(), 1U) << "the schedule starts runs again";
}

// Another client overwrote the record of the last started flow with SET, so the flow is unreadable.
TEST_F(Schedules, OverwrittenLastFlowDoesNotBlockTheNext) {
  const FlowPlan logs = plan("old");
  put(one("nightly", logs, "skip"), logs);
  clock_.unix = clock_.boot = kNoon;
  ASSERT_TRUE(look());
  ASSERT_EQ(stored().last_flow, 1U);
  server_.run_command(kContext, {"DEL", "flow:1"});
  server_.run_command(kContext, {"SET", "flow:1", "x"});
  clock_.unix = clock_.boot = kNoon + kMinute;
  const auto next = look();
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_GT(*next, 1000U) << "the next check has no pause";
  EXPECT_EQ(stored().last_flow, 2U) << stored().skip_reason;
}

}  // namespace
}  // namespace mycojobs
