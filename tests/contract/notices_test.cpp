// A notice of an end is stored in the same step as the end, and stays until it was delivered.
#include <gmock/gmock.h>

#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Notices : public StoreContract {
 protected:
  static constexpr const char* kTargets = R"(["https://a.example/x"])";

  void submit(
      Id id, const std::string& notify, const std::function<void(Job&)>& change = [](Job&) {}) {
    Job new_job = job(id);
    new_job.notify = notify;
    change(new_job);
    const auto stored = store_->submit(new_job);
    ASSERT_TRUE(stored.has_value()) << stored.error().message;
  }
  DueNotices due(std::uint32_t max = 10, std::uint32_t hold_ms = 60000) {
    auto reply = store_->due_notices(1, max, hold_ms);
    EXPECT_TRUE(reply.has_value()) << reply.error().message;
    return reply.value_or(DueNotices{});
  }
  static std::vector<std::string> get_notice_keys(const DueNotices& due) {
    std::vector<std::string> keys;
    for (const Notice& each : due.notices) keys.push_back(each.record_key);
    return keys;
  }
  void run_all() {
    for (const ClaimedJob& each : claim(64)) ASSERT_EQ(outcome(end(each.ref, finished())), "ok");
  }
};

TEST_P(Notices, EndIsDueAfterItIsStored) {
  submit(1, kTargets);
  submit(2, "");
  EXPECT_THAT(due().notices, IsEmpty());
  run_all();
  const auto found = due();
  ASSERT_THAT(get_notice_keys(found), ElementsAre("job:12:1"));
  EXPECT_TRUE(found.notices[0].finished);
  EXPECT_EQ(found.notices[0].attempts, 0U);
  EXPECT_EQ(std::to_string(found.notices[0].ended_us / 1000), field("job:12:1", "ended_ms"));
  EXPECT_GT(found.next_ms, 50000U);
  EXPECT_THAT(due().notices, IsEmpty()) << "a notice is leased to one caller at a time";
}

TEST_P(Notices, UnsettledNoticeIsDueAgain) {
  submit(1, kTargets);
  run_all();
  const auto first = due(10, 0);
  ASSERT_EQ(first.notices.size(), 1U);
  const auto again = due(10, 0);
  ASSERT_EQ(again.notices.size(), 1U);
  EXPECT_EQ(again.notices[0].entry, first.notices[0].entry);
}

TEST_P(Notices, AttemptsAndFinishedTargetsAreStored) {
  submit(1, kTargets);
  run_all();
  const Notice first = due().notices.at(0);
  ASSERT_TRUE(store_->complete_notice(1, first, {NoticeResult::Retry{{"aa", "bb"}, 0}, ""}).has_value());
  const Notice second = due().notices.at(0);
  EXPECT_EQ(second.attempts, 1U);
  EXPECT_THAT(second.reached_targets, ElementsAre("aa", "bb"));
  EXPECT_EQ(second.ended_us, first.ended_us);
  // A slow notifier settles with an outdated entry, which has no effect.
  ASSERT_TRUE(store_->complete_notice(1, first, {}).has_value());
  // The notifier had no free capacity: the notice is returned without counting an attempt.
  ASSERT_TRUE(
      store_->complete_notice(1, second, {NoticeResult::Retry{second.reached_targets, 0, false}, ""}).has_value());
  EXPECT_EQ(due(10, 0).notices.at(0).entry, second.entry);
  ASSERT_TRUE(store_->complete_notice(1, second, {NoticeResult::Retry{{}, 60000}, ""}).has_value());
  const auto later = due();
  EXPECT_THAT(later.notices, IsEmpty());
  EXPECT_GT(later.next_ms, 50000U);
}

TEST_P(Notices, SettledNoticeIsRemovedAndFailureReported) {
  submit(1, kTargets);
  submit(2, kTargets);
  run_all();
  const auto found = due();
  ASSERT_EQ(found.notices.size(), 2U);
  ASSERT_TRUE(store_->complete_notice(1, found.notices[0], {}).has_value());
  ASSERT_TRUE(store_->complete_notice(1, found.notices[1], {std::nullopt, "nobody hears of it"}).has_value());
  ASSERT_TRUE(store_->complete_notice(1, found.notices[1], {std::nullopt, "nobody hears of it"}).has_value());
  EXPECT_THAT(store_->anomalies(1, 10).value(), ElementsAre(testing::HasSubstr("nobody hears of it")));
  EXPECT_EQ(due(10, 0).next_ms, 0U);
}

TEST_P(Notices, ContextTargetsReceiveStandaloneJobs) {
  ASSERT_TRUE(store_->save(1, "context:1", {{"id", "1"}, {"notify", kTargets}}).has_value());
  submit(1, "");
  submit(2, "", [](Job& j) { j.unknown.emplace_back("notice_of", "job:12:1"); });
  submit(3, "", [](Job& j) { j.flow_id = 7; });
  submit(4, "", [](Job& j) { j.run_at_ms = 4102444800000; });
  run_all();
  EXPECT_THAT(get_notice_keys(due()), ElementsAre("job:12:1"))
      << "a notification job causes no notification itself, which would never end";
  ASSERT_TRUE(store_->cancel(1, "job:12:4").has_value());
  const auto cancelled = due();
  ASSERT_THAT(get_notice_keys(cancelled), ElementsAre("job:12:4"));
  EXPECT_FALSE(cancelled.notices[0].finished);
}

TEST_P(Notices, RetentionKeepsTheRecordUntilItsNoticeIsSent) {
  submit(1, kTargets);
  run_all();
  TickRequest request;
  request.retention = Retention::same_for_all(0);
  request.retention_count = 0;
  submit(2, "");
  submit(3, "");
  run_all();
  request.retention_count = 1;
  ASSERT_TRUE(store_->tick(1, request).has_value());
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  ASSERT_TRUE(store_->complete_notice(1, due().notices.at(0), {}).has_value());
  // A retained record is checked again after a second.
  Id next = 4;
  EXPECT_TRUE(eventually([&] {
    submit(next++, "");
    run_all();
    return store_->tick(1, request) && !store_->load(1, "job:12:1");
  }));
}

TEST_P(Notices, RecordWithASentNoticeWaitsForNoOther) {
  submit(1, kTargets);
  submit(2, kTargets);
  run_all();
  const auto found = due();
  ASSERT_THAT(get_notice_keys(found), ElementsAre("job:12:1", "job:12:2"));
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:1")), "conflict");
  ASSERT_TRUE(store_->complete_notice(1, found.notices[0], {}).has_value());
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:1")), "ok");
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:2")), "conflict");
}

TEST_P(Notices, FailedAttemptIsNotAnEnd) {
  submit(1, kTargets, [](Job& j) { j.retries = 1; });
  const auto claimed = claim(1);
  ASSERT_EQ(claimed.size(), 1U);
  JobEnd failed;
  failed.detail = "exception";
  const Report reports[] = {EndReport{claimed[0].ref, failed, 0}};
  ASSERT_TRUE(store_->report(1, reports).value().at(0).has_value());
  EXPECT_THAT(due().notices, IsEmpty());
}

TEST_P(Notices, InvalidEntriesAreDroppedAsAnomalies) {
  backend_->run_command(1, {"ZADD", "mj:notices", "1", "nonsense"});
  backend_->run_command(1, {"ZADD", "mj:notices", "2", "job:12:1 x finished 0"});
  backend_->run_command(1, {"ZADD", "mj:notices", "3", "job:12:1 1 finished 99999999999999999999"});
  backend_->run_command(1, {"ZADD", "mj:notices", "5", ""});
  backend_->run_command(1, {"ZADD", "mj:notices", "4", "flow:7\r\nX:y 1 finished 0"});
  EXPECT_THAT(due().notices, IsEmpty());
  EXPECT_EQ(store_->anomalies(1, 10).value().size(), 5U);
  EXPECT_EQ(due().next_ms, 0U) << "the entries are dropped";
  backend_->run_command(1, {"SET", "mj:notices", "x"});
  submit(1, kTargets);
  run_all();
  EXPECT_EQ(field("job:12:1", "status"), "finished") << "the end is stored nevertheless";
  EXPECT_FALSE(store_->due_notices(1, 10, 1).has_value());
}

TEST_P(Notices, CoordinatorsCheckPrerequisitesIfConfigured) {
  submit(1, "", [](Job& j) { j.prerequisites = {"redis:ready"}; });
  EXPECT_THAT(claim(64), IsEmpty());
  const auto first = store_->due_prerequisites(1, 10, 0, CheckerRole::agent).value();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_FALSE(first[0].coordinator_checks);
  ASSERT_EQ(store_->due_prerequisites(1, 10, 0, CheckerRole::coordinator).value().size(), 1U);
  EXPECT_THAT(store_->due_prerequisites(1, 10, 0, CheckerRole::agent).value(), IsEmpty())
      << "a coordinator has checked a short time ago";
  backend_->run_command(1, {"HSET", "mj:prerequisite-checker", "at", "1"});  // long ago
  const auto later = store_->due_prerequisites(1, 10, 0, CheckerRole::agent).value();
  ASSERT_EQ(later.size(), 1U);
  EXPECT_TRUE(later[0].coordinator_checks) << "an agent leaves this check to a coordinator";
}

MJ_BOTH_STORES(Notices);

}  // namespace
}  // namespace mycojobs
