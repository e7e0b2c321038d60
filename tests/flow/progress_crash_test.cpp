// Each scenario first runs undisturbed, which numbers the writing calls of clients and coordinators. Then the scenario
// is repeated with a fault at each call: the caller is killed before or after the call, or the request or the reply is
// lost. Every flow and job must end as in the undisturbed run, and each job must run as often. The last test adds a
// second fault during the recovery.
#include <cstdio>
#include <cstdlib>

#include "progress_stage.h"

namespace mycojobs {
namespace {

struct FlowScenario {
  const char* name;
  void (*play)(FlowStage&);
};
void PrintTo(const FlowScenario& scenario, std::ostream* out) { *out << scenario.name; }

FlowControl control(FlowControl::Verb verb, std::string target = "") {
  FlowControl out;
  out.verb = verb;
  out.target = std::move(target);
  return out;
}

constexpr FlowScenario kScenarios[] = {
    {"Pipeline",
     [](FlowStage& stage) {
       stage.request_run("pipeline", R"(
name: pipeline
env: {REGION: eu}
jobs:
  build: {script: "ok size=12", type: python}
  lint: {script: ok, type: python}
  big: {needs: [build], when: [{key: build.size, greater_than: 10}], script: ok, type: python}
  small: {needs: [build], when: [{key: build.size, less_than: 10}], script: ok, type: python}
  said: {needs: [big, lint], log: "built"}
  later: {needs: [said], wait: 50ms}
  deploy: {needs: [later, small], script: "ok where=eu", type: python}
)");
     }},
    {"FailureAndCompensation",
     [](FlowStage& stage) {
       stage.request_run("failing", R"(
name: failing
jobs:
  first: {script: ok, type: python, compensate: undo1}
  second: {needs: [first], script: ok, type: python, compensate: undo2}
  third: {needs: [second], script: fail, type: python}
  fourth: {needs: [third], script: ok, type: python}
  undo1: {script: ok, type: python}
  undo2: {script: ok, type: python}
)");
     }},
    {"ErrorRoute",
     [](FlowStage& stage) {
       stage.request_run("routed", R"(
name: routed
jobs:
  a: {script: fail, type: python, on_error: mend}
  mend: {script: ok, type: python}
  b: {needs: [a, mend], script: ok, type: python}
  c: {script: fail, type: python, on_error: continue}
  d: {needs: [c], script: ok, type: python}
)");
     }},
    {"Child",
     [](FlowStage& stage) {
       stage.request_run("parent", R"(
name: parent
jobs:
  before: {script: ok, type: python}
  child: {needs: [before], flow: {name: inner, jobs: {x: {script: "ok n=1", type: python}, y: {needs: [x], script: ok, type: python}}}}
  after: {needs: [child], script: ok, type: python}
)");
     }},
    {"Cancel",
     [](FlowStage& stage) {
       stage.request_run("cancelled", R"(
name: cancelled
jobs:
  done: {script: ok, type: python, compensate: undo}
  long: {needs: [done], script: hold, type: python}
  inner: {needs: [done], flow: {name: inner, jobs: {x: {script: hold, type: python}}}}
  never: {needs: [long, inner], script: ok, type: python}
  undo: {script: ok, type: python}
)");
       stage.request_control("cancelled", control(FlowControl::Verb::cancel), [&stage] {
         const LoadedRun run = stage.run("cancelled");
         return stage.running("cancelled", "long") && run.state.nodes.at(run.plan->find("inner").value()).child != 0 &&
                stage.store().load(1, "flow:2").has_value() &&
                stage.server().run_command(1, {"HGET", "flow:2", "status"}).text() == "started";
       });
     }},
    {"ManualSteps",
     [](FlowStage& stage) {
       stage.request_run("manual", R"(
name: manual
jobs:
  build: {script: ok, type: python}
  ok: {needs: [build], approval: {comment: "ship?"}}
  ship: {needs: [ok], script: ok, type: python, prerequisites: ["signal:go"]}
)");
       stage.request_control("manual", control(FlowControl::Verb::approve, "ok"),
                             [&stage] { return stage.describe_node("manual", "ok") == "dispatched approval"; });
       stage.request_control("manual", control(FlowControl::Verb::signal, "go"));
     }},
    {"Retry",
     [](FlowStage& stage) {
       stage.request_run("again", R"(
name: again
jobs:
  a: {script: flaky, type: python}
  b: {needs: [a], script: ok, type: python}
  c: {needs: [b], script: ok, type: python}
)");
       stage.request_control("again", control(FlowControl::Verb::retry),
                             [&stage] { return stage.field("again", "status") == "error"; });
     }},
    {"Each",
     [](FlowStage& stage) {
       stage.request_run("each", R"(
name: each
max_parallel: 2
inputs: {sizes: {type: list, default: [7, 8]}}
jobs:
  list: {script: "ok files=[1,2,3]", type: python}
  parts: {each: list.files, max: 5, script: "ok n=1", type: python}
  sum: {needs: [parts], script: ok, type: python, when: {key: parts.count, equals: 3}}
  known: {each: inputs.sizes, script: ok, type: python}
)");
     }},
    {"EachRetried",
     [](FlowStage& stage) {
       stage.request_run("each", R"(
name: each
max_parallel: 1
jobs:
  list: {script: "ok files=[1,2,3]", type: python}
  parts: {each: list.files, max: 4, script: flaky, type: python}
  sum: {needs: [parts], script: ok, type: python}
)");
       for (int i = 0; i < 3; ++i) {
         stage.request_control("each", control(FlowControl::Verb::retry),
                               [&stage] { return stage.field("each", "status") == "error"; });
       }
     }},
    {"EachCancelled",
     [](FlowStage& stage) {
       stage.request_run("each", R"(
name: each
max_parallel: 1
jobs:
  list: {script: "ok files=[1,2,3]", type: python}
  parts: {each: list.files, max: 4, script: hold, type: python}
  never: {needs: [parts], each: [1, 2], script: ok, type: python}
)");
       stage.request_control("each", control(FlowControl::Verb::cancel),
                             [&stage] { return stage.running("each", "parts[0]"); });
     }},
    {"Gate",
     [](FlowStage& stage) {
       stage.request_run("one", "name: one\njobs: {a: {script: ok, type: python}}\n");
       stage.request_run("two", "name: two\njobs: {b: {script: ok, type: python, prerequisites: [\"flow:1\"]}}\n");
     }},
};

constexpr Fate kFates[] = {Fate::killed_before, Fate::killed_after, Fate::reply_lost, Fate::request_lost};

class FlowCrashPoints : public testing::TestWithParam<FlowScenario> {
 protected:
  void SetUp() override {
    const auto [outcome, writes] = play({});
    undisturbed_ = outcome;
    writes_ = writes;
    ASSERT_EQ(failures_, 0);
    ASSERT_GT(writes_, 3U);
    ASSERT_EQ(undisturbed_.find("started"), std::string::npos) << undisturbed_;
  }
  std::pair<std::string, std::uint64_t> play(const std::vector<Disturbance>& disturbances) {
    FlowStage stage;
    GetParam().play(stage);
    stage.disturb(disturbances);
    const bool ended = stage.play();
    std::string outcome = stage.outcome();
    std::string wrong;
    if (!ended) wrong += "it does not end; ";
    for (const std::string& line : stage.find_violations()) wrong += line + "; ";
    if (!undisturbed_.empty() && outcome != undisturbed_) wrong += "another end:\n" + outcome;
    if (!wrong.empty() && ++failures_ <= 3) {
      std::string where;
      for (const Disturbance& each : disturbances)
        where += std::to_string(each.write) + "/" + std::to_string(static_cast<int>(each.fate)) + " ";
      ADD_FAILURE() << where << ": " << wrong << "\nundisturbed:\n" << (undisturbed_.empty() ? outcome : undisturbed_);
    }
    return {std::move(outcome), stage.writes()};
  }
  bool enough() const { return failures_ >= 3; }

  std::string undisturbed_;
  std::uint64_t writes_ = 0;
  int failures_ = 0;
};

TEST_P(FlowCrashPoints, OneCrashAnywhereChangesNothing) {
  std::size_t points = 0;
  for (std::uint64_t write = 1; write <= writes_ && !enough(); ++write) {
    for (const Fate fate : kFates) {
      play({{write, fate}});
      ++points;
    }
  }
  std::printf("%s: %zu points (%llu writes)\n", GetParam().name, points, static_cast<unsigned long long>(writes_));
}

// Tests all pairs if MYCOJOBS_SIM_ROUNDS is set, otherwise a sample.
TEST_P(FlowCrashPoints, TwoCrashesAnywhereChangeNothing) {
  const bool all = std::getenv("MYCOJOBS_SIM_ROUNDS") != nullptr;
  constexpr std::uint64_t kFew = 150;
  const std::uint64_t stride = all ? 1 : 1 + writes_ * writes_ / kFew;
  std::size_t points = 0;
  std::uint64_t turn = 0;
  for (std::uint64_t first = 1; first <= writes_ && !enough(); ++first) {
    for (std::uint64_t second = first + 1 + turn % stride; second <= writes_ + 20 && !enough();
         second += stride, ++turn) {
      play({{first, kFates[turn % 4]}, {second, kFates[turn / 4 % 4]}});
      ++points;
    }
  }
  std::printf("%s: %zu pairs\n", GetParam().name, points);
}

INSTANTIATE_TEST_SUITE_P(Of, FlowCrashPoints, testing::ValuesIn(kScenarios),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace mycojobs
