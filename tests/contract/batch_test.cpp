// Many jobs in one step: all of them are submitted or none, each with the same result as a single submission.
#include <gmock/gmock.h>

#include <set>

#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

class Batch : public StoreContract {
 protected:
  static std::vector<Job> jobs(std::size_t count, Id first = 0) {
    std::vector<Job> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(job(first == 0 ? 0 : first + static_cast<Id>(i)));
    return all;
  }
  static std::vector<Job> named_jobs(std::size_t count) {
    std::vector<Job> all = jobs(count);
    for (std::size_t i = 0; i < count; ++i) all[i].idempotency_key = "batch:" + std::to_string(i);
    return all;
  }
  std::uint64_t queued() { return store_->queue_length(1, "queue:python").value(); }
  // Repeats the call until all jobs are submitted.
  std::size_t add(std::span<const Job> all) {
    std::size_t added = 0;
    while (added < all.size()) {
      const auto submissions = store_->submit_batch(all.subspan(added), true);
      if (!submissions || submissions->rejected || submissions->jobs.empty()) {
        ADD_FAILURE() << (submissions ? "refused" : submissions.error().message);
        break;
      }
      added += submissions->jobs.size();
    }
    return added;
  }
};

TEST_P(Batch, FittingJobsAreStoredAndQueuedInOrder) {
  std::vector<Job> all = jobs(3);
  all[0].run_at_ms = 4102444800000;
  all[1].priority = 7;
  const auto submissions = store_->submit_batch(all, true).value();
  ASSERT_FALSE(submissions.rejected);
  ASSERT_EQ(submissions.jobs.size(), 3U);
  EXPECT_EQ(submissions.existed, std::vector<bool>(3, false));
  for (Id id = 1; id <= 3; ++id) {
    EXPECT_EQ(submissions.jobs[id - 1].id, id);
    EXPECT_EQ(submissions.jobs[id - 1].status, JobStatus::dispatched);
    EXPECT_EQ(submissions.jobs[id - 1].detail, id == 1 ? "delayed" : "queued");
    EXPECT_EQ(std::to_string(submissions.jobs[id - 1].queued_ms), field("job:12:" + std::to_string(id), "queued_ms"));
    EXPECT_EQ(std::to_string(submissions.jobs[id - 1].created_at), field("job:12:" + std::to_string(id), "created_at"));
  }
  std::vector<std::string> taken;
  for (const ClaimedJob& each : claim(3)) taken.push_back(each.ref.job_key);
  EXPECT_EQ(taken, (std::vector<std::string>{"job:12:2", "job:12:3"}));
}

TEST_P(Batch, EachJobHasAFactInTheJournalOfItsQueue) {
  ASSERT_EQ(add(jobs(5)), 5U);
  const auto facts = store_->journal(1, "queue:python", 0, 100).value();
  ASSERT_EQ(facts.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(facts[i].kind, "scheduled");
    EXPECT_EQ(facts[i].job_key, "job:12:" + std::to_string(i + 1));
  }
}

TEST_P(Batch, StepIsBoundedAndReportsItsProgress) {
  const std::vector<Job> all = jobs(1000);
  const std::size_t first = store_->submit_batch(all, true).value().jobs.size();
  EXPECT_GT(first, 1U);
  EXPECT_LT(first, 1000U);
  EXPECT_EQ(queued(), first);
  std::vector<Job> large(3, job(0, std::string(3U << 20, 'x')));
  EXPECT_EQ(store_->submit_batch(large, true).value().jobs.size(), 2U)
      << "jobs up to 4 MiB, and the job that exceeds the limit";
}

TEST_P(Batch, InvalidJobStopsItsStepBeforeAnyWrite) {
  std::vector<Job> all = jobs(3);
  all[2].script_type = "No such type";
  const auto submissions = store_->submit_batch(all, true).value();
  ASSERT_TRUE(submissions.rejected);
  EXPECT_EQ(submissions.rejected->index, 2U);
  EXPECT_EQ(error_code_name(submissions.rejected->error), "invalid");
  EXPECT_THAT(submissions.rejected->error.message, HasSubstr("script_type"));
  EXPECT_EQ(queued(), 0U);
  EXPECT_EQ(store_->submit(job(0)).value().id, 1U) << "no id was reserved";
}

TEST_P(Batch, ConflictingJobStopsItsStep) {
  submit(7);
  std::vector<Job> all = jobs(3, 5);
  all[2].script = "other";
  const auto submissions = store_->submit_batch(all, true).value();
  ASSERT_TRUE(submissions.rejected);
  EXPECT_EQ(submissions.rejected->index, 2U);
  EXPECT_EQ(error_code_name(submissions.rejected->error), "conflict");
  EXPECT_EQ(outcome(store_->load(1, "job:12:5")), "not_found");
  EXPECT_EQ(queued(), 1U);
}

TEST_P(Batch, KeyOfAnotherTypeStopsItsStepAndIsNamed) {
  backend_->put_text(1, "job:12:6", "x");
  const auto submissions = store_->submit_batch(jobs(3, 5), true).value();
  ASSERT_TRUE(submissions.rejected);
  EXPECT_EQ(submissions.rejected->index, 1U);
  EXPECT_THAT(submissions.rejected->error.message, HasSubstr("job:12:6 is a string"));
  EXPECT_EQ(queued(), 0U);
  EXPECT_EQ(outcome(store_->load(1, "job:12:5")), "not_found");
}

TEST_P(Batch, RepetitionWithKeysStoresNothingTwice) {
  const std::vector<Job> all = named_jobs(600);
  ASSERT_EQ(add(all), 600U);
  EXPECT_EQ(queued(), 600U);
  const auto again = store_->submit_batch(all, true).value();
  EXPECT_EQ(again.existed, std::vector<bool>(again.jobs.size(), true));
  EXPECT_EQ(again.jobs[10].id, 11U);
  EXPECT_EQ(add(all), 600U);
  EXPECT_EQ(queued(), 600U);
}

TEST_P(Batch, PartlyStoredStepIsCompleted) {
  const std::vector<Job> all = named_jobs(100);
  std::vector<Job> some;
  for (std::size_t i = 0; i < 100; i += 3) some.push_back(all[i]);
  ASSERT_EQ(add(some), some.size());
  const auto submissions = store_->submit_batch(all, true).value();
  ASSERT_EQ(submissions.jobs.size(), 100U);
  std::set<Id> ids;
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(submissions.existed[i], i % 3 == 0) << i;
    EXPECT_EQ(submissions.jobs[i].idempotency_key, all[i].idempotency_key);
    ids.insert(submissions.jobs[i].id);
  }
  EXPECT_EQ(ids.size(), 100U);
  EXPECT_EQ(queued(), 100U);
}

TEST_P(Batch, SameKeyOrIdTwiceIsOneJob) {
  std::vector<Job> all = named_jobs(2);
  all.push_back(all[0]);
  ASSERT_EQ(add(all), 3U);
  EXPECT_EQ(queued(), 2U);
  std::vector<Job> ids{job(50), job(50), job(0)};
  ASSERT_EQ(add(ids), 3U);
  EXPECT_EQ(queued(), 4U);
  std::vector<Job> other{job(60), job(60, "other")};
  EXPECT_EQ(store_->submit_batch(other, true).value().jobs.size(), 1U);
  EXPECT_TRUE(store_->submit_batch(std::span(other).subspan(1), true).value().rejected);
}

TEST_P(Batch, IdsOfOtherClientsAreSkipped) {
  submit(2);
  submit(4);
  const auto submissions = store_->submit_batch(jobs(3), true).value();
  ASSERT_EQ(submissions.jobs.size(), 3U);
  EXPECT_EQ(submissions.jobs[0].id, 1U);
  EXPECT_EQ(submissions.jobs[1].id, 3U);
  EXPECT_EQ(submissions.jobs[2].id, 5U);
  EXPECT_EQ(store_->submit(job(0)).value().id, 6U);
}

TEST_P(Batch, JobsOfTwoCallersHaveTheirOwnIds) {
  std::vector<Job> all = jobs(4);
  all[1].caller_id = all[2].caller_id = 13;
  ASSERT_EQ(add(all), 4U);
  EXPECT_EQ(field("job:12:2", "status"), "dispatched");
  EXPECT_EQ(field("job:13:2", "status"), "dispatched");
  EXPECT_EQ(outcome(store_->load(1, "job:12:3")), "not_found");
}

TEST_P(Batch, JobsWithoutAQueueAreOnlyRecords) {
  const auto submissions = store_->submit_batch(named_jobs(3), false).value();
  ASSERT_EQ(submissions.jobs.size(), 3U);
  EXPECT_EQ(submissions.jobs[2].detail, "created");
  EXPECT_EQ(field("job:12:3", "detail"), "created");
  EXPECT_EQ(queued(), 0U);
  EXPECT_EQ(store_->create_job(named_jobs(3)[1]).value().id, 2U);
}

TEST_P(Batch, EndedJobWithDeletedRecordIsRejected) {
  const std::vector<Job> all = named_jobs(2);
  ASSERT_EQ(add(all), 2U);
  backend_->erase(1, "job:12:2");
  const auto submissions = store_->submit_batch(all, true).value();
  ASSERT_TRUE(submissions.rejected);
  EXPECT_EQ(submissions.rejected->index, 1U);
  EXPECT_EQ(error_code_name(submissions.rejected->error), "conflict");
}

TEST_P(Batch, LargeStoredRecordsAreComparedInSteps) {
  std::vector<Job> all = named_jobs(12);
  for (Job& each : all) each.script = std::string(2U << 20, 'x');
  ASSERT_EQ(add(all), 12U);
  std::vector<Job> other = named_jobs(12);  // small jobs with the keys of large ones
  const auto submissions = store_->submit_batch(other, true).value();
  ASSERT_TRUE(submissions.rejected);
  EXPECT_EQ(submissions.rejected->index, 0U);
  EXPECT_EQ(add(all), 12U);
  EXPECT_EQ(queued(), 12U);
}

TEST_P(Batch, EmptyBatchStoresNothing) { EXPECT_TRUE(store_->submit_batch({}, true).value().jobs.empty()); }

MJ_BOTH_STORES(Batch);

}  // namespace
}  // namespace mycojobs
