// Claims.
#include <gmock/gmock.h>

#include <atomic>
#include <set>

#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
class Claim : public StoreContract {};

TEST_P(Claim, OldestJobIsClaimedFirstAndMarkedStarted) {
  for (Id id : {1, 2, 3}) submit(id);
  const auto jobs = claim(2);
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].ref.job_key, "job:12:1");
  EXPECT_EQ(jobs[1].ref.job_key, "job:12:2");
  EXPECT_EQ(jobs[0].queue, "queue:python");
  EXPECT_EQ(jobs[0].deliveries, 1U);
  EXPECT_EQ(jobs[0].attempt, 1U);
  EXPECT_EQ(jobs[0].ref.token.size(), 64U);
  EXPECT_NE(jobs[0].ref.token, jobs[1].ref.token);
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
  EXPECT_EQ(field("job:12:1", "status"), "started");
  EXPECT_EQ(field("job:12:1", "detail"), "claimed");
  EXPECT_EQ(field("job:12:1", "runner_id"), "20");
  EXPECT_EQ(field("job:12:1", "claim_id"), jobs[0].ref.claim_id);
  EXPECT_EQ(field("job:12:1", "epoch"), std::to_string(jobs[0].epoch));
  EXPECT_EQ(field("job:12:1", "script"), "print(1)");
  EXPECT_NE(field("job:12:1", "queued_ms"), "");
  EXPECT_EQ(field("job:12:3", "status"), "dispatched");
  for (const auto& [name, value] : jobs[0].record) {
    EXPECT_TRUE(name != "status" || value == "started");
    EXPECT_NE(value, jobs[0].ref.token);
  }
}

TEST_P(Claim, QueuesAreServedInTheRequestedOrder) {
  Job other = job(9);
  other.script_type = "v";
  submit(1);
  ASSERT_TRUE(store_->submit(other));
  ClaimRequest both = request(5);
  both.queues = {"queue:v", "queue:python", "queue:none"};
  const auto reply = store_->claim(both).value();
  ASSERT_EQ(reply.jobs.size(), 2U);
  EXPECT_EQ(reply.jobs[0].ref.job_key, "job:12:9");
  EXPECT_EQ(reply.jobs[1].queue, "queue:python");
}

TEST_P(Claim, ServesAPlainClient) {
  ASSERT_TRUE(store_->save(1, "job:12:2001", {{"id", "2001"}, {"script", "print(2)"}, {"script_type", "python"}}));
  backend_->push(1, "queue:python", "job:12:2001");
  const ClaimedJob claimed = claim_one();
  EXPECT_EQ(claimed.ref.job_key, "job:12:2001");
  EXPECT_EQ(outcome(end(claimed.ref, finished())), "ok");
  EXPECT_EQ(field("job:12:2001", "status"), "finished");
  EXPECT_EQ(field("job:12:2001", "result"), R"({"answer":"42"})");
}

TEST_P(Claim, BytesBoundABatchButNeverASingleJob) {
  for (Id id : {1, 2, 3}) ASSERT_TRUE(store_->submit(job(id, std::string(1000, 'x'))));
  ClaimRequest small = request(10);
  small.max_bytes = 10;
  EXPECT_EQ(store_->claim(small).value().jobs.size(), 1U);
  small.max_bytes = 1U << 20;
  EXPECT_EQ(store_->claim(small).value().jobs.size(), 2U);
}

TEST_P(Claim, ZeroOrTooManyJobsAreRejected) {
  EXPECT_EQ(outcome(store_->claim(request(0))), "invalid");
  EXPECT_EQ(outcome(store_->claim(request(65))), "invalid");
  ClaimRequest none = request();
  none.context = 0;
  EXPECT_EQ(outcome(store_->claim(none)), "invalid");
}

TEST_P(Claim, EntriesWithoutAJobBecomeDeadLetters) {
  const std::vector<std::string> entries{"",
                                         "job",
                                         "job:12",
                                         "job:0:1",
                                         "job:12:4294967296",
                                         "job:12:1:1",
                                         "job:12:-1",
                                         "job:012:1",
                                         std::string("job:\0:1", 7),
                                         std::string(5000, 'a'),
                                         "\xff\xfe"};
  for (const std::string& entry : entries) backend_->push(1, "queue:python", entry);
  const auto reply = store_->claim(request(64)).value();
  EXPECT_TRUE(reply.jobs.empty());
  EXPECT_EQ(reply.skipped_entries, entries.size());
  const auto letters = store_->dead_letters(1, 100).value();
  ASSERT_EQ(letters.size(), entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(letters[i].job_key, entries[i].substr(0, 1024));
    EXPECT_EQ(letters[i].queue, "queue:python");
    EXPECT_EQ(letters[i].reason, "bad_key");
    EXPECT_GT(letters[i].at_ms, 1600000000000U);
  }
}

TEST_P(Claim, KeyOfAnotherTypeIsADeadLetter) {
  backend_->put_text(1, "job:12:1", "not a hash");
  backend_->push(1, "queue:python", "job:12:1");
  submit(2);
  EXPECT_EQ(claim_one().ref.job_key, "job:12:2");
  EXPECT_EQ(last_dead_reason(), "wrong_type");
}

TEST_P(Claim, QueueOfAnotherTypeIsAnAnomaly) {
  backend_->put_text(1, "queue:v", "not a list");
  submit(1);
  ClaimRequest both = request(5);
  both.queues = {"queue:v", "queue:python"};
  EXPECT_EQ(store_->claim(both).value().jobs.size(), 1U);
  EXPECT_THAT(last_anomaly(), HasSubstr("queue:v is a string"));
}

TEST_P(Claim, JobRunsWhenItsMissingRecordAppears) {
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(claim().empty());
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
  EXPECT_EQ(store_->tick(1, {.missing_wait_ms = 60000}).value().missing_records, 0U);
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"script", "print(1)"}}));
  EXPECT_EQ(store_->tick(1, {.missing_wait_ms = 60000}).value().missing_records, 1U);
  EXPECT_EQ(claim_one().ref.job_key, "job:12:1");
}

TEST_P(Claim, JobWithoutARecordIsADeadLetter) {
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(claim().empty());
  ASSERT_TRUE(eventually([&] { return store_->tick(1, {.missing_wait_ms = 5}).value().missing_records == 1; }));
  EXPECT_EQ(last_dead_reason(), "no_record");
  EXPECT_EQ(store_->tick(1, {.missing_wait_ms = 5}).value().missing_records, 0U);
}

TEST_P(Claim, RecordThatAppearsWithAnotherTypeIsADeadLetter) {
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(claim().empty());
  backend_->put_text(1, "job:12:1", "x");
  EXPECT_EQ(store_->tick(1, {.missing_wait_ms = 60000}).value().missing_records, 1U);
  EXPECT_EQ(last_dead_reason(), "wrong_type");
}

TEST_P(Claim, EndedJobIsNeverRunAgain) {
  submit(1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(claim().empty());
  EXPECT_THAT(last_anomaly(), HasSubstr("has ended already"));
}

TEST_P(Claim, ForgedRecordCannotReopenAnEndedJob) {
  submit(1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"status", "dispatched"}, {"epoch", "0"}, {"deliveries", "0"}}));
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(claim().empty());
  backend_->erase(1, "job:12:1");
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(claim().empty());
  EXPECT_EQ(store_->tick(1, {.missing_wait_ms = 0}).value().missing_records, 0U);
}

TEST_P(Claim, ForgedStatusCannotEndAJobThatWasClaimed) {
  submit(1);
  const ClaimedJob first = claim_one();
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"status", "finished"}, {"claim_id", "x"}, {"lease_until_ms", "junk"}}));
  EXPECT_EQ(store_->renew(1, std::vector{first.ref}, 60000).value().at(0), Renewal::renewed);
  ASSERT_EQ(outcome(report(Release{first.ref, "drain"})), "ok");
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"status", "finished"}}));
  EXPECT_EQ(outcome(end(claim_one().ref, finished())), "ok");
}

TEST_P(Claim, InvalidStatusIsIgnored) {
  submit(1);
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"status", "\xff?"}}));
  EXPECT_EQ(claim_one().ref.job_key, "job:12:1");
}

TEST_P(Claim, JobThatAnotherClientEndedIsAnAnomaly) {
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"script", "x"}, {"status", "finished"}}));
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(claim().empty());
  EXPECT_THAT(last_anomaly(), HasSubstr("says finished"));
}

TEST_P(Claim, SecondEntryOfALiveClaimIsAnAnomaly) {
  submit(1);
  backend_->push(1, "queue:python", "job:12:1");
  ASSERT_EQ(claim(5).size(), 1U);
  EXPECT_THAT(last_anomaly(), HasSubstr("is claimed already"));
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
}

TEST_P(Claim, ScriptThatIsTooLargeEndsTheJob) {
  ASSERT_TRUE(store_->submit(job(1, std::string(2000, 'x'))));
  ClaimRequest small = request();
  small.max_script_bytes = 1999;
  const auto reply = store_->claim(small).value();
  EXPECT_TRUE(reply.jobs.empty());
  EXPECT_EQ(reply.skipped_entries, 1U);
  EXPECT_EQ(field("job:12:1", "status"), "error");
  EXPECT_EQ(field("job:12:1", "detail"), "dead_letter");
  EXPECT_THAT(field("job:12:1", "error"), HasSubstr("job.max_script_bytes"));
  EXPECT_EQ(last_dead_reason(), "too_large");
}

// A field much larger than the memory of an agent is rejected with its name, whichever field it is.
TEST_P(Claim, LongFieldIsRejectedByName) {
  submit(1);
  submit(2);
  backend_->run_command(1, {"HSET", "job:12:1", "note", std::string(40U << 20, 'x')});
  const auto jobs = claim(10);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].ref.job_key, "job:12:2");
  EXPECT_THAT(field("job:12:1", "error"), HasSubstr("note: 41943040 bytes exceed the limit of a job record"));
  EXPECT_EQ(last_dead_reason(), "too_large");
  backend_->run_command(1, {"HSET", "message:12:7", "id", "7", "note", std::string(70U << 20, 'x')});
  const auto loaded = store_->load(1, "message:12:7");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::too_large);
  EXPECT_THAT(loaded.error().message, HasSubstr("message:12:7: note: 73400320 bytes"));
}

TEST_P(Claim, MaxDeliveriesWithoutAnEndAreACrashLoop) {
  submit(1);
  for (std::uint32_t delivery = 1; delivery <= 3; ++delivery) {
    const ClaimedJob claimed = claim_one();
    EXPECT_EQ(claimed.deliveries, delivery);
    ASSERT_EQ(outcome(report(Release{claimed.ref, "launcher lost"})), "ok");
  }
  EXPECT_TRUE(claim().empty());
  EXPECT_EQ(field("job:12:1", "status"), "error");
  EXPECT_EQ(field("job:12:1", "detail"), "dead_letter");
  EXPECT_THAT(field("job:12:1", "error"), HasSubstr("crash_loop"));
  EXPECT_EQ(last_dead_reason(), "crash_loop");
  EXPECT_TRUE(store_->logs(1, "job:12:1", 0, 10, 0).value().ended);
}

TEST_P(Claim, FloodOfInvalidEntriesIsDrainedInSteps) {
  for (int i = 0; i < 600; ++i) backend_->push(1, "queue:python", "junk");
  submit(1);
  std::size_t claimed = 0;
  for (int i = 0; i < 10 && claimed == 0; ++i) claimed = claim().size();
  EXPECT_EQ(claimed, 1U);
}

TEST_P(Claim, AnyBytesPassThrough) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"script", bytes}, {bytes, bytes}, {"env_vars", bytes}}));
  backend_->push(1, "queue:python", "job:12:1");
  bool script = false;
  bool own = false;
  const ClaimedJob claimed = claim_one();
  for (const auto& [name, value] : claimed.record) {
    script = script || (name == "script" && value == bytes);
    own = own || (name == bytes && value == bytes);
  }
  EXPECT_TRUE(script && own);
}

TEST_P(Claim, FiveMegabyteScriptIsCarried) {
  const std::string large(5U << 20, 'x');
  ASSERT_TRUE(store_->submit(job(1, large)));
  ClaimRequest wide = request();
  wide.max_script_bytes = 8U << 20;
  const auto reply = store_->claim(wide).value();
  ASSERT_EQ(reply.jobs.size(), 1U);
  for (const auto& [name, value] : reply.jobs[0].record) {
    EXPECT_TRUE(name != "script" || value == large);
  }
}

TEST_P(Claim, ManyClaimersGetEachJobOnce) {
  constexpr Id kJobs = 200;
  for (Id id = 1; id <= kJobs; ++id) submit(id);
  std::array<std::vector<std::string>, 4> taken;
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&] {
      auto store = backend_->stores().open().value();
      for (;;) {
        const auto reply = store->claim(request(3)).value();
        if (reply.jobs.empty()) return;
        for (const ClaimedJob& each : reply.jobs) mine.push_back(each.ref.job_key);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<std::string> all;
  std::size_t count = 0;
  for (const auto& mine : taken) {
    all.insert(mine.begin(), mine.end());
    count += mine.size();
  }
  EXPECT_EQ(count, kJobs);
  EXPECT_EQ(all.size(), kJobs);
}

TEST_P(Claim, ContextsAreSeparate) {
  Job other = job(1, "print(2)");
  other.context_id = 2;
  submit(1);
  ASSERT_TRUE(store_->submit(other));
  ClaimRequest second = request(5);
  second.context = 2;
  const auto reply = store_->claim(second).value();
  ASSERT_EQ(reply.jobs.size(), 1U);
  EXPECT_EQ(reply.jobs[0].ref.context, 2U);
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
}

MJ_BOTH_STORES(Claim);

}  // namespace
}  // namespace mycojobs
