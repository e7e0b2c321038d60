// Submission, cancellation and reading of jobs.
#include <gmock/gmock.h>

#include "model/codec.h"
#include "model/submitted_files.h"
#include "store/job_fields.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
class Submit : public StoreContract {};

TEST_P(Submit, WritesTheRecordAndItsEntry) {
  Job new_job = job(7);
  new_job.env_vars = {{"A", "b c"}};
  new_job.timeout = 5;
  new_job.unknown = {{"theirs", "kept"}};
  const Job stored = store_->submit(new_job).value();
  EXPECT_EQ(stored.id, 7U);
  EXPECT_EQ(stored.status, JobStatus::dispatched);
  EXPECT_EQ(stored.detail, "queued");
  EXPECT_GT(stored.created_at, 1600000000U);
  EXPECT_GT(stored.queued_ms, 1600000000000U);
  EXPECT_EQ(field("job:12:7", "env_vars"), R"({"A":"b c"})");
  EXPECT_EQ(field("job:12:7", "theirs"), "kept");
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
}

Job job_with_files(Job job, const std::string& content = "a,b") {
  EXPECT_TRUE(set_submitted_files(job, {"input", {{"data.csv", content}}}));
  return job;
}

TEST_P(Submit, FilesAreStoredBesideTheRecordAndDeletedWithIt) {
  Job new_job = job_with_files(job(7));
  new_job.args = {"-v", "two words"};
  ASSERT_EQ(outcome(store_->submit(new_job)), "ok");
  EXPECT_EQ(field("job:12:7", "args"), R"(["-v","two words"])");
  EXPECT_THAT(field("job:12:7", "files"), HasSubstr(R"({"data.csv":{"bytes":3,)"));
  EXPECT_EQ(field("mj:job-files:job:12:7", "stdin"), "input");
  EXPECT_EQ(field("mj:job-files:job:12:7", "file:data.csv"), "a,b");
  EXPECT_EQ(outcome(store_->submit(new_job)), "ok") << "the same files";
  EXPECT_EQ(outcome(store_->submit(job_with_files(job(7), "a,c"))), "conflict");
  EXPECT_EQ(outcome(store_->submit(job(7))), "conflict");
  const ClaimedJob claimed = claim_one();
  Job loaded = decode<Job>(claimed.record).record;
  ASSERT_EQ(outcome(load_submitted_files(*store_, 1, "job:12:7", loaded)), "ok");
  EXPECT_EQ(*loaded.submitted_files, *new_job.submitted_files);
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(field("mj:job-files:job:12:7", "stdin"), "input") << "for a restart";
  ASSERT_EQ(outcome(store_->delete_record(1, "job:12:7")), "ok");
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:job-files:job:12:7"}).number(), 0U);
}

TEST_P(Submit, FilesOfACreatedJobAreDeletedWithIt) {
  ASSERT_EQ(outcome(store_->create_job(job_with_files(job(7)))), "ok");
  EXPECT_EQ(field("mj:job-files:job:12:7", "stdin"), "input");
  ASSERT_EQ(outcome(store_->delete_record(1, "job:12:7")), "ok");
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:job-files:job:12:7"}).number(), 0U);
}

TEST_P(Submit, FilesCountAsStoredBytes) {
  ASSERT_EQ(outcome(store_->submit(job_with_files(job(7), std::string(100000, 'x')))), "ok");
  const std::uint64_t stored = std::stoull(field("mj:stored-bytes", "12"));
  EXPECT_GT(stored, 100000U);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  ASSERT_EQ(outcome(store_->delete_record(1, "job:12:7")), "ok");
  EXPECT_EQ(backend_->run_command(1, {"HEXISTS", "mj:stored-bytes", "12"}).number(), 0U);
}

TEST_P(Submit, FilesUnderAKeyOfAnotherClientAreRejected) {
  backend_->push(1, "mj:job-files:job:12:7", "oops");
  const auto result = store_->submit(job_with_files(job(7)));
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("mj:job-files:job:12:7"));
  EXPECT_EQ(outcome(store_->submit(job(7))), "ok") << "without files, the key is not used";
}

TEST_P(Submit, FilesOfAnEarlierJobAreReplaced) {
  backend_->run_command(1, {"HSET", "mj:job-files:job:12:7", "file:old", "x"});
  ASSERT_EQ(outcome(store_->submit(job_with_files(job(7)))), "ok");
  EXPECT_EQ(field("mj:job-files:job:12:7", "file:old"), "");
}

TEST_P(Submit, DescriptionWithoutContentIsRejected) {
  Job new_job = job_with_files(job(7));
  new_job.submitted_files = nullptr;
  EXPECT_EQ(outcome(store_->submit(new_job)), "invalid");
}

TEST_P(Submit, MissingContentIsNamed) {
  ASSERT_EQ(outcome(store_->submit(job_with_files(job(7)))), "ok");
  backend_->erase(1, "mj:job-files:job:12:7");
  Job loaded = decode<Job>(claim_one().record).record;
  const auto result = load_submitted_files(*store_, 1, "job:12:7", loaded);
  ASSERT_EQ(outcome(result), "invalid");
  EXPECT_THAT(result.error().message, HasSubstr("stdin: its content is no longer stored"));
}

TEST_P(Submit, MissingIdBecomesTheNextFreeOne) {
  submit(2);
  EXPECT_EQ(store_->submit(job(0)).value().id, 1U);
  EXPECT_EQ(store_->submit(job(0)).value().id, 3U);
  Job other = job(0);
  other.caller_id = 13;
  EXPECT_EQ(store_->submit(other).value().id, 1U);
}

TEST_P(Submit, NextFreeIdFollowsTheLastUsedOneDirectly) {
  for (Id id = 1; id <= 11; ++id) submit(id);
  EXPECT_EQ(store_->submit(job(0)).value().id, 12U);
}

TEST_P(Submit, NegativeIdCounterIsZero) {
  backend_->put_text(1, "mj:next:12", "-7");
  EXPECT_EQ(store_->submit(job(0)).value().id, 1U);
}

TEST_P(Submit, IdOfADeletedJobIsNotReused) {
  EXPECT_EQ(store_->submit(job(0)).value().id, 1U);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  ASSERT_EQ(outcome(store_->delete_record(1, "job:12:1")), "ok");
  EXPECT_EQ(store_->submit(job(0)).value().id, 2U);
}

TEST_P(Submit, CreatedJobThatAPlainClientPushedIsClaimedOnce) {
  ASSERT_TRUE(store_->create_job(job(1)).has_value());
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_EQ(outcome(store_->start_job(1, "job:12:1")), "ok");
  EXPECT_EQ(claim().size(), 1U);
  EXPECT_TRUE(claim().empty());
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
}

TEST_P(Submit, SameIdWithTheSameContentIsTheSameJob) {
  submit(1);
  const ClaimedJob claimed = claim_one();
  EXPECT_EQ(store_->submit(job(1)).value().status, JobStatus::started);
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
  EXPECT_EQ(outcome(store_->submit(job(1, "print(2)"))), "conflict");
  Job other = job(1);
  other.dependends = {5};
  EXPECT_EQ(outcome(store_->submit(other)), "conflict");
  ASSERT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(store_->submit(job(1)).value().status, JobStatus::finished);
}

TEST_P(Submit, IdOfAnEndedJobWithADeletedRecordIsRejected) {
  submit(1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  backend_->erase(1, "job:12:1");
  EXPECT_EQ(outcome(store_->submit(job(1))), "conflict");
  EXPECT_EQ(store_->submit(job(0)).value().id, 2U);
}

TEST_P(Submit, InvalidJobIsRejected) {
  Job wrong = job(1);
  wrong.caller_id = 0;
  EXPECT_EQ(outcome(store_->submit(wrong)), "invalid");
  wrong = job(1);
  wrong.script_type = "no such type!";
  EXPECT_EQ(outcome(store_->submit(wrong)), "invalid");
  wrong = job(1);
  wrong.context_id = 0;
  EXPECT_EQ(outcome(store_->submit(wrong)), "invalid");
}

TEST_P(Submit, ClaimFieldsCannotBeSubmitted) {
  Job forged = job(1);
  forged.status = JobStatus::finished;
  forged.epoch = 99;
  forged.deliveries = 50;
  forged.result = {{"a", "b"}};
  ASSERT_TRUE(store_->submit(forged));
  EXPECT_EQ(field("job:12:1", "status"), "dispatched");
  EXPECT_EQ(field("job:12:1", "result"), "");
  EXPECT_EQ(claim_one().deliveries, 1U);
}

TEST_P(Submit, KeyOfAnotherTypeIsRejectedUnchanged) {
  backend_->put_text(1, "job:12:1", "x");
  EXPECT_EQ(outcome(store_->submit(job(1))), "invalid");
  backend_->put_text(1, "queue:python", "x");
  EXPECT_EQ(outcome(store_->submit(job(2))), "invalid");
  EXPECT_EQ(outcome(store_->load(1, "job:12:2")), "not_found");
}

TEST_P(Submit, CancelledQueuedJobEndsAtOnceAndNeverRuns) {
  submit(1);
  submit(2);
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  EXPECT_EQ(field("job:12:1", "status"), "error");
  EXPECT_EQ(field("job:12:1", "detail"), "cancelled");
  EXPECT_TRUE(store_->logs(1, "job:12:1", 0, 10, 0).value().ended);
  const auto jobs = claim(5);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].ref.job_key, "job:12:2");
  EXPECT_EQ(last_anomaly(), "") << "its entry is expected";
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(claim().empty());
  EXPECT_THAT(last_anomaly(), HasSubstr("has ended already"));
}

TEST_P(Submit, CancelOfAnEndedOrMissingJobChangesNothing) {
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:1")), "not_found");
  submit(1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:1")), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  backend_->put_text(1, "job:12:2", "x");
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:2")), "invalid");
}

TEST_P(Submit, HashesAreSavedLoadedAndListed) {
  ASSERT_TRUE(store_->save(1, "actor:1", {{"id", "1"}, {"a", "x"}}));
  ASSERT_TRUE(store_->save(1, "actor:1", {{"a", "y"}}));
  EXPECT_EQ(field("actor:1", "a"), "y");
  EXPECT_EQ(field("actor:1", "id"), "1");
  ASSERT_TRUE(store_->save(1, "actor:*", {{"a", "y"}}));
  EXPECT_EQ(outcome(store_->load(1, "actor:2")), "not_found");
  backend_->put_text(1, "actor:3", "x");
  EXPECT_EQ(outcome(store_->load(1, "actor:3")), "invalid");
  EXPECT_EQ(outcome(store_->save(1, "actor:3", {{"a", "b"}})), "invalid");
  EXPECT_THAT(store_->keys(1, "actor:", 100).value(), testing::UnorderedElementsAre("actor:1", "actor:*", "actor:3"));
  EXPECT_THAT(store_->keys(1, "actor:*", 100).value(), testing::ElementsAre("actor:*"));
  EXPECT_EQ(store_->keys(1, "actor:", 2).value().size(), 2U);
  EXPECT_EQ(outcome(store_->queue_length(1, "actor:1")), "invalid");
}

MJ_BOTH_STORES(Submit);

}  // namespace
}  // namespace mycojobs
