// Lists of jobs, ordered by their last change, for all numbers of jobs and all clients that write records.
#include <gmock/gmock.h>

#include <algorithm>

#include "inspect/job_view.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class JobListContract : public StoreContract {
 protected:
  static std::string key(Id id) { return "job:12:" + std::to_string(id); }
  void push_plain(Id id, Fields more = {}) {
    Fields fields{{"id", std::to_string(id)}, {"caller_id", "12"},       {"context_id", "1"},
                  {"script", "pass"},         {"script_type", "python"}, {"status", "dispatched"}};
    fields.insert(fields.end(), more.begin(), more.end());
    ASSERT_TRUE(store_->save(1, key(id), fields).has_value());
    backend_->push(1, "queue:python", key(id));
  }
  std::vector<Id> listed(JobQuery query = {}) {
    auto list = list_jobs(*store_, 1, query, [](std::uint64_t, std::uint64_t) {});
    EXPECT_TRUE(list.has_value()) << list.error().message;
    std::vector<Id> ids;
    for (const JobView& view : list ? list->jobs : std::vector<JobView>()) ids.push_back(view.job.id);
    more_ = list && list->has_more;
    return ids;
  }
  static JobQuery wanted(const std::function<void(JobFilter&)>& change) {
    JobQuery query;
    change(query.filter);
    return query;
  }
  // Waits until the clock of the store advances. It can show the same millisecond for several calls.
  void next_moment() {
    const std::uint64_t now = store_->now_ms().value();
    ASSERT_TRUE(eventually([&] { return store_->now_ms().value() > now; }));
  }
  bool more_ = false;
};

TEST_P(JobListContract, LatestChangeIsFirst) {
  for (Id id = 1; id <= 4; ++id) submit(id), next_moment();
  EXPECT_THAT(listed(), ElementsAre(4, 3, 2, 1));
  const auto first = claim(2);
  ASSERT_EQ(first.size(), 2U);
  next_moment();
  ASSERT_EQ(outcome(end(first[0].ref, finished())), "ok");
  EXPECT_EQ(listed({{}, 1}), std::vector<Id>{1});
  EXPECT_TRUE(more_);
  next_moment();
  ASSERT_TRUE(store_->cancel(1, key(3)).has_value());
  EXPECT_THAT(listed(), ElementsAre(3, 1, 2, 4));
  EXPECT_FALSE(more_);
  next_moment();
  ASSERT_EQ(outcome(report(DetailUpdate{first[1].ref, "running"})), "ok");
  EXPECT_EQ(listed({{}, 1}), std::vector<Id>{2});
}

TEST_P(JobListContract, PlainJobsAreListedBeforeAndAfterTheirClaim) {
  submit(1);
  next_moment();
  push_plain(2);
  push_plain(3, {{"created_at", "1000"}});
  EXPECT_THAT(listed(), ElementsAre(2, 1, 3));
  ASSERT_EQ(claim(3).size(), 3U);
  EXPECT_EQ(listed().size(), 3U);
  EXPECT_EQ(backend_->run_command(1, {"ZCARD", "mj:jobs"}).number(), 3U);
}

TEST_P(JobListContract, RecordsWithoutAQueueAreListed) {
  ASSERT_TRUE(store_->create_job(job(5)).has_value());
  EXPECT_THAT(listed(), ElementsAre(5));
}

TEST_P(JobListContract, Filters) {
  Job named_job = job(1);
  named_job.name = "nightly backup";
  ASSERT_TRUE(store_->submit(named_job).has_value());
  Job other = job(2);
  other.caller_id = 13;
  other.script_type = "osis";
  ASSERT_TRUE(store_->submit(other).has_value());
  submit(3);
  ASSERT_TRUE(store_->cancel(1, key(3)).has_value());
  push_plain(4, {{"name", "backup by hand"}});
  push_plain(5, {{"status", "error"}, {"detail", "skipped"}, {"flow_id", "7"}});
  push_plain(6, {{"status", "error"}, {"detail", "not_needed"}, {"flow_id", "7"}});
  EXPECT_THAT(listed(wanted([](auto& w) { w.name = "backup"; })), ElementsAre(4, 1));
  EXPECT_THAT(listed(wanted([](auto& w) { w.name = "b.*p"; })), IsEmpty());
  EXPECT_THAT(listed(wanted([](auto& w) { w.script_type = "osis"; })), ElementsAre(2));
  EXPECT_THAT(listed(wanted([](auto& w) { w.caller = 13; })), ElementsAre(2));
  EXPECT_THAT(listed(wanted([](auto& w) { w.state = "cancelled"; })), ElementsAre(3));
  EXPECT_EQ(listed(wanted([](auto& w) { w.state = "error"; })).size(), 3U) << "with what a flow left out";
  EXPECT_THAT(listed(wanted([](auto& w) { w.status = JobStatus::error; })), ElementsAre(3));
  EXPECT_THAT(listed(wanted([](auto& w) { w.status = JobStatus::error, w.state = "skipped"; })), ElementsAre(5));
  EXPECT_EQ(listed(wanted([](auto& w) { w.since_ms = 1000; })).size(), 6U);
  EXPECT_THAT(listed(wanted([](auto& w) { w.since_ms = UINT64_MAX; })), IsEmpty());
}

TEST_P(JobListContract, PagesListEachJobOnceAfterManyChanges) {
  for (Id id = 1; id <= 25; ++id) submit(id);
  for (Id id = 1; id <= 20; ++id) backend_->run_command(1, {"ZADD", "mj:jobs", "5000", key(id)});
  JobQuery query;
  query.filter.max_scanned = 7;
  std::vector<Id> all = listed(query);
  EXPECT_EQ(all.size(), 25U);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  query.limit = 3;
  EXPECT_THAT(listed(query), ElementsAre(25, 24, 23));
}

TEST_P(JobListContract, LargeSearchStopsAndResumes) {
  Job rare = job(1);
  rare.name = "needle";
  ASSERT_TRUE(store_->submit(rare).has_value());
  std::vector<std::string> words{"ZADD", "mj:jobs"};
  for (Id id = 100; id < 100 + kMaxRowsPerPage + 500; ++id) words.insert(words.end(), {"9000000000000000", key(id)});
  backend_->run_command(1, words);
  JobFilter wanted;
  wanted.name = "needle";
  const auto first = page_jobs(*store_, 1, wanted, 50);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_TRUE(first->jobs.empty());
  EXPECT_EQ(first->rows_read, kMaxRowsPerPage);
  ASSERT_FALSE(first->after.empty());
  wanted.cursor = first->after;
  const auto second = page_jobs(*store_, 1, wanted, 50);
  ASSERT_TRUE(second) << second.error().message;
  ASSERT_EQ(second->jobs.size(), 1U);
  EXPECT_EQ(second->jobs[0].job.name, "needle");
  EXPECT_EQ(second->rows_read, 501U);
  EXPECT_EQ(second->after, "");
}

TEST_P(JobListContract, FilteredPagesAreFullAndListEachJobOnce) {
  for (Id id = 1; id <= 25; ++id) submit(id);
  for (Id id = 1; id <= 20; ++id) backend_->run_command(1, {"ZADD", "mj:jobs", "5000", key(id)});
  JobFilter wanted;
  wanted.script_type = "python";
  std::vector<Id> all;
  std::vector<std::size_t> sizes;
  do {
    const auto slice = page_jobs(*store_, 1, wanted, 7);
    ASSERT_TRUE(slice) << slice.error().message;
    sizes.push_back(slice->jobs.size());
    for (const JobView& each : slice->jobs) all.push_back(each.job.id);
    wanted.cursor = slice->after;
  } while (!wanted.cursor.empty() && sizes.size() < 10);
  EXPECT_THAT(sizes, ElementsAre(7, 7, 7, 4));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
}

TEST_P(JobListContract, RetiredAndDeletedJobsLeaveTheList) {
  submit(1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  ASSERT_TRUE(store_->create_job(job(2)).has_value());
  backend_->erase(1, key(2));
  TickRequest now;
  now.retention = Retention::same_for_all(0);
  now.retention_count = 0;
  EXPECT_THAT(listed(), ElementsAre(1));
  ASSERT_TRUE(store_->tick(1, now).has_value());
  EXPECT_EQ(backend_->run_command(1, {"ZCARD", "mj:jobs"}).number(), 1U);
  submit(3);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  now.retention_count = 1;
  ASSERT_TRUE(store_->tick(1, now).has_value());
  EXPECT_THAT(listed(), ElementsAre(3));
  EXPECT_EQ(backend_->run_command(1, {"ZCARD", "mj:jobs"}).number(), 1U);
}

TEST_P(JobListContract, ForeignKeyHidesJobsAndStopsNone) {
  backend_->put_text(1, "mj:jobs", "mine");
  submit(1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  EXPECT_EQ(outcome(list_jobs(*store_, 1, {}, [](std::uint64_t, std::uint64_t) {})), "invalid");
}

TEST_P(JobListContract, ForeignIndexMembersAreNotShown) {
  submit(1);
  backend_->run_command(1, {"ZADD", "mj:jobs", "9999999999999999", "job:$(x):1", "9999999999999999", "actor:1"});
  backend_->run_command(1, {"HSET", "actor:1", "id", "1", "secret", "s"});
  EXPECT_THAT(listed(), ElementsAre(1));
}

MJ_BOTH_STORES(JobListContract);

TEST_P(JobListContract, CountUsesIndexesWithAnyMembers) {
  for (Id id = 1; id <= 3; ++id) submit(id);
  push_plain(9);
  ASSERT_EQ(claim(1).size(), 1U);
  ASSERT_EQ(outcome(store_->set_queue_paused(1, "queue:sal", true)), "ok");
  auto tally = store_->tally(1, 1000, 5);
  ASSERT_TRUE(tally) << tally.error().message;
  EXPECT_EQ(tally->running, 1U);
  EXPECT_EQ(tally->jobs, 3U) << "the pushed job is not indexed yet";
  EXPECT_EQ(tally->ended_per_slot, std::vector<std::uint64_t>(tally->ended_per_slot.size(), 0));
  ASSERT_EQ(tally->queues.size(), 2U);
  EXPECT_EQ(tally->queues[0].length, 3U);
  EXPECT_EQ(tally->queues[0].next_job, key(2));
  EXPECT_TRUE(tally->queues[1].paused);
  for (const char* name : {"mj:ended", "mj:leases", "mj:queues", "mj:paused"})
    ASSERT_TRUE(store_->save(2, name, {{"a", "b"}}));
  const auto nonsense = store_->tally(2, 0, 1000);
  ASSERT_TRUE(nonsense) << nonsense.error().message;
  EXPECT_EQ(nonsense->ended + nonsense->running, 0U);
}

}  // namespace
}  // namespace mycojobs
