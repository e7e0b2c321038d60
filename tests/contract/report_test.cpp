// Reports of ends and of log lines.
#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>

#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
class Reporting : public StoreContract {
 protected:
  std::vector<std::string> texts(std::uint64_t after = 0) {
    std::vector<std::string> out;
    const auto page = store_->logs(1, "job:12:1", after, 100, 0).value();
    for (const Log& line : page.lines) out.push_back(line.text);
    return out;
  }
};

TEST_P(Reporting, EndWritesTheWholeRecord) {
  submit(1);
  const ClaimedJob claimed_job = claim_one();
  ASSERT_TRUE(store_->save(
      1, "job:12:1",
      {{"error", "from before"}, {"receipt", "{}"}, {"artifacts_dropped", "[{}]"}, {"kept", "by others"}}));
  JobEnd how = finished({{"a", "1"}, {"b", "\"two\""}});
  how.usage = R"({"wall_ms":5})";
  how.layers = "pid net";
  ASSERT_EQ(outcome(end(claimed_job.ref, how)), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  EXPECT_EQ(field("job:12:1", "detail"), "ok");
  EXPECT_EQ(field("job:12:1", "result"), R"({"a":"1","b":"\"two\""})");
  EXPECT_EQ(field("job:12:1", "usage"), how.usage);
  EXPECT_EQ(field("job:12:1", "layers"), "pid net");
  EXPECT_EQ(field("job:12:1", "error"), "");
  EXPECT_EQ(field("job:12:1", "receipt"), "");
  EXPECT_EQ(field("job:12:1", "artifacts_dropped"), "");
  EXPECT_EQ(field("job:12:1", "kept"), "by others");
  EXPECT_NE(field("job:12:1", "ended_ms"), "");
  EXPECT_EQ(field("job:12:1", "lease_until_ms"), "");
  EXPECT_TRUE(store_->leases(1).value().empty());
}

TEST_P(Reporting, RepeatedEndIsAcceptedAndAnotherIsRejected) {
  submit(1);
  const ClaimedJob claimed_job = claim_one();
  ASSERT_EQ(outcome(end(claimed_job.ref, finished())), "ok");
  EXPECT_EQ(outcome(end(claimed_job.ref, finished())), "ok");
  EXPECT_EQ(outcome(end(claimed_job.ref, finished({{"answer", "43"}}))), "conflict");
  JobEnd failed;
  failed.detail = "exit";
  EXPECT_EQ(outcome(end(claimed_job.ref, failed)), "conflict");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  ClaimRef stranger = claimed_job.ref;
  stranger.claim_id = "x";
  EXPECT_EQ(outcome(end(stranger, finished())), "stale_claim");
  EXPECT_EQ(store_->renew(1, std::vector{claimed_job.ref}, 1000).value().at(0), Renewal::stale);
  EXPECT_EQ(outcome(report(Release{claimed_job.ref, "drain"})), "stale_claim");
}

// Reports in two calls, with poll() between them, or in a single call if the store does not support two.
Result<void> in_halves(Store& store, Report report, bool has_halves) {
  const std::span<const Report> reports(&report, 1);
  const auto answer = store.begin_report(1, reports);
  EXPECT_EQ(answer.has_value(), has_halves);
  pollfd there{answer.value_or(-1), POLLIN, 0};
  if (answer) {
    EXPECT_EQ(::poll(&there, 1, 10000), 1);
  }
  auto answers = answer ? store.finish_report(1, reports) : store.report(1, reports);
  if (!answers) return tl::unexpected<Error>(answers.error());
  return answers->size() == 1 ? answers->front() : fail(Code::internal, "not one answer");
}

TEST_P(Reporting, ReportInTwoPartsEqualsOneReport) {
  const bool is_redis = std::string_view(GetParam()) == "redis";
  submit(1), submit(2), submit(3);
  const auto claimed_jobs = claim(3);
  ASSERT_EQ(claimed_jobs.size(), 3U);
  EXPECT_FALSE(backend_->stores().open().value()->begin_report(1, {}).has_value()) << "there is no connection yet";
  const auto make_end_report = [&](std::size_t i, const char* answer) {
    return EndReport{claimed_jobs[i].ref, finished({{"a", answer}}), {}};
  };
  EXPECT_EQ(outcome(in_halves(*store_, make_end_report(0, "1"), is_redis)), "ok");
  EXPECT_EQ(field("job:12:1", "status"), "finished");
  EXPECT_EQ(outcome(in_halves(*store_, make_end_report(0, "1"), is_redis)), "ok") << "a repeated report";
  EXPECT_EQ(outcome(in_halves(*store_, make_end_report(0, "2"), is_redis)), "conflict");
  if (is_redis) backend_->run_command(1, {"SCRIPT", "FLUSH"});
  EXPECT_EQ(outcome(in_halves(*store_, make_end_report(1, "1"), is_redis)), "ok")
      << "a server that has forgotten the script";
  EXPECT_EQ(field("job:12:2", "status"), "finished");
  const Report large = LogAppend{claimed_jobs[2].ref, {{.ts_ms = 1, .seq = 1, .text = std::string(100000, 'x')}}};
  EXPECT_FALSE(store_->begin_report(1, {&large, 1}).has_value()) << "more bytes than a connection accepts in one write";
  EXPECT_EQ(outcome(report(large)), "ok");
}

TEST_P(Reporting, LogsAreInOrderAndAreStoredOnce) {
  submit(1);
  const ClaimedJob claimed_job = claim_one();
  const std::string bytes("\0\xff\n", 3);
  const LogAppend first{claimed_job.ref, {{1000, 1, LogStream::out, "one"}, {1001, 2, LogStream::err, bytes}}};
  const LogAppend again{claimed_job.ref, {{1001, 2, LogStream::err, bytes}, {1002, 3, LogStream::system, "three"}}};
  EXPECT_EQ(outcome(report(first)), "ok");
  EXPECT_EQ(outcome(report(first)), "ok");
  EXPECT_EQ(outcome(report(again)), "ok");
  const auto page = store_->logs(1, "job:12:1", 0, 100, 0).value();
  ASSERT_EQ(page.lines.size(), 3U);
  EXPECT_FALSE(page.ended);
  EXPECT_EQ(page.lines[0].seq, 1U);
  EXPECT_EQ(page.lines[0].ts_ms, 1000U);
  EXPECT_EQ(page.lines[1].text, bytes);
  EXPECT_EQ(page.lines[1].stream, LogStream::err);
  EXPECT_EQ(page.lines[2].stream, LogStream::system);
  EXPECT_EQ(store_->logs(1, "job:12:1", 1, 1, 0).value().lines.at(0).seq, 2U);
  ASSERT_EQ(outcome(end(claimed_job.ref, finished())), "ok");
  EXPECT_TRUE(store_->logs(1, "job:12:1", 0, 100, 0).value().ended);
  const auto rest = store_->logs(1, "job:12:1", 3, 100, 0).value();
  EXPECT_TRUE(rest.ended);
  EXPECT_TRUE(rest.lines.empty());
}

TEST_P(Reporting, LogsOfASecondDeliveryFollowTheFirst) {
  submit(1);
  const ClaimedJob first = claim_one();
  ASSERT_EQ(outcome(report(LogAppend{first.ref, {{.ts_ms = 1, .seq = 1, .text = "a"}, {1, 2, LogStream::out, "b"}}})),
            "ok");
  ASSERT_EQ(outcome(report(Release{first.ref, "drain"})), "ok");
  const ClaimedJob second = claim_one();
  ASSERT_EQ(outcome(report(LogAppend{second.ref, {{2, 1, LogStream::out, "c"}}})), "ok");
  EXPECT_THAT(texts(), ElementsAre("a", "b", StartsWith("attempt 1, delivery 2, runner "), "c"));
  EXPECT_THAT(texts(3), ElementsAre("c"));
}

TEST_P(Reporting, LinesThatTheTailLeavesBehindAreDeletedAndReported) {
  submit(1);
  const ClaimedJob claimed_job = claim_one();
  const std::string usage_before = field("mj:stored-bytes", "12");
  const std::string block(100'000, 'x');
  EXPECT_EQ(outcome(report(LogAppend{claimed_job.ref,
                                     {{.ts_ms = 1, .seq = 1, .text = "head"},
                                      {1, 100'001, LogStream::out, block, 100'000},
                                      {1, 100'002, LogStream::system, "note", 1},
                                      {1, 200'002, LogStream::err, block, 100'000}}})),
            "ok");
  EXPECT_THAT(texts(), ElementsAre("head", block, "note", block));
  const LogAppend next{claimed_job.ref, {{2, 300'007, LogStream::out, "tail\n", 5}}, 100'001, 200'002};
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_EQ(outcome(report(next)), "ok");
  const auto gap = [](int bytes) { return std::to_string(bytes) + " bytes of output dropped here\n"; };
  EXPECT_THAT(texts(), ElementsAre("head", gap(100'000), "note", gap(200'000), "tail\n"));
  EXPECT_THAT(texts(100'001), ElementsAre("note", gap(200'000), "tail\n"));
  EXPECT_THAT(texts(200'002), ElementsAre(gap(100'000), "tail\n")) << "a reader that has read more misses less";
  const auto page = store_->logs(1, "job:12:1", 200'002, 1, 0).value();
  EXPECT_EQ(page.lines.at(0).seq, 300'002U);
  EXPECT_THAT(texts(page.lines.at(0).seq), ElementsAre("tail\n")) << "a gap is reported once";
  EXPECT_EQ(field("mj:stored-bytes", "12"), usage_before) << "deleted lines are not charged";
  EXPECT_EQ(outcome(end(claimed_job.ref, finished())), "ok");
  EXPECT_TRUE(store_->logs(1, "job:12:1", 300'007, 10, 0).value().ended);
}

TEST_P(Reporting, DeletedLinesOfAReportAreBounded) {
  submit(1);
  const ClaimedJob claimed_job = claim_one();
  LogAppend first{claimed_job.ref, {}};
  for (std::uint64_t seq = 1; seq <= 520; ++seq) first.lines.push_back({1, seq, LogStream::out, "x", 1});
  EXPECT_EQ(outcome(report(first)), "ok");
  EXPECT_EQ(outcome(report(LogAppend{claimed_job.ref, {}, 1, 520})), "ok");
  const auto gap = std::to_string(512) + " bytes of output dropped here\n";
  EXPECT_THAT(texts(), ElementsAre(gap, "x", "x", "x", "x", "x", "x", "x", "x"));
  EXPECT_EQ(outcome(report(LogAppend{claimed_job.ref, {}, 513, 520})), "ok");
  EXPECT_THAT(texts(), ElementsAre());
}

TEST_P(Reporting, NumbersOfDeletedLinesAreNotUsedAgain) {
  submit(1);
  const ClaimedJob first = claim_one();
  EXPECT_EQ(first.log_base, 0U);
  EXPECT_EQ(outcome(report(LogAppend{first.ref, {{1, 100, LogStream::out, std::string(100, 'x'), 100}}})), "ok");
  EXPECT_EQ(outcome(report(LogAppend{first.ref, {}, 1, 100})), "ok") << "a full quota leaves no newer line";
  ASSERT_EQ(outcome(report(Release{first.ref, "drain"})), "ok");
  const ClaimedJob second = claim_one();
  EXPECT_EQ(second.log_base, 101U) << "the line that begins the run";
  EXPECT_EQ(outcome(report(LogAppend{second.ref, {{2, 1, LogStream::out, "next\n"}}})), "ok");
  EXPECT_THAT(texts(), ElementsAre(StartsWith("attempt 1, delivery 2, runner "), "next\n"));
  EXPECT_EQ(outcome(end(second.ref, finished())), "ok");
  EXPECT_TRUE(store_->logs(1, "job:12:1", 102, 10, 0).value().ended);
}

TEST_P(Reporting, RunThatWroteNothingIsMarkedOnce) {
  submit(1);
  JobEnd error;
  error.detail = "exception";
  EXPECT_EQ(outcome(end(claim_one().ref, error)), "ok");
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:1")), "ok");
  // Nothing of these runs was started, so their deliveries are not counted.
  EXPECT_EQ(outcome(report(Release{claim_one().ref, "no slot", false})), "ok");
  const std::uint64_t mark_seq = store_->logs(1, "job:12:1", 0, 1, 0).value().lines.at(0).seq;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(outcome(report(Release{claim_one().ref, "no slot", false})), "ok");
  const ClaimedJob last = claim_one();
  EXPECT_THAT(texts(mark_seq), ElementsAre()) << "a follower does not get the same mark again";
  EXPECT_EQ(outcome(report(LogAppend{last.ref, {{1, 1, LogStream::out, "a"}}})), "ok");
  EXPECT_THAT(texts(), ElementsAre(StartsWith("attempt 2, delivery 1, runner "), "a"));
}

TEST_P(Reporting, BatchKeepsTheOrderAndAnswersEachReport) {
  submit(1);
  submit(2);
  const auto jobs = claim(2);
  ASSERT_EQ(jobs.size(), 2U);
  ClaimRef forged = jobs[1].ref;
  forged.token = "x";
  const std::vector<Report> all{LogAppend{jobs[0].ref, {{.ts_ms = 1, .seq = 1, .text = "last words"}}},
                                EndReport{jobs[0].ref, finished()}, EndReport{forged, finished()},
                                LogAppend{jobs[0].ref, {{1, 2, LogStream::out, "too late"}}},
                                Release{jobs[1].ref, "drain"}};
  const auto answers = store_->report(1, all).value();
  ASSERT_EQ(answers.size(), 5U);
  EXPECT_EQ(outcome(answers[0]), "ok");
  EXPECT_EQ(outcome(answers[1]), "ok");
  EXPECT_EQ(outcome(answers[2]), "stale_claim");
  EXPECT_EQ(outcome(answers[3]), "stale_claim");
  EXPECT_EQ(outcome(answers[4]), "ok");
  EXPECT_EQ(texts(), (std::vector<std::string>{"last words"}));
}

TEST_P(Reporting, LargeBatchKeepsTheOrder) {
  submit(1);
  const ClaimedJob claimed_job = claim_one();
  std::vector<Report> all;
  for (std::uint64_t seq = 1; seq <= 700; ++seq) {
    all.emplace_back(LogAppend{claimed_job.ref, {{seq, seq, LogStream::out, std::string(30000, 'x')}}});
  }
  all.emplace_back(EndReport{claimed_job.ref, finished()});
  const auto answers = store_->report(1, all).value();
  ASSERT_EQ(answers.size(), 701U);
  for (const auto& answer : answers) ASSERT_EQ(outcome(answer), "ok");
  EXPECT_EQ(store_->logs(1, "job:12:1", 699, 10, 0).value().lines.at(0).seq, 700U);
}

// Regression test: a client that requested one line at a time received the end of the first run repeatedly.
TEST_P(Reporting, EndsOfEarlierRunsAreNotLogLines) {
  submit(1);
  const ClaimedJob claimed_job = claim_one();
  JobEnd error;
  error.detail = "exception";
  EXPECT_EQ(outcome(report(LogAppend{claimed_job.ref, {{1, 1, LogStream::out, "one"}}})), "ok");
  EXPECT_EQ(outcome(end(claimed_job.ref, error)), "ok");
  for (int silent = 0; silent < 2; ++silent) {
    EXPECT_EQ(outcome(store_->requeue(1, "job:12:1")), "ok");
    const ClaimedJob again = claim_one();
    if (silent == 1) {
      EXPECT_EQ(outcome(report(LogAppend{again.ref, {{1, 1, LogStream::out, "two"}}})), "ok");
    }
    EXPECT_EQ(outcome(end(again.ref, error)), "ok");
  }
  EXPECT_THAT(texts(),
              ElementsAre("one", StartsWith("attempt 2, delivery 1"), StartsWith("attempt 3, delivery 1"), "two"));
  backend_->run_command(1, {"XDEL", "mj:log:job:12:1", "3-0", "5-0"});
  const auto page = store_->logs(1, "job:12:1", 1, 1, 0).value();
  ASSERT_EQ(page.lines.size(), 1U);
  EXPECT_EQ(page.lines[0].text, "two");
  EXPECT_EQ(page.skipped_seqs, (std::vector<std::uint64_t>{2, 4}));
  EXPECT_TRUE(store_->logs(1, "job:12:1", page.lines[0].seq, 1, 0).value().ended);
  // Another client can use entry ids that the store never uses.
  backend_->run_command(1, {"DEL", "mj:log:job:12:1"});
  backend_->run_command(1, {"XADD", "mj:log:job:12:1", "7-1", "text", "odd"});
  EXPECT_EQ(store_->logs(1, "job:12:1", 6, 10, 0).value().lines.size(), 1U);
  EXPECT_TRUE(store_->logs(1, "job:12:1", 7, 10, 0).value().lines.empty()) << "an entry is not after its own position";
}

TEST_P(Reporting, MegabyteResultIsStoredCompletely) {
  submit(1);
  const std::string large(1U << 20, 'r');
  ASSERT_EQ(outcome(end(claim_one().ref, finished({{"big", large}}))), "ok");
  EXPECT_EQ(field("job:12:1", "result"), "{\"big\":\"" + large + "\"}");
}

TEST_P(Reporting, FollowerReceivesLinesAsTheyAreWritten) {
  submit(1);
  const ClaimedJob claimed_job = claim_one();
  std::vector<std::string> seen;
  std::thread follower([&] {
    auto store = backend_->stores().open().value();
    std::uint64_t after = 0;
    for (bool ended = false; !ended;) {
      const auto page = store->logs(1, "job:12:1", after, 2, 20000).value();
      for (const Log& line : page.lines) seen.push_back(line.text), after = line.seq;
      ended = page.ended;
    }
  });
  for (std::uint64_t seq = 1; seq <= 5; ++seq) {
    EXPECT_EQ(outcome(report(LogAppend{claimed_job.ref, {{seq, seq, LogStream::out, std::to_string(seq)}}})), "ok");
  }
  EXPECT_EQ(outcome(end(claimed_job.ref, finished())), "ok");
  follower.join();
  EXPECT_EQ(seen, (std::vector<std::string>{"1", "2", "3", "4", "5"}));
}

TEST_P(Reporting, JobWithoutOutputHasALogOnlyIfAClientWaits) {
  submit(1);
  ASSERT_EQ(outcome(end(claim_one().ref, finished())), "ok");
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:log:job:12:1"}).number(), 0U);
  EXPECT_TRUE(store_->logs(1, "job:12:1", 0, 10, 20000).value().ended) << "without a wait";
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:log:job:12:1"}).number(), 0U);

  submit(2);
  std::atomic<bool> has_ended = false;
  std::thread follower([&] {
    auto store = backend_->stores().open().value();
    const auto page = store->logs(1, "job:12:2", 0, 10, 200000).value();  // longer than eventually() waits
    EXPECT_TRUE(page.lines.empty());
    has_ended = page.ended;
  });
  EXPECT_TRUE(eventually([&] { return backend_->run_command(1, {"EXISTS", "mj:log:job:12:2"}).number() == 1U; }));
  const ClaimedJob claimed_job = claim_one();
  EXPECT_EQ(claimed_job.log_base, 0U);
  EXPECT_EQ(outcome(end(claimed_job.ref, finished())), "ok");
  EXPECT_TRUE(eventually([&] { return has_ended.load(); })) << "the end ends the wait";
  follower.join();
}

TEST_P(Reporting, WaitForALogOfAWrongTypeNamesTheKey) {
  submit(1);
  backend_->put_text(1, "mj:log:job:12:1", "mine");
  EXPECT_EQ(outcome(store_->logs(1, "job:12:1", 0, 10, 60000)), "invalid");
}

TEST_P(Reporting, LogOfAMissingJobIsNotFound) {
  EXPECT_EQ(outcome(store_->logs(1, "job:12:1", 0, 10, 0)), "not_found");
  ASSERT_TRUE(store_->save(1, "job:12:2", {{"script", "x"}, {"status", "error"}}));
  EXPECT_TRUE(store_->logs(1, "job:12:2", 0, 10, 0).value().ended) << "ended by another client";
}

TEST_P(Reporting, ReportedEndIsWrittenOverForeignFields) {
  using Record = EndedJob::RecordState;
  submit(1);
  const auto read_ended_job = [&] { return store_->ended_job(1, "job:12:1").value(); };
  EXPECT_FALSE(read_ended_job().ended);
  const ClaimedJob claimed = claim_one();
  EXPECT_FALSE(read_ended_job().ended);
  JobEnd done = finished({{"answer", "42"}, {"why", ""}});
  done.result_json = {"answer"};
  done.usage = R"({"cpu_ms":1})";
  done.artifacts_dropped = R"([{"name":"big","reason":"bytes"}])";
  ASSERT_TRUE(end(claimed.ref, done));
  EXPECT_EQ(field("job:12:1", "artifacts_dropped"), done.artifacts_dropped);
  const EndedJob ended = read_ended_job();
  EXPECT_TRUE(ended.ended);
  EXPECT_EQ(ended.record_state, Record::unchanged);
  EXPECT_EQ(ended.status, "finished");
  EXPECT_EQ(ended.claim_id, claimed.ref.claim_id);
  EXPECT_EQ(ended.runner, 20U);
  backend_->run_command(1, {"HSET", "job:12:1", "runner_id", "99", "name", "other"});
  EXPECT_EQ(read_ended_job().record_state, Record::unchanged) << "an end does not write these fields";
  EXPECT_EQ(read_ended_job().runner, 20U);
  for (const char* name :
       {"result", "detail", "error", "receipt", "usage", "status", "result_json", "artifacts_dropped"}) {
    const std::string before = field("job:12:1", name);
    backend_->run_command(1, {"HSET", "job:12:1", name, "forged"});
    EXPECT_EQ(read_ended_job().record_state, Record::changed) << name;
    EXPECT_EQ(read_ended_job().status, "finished");
    backend_->run_command(1, before.empty() ? std::vector<std::string>{"HDEL", "job:12:1", name}
                                            : std::vector<std::string>{"HSET", "job:12:1", name, before});
    EXPECT_EQ(read_ended_job().record_state, Record::unchanged) << name;
  }
  EXPECT_EQ(outcome(store_->ended_job(1, "job:12:9")), "not_found");
}

TEST_P(Reporting, SystemEndIsWrittenOverForeignFields) {
  submit(1);
  ASSERT_TRUE(store_->cancel(1, "job:12:1"));
  const auto read_ended_job = [&] { return store_->ended_job(1, "job:12:1").value(); };
  EXPECT_TRUE(read_ended_job().ended);
  EXPECT_EQ(read_ended_job().record_state, EndedJob::RecordState::unchanged);
  EXPECT_EQ(read_ended_job().detail, "cancelled");
  EXPECT_EQ(read_ended_job().claim_id, "");
  backend_->run_command(1, {"HSET", "job:12:1", "error", "forged"});
  EXPECT_EQ(read_ended_job().record_state, EndedJob::RecordState::changed);
}

TEST_P(Reporting, RecordAloneIsNotAnEnd) {
  backend_->run_command(1, {"HSET", "job:12:1", "id", "1", "caller_id", "12", "context_id", "1", "status", "finished",
                            "idempotency_key", "tuesday", "runner_id", "8"});
  const EndedJob bare = store_->ended_job(1, "job:12:1").value();
  EXPECT_TRUE(bare.ended);
  EXPECT_EQ(bare.record_state, EndedJob::RecordState::unknown);
  EXPECT_EQ(bare.runner, 8U);
  // A claim takes precedence over the record, and an idempotency key that only the record contains did not start the
  // job.
  backend_->run_command(1, {"HSET", "job:12:2", "id", "2", "caller_id", "12", "context_id", "1", "script", "x",
                            "script_type", "python", "status", "dispatched", "idempotency_key", "tuesday"});
  backend_->push(1, "queue:python", "job:12:2");
  ASSERT_TRUE(end(claim_one().ref, finished()));
  EXPECT_EQ(store_->ended_job(1, "job:12:2").value().record_state, EndedJob::RecordState::unchanged);
  EXPECT_EQ(store_->ended_job(1, "job:12:2").value().idempotency_key, "");
}

MJ_BOTH_STORES(Reporting);

}  // namespace
}  // namespace mycojobs
