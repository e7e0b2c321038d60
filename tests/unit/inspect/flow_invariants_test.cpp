// Violations of the flow invariants and their fixes: one row per rule, each derived from a consistent flow.
#include "inspect/invariants.h"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "flows/flow_decider.h"

namespace mycojobs::flow_invariants {
namespace {

constexpr std::uint64_t kMoment = 1000000;

// Two nodes: build -> test.
FlowPlan plan_of_two() {
  return read_plan(
             nlohmann::json::parse(
                 R"j({"name":"p","jobs":{"build":{"script":"1","type":"python"},"test":{"needs":["build"],"script":"2","type":"python"}}})j"))
      .plan.value();
}

// A started flow: the job of "build" is queued, the job of "test" is planned.
struct Begun {
  FlowInspection inspection;
  RunState state;

  void apply(decltype(FlowEvent::what) what) {
    FlowEvent event;
    event.now_ms = kMoment;
    event.what = std::move(what);
    auto decided = decide(*inspection.plan, state, event);
    ASSERT_TRUE(decided.has_value());
    for (RunFact& fact : decided->facts) {
      fact.at_ms = kMoment;
      inspection.facts.push_back(fact);
    }
    state = decided->state;
    inspection.revision = inspection.places.revision = state.revision;
    inspection.record = Fields{{"id", "1"},
                               {"context_id", "1"},
                               {"status", std::string(to_string(state.status))},
                               {"detail", state.detail},
                               {"error", state.error}};
  }
  void say(const std::string& name, const std::string& value) {
    for (auto& [each, is] : *inspection.record) {
      if (each == name) is = value;
    }
  }
};

Begun begun() {
  Begun out;
  out.inspection.context = out.inspection.flow = 1;
  out.inspection.plan = plan_of_two();
  out.state = initial_state(*out.inspection.plan);
  out.inspection.places.state = "active";
  out.inspection.places.active = out.inspection.places.listed = true;
  out.inspection.places.now_ms = kMoment;
  out.inspection.places.identity = {{"id", "1"}};
  out.inspection.jobs.resize(2);
  out.inspection.jobs[0].job_key = "job:12:1", out.inspection.jobs[0].state = "queued";
  out.inspection.jobs[1].job_key = "job:12:2", out.inspection.jobs[1].state = "planned";
  out.apply(StartRun{"manual", 12});
  return out;
}

Begun failed() {
  Begun out = begun();
  JobObserved bad;
  bad.node = 0, bad.ended = true, bad.status = "error", bad.detail = "exit";
  out.apply(bad);
  for (int i = 0; i < 5 && out.state.status == FlowStatus::started; ++i) out.apply(TimePassed{});
  EXPECT_EQ(out.state.status, FlowStatus::error);
  for (FlowJobView& job : out.inspection.jobs) job.state = "ended", job.status = "error";
  out.inspection.places.state = "ended";
  out.inspection.places.active = false;
  out.inspection.places.ended = true;
  return out;
}

Begun creating() {
  Begun out;
  out.inspection.context = out.inspection.flow = 1;
  out.inspection.places.state = "creating";
  out.inspection.places.ended = true;
  out.inspection.places.identity = {{"id", "1"}};
  out.inspection.record = Fields{{"id", "1"}, {"context_id", "1"}};
  return out;
}

std::string text_of(const std::vector<FlowFinding>& findings) {
  static const std::vector<std::string> kinds{"set_mark", "set_record", "enter", "leave", "dispatch"};
  static const std::vector<std::string> places{"", "active", "ended", "due", "catalog", "events", "checkpoint"};
  std::string out;
  for (const FlowFinding& each : findings) {
    out += (out.empty() ? "" : "; ") + each.rule;
    for (std::size_t i = 0; i < each.fixes.size(); ++i) {
      const FlowFix& fix = each.fixes[i];
      out += (i == 0 ? ": " : ", ") + kinds.at(static_cast<std::size_t>(fix.kind));
      if (fix.place != FlowFix::FlowIndex::none) out += ' ' + places.at(static_cast<std::size_t>(fix.place));
      if (!fix.job.empty()) out += ' ' + fix.job;
      for (const auto& [name, value] : fix.words) out += ' ' + name + '=' + value;
    }
  }
  return out;
}

struct Broken {
  const char* name;
  Begun of;
  std::function<void(Begun&)> how;
  std::string findings;
};
void not_at_all(Begun&) {}

std::vector<Broken> rows() {
  return {
      {"begun", begun(), not_at_all, ""},
      {"failed", failed(), not_at_all, ""},
      {"being created", creating(), not_at_all, ""},
      {"created, and another client wrote its record", creating(), [](Begun& r) { r.say("id", "7"); },
       "flow-record: set_record id=1"},
      {"its state key says ended", begun(),
       [](Begun& r) { r.inspection.places.state = "ended", r.inspection.places.ended = true; },
       "flow-index: set_mark state=active, leave ended"},
      {"no index has it", begun(), [](Begun& r) { r.inspection.places.active = r.inspection.places.listed = false; },
       "flow-index: enter active, enter catalog"},
      {"ended, and due", failed(), [](Begun& r) { r.inspection.places.due_ms = 5; }, "flow-index: leave due"},
      {"ended, and forgotten by retention", failed(), [](Begun& r) { r.inspection.places.ended = false; },
       "flow-index: enter ended"},
      {"it has moved", begun(), [](Begun& r) { ++r.inspection.places.revision, r.inspection.places.active = false; },
       ""},
      {"an event that nobody looks at", begun(), [](Begun& r) { r.inspection.places.events = 1; },
       "flow-due: enter due"},
      {"which somebody will", begun(),
       [](Begun& r) { r.inspection.places.events = 1, r.inspection.places.due_ms = kMoment; }, ""},
      {"an end that it does not hear of", begun(),
       [](Begun& r) { r.inspection.jobs[0].state = "ended", r.inspection.jobs[0].status = "finished"; },
       "flow-unheard: dispatch job:12:1; flow-due: enter due"},
      {"which an event tells of", begun(),
       [](Begun& r) {
         r.inspection.jobs[0].state = "ended", r.inspection.jobs[0].status = "finished";
         r.inspection.heard.insert("job:12:1");
         r.inspection.places.due_ms = kMoment;
       },
       ""},
      {"dispatched, and still planned", begun(), [](Begun& r) { r.inspection.jobs[0].state = "planned"; },
       "flow-job: dispatch job:12:1; flow-due: enter due"},
      {"queued before its turn", begun(), [](Begun& r) { r.inspection.jobs[1].state = "queued"; }, "flow-job"},
      {"run again after its node has settled", failed(), [](Begun& r) { r.inspection.jobs[0].state = "queued"; },
       "flow-job-again"},
      {"a checkpoint that says what the facts say", begun(),
       [](Begun& r) {
         r.inspection.checkpoint = checkpoint(*r.inspection.plan, r.state);
         r.inspection.checkpoint_at = r.state.revision;
       },
       ""},
      {"one that does not", begun(),
       [](Begun& r) {
         RunState forged = r.state;
         forged.paused = true;
         r.inspection.checkpoint = checkpoint(*r.inspection.plan, forged);
         r.inspection.checkpoint_at = r.state.revision;
       },
       "flow-checkpoint: leave checkpoint"},
      {"one that cannot be read", begun(), [](Begun& r) { r.inspection.checkpoint = "nonsense"; },
       "flow-checkpoint: leave checkpoint"},
      {"a fact of no kind", begun(),
       [](Begun& r) {
         RunFact odd;
         odd.revision = r.inspection.revision = r.inspection.places.revision = r.inspection.revision + 1;
         odd.kind = "exploded";
         odd.at_ms = kMoment;
         r.inspection.facts.push_back(odd);
       },
       "flow-fact"},
      {"another client's key where its events belong", begun(), [](Begun& r) { r.inspection.places.deaf = true; },
       "flow-journal: leave events"},
      {"entries that are no facts", begun(), [](Begun& r) { r.inspection.anomalies = {"entry 7-0 is no fact"}; },
       "flow-journal"},
      {"no record", begun(), [](Begun& r) { r.inspection.record.reset(); },
       "flow-record: set_record id=1 context_id=1 status=started detail=" + begun().state.detail},
      {"a record that says finished", begun(), [](Begun& r) { r.say("status", "finished"); },
       "flow-record: set_record status=started"},
  };
}

TEST(FlowInvariants, EachHasItsRuleAndRepair) {
  for (const Broken& row : rows()) {
    Begun run = row.of;
    row.how(run);
    const auto findings = check_invariants(run.inspection);
    EXPECT_EQ(text_of(findings), row.findings) << row.name;
    for (const FlowFinding& each : findings) EXPECT_TRUE(each.text.starts_with("flow:1 ")) << each.text;
  }
}

}  // namespace
}  // namespace mycojobs::flow_invariants
