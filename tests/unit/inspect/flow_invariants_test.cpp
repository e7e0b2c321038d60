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

constexpr std::uint64_t kNowMs = 1000000;

// Two nodes: build -> test.
FlowPlan make_two_node_plan() {
  return read_plan(
             nlohmann::json::parse(
                 R"j({"name":"p","jobs":{"build":{"script":"1","type":"python"},"test":{"needs":["build"],"script":"2","type":"python"}}})j"))
      .plan.value();
}

// A started flow: the job of "build" is queued, the job of "test" is planned.
struct FlowFixture {
  FlowInspection inspection;
  RunState state;

  void apply(decltype(FlowEvent::body) event_body) {
    FlowEvent event;
    event.now_ms = kNowMs;
    event.body = std::move(event_body);
    auto decided = decide(*inspection.plan, state, event);
    ASSERT_TRUE(decided.has_value());
    for (RunFact& fact : decided->facts) {
      fact.at_ms = kNowMs;
      inspection.facts.push_back(fact);
    }
    state = decided->state;
    inspection.revision = inspection.index_entries.revision = state.revision;
    inspection.record = Fields{{"id", "1"},
                               {"context_id", "1"},
                               {"status", std::string(to_string(state.status))},
                               {"detail", state.detail},
                               {"error", state.error}};
  }
  void set_field(const std::string& name, const std::string& value) {
    for (auto& [each, is] : *inspection.record) {
      if (each == name) is = value;
    }
  }
};

FlowFixture make_started() {
  FlowFixture out;
  out.inspection.context = out.inspection.flow = 1;
  out.inspection.plan = make_two_node_plan();
  out.state = initial_state(*out.inspection.plan);
  out.inspection.index_entries.state = "active";
  out.inspection.index_entries.in_active_index = out.inspection.index_entries.in_catalog = true;
  out.inspection.index_entries.now_ms = kNowMs;
  out.inspection.index_entries.identity = {{"id", "1"}};
  out.inspection.jobs.resize(2);
  out.inspection.jobs[0].job_key = "job:12:1", out.inspection.jobs[0].state = "queued";
  out.inspection.jobs[1].job_key = "job:12:2", out.inspection.jobs[1].state = "planned";
  out.apply(StartRun{"manual", 12});
  return out;
}

FlowFixture make_failed() {
  FlowFixture out = make_started();
  JobObserved failed_job;
  failed_job.node = 0, failed_job.ended = true, failed_job.status = "error", failed_job.detail = "exit";
  out.apply(failed_job);
  for (int i = 0; i < 5 && out.state.status == FlowStatus::started; ++i) out.apply(TimePassed{});
  EXPECT_EQ(out.state.status, FlowStatus::error);
  for (FlowJobView& job : out.inspection.jobs) job.state = "ended", job.status = "error";
  out.inspection.index_entries.state = "ended";
  out.inspection.index_entries.in_active_index = false;
  out.inspection.index_entries.in_ended_index = true;
  return out;
}

FlowFixture make_creating() {
  FlowFixture out;
  out.inspection.context = out.inspection.flow = 1;
  out.inspection.index_entries.state = "creating";
  out.inspection.index_entries.in_ended_index = true;
  out.inspection.index_entries.identity = {{"id", "1"}};
  out.inspection.record = Fields{{"id", "1"}, {"context_id", "1"}};
  return out;
}

std::string describe_findings(const std::vector<FlowFinding>& findings) {
  static const std::vector<std::string> kinds{"set_mark", "set_record", "enter", "leave", "dispatch"};
  static const std::vector<std::string> places{"", "active", "ended", "due", "catalog", "events", "checkpoint"};
  std::string out;
  for (const FlowFinding& each : findings) {
    out += (out.empty() ? "" : "; ") + each.rule;
    for (std::size_t i = 0; i < each.fixes.size(); ++i) {
      const FlowFix& fix = each.fixes[i];
      out += (i == 0 ? ": " : ", ") + kinds.at(static_cast<std::size_t>(fix.kind));
      if (fix.index != FlowFix::FlowIndex::none) out += ' ' + places.at(static_cast<std::size_t>(fix.index));
      if (!fix.job_key.empty()) out += ' ' + fix.job_key;
      for (const auto& [name, value] : fix.fields) out += ' ' + name + '=' + value;
    }
  }
  return out;
}

struct InvariantCase {
  const char* name;
  FlowFixture fixture;
  std::function<void(FlowFixture&)> corrupt;
  std::string findings;
};
void leave_unchanged(FlowFixture&) {}

std::vector<InvariantCase> rows() {
  return {
      {"begun", make_started(), leave_unchanged, ""},
      {"failed", make_failed(), leave_unchanged, ""},
      {"being created", make_creating(), leave_unchanged, ""},
      {"created, and another client wrote its record", make_creating(), [](FlowFixture& r) { r.set_field("id", "7"); },
       "flow-record: set_record id=1"},
      {"its state key says ended", make_started(),
       [](FlowFixture& r) {
         r.inspection.index_entries.state = "ended", r.inspection.index_entries.in_ended_index = true;
       },
       "flow-index: set_mark state=active, leave ended"},
      {"no index has it", make_started(),
       [](FlowFixture& r) {
         r.inspection.index_entries.in_active_index = r.inspection.index_entries.in_catalog = false;
       },
       "flow-index: enter active, enter catalog"},
      {"ended, and due", make_failed(), [](FlowFixture& r) { r.inspection.index_entries.due_ms = 5; },
       "flow-index: leave due"},
      {"ended, and forgotten by retention", make_failed(),
       [](FlowFixture& r) { r.inspection.index_entries.in_ended_index = false; }, "flow-index: enter ended"},
      {"it has moved", make_started(),
       [](FlowFixture& r) {
         ++r.inspection.index_entries.revision, r.inspection.index_entries.in_active_index = false;
       },
       ""},
      {"an event that nobody looks at", make_started(),
       [](FlowFixture& r) { r.inspection.index_entries.event_count = 1; }, "flow-due: enter due"},
      {"which somebody will", make_started(),
       [](FlowFixture& r) { r.inspection.index_entries.event_count = 1, r.inspection.index_entries.due_ms = kNowMs; },
       ""},
      {"an end that it does not hear of", make_started(),
       [](FlowFixture& r) { r.inspection.jobs[0].state = "ended", r.inspection.jobs[0].status = "finished"; },
       "flow-event-missing: dispatch job:12:1; flow-due: enter due"},
      {"which an event tells of", make_started(),
       [](FlowFixture& r) {
         r.inspection.jobs[0].state = "ended", r.inspection.jobs[0].status = "finished";
         r.inspection.ended_in_inbox.insert("job:12:1");
         r.inspection.index_entries.due_ms = kNowMs;
       },
       ""},
      {"dispatched, and still planned", make_started(), [](FlowFixture& r) { r.inspection.jobs[0].state = "planned"; },
       "flow-job: dispatch job:12:1; flow-due: enter due"},
      {"queued before its turn", make_started(), [](FlowFixture& r) { r.inspection.jobs[1].state = "queued"; },
       "flow-job"},
      {"run again after its node has settled", make_failed(),
       [](FlowFixture& r) { r.inspection.jobs[0].state = "queued"; }, "flow-job-rerun"},
      {"a checkpoint that says what the facts say", make_started(),
       [](FlowFixture& r) {
         r.inspection.checkpoint = checkpoint(*r.inspection.plan, r.state);
         r.inspection.checkpoint_revision = r.state.revision;
       },
       ""},
      {"one that does not", make_started(),
       [](FlowFixture& r) {
         RunState forged = r.state;
         forged.paused = true;
         r.inspection.checkpoint = checkpoint(*r.inspection.plan, forged);
         r.inspection.checkpoint_revision = r.state.revision;
       },
       "flow-checkpoint: leave checkpoint"},
      {"one that cannot be read", make_started(), [](FlowFixture& r) { r.inspection.checkpoint = "nonsense"; },
       "flow-checkpoint: leave checkpoint"},
      {"a fact of no kind", make_started(),
       [](FlowFixture& r) {
         RunFact unknown_fact;
         unknown_fact.revision = r.inspection.revision = r.inspection.index_entries.revision =
             r.inspection.revision + 1;
         unknown_fact.kind = "exploded";
         unknown_fact.at_ms = kNowMs;
         r.inspection.facts.push_back(unknown_fact);
       },
       "flow-fact"},
      {"another client's key where its events belong", make_started(),
       [](FlowFixture& r) { r.inspection.index_entries.has_invalid_event_key = true; }, "flow-journal: leave events"},
      {"entries that are no facts", make_started(),
       [](FlowFixture& r) { r.inspection.anomalies = {"entry 7-0 is no fact"}; }, "flow-journal"},
      {"no record", make_started(), [](FlowFixture& r) { r.inspection.record.reset(); },
       "flow-record: set_record id=1 context_id=1 status=started detail=" + make_started().state.detail},
      {"a record that says finished", make_started(), [](FlowFixture& r) { r.set_field("status", "finished"); },
       "flow-record: set_record status=started"},
  };
}

TEST(FlowInvariants, EachHasItsRuleAndRepair) {
  for (const InvariantCase& row : rows()) {
    FlowFixture run = row.fixture;
    row.corrupt(run);
    const auto findings = check_invariants(run.inspection);
    EXPECT_EQ(describe_findings(findings), row.findings) << row.name;
    for (const FlowFinding& each : findings) EXPECT_TRUE(each.text.starts_with("flow:1 ")) << each.text;
  }
}

}  // namespace
}  // namespace mycojobs::flow_invariants
