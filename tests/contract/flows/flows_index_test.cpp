// Catalogs, retention and schedules of flows.
#include <gmock/gmock.h>

#include <algorithm>

#include "contract/flow_contract.h"
#include "model/submitted_files.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
class FlowsIndex : public FlowContract {
 protected:
  std::vector<Id> listed(const std::string& name = "", Id before = 0, std::uint32_t max = 100) {
    std::vector<Id> out;
    const auto rows = flows_->list(1, name, before, max).value();
    for (const FlowSummary& each : rows) out.push_back(each.flow);
    return out;
  }
  void finish(Id flow) {
    begin(flow);
    FlowCommit last = commit(flow, 1);
    last.ended = true;
    ASSERT_TRUE(flows_->commit(last));
  }
  std::uint32_t retire_all() {
    std::uint32_t gone = 0;
    EXPECT_TRUE(eventually([&] { return (gone += flows_->retire(1, 1, 100).value()) > 0; }));
    return gone;
  }
  std::vector<std::string> left() {
    std::vector<std::string> out;
    for (const char* prefix : {"flow:", "mj:flow", "mj:definition"}) {
      const auto keys = store_->keys(1, prefix, 100).value();
      out.insert(out.end(), keys.begin(), keys.end());
    }
    return out;
  }
  static Schedule schedule(const std::string& name = "nightly") {
    Schedule out;
    out.name = name;
    out.caller = 12;
    out.cron = "0 3 * * *";
    out.zone = "Europe/Berlin";
    out.overlap = "skip";
    out.missed = "once";
    out.definition_hash = "abc";
    out.next_start_ms = 5;
    return out;
  }
};

TEST_P(FlowsIndex, CatalogListsTheNewestFirst) {
  const Id a = new_flow(1, "a"), b = new_flow(1, "b"), c = new_flow(1, "a");
  EXPECT_THAT(listed(), ElementsAre(c, b, a));
  EXPECT_THAT(listed("a"), ElementsAre(c, a));
  EXPECT_THAT(listed("none"), IsEmpty());
  EXPECT_THAT(listed("", c), ElementsAre(b, a));
  EXPECT_THAT(listed("a", c), ElementsAre(a));
  EXPECT_THAT(listed("", 0, 2), ElementsAre(c, b));
  const FlowSummary row = flows_->list(1, "a", 0, 1).value().at(0);
  EXPECT_EQ(row.name, "a");
  EXPECT_GT(row.at_ms, 1600000000000U);
  const auto has_field = [&](const std::string& name) {
    return std::any_of(row.record.begin(), row.record.end(), [&](const auto& each) { return each.first == name; });
  };
  EXPECT_TRUE(has_field("status"));
  EXPECT_FALSE(has_field("nodes"));
}

TEST_P(FlowsIndex, UnfinishedCreationIsInNoCatalog) {
  ASSERT_TRUE(flows_->create(draft(1)));
  EXPECT_THAT(listed(), IsEmpty());
}

TEST_P(FlowsIndex, AbandonedCreationIsRemovedWithTheFilesOfItsJobs) {
  const FlowIds place = flows_->create(draft(1)).value();
  std::vector<Job> jobs{job(place.first_job)};
  ASSERT_TRUE(set_submitted_files(jobs[0], {"input", {{"data.csv", "a,b"}}}));
  ASSERT_EQ(outcome(flows_->put_jobs(1, place.flow, jobs)), "ok");
  const std::string files_key = job_files_key("job:12:" + std::to_string(place.first_job));
  EXPECT_EQ(field(files_key, "stdin"), "input");
  ASSERT_EQ(outcome(flows_->remove(1, place.flow)), "ok");
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", files_key}).number(), 0U);
}

TEST_P(FlowsIndex, ManyAreListedInPages) {
  for (int i = 0; i < 60; ++i) {
    const FlowIds place = flows_->create(draft(0)).value();
    ASSERT_TRUE(flows_->put_flow(flow(place), "{}"));
    if (i % 3 == 0) backend_->run_command(1, {"XADD", "mj:flow-catalog", "*", "flow", "nonsense"});
  }
  std::vector<Id> all;
  for (Id before = 0;;) {
    const auto page = listed("pipeline", before, 7);
    if (page.empty()) break;
    all.insert(all.end(), page.begin(), page.end());
    before = page.back();
  }
  EXPECT_EQ(all.size(), 60U);
  EXPECT_EQ(listed("", 0, 1000).size(), 60U);
  backend_->erase(1, "mj:flow:30");
  EXPECT_EQ(listed("", 30).size(), 29U);
}

TEST_P(FlowsIndex, EndedFlowIsRemovedCompletely) {
  const FlowIds place = flows_->create(draft(1, "key")).value();
  put(place, 1);
  EXPECT_EQ(flows_->retire(1, 1, 100).value(), 0U);
  const auto refused = flows_->remove(1, place.flow);
  EXPECT_EQ(outcome(refused), "conflict");
  finish(place.flow);
  EXPECT_EQ(flows_->retire(1, 3600000, 100).value(), 0U);
  EXPECT_EQ(flows_->retire(1, 0, 100).value(), 0U);
  EXPECT_EQ(retire_all(), 1U);
  EXPECT_THAT(left(), ElementsAre("mj:flow-catalog"));
  EXPECT_THAT(listed(), IsEmpty());
  EXPECT_FALSE(flows_->create(draft(1, "key")).value().existed);
}

TEST_P(FlowsIndex, RemovedFlowIsGoneAtOnce) {
  const Id one = new_flow(1), two = new_flow(1);
  finish(one);
  ASSERT_TRUE(flows_->remove(1, one));
  EXPECT_EQ(outcome(flows_->remove(1, one)), "not_found");
  EXPECT_THAT(listed(), ElementsAre(two));
  EXPECT_TRUE(flows_->definition(1, "abc")) << "another flow uses it";
}

TEST_P(FlowsIndex, UnfinishedCreationIsRemovedWithItsJobs) {
  const FlowIds place = flows_->create(draft(450, "key")).value();
  std::vector<Job> jobs;
  for (Id i = 0; i < 430; ++i) jobs.push_back(job(place.first_job + i));
  ASSERT_TRUE(flows_->put_jobs(1, place.flow, jobs));
  EXPECT_EQ(retire_all(), 1U);
  EXPECT_THAT(left(), IsEmpty());
  EXPECT_THAT(store_->keys(1, "job:", 10).value(), IsEmpty());
  EXPECT_THAT(store_->keys(1, "mj:claim:", 10).value(), IsEmpty());
  EXPECT_THAT(store_->journal(1, "queue:python", 0, 10).value(), IsEmpty());
}

TEST_P(FlowsIndex, JobsOfARunningFlowAreNotRetired) {
  const Id flow = new_flow(2);
  begin(flow, {"job:12:1", "job:12:2"});
  for (const ClaimedJob& each : claim(2)) ASSERT_EQ(outcome(end(each.ref, finished())), "ok");
  submit(50);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  TickRequest soon;
  soon.retention = Retention::same_for_all(1);
  ASSERT_TRUE(eventually([&] { return store_->tick(1, soon).has_value() && state("job:12:50") == "absent"; }));
  EXPECT_EQ(state("job:12:1"), "ended");
  TickRequest few;
  few.retention = Retention::same_for_all(0);
  few.retention_count = 1;
  few.max_entries = 1;
  const TickReply reply = store_->tick(1, few).value();
  EXPECT_EQ(reply.retired, 0U);
  EXPECT_FALSE(reply.has_more) << "nothing can be done about it now";
  FlowCommit last = commit(flow, 1);
  last.ended = true;
  ASSERT_TRUE(flows_->commit(last));
  ASSERT_TRUE(eventually([&] { return store_->tick(1, soon).has_value() && state("job:12:1") == "absent"; }));
}

TEST_P(FlowsIndex, SchedulesAreFencedByTheirRevision) {
  ASSERT_TRUE(flows_->put_schedule(1, schedule(), "{}", 0));
  ASSERT_TRUE(flows_->put_schedule(1, schedule(), "{}", 0)) << "repeated after a lost reply";
  Schedule stored = flows_->schedules(1).value().at(0);
  EXPECT_EQ(stored.revision, 1U);
  EXPECT_EQ(stored.caller, 12U);
  EXPECT_EQ(stored.cron, "0 3 * * *");
  EXPECT_EQ(stored.zone, "Europe/Berlin");
  EXPECT_EQ(stored.overlap, "skip");
  EXPECT_EQ(stored.missed, "once");
  EXPECT_EQ(stored.next_start_ms, 5U);
  EXPECT_EQ(flows_->definition(1, "abc").value(), "{}");
  stored.next_start_ms = 6, stored.last_flow = 7, stored.paused = true, stored.skip_reason = "late";
  ASSERT_TRUE(flows_->put_schedule(1, stored, "", 1));
  ASSERT_TRUE(flows_->put_schedule(1, stored, "", 1));
  Schedule other = stored;
  other.next_start_ms = 9;
  EXPECT_EQ(outcome(flows_->put_schedule(1, other, "", 1)), "conflict");
  EXPECT_EQ(outcome(flows_->put_schedule(1, other, "", 0)), "conflict");
  stored = flows_->schedules(1).value().at(0);
  EXPECT_EQ(stored.revision, 2U);
  EXPECT_EQ(stored.last_flow, 7U);
  EXPECT_TRUE(stored.paused);
  EXPECT_EQ(stored.skip_reason, "late");
}

TEST_P(FlowsIndex, DefinitionIsRemovedWithItsLastUser) {
  ASSERT_TRUE(flows_->put_schedule(1, schedule(), "{}", 0));
  const Id flow = new_flow(1);
  finish(flow);
  ASSERT_TRUE(flows_->remove(1, flow));
  EXPECT_TRUE(flows_->definition(1, "abc"));
  Schedule changed = schedule();
  changed.definition_hash = "def";
  EXPECT_EQ(outcome(flows_->put_schedule(1, changed, "", 1)), "not_found");
  ASSERT_TRUE(flows_->put_schedule(1, changed, "{}", 1));
  EXPECT_EQ(outcome(flows_->definition(1, "abc")), "not_found");
  ASSERT_TRUE(flows_->remove_schedule(1, "nightly"));
  EXPECT_EQ(outcome(flows_->definition(1, "def")), "not_found");
  EXPECT_EQ(outcome(flows_->remove_schedule(1, "nightly")), "not_found");
  EXPECT_THAT(flows_->schedules(1).value(), IsEmpty());
}

TEST_P(FlowsIndex, NamesOfSchedulesAreChecked) {
  for (const char* name : {"", "A", "-a", "a b", "a:b", "a/b"}) {
    EXPECT_EQ(outcome(flows_->put_schedule(1, schedule(name), "{}", 0)), "invalid") << name;
    EXPECT_EQ(outcome(flows_->remove_schedule(1, name)), "invalid") << name;
  }
  EXPECT_TRUE(flows_->put_schedule(1, schedule("0.a_b-c"), "{}", 0));
}

MJ_BOTH_STORES(FlowsIndex);

}  // namespace
}  // namespace mycojobs
