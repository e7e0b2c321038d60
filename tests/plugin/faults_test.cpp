// Faults during the use of a plugin: the error names the fault, the next call gets a new host, and a plugin that fails
// repeatedly is paused.
#include "executors/channel.h"
#include "executors/plugin/plugin_executor.h"
#include "plugin/plugins.h"
#include "security/ceilings.h"

namespace mycojobs::test {
namespace {

struct FaultRow {
  const char* fault;
  const char* says;
};

class PluginFault : public Plugins, public ::testing::WithParamInterface<FaultRow> {};

TEST_P(PluginFault, OfPrepareIsThePluginsAndNotTheJobs) {
  auto loaded = load(GetParam().fault);
  ASSERT_TRUE(loaded) << loaded.error().message;
  for (int i = 0; i < 2; ++i) {
    const auto prepared = (*loaded)->prepare({1, 12}, kJob);
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, Code::unavailable);
    EXPECT_EQ(prepared.error().message, "plugin cat: " + std::string(GetParam().says));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plugin, PluginFault,
    ::testing::Values(
        FaultRow{"throws", "a C++ exception left prepare"}, FaultRow{"crashes", "it crashed: signal SIGSEGV (prepare)"},
        FaultRow{"aborts", "it crashed: signal SIGABRT (prepare)"},
        FaultRow{"exits", "it ended its host with exit code 7 (prepare)"},
        FaultRow{"floods", "it returned more than 4194304 bytes from prepare"},
        FaultRow{"floods_socket", "it wrote invalid data to its host's socket (prepare)"},
        FaultRow{"closes", "it closed its host's socket (prepare)"},
        FaultRow{"deep", "it returned invalid data from prepare: JSON nests deeper than 64 levels at line 1 column 65"},
        FaultRow{"no_json", "it returned invalid data from prepare: not JSON at line 1 column 1: invalid literal"},
        FaultRow{"no_utf8",
                 "it returned invalid data from prepare: not JSON at line 1 column 20: invalid string: "
                 "ill-formed UTF-8 byte"},
        FaultRow{"wrong_types", "it returned invalid data from prepare: command: it is not a list"},
        FaultRow{"unknown_name",
                 "it returned invalid data from prepare: \"enviroment\" is not a known name: use one of "
                 "command, script_file, environment, files, notes, error, field"},
        FaultRow{"null", "it returned NULL from prepare"}),
    [](const auto& row) { return std::string(row.param.fault); });

TEST_F(Plugins, HangingCallIsKilledAtTheDeadline) {
  auto options = make_options(copy_plugin(folder_, "sleeps"));
  options.prepare_timeout_ms = 200;
  auto loaded = plugin::PluginClient::load(options, clock_);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto prepared = (*loaded)->prepare({1, 12}, kJob);
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().message, "plugin cat: it did not answer within 200 ms (prepare)");
  EXPECT_TRUE((*loaded)->probe()) << "a new host answers the next call";
}

TEST_F(Plugins, UnexpectedOutputIsDetectedWithTheNextCall) {
  for (const char* fault : {"release_throws", "release_crashes"}) {
    auto loaded = load(fault);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_TRUE((*loaded)->probe()) << fault;
    // Whether the first call already fails depends on timing, but a later call must fail.
    EXPECT_TRUE(eventually([&] { return !(*loaded)->probe(); })) << fault;
  }
  auto early = load("speaks_early");
  ASSERT_TRUE(early) << early.error().message;
  const auto prepared = (*early)->prepare({1, 12}, kJob);
  ASSERT_FALSE(prepared) << "the stray byte is read as the start of the reply frame";
  EXPECT_EQ(prepared.error().message, "plugin cat: it wrote invalid data to its host's socket (prepare)");
}

TEST_F(Plugins, ForkIsDeniedAndWritesDoNotDelayTheAgent) {
  for (const char* fault : {"forks", "stderr"}) {
    auto loaded = load(fault);
    ASSERT_TRUE(loaded) << loaded.error().message;
    const auto prepared = (*loaded)->prepare({1, 12}, kJob);
    ASSERT_TRUE(prepared) << prepared.error().message;
    EXPECT_EQ(prepared->command.size(), 2U);
  }
}

TEST_F(Plugins, HaveNoCapabilities) {
  auto loaded = load("attack");
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto probed = (*loaded)->probe();
  ASSERT_TRUE(probed) << probed.error().message;
  EXPECT_EQ(*probed, "could: ");
}

TEST_F(Plugins, NetAndMemoryStayInTheProfileUpToTheCeiling) {
  auto loaded = load("greedy_profile");
  ASSERT_TRUE(loaded) << loaded.error().message;
  const Policy& profile = (*loaded)->profile();
  EXPECT_TRUE(profile.exec) << "fields that the plugin does not name have the values of the profile of programs";
  EXPECT_EQ(profile.memory_bytes, 512ULL << 30);
  Ceiling ceiling;
  ceiling.max = Policy();
  const Policy bounded = apply_ceiling(profile, {}, ceiling).policy;
  EXPECT_EQ(bounded.memory_bytes, Policy().memory_bytes);
  EXPECT_EQ(bounded.network, Network::none);
  EXPECT_TRUE(bounded.fs_write.empty());
}

TEST_F(Plugins, MissingHostRequirementsAreReported) {
  auto loaded = load("probe_refuses");
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto probed = (*loaded)->probe();
  ASSERT_FALSE(probed);
  EXPECT_EQ(probed.error().code, Code::invalid);
  EXPECT_EQ(probed.error().message, "no /usr/bin/nothing: apt install nothing");
  for (const char* fault : {"probe_exit", "probe_null"}) {
    auto broken = load(fault);
    ASSERT_TRUE(broken) << broken.error().message;
    EXPECT_EQ((*broken)->probe().error().code, Code::unavailable) << fault;
  }
}

TEST_F(Plugins, RefusalsNameTheJobsFieldAndAreNoFault) {
  auto loaded = load("sometimes");
  ASSERT_TRUE(loaded) << loaded.error().message;
  for (int i = 0; i < 5; ++i) {
    const auto prepared = (*loaded)->prepare({1, 12}, R"({"script": "never"})");
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, Code::invalid);
    EXPECT_EQ(prepared.error().message, "script: this can never run");
  }
  EXPECT_TRUE((*loaded)->prepare({1, 12}, kJob));
}

TEST_F(Plugins, WrongInterpretIsAFault) {
  for (const char* fault : {"interpret_crashes", "interpret_lies"}) {
    auto loaded = load(fault);
    ASSERT_TRUE(loaded) << loaded.error().message;
    const auto interpreted = (*loaded)->interpret({1, 12}, "{}");
    ASSERT_FALSE(interpreted) << fault;
    EXPECT_EQ(interpreted.error().code, Code::unavailable) << fault;
  }
}

// The plugin's result replaces the program's result and the types of its values.
TEST_F(Plugins, InterpretReplacesTheWholeResult) {
  auto loaded = load("sometimes");
  ASSERT_TRUE(loaded) << loaded.error().message;
  const plugin::PluginExecutor executor(std::move(*loaded));
  JobFacts facts;
  facts.job.id = facts.job.caller_id = facts.job.context_id = 1;
  facts.job.script_type = "cat";
  facts.job.script = "x";
  for (const auto& [status, result] :
       {std::pair(RunStatus::ok, TextMap{{"told", "by the plugin"}}), std::pair(RunStatus::exit, TextMap{})}) {
    auto conversation = executor.begin(facts, nullptr);
    ASSERT_TRUE(conversation) << conversation.error().message;
    std::string sent;
    append_frame(sent, FrameKind::result, R"({"told":["1"],"n":["5"]})");
    append_frame(sent, FrameKind::done, "");
    (*conversation)->feed(sent);
    Outcome outcome;
    outcome.status = status;
    const JobEnd end = (*conversation)->finish(outcome);
    EXPECT_EQ(end.result, result);
    EXPECT_TRUE(end.result_json.empty());
  }
}

class ManualPluginClock final : public Clock {
 public:
  std::uint64_t unix_ms() const override { return now; }
  std::uint64_t boot_ms() const override { return now; }
  std::uint64_t now = 1000000;
};

TEST_F(Plugins, ArePausedAfterThreeFaultsAndResume) {
  ManualPluginClock clock;
  auto loaded = load("sometimes", clock);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto crash = [&] { return (*loaded)->prepare({1, 12}, R"({"script": "crash"})").error().message; };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(crash(), "plugin cat: it crashed: signal SIGABRT (prepare)");
  EXPECT_EQ(
      (*loaded)->prepare({1, 12}, kJob).error().message,
      "plugin cat: it is paused for 1 s more after 3 faults in a row, the last: it crashed: signal SIGABRT (prepare)");
  clock.now += 1000;
  EXPECT_EQ(crash(), "plugin cat: it crashed: signal SIGABRT (prepare)");
  EXPECT_NE((*loaded)->prepare({1, 12}, kJob).error().message.find("it is paused for 2 s more after 4 faults"),
            std::string::npos);
  clock.now += 2000;
  EXPECT_TRUE((*loaded)->prepare({1, 12}, kJob));
  EXPECT_EQ(crash(), "plugin cat: it crashed: signal SIGABRT (prepare)")
      << "the failures were forgiven, and the count starts again";
  EXPECT_TRUE((*loaded)->prepare({1, 12}, kJob));
}

// A script of one tenant must not be able to end the jobs of another.
TEST_F(Plugins, FaultsOfOneContextDoNotAffectOthers) {
  ManualPluginClock clock;
  auto loaded = load("sometimes", clock);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE((*loaded)->prepare({2, 12}, kJob));
  for (int i = 0; i < 4; ++i) EXPECT_FALSE((*loaded)->prepare({1, 12}, R"({"script": "crash"})"));
  EXPECT_NE((*loaded)->get_backoff_reason({1, 12}), "");
  EXPECT_EQ((*loaded)->prepare({1, 12}, kJob).error().code, Code::unavailable)
      << "the jobs are released, and none has ended";
  EXPECT_EQ((*loaded)->get_backoff_reason({2, 12}), "");
  EXPECT_TRUE((*loaded)->prepare({2, 12}, kJob));
  EXPECT_TRUE((*loaded)->prepare({3, 12}, kJob)) << "the caller has a separate host";
}

// Submitters of one context are isolated from each other, as contexts are.
TEST_F(Plugins, FaultsOfOneCallerDoNotAffectOthers) {
  ManualPluginClock clock;
  auto loaded = load("sometimes", clock);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const plugin::PluginUser bob{1, 66}, ann{1, 12};
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE((*loaded)->prepare(bob, R"({"script": "crash"})"));
    EXPECT_TRUE((*loaded)->prepare(ann, kJob)) << "the caller has a separate host";
  }
  EXPECT_NE((*loaded)->get_backoff_reason(bob), "");
  EXPECT_TRUE((*loaded)->has_faults(bob));
  EXPECT_EQ((*loaded)->get_backoff_reason(ann), "");
  EXPECT_FALSE((*loaded)->has_faults(ann));
  for (Id caller = 1000; caller < 3500; ++caller) EXPECT_EQ((*loaded)->get_backoff_reason({1, caller}), "");
  EXPECT_NE((*loaded)->get_backoff_reason(bob), "") << "the entry of a caller is not evicted by other callers";
}

TEST(PluginPause, IsFourTimesTheDurationOfTheFault) {
  plugin::FaultBackoff rest;
  rest.on_failed(10000, 2000);
  EXPECT_EQ(rest.remaining_ms(10000), 8000U);
}

TEST(PluginPause, DoublesUpToAMinute) {
  plugin::FaultBackoff rest;
  rest.on_failed(0);
  rest.on_failed(0);
  EXPECT_EQ(rest.remaining_ms(0), 0U);
  std::uint64_t now = 0;
  for (std::uint64_t pause : {1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000}) {
    rest.on_failed(now);
    EXPECT_EQ(rest.remaining_ms(now), pause);
    now += pause;
    EXPECT_EQ(rest.remaining_ms(now), 0U);
  }
  rest.on_success();
  EXPECT_EQ(rest.faults(), 0U);
}

}  // namespace
}  // namespace mycojobs::test
