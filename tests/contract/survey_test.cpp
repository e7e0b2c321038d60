// Numbers that describe a context: all stores return the same, and data of other clients is ignored.
#include <gmock/gmock.h>

#include "store_contract.h"

namespace mycojobs {
namespace {

class QueueSurvey : public StoreContract {
 protected:
  Survey survey(const std::vector<std::string>& queues = {"queue:python"}) {
    auto read = store_->survey(1, queues);
    EXPECT_TRUE(read.has_value()) << read.error().message;
    return read.value_or(Survey{});
  }
  static const Survey::Queue* find(const Survey& all, const std::string& queue) {
    const auto found = std::find_if(all.queues.begin(), all.queues.end(),
                                    [&](const Survey::Queue& each) { return each.queue == queue; });
    return found == all.queues.end() ? nullptr : &*found;
  }
};

TEST_P(QueueSurvey, EmptyContextHoldsNothing) {
  const Survey all = survey();
  ASSERT_EQ(all.queues.size(), 1U);
  EXPECT_EQ(all.queues[0].length, 0U);
  EXPECT_EQ(all.queues[0].waiting_ms, 0U);
  EXPECT_FALSE(all.queues[0].paused);
  EXPECT_EQ(all.live + all.delayed + all.prerequisites + all.ended + all.dead_letters + all.active_flows, 0U);
}

TEST_P(QueueSurvey, JobsAreCountedByState) {
  for (Id id = 1; id <= 4; ++id) submit(id);
  Job later = job(5);
  later.run_at_ms = *store_->now_ms() + 3600000;
  ASSERT_TRUE(store_->submit(later));
  Job urgent = job(6);
  urgent.priority = 3;
  ASSERT_TRUE(store_->submit(urgent));
  const auto claimed = claim(2);
  ASSERT_EQ(claimed.size(), 2U);
  ASSERT_EQ(outcome(end(claimed[0].ref, finished())), "ok");
  backend_->push(1, "queue:python", "nonsense");
  const Survey all = survey();
  const Survey::Queue* queue = find(all, "queue:python");
  ASSERT_NE(queue, nullptr);
  EXPECT_EQ(queue->length, 4U) << "3 jobs and an invalid entry";
  EXPECT_EQ(all.live, 1U);
  EXPECT_EQ(all.ended, 1U);
  EXPECT_EQ(all.delayed, 1U);
}

TEST_P(QueueSurvey, NextJobHasItsWaitingTime) {
  submit(1);
  const std::uint64_t queued = std::stoull(field("job:12:1", "queued_ms"));
  ASSERT_TRUE(eventually([&] { return *store_->now_ms() >= queued + 30; }));
  submit(2);
  const Survey all = survey();
  EXPECT_GE(all.queues.at(0).waiting_ms, 30U);
  EXPECT_LT(all.queues.at(0).waiting_ms, 60000U);
}

TEST_P(QueueSurvey, QueuesWithAJournalAreFoundAndPausesReported) {
  Job other = job(1);
  other.script_type = "lua_of_ours";
  ASSERT_TRUE(store_->submit(other));
  ASSERT_TRUE(store_->set_queue_paused(1, "queue:lua_of_ours", true));
  const auto known = store_->known_queues(1);
  ASSERT_TRUE(known);
  EXPECT_THAT(known->journals, testing::Contains("queue:lua_of_ours"));
  const Survey all = survey({"queue:lua_of_ours", "queue:python"});
  const Survey::Queue* queue = find(all, "queue:lua_of_ours");
  ASSERT_NE(queue, nullptr);
  EXPECT_EQ(queue->length, 1U);
  EXPECT_TRUE(queue->paused);
  EXPECT_FALSE(find(all, "queue:python")->paused);
}

TEST_P(QueueSurvey, ServedTypesOfRunnersAreKnown) {
  Runner runner;
  runner.id = 7;
  runner.local = true;
  runner.executors = {"python", "ours"};
  RunnerHolder self, held;
  self.instance = "a";
  ASSERT_TRUE(store_->hold_runner(1, runner, self, 10000, "", held));
  const auto known = store_->known_queues(1);
  ASSERT_TRUE(known);
  EXPECT_THAT(known->types, testing::ElementsAre("ours", "python"));
}

TEST_P(QueueSurvey, AtMostAPageOfQueuesIsRead) {
  std::vector<std::string> many;
  for (std::size_t i = 0; i < QueueStore::kMaxSurveyedQueues + 50; ++i) many.push_back("queue:t" + std::to_string(i));
  EXPECT_EQ(survey(many).queues.size(), QueueStore::kMaxSurveyedQueues);
}

TEST_P(QueueSurvey, JobWithoutATimestampHasNoAge) {
  backend_->push(1, "queue:python", "job:12:77");
  const Survey all = survey();
  EXPECT_EQ(all.queues.at(0).length, 1U);
  EXPECT_FALSE(all.queues.at(0).waiting_ms) << "the waiting time is unknown";
  EXPECT_EQ(survey({"queue:v"}).queues.at(0).waiting_ms, 0U) << "empty";
}

TEST_P(QueueSurvey, ForeignEntriesAreSkipped) {
  EXPECT_TRUE(store_->known_queues(1));
  survey();  // a new connection reads some of these keys, so connect before they are overwritten
  for (const char* key : {"mj:queues", "mj:paused", "mj:delayed", "mj:dead-letters", "mj:flows:active", "queue:python"})
    backend_->put_text(1, key, "text");
  backend_->push(1, "queue:v", "job:1:1");
  backend_->put_text(1, "job:1:1", "text");
  EXPECT_TRUE(store_->known_queues(1)->journals.empty());
  const Survey all = survey({"queue:python", "queue:v"});
  ASSERT_EQ(all.queues.size(), 2U);
  EXPECT_EQ(all.queues[0].length, 0U);
  EXPECT_EQ(all.queues[1].length, 1U);
  EXPECT_FALSE(all.queues[1].waiting_ms);
}

MJ_BOTH_STORES(QueueSurvey);

}  // namespace
}  // namespace mycojobs
