// Quotas of the bytes that jobs store in Redis: the data that a caller submits, prints and reports must not grow
// without bound, must not block other callers, and must not fail a job.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/parse.h"
#include "base/sha256.h"
#include "inspect/doctor.h"
#include "inspect/explain.h"
#include "inspect/verify/job_verify.h"
#include "inspect/verify/kept_bytes.h"
#include "model/codec.h"
#include "store/redis/redis_flows.h"
#include "store/redis/redis_stores.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kMiB = 1ULL << 20;

class StorageQuota : public testing::Test {
 protected:
  StorageQuota() { run_command({"FLUSHALL"}); }
  ~StorageQuota() override { run_command({"FLUSHALL"}); }

  static Reply run_command(const std::vector<std::string>& words) {
    return TestRedis::instance().run_command(1, words);
  }

  static RedisStoreConfig make_config(std::uint64_t caller_bytes, std::uint64_t context_bytes) {
    RedisStoreConfig config;
    config.default_url = TestRedis::instance().url();
    config.instrumentation.quota = {caller_bytes, context_bytes};
    return config;
  }
  static Job make_job(Id caller, std::size_t script_bytes) {
    Job job;
    job.caller_id = caller;
    job.context_id = 1;
    job.script_type = "python";
    job.script = std::string(script_bytes, '#');
    return job;
  }
  static std::uint64_t read_stored_bytes(const std::string& field) {
    std::uint64_t bytes = 0;
    parse_u64(run_command({"HGET", "mj:stored-bytes", field}).text(), bytes);
    return bytes;
  }
  static std::vector<ClaimedJob> claim(Store& store, std::uint32_t max = 1) {
    ClaimRequest request;
    request.context = 1;
    request.runner = 20;
    request.queues = {"queue:python"};
    request.max_jobs = max;
    request.max_bytes = 1ULL << 30;
    return store.claim(request).value().jobs;
  }
  static LogAppend make_output(const ClaimRef& ref, std::uint64_t seq, std::size_t bytes) {
    LogAppend append{ref, {}};
    Log line;
    line.seq = seq;
    line.text = std::string(bytes, 'x');
    append.lines.push_back(line);
    return append;
  }
  static EndReport make_end(const ClaimRef& ref, std::size_t result_bytes = 0) {
    JobEnd end;
    end.status = JobStatus::finished;
    end.detail = "ok";
    if (result_bytes > 0) end.result["text"] = std::string(result_bytes, 'r');
    return {ref, end};
  }
  static void send_reports(Store& store, const std::vector<Report>& reports) {
    const auto answers = store.report(1, reports);
    ASSERT_TRUE(answers) << answers.error().message;
    for (const auto& each : *answers) ASSERT_TRUE(each) << each.error().message;
  }
  static TickReply tick_until_done(Store& store) {
    TickRequest request;
    TickReply total;
    do {
      const TickReply reply = store.tick(1, request).value();
      total.retired += reply.retired;
      total.has_more = reply.has_more;
    } while (total.has_more);
    return total;
  }
  static std::string read_field(const std::string& key, const std::string& field) {
    return std::string(run_command({"HGET", key, field}).text());
  }
  static void expect_no_findings(Store& store) {
    const auto report = verify(store, 1, [](std::string_view, std::uint64_t, std::uint64_t) {});
    ASSERT_TRUE(report) << report.error().message;
    for (const Finding& each : report->findings) ADD_FAILURE() << each.rule << ": " << each.text;
  }
  static std::uint64_t measure_redis_bytes() {
    return static_cast<std::uint64_t>(run_command({"EVAL",
                                                   "local n = 0 for _, k in ipairs(redis.call('KEYS', '*')) do n = n + "
                                                   "redis.call('MEMORY', 'USAGE', k, 'SAMPLES', 0) end return n",
                                                   "0"})
                                          .number());
  }
};

TEST_F(StorageQuota, QueueOfLargeScriptsIsRejectedAtTheQuota) {
  Store store(make_config(16 * kMiB, 64 * kMiB));
  std::size_t accepted = 0;
  std::string refusal;
  while (accepted < 100 && refusal.empty()) {
    const auto submission = store.submit(make_job(7, kMiB));
    if (submission) ++accepted;
    if (!submission) refusal = submission.error().message;
  }
  EXPECT_EQ(accepted, 15U);
  EXPECT_NE(refusal.find("quota.caller_bytes"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find(std::to_string(16 * kMiB)), std::string::npos) << refusal;
  EXPECT_LE(measure_redis_bytes(), 20 * kMiB);
  EXPECT_TRUE(store.submit(make_job(8, kMiB))) << "another caller is accepted";
}

TEST_F(StorageQuota, CreatedJobsCountUntilTheyAreRemoved) {
  Store store(make_config(16 * kMiB, 64 * kMiB));
  Job first;
  for (int i = 0; i < 15; ++i) {
    const auto submission = store.create_job(make_job(7, kMiB));
    ASSERT_TRUE(submission) << submission.error().message;
    if (i == 0) first = *submission;
  }
  EXPECT_FALSE(store.create_job(make_job(7, kMiB)));
  ASSERT_TRUE(store.delete_record(1, redis_key(first)));
  EXPECT_TRUE(store.create_job(make_job(7, kMiB)));
  const std::uint64_t before = read_stored_bytes("7");
  const auto started = store.create_job(make_job(8, 100));
  ASSERT_TRUE(store.start_job(1, redis_key(*started)));
  const auto claimed = claim(store);
  ASSERT_EQ(claimed.size(), 1U);
  EXPECT_EQ(run_command({"HLEN", "mj:stored-bytes-unqueued"}).number(), 15U) << "the claim stores the charged bytes";
  send_reports(store, {make_end(claimed[0].ref)});
  ASSERT_TRUE(store.delete_record(1, redis_key(*started)));
  EXPECT_EQ(read_stored_bytes("8"), 0U);
  EXPECT_EQ(read_stored_bytes("7"), before);
}

TEST_F(StorageQuota, PlainRecordsCountFromTheirClaim) {
  Store store(make_config(16 * kMiB, 64 * kMiB));
  run_command({"HSET", "job:7:1", "id", "1", "caller_id", "7", "context_id", "1", "script_type", "python", "status",
               "dispatched", "script", std::string(kMiB, '#')});
  run_command({"LPUSH", "queue:python", "job:7:1"});
  const auto claimed = claim(store);
  ASSERT_EQ(claimed.size(), 1U);
  EXPECT_GE(read_stored_bytes("7"), kMiB);
  send_reports(store, {make_end(claimed[0].ref)});
  ASSERT_TRUE(store.delete_record(1, "job:7:1"));
  EXPECT_EQ(run_command({"EXISTS", "mj:stored-bytes"}).number(), 0U) << "all charged bytes are credited";
}

TEST_F(StorageQuota, OldestEndedJobsOfTheCallerAreRemovedFirst) {
  Store store(make_config(16 * kMiB, 64 * kMiB));
  ASSERT_TRUE(store.submit(make_job(8, 100)));
  send_reports(store, {make_end(claim(store).at(0).ref)});
  std::string newest;
  for (int i = 0; i < 60; ++i) {
    const auto submission = store.submit(make_job(7, 100));
    ASSERT_TRUE(submission) << submission.error().message;
    newest = redis_key(*submission);
    const auto claimed = claim(store);
    ASSERT_EQ(claimed.size(), 1U);
    send_reports(store, {make_output(claimed[0].ref, 1, kMiB), make_end(claimed[0].ref)});
    tick_until_done(store);
    ASSERT_LE(read_stored_bytes("7"), 16 * kMiB);
  }
  EXPECT_LE(measure_redis_bytes(), 20 * kMiB);
  EXPECT_EQ(run_command({"EXISTS", "job:7:1"}).number(), 0U);
  EXPECT_EQ(run_command({"EXISTS", newest}).number(), 1U);
  EXPECT_EQ(run_command({"EXISTS", "job:8:1"}).number(), 1U) << "the job of the other caller is retained";
}

TEST_F(StorageQuota, OtherCallersDoNotEvictEndedJobs) {
  Store store(make_config(4 * kMiB, 40 * kMiB));
  for (Id other = 20; other < 30; ++other) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(store.submit(make_job(other, 100)));
      const auto claimed = claim(store);
      ASSERT_EQ(claimed.size(), 1U);
      send_reports(store, {make_output(claimed[0].ref, 1, kMiB), make_end(claimed[0].ref)});
    }
  }
  ASSERT_GT(read_stored_bytes("all"), 30 * kMiB)
      << "more than three quarters of the context, and less than seven eighths";
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store.submit(make_job(7, 100)));
    const auto claimed = claim(store);
    ASSERT_EQ(claimed.size(), 1U);
    send_reports(store, {make_output(claimed[0].ref, 1, kMiB / 2), make_end(claimed[0].ref)});
    tick_until_done(store);
    if (i > 6) {
      EXPECT_GT(read_stored_bytes("7"), 2 * kMiB) << i;
    }
    EXPECT_LE(read_stored_bytes("7"), 4 * kMiB) << i;
  }
}

TEST_F(StorageQuota, OutputBeyondTheQuotaIsDroppedAndTheJobFinishes) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(store.submit(make_job(7, 100)));
  const auto claimed = claim(store, 8);
  ASSERT_EQ(claimed.size(), 8U);
  for (const ClaimedJob& each : claimed)
    send_reports(store, {make_output(each.ref, 1, kMiB), make_output(each.ref, 2, kMiB)});
  EXPECT_LE(read_stored_bytes("7"), 4 * kMiB);
  EXPECT_LE(measure_redis_bytes(), 6 * kMiB);
  for (const ClaimedJob& each : claimed) send_reports(store, {make_end(each.ref)});
  const auto page = store.logs(1, claimed.back().ref.job_key, 0, 100, 0);
  ASSERT_TRUE(page);
  ASSERT_EQ(page->lines.size(), 1U) << "one line reports the missing output";
  EXPECT_NE(page->lines[0].text.find("quota.caller_bytes"), std::string::npos) << page->lines[0].text;
  EXPECT_TRUE(page->ended);
  EXPECT_EQ(run_command({"HGET", claimed.back().ref.job_key, "status"}).text(), "finished");
}

TEST_F(StorageQuota, GapsInTheOutputHaveOneLineEach) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  ASSERT_TRUE(store.submit(make_job(7, 100)));
  const auto claimed = claim(store);
  ASSERT_EQ(claimed.size(), 1U);
  const ClaimRef& ref = claimed[0].ref;
  constexpr std::size_t kScriptBytes = 4 * kMiB - 4500;  // leaves less than a step of the output
  ASSERT_TRUE(store.submit(make_job(7, kScriptBytes)));
  send_reports(store, {make_output(ref, 1, kMiB), make_output(ref, 2, 10), make_output(ref, 3, 10)});
  ASSERT_TRUE(store.cancel(1, "job:7:2"));
  run_command({"DEL", "queue:python"});
  ASSERT_TRUE(store.delete_record(1, "job:7:2"));
  send_reports(store, {make_output(ref, 4, 10)});
  ASSERT_TRUE(store.submit(make_job(7, kScriptBytes)));
  send_reports(store, {make_output(ref, 5, kMiB), make_output(ref, 6, 10)});
  std::vector<std::string> lines;
  const auto page = store.logs(1, ref.job_key, 0, 100, 0);
  ASSERT_TRUE(page);
  for (const Log& line : page->lines) lines.push_back(line.text.substr(0, 22));
  EXPECT_EQ(lines, (std::vector<std::string>{"output is not kept fro", "xxxxxxxxxx", "output is not kept fro"}));
}

TEST_F(StorageQuota, CallerOverItsQuotaStartsNoJob) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(store.submit(make_job(7, 100)));
  ASSERT_TRUE(store.submit(make_job(8, 100)));
  for (int i = 0; i < 4; ++i) {
    const auto claimed = claim(store);
    ASSERT_EQ(claimed.size(), 1U);
    ASSERT_TRUE(claimed[0].ref.job_key.starts_with("job:7:")) << i;
    send_reports(store, {make_end(claimed[0].ref, kMiB)});
  }
  ASSERT_GT(read_stored_bytes("7"), 4 * kMiB);
  const auto next = claim(store);
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].ref.job_key, "job:8:1") << "the earlier jobs of the other caller wait";
  EXPECT_EQ(read_field("job:7:5", "detail"), "quota");
  EXPECT_EQ(read_field("mj:claim:job:7:5", "state"), "delayed");
  const auto explanation = explain(store, 1, "job:7:5").value();
  EXPECT_EQ(explanation.cause, "quota");
  std::string evidence;
  for (const std::string& line : explanation.evidence) evidence += line + "\n";
  EXPECT_NE(evidence.find("its caller exceeds quota.caller_bytes"), std::string::npos) << evidence;
  expect_no_findings(store);

  const auto make_due = [] {
    run_command(
        {"EVAL",
         "for _, j in ipairs(redis.call('ZRANGE', 'mj:delayed', 0, -1)) do redis.call('ZADD', 'mj:delayed', 1, j) end",
         "0"});
  };
  make_due();
  store.tick(1, {}).value();
  EXPECT_EQ(read_field("mj:claim:job:7:5", "state"), "delayed")
      << "ended jobs are removed after the waiting jobs are checked";
  EXPECT_LE(read_stored_bytes("7"), 3 * kMiB);
  make_due();
  tick_until_done(store);
  EXPECT_EQ(read_field("mj:claim:job:7:5", "state"), "queued");
  EXPECT_EQ(read_field("mj:claim:job:7:5", "quota"), "");
  EXPECT_EQ(claim(store, 3).size(), 3U);
  expect_no_findings(store);
}

TEST_F(StorageQuota, EndsOfRunningJobsExceedTheQuotaByAnEighthAtMost) {
  Store store(make_config(8 * kMiB, 64 * kMiB));
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(store.submit(make_job(7, 100)));
  const auto claimed = claim(store, 16);
  ASSERT_EQ(claimed.size(), 16U);
  for (const ClaimedJob& each : claimed) send_reports(store, {make_end(each.ref, kMiB)});
  EXPECT_LE(read_stored_bytes("7"), 9 * kMiB);
  EXPECT_GT(read_stored_bytes("7"), 8 * kMiB);
  EXPECT_LE(measure_redis_bytes(), 11 * kMiB);
  EXPECT_EQ(read_field(claimed.front().ref.job_key, "status"), "finished");
  const ClaimRef& last = claimed.back().ref;
  EXPECT_EQ(read_field(last.job_key, "status") + ' ' + read_field(last.job_key, "detail"), "error result_quota");
  EXPECT_EQ(read_field(last.job_key, "result"), "");
  EXPECT_EQ(store.ended_job(1, last.job_key).value().record_state, EndedJob::RecordState::unchanged);
  const auto page = store.logs(1, last.job_key, 0, 100, 0);
  ASSERT_TRUE(page);
  ASSERT_EQ(page->lines.size(), 1U);
  EXPECT_NE(page->lines[0].text.find("quota.caller_bytes"), std::string::npos) << page->lines[0].text;
  send_reports(store, {make_end(last, kMiB)});  // repeated after a lost reply: the same end is stored once
  expect_no_findings(store);
}

TEST_F(StorageQuota, FailedAttemptsExceedTheQuotaByAnEighthAtMost) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  Job job = make_job(7, 100);
  job.retries = 3;
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(store.submit(job));
  const auto claimed = claim(store, 8);
  for (const ClaimedJob& each : claimed) {
    EndReport report = make_end(each.ref);
    report.end.status = JobStatus::error;
    report.end.detail = "exception";
    report.end.error = "ValueError";
    report.end.error_info = std::string(kMiB, 'e');
    report.retry_after_ms = 1;
    send_reports(store, {report});
  }
  EXPECT_LE(read_stored_bytes("7"), 4 * kMiB + kMiB / 2);
  const std::string last = claimed.back().ref.job_key;
  EXPECT_EQ(read_field(last, "detail"), "retry_wait");
  EXPECT_EQ(read_field(last, "error"), "ValueError");
  EXPECT_EQ(read_field(last, "error_info"), "");
  expect_no_findings(store);
}

TEST_F(StorageQuota, RemoteOutputAndResultsCountForTheirCaller) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  const std::string message = "message:7:1", content(64, 'c');
  ASSERT_TRUE(store.save(1, message, {{"id", "1"}, {"caller_id", "7"}, {"context_id", "1"}}));
  std::vector<MessageJob> jobs;
  AnswerMessage answer{message, content, "", {}, {}, true, ""};
  for (Id id = 1; id <= 8; ++id) {
    Job job = make_job(7, 100);
    job.id = id;
    jobs.push_back({job, "queue:python"});
    RemoteJobEnd one{redis_key(job), {}, {}};
    one.end.status = JobStatus::finished;
    one.end.detail = "ok";
    one.end.result["text"] = std::string(200000, 'r');
    answer.jobs.push_back(one);
  }
  ASSERT_TRUE(store.route_message(1, {message, {content, {{"address", "http://there:1"}}}, 60000, 0, jobs}));
  std::vector<Log> lines;
  for (std::uint64_t seq = 1; seq <= 8; ++seq) lines.push_back({1, seq, LogStream::out, std::string(kMiB, 'x')});
  EXPECT_EQ(store.append_remote_log(1, message, content, "job:7:1", lines).value(), 4U);
  EXPECT_GT(read_stored_bytes("7"), 3 * kMiB);
  EXPECT_LE(read_stored_bytes("7"), 4 * kMiB);
  ASSERT_TRUE(store.answer_message(1, answer));
  EXPECT_LE(read_stored_bytes("7"), 4 * kMiB + kMiB / 2);
  EXPECT_EQ(read_field("job:7:1", "status"), "finished");
  EXPECT_EQ(read_field("job:7:8", "status") + ' ' + read_field("job:7:8", "detail"), "error result_quota");
  EXPECT_TRUE(find_stored_bytes_problems(store, 1, [] {}).value().empty());
  TickRequest request;
  request.retention = Retention::same_for_all(1);
  while (store.tick(1, request).value().has_more) continue;
  for (Id id = 1; id <= 8; ++id) (void)store.delete_record(1, "job:7:" + std::to_string(id));
  EXPECT_EQ(read_stored_bytes("7"), 0U) << "the charged bytes are credited";
}

TEST_F(StorageQuota, EndsOfAttemptsReplaceEachOther) {
  Store store(make_config(16 * kMiB, 64 * kMiB));
  Job job = make_job(7, 100);
  job.retries = 10;
  ASSERT_TRUE(store.submit(job));
  for (int attempt = 0; attempt < 5; ++attempt) {
    run_command(
        {"EVAL",
         "for _, j in ipairs(redis.call('ZRANGE', 'mj:delayed', 0, -1)) do redis.call('ZADD', 'mj:delayed', 1, j) "
         "end",
         "0"});
    tick_until_done(store);
    const auto claimed = claim(store);
    ASSERT_EQ(claimed.size(), 1U);
    EndReport report = make_end(claimed[0].ref);
    report.end.status = JobStatus::error;
    report.end.detail = "error";
    report.end.error_info = std::string(kMiB, 'e');
    report.retry_after_ms = 1;
    send_reports(store, {report});
    EXPECT_GE(read_stored_bytes("7"), kMiB);
    EXPECT_LE(read_stored_bytes("7"), kMiB + kMiB / 8);
  }
}

TEST_F(StorageQuota, FullContextAcceptsSmallCallers) {
  Store store(make_config(16 * kMiB, 32 * kMiB));
  for (const Id caller : {7U, 8U, 9U})
    for (int i = 0; i < 15; ++i) (void)store.submit(make_job(caller, kMiB));
  EXPECT_LE(read_stored_bytes("all"), 32 * kMiB);
  const auto rejected = store.submit(make_job(9, kMiB));
  ASSERT_FALSE(rejected);
  EXPECT_NE(rejected.error().message.find("quota.context_bytes"), std::string::npos) << rejected.error().message;
  EXPECT_TRUE(store.submit(make_job(10, 1000)));
}

TEST_F(StorageQuota, ContextNeverStoresTwiceItsQuota) {
  Store store(make_config(0, 8 * kMiB));
  const std::size_t own = kMiB / 4;  // below a sixteenth of the quota of the context, which lets each caller in
  std::string refusal;
  for (Id caller = 1; caller <= 100 && refusal.empty(); ++caller) {
    const auto submission = store.submit(make_job(caller, own));
    if (!submission) refusal = submission.error().message;
  }
  EXPECT_NE(refusal.find("quota.context_bytes"), std::string::npos) << refusal;
  EXPECT_GT(read_stored_bytes("all"), 15 * kMiB);
  EXPECT_LE(read_stored_bytes("all"), 16 * kMiB);
}

TEST_F(StorageQuota, OldSuccessesAreDeletedBeforeFailures) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  constexpr std::uint64_t kHourMs = 3600000;
  const auto end_one = [&](bool is_success, std::uint64_t hours_ago) {
    ASSERT_TRUE(store.submit(make_job(7, 10)));
    const ClaimedJob claimed = claim(store).at(0);
    EndReport end = make_end(claimed.ref, 5 * kMiB / 8);
    if (!is_success) end.end.status = JobStatus::error;
    send_reports(store, {end});
    const std::string time = std::to_string(store.now_ms().value() - hours_ago * kHourMs);
    run_command({"ZADD", "mj:ended", time, claimed.ref.job_key});
    run_command({"HSET", "mj:claim:" + claimed.ref.job_key, "ended_ms", time});
  };
  end_one(true, 0);    // job:7:1
  end_one(false, 30);  // job:7:2, kept beyond the retention of successful jobs
  end_one(false, 20);  // job:7:3
  end_one(true, 2);    // job:7:4
  end_one(true, 1);    // job:7:5
  const std::vector<std::string> expected_order{"job:7:4", "job:7:5", "job:7:2", "job:7:3", "job:7:1"};
  std::vector<std::string> deleted;
  store.tick(1, {}).value();
  for (int i = 0; i < 100 && deleted.size() < expected_order.size(); ++i) {
    (void)store.submit(make_job(7, kMiB / 16));
    run_command({"DEL", "mj:stored-bytes-search"});
    tick_until_done(store);
    for (const std::string& job : expected_order) {
      const bool is_known = std::find(deleted.begin(), deleted.end(), job) != deleted.end();
      if (!is_known && run_command({"EXISTS", job}).number() == 0) deleted.push_back(job);
    }
  }
  EXPECT_EQ(deleted, expected_order);
}

TEST_F(StorageQuota, FailedSearchIsNotRepeatedAtOnce) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  constexpr std::uint32_t kOtherJobs = 1000;
  for (std::uint32_t i = 0; i < kOtherJobs / 50; ++i) {
    for (int k = 0; k < 50; ++k) ASSERT_TRUE(store.submit(make_job(8, 10)));
    std::vector<Report> ends;
    for (const ClaimedJob& each : claim(store, 50)) ends.push_back(make_end(each.ref));
    send_reports(store, ends);
  }
  for (int i = 0; i < 4; ++i) (void)store.submit(make_job(7, kMiB - 10000));  // none of these jobs has ended
  EXPECT_EQ(read_field("mj:stored-bytes", "over"), "7");
  store.tick(1, {}).value();
  EXPECT_NE(read_field("mj:stored-bytes", "at"), "") << "a search needs several ticks";
  (void)store.submit(make_job(7, kMiB));
  for (int i = 0; i < 10 && !read_field("mj:stored-bytes", "over").empty(); ++i)
    EXPECT_FALSE(store.tick(1, {}).value().has_more);
  EXPECT_EQ(read_field("mj:stored-bytes", "over"), "") << "there was nothing to retire";
  ASSERT_FALSE(store.submit(make_job(7, kMiB)));
  EXPECT_EQ(read_field("mj:stored-bytes", "over"), "7");
  store.tick(1, {}).value();
  EXPECT_EQ(read_field("mj:stored-bytes", "over"), "") << "jobs that ended earlier are not searched again";
  EXPECT_EQ(run_command({"EXISTS", "job:8:1"}).number(), 1U);

  // Jobs that have ended since are found at once.
  const auto claimed = claim(store, 2);
  ASSERT_EQ(claimed.size(), 2U);
  send_reports(store, {make_end(claimed[0].ref), make_end(claimed[1].ref)});
  ASSERT_FALSE(store.submit(make_job(7, kMiB)));
  tick_until_done(store);
  EXPECT_EQ(run_command({"EXISTS", claimed[0].ref.job_key}).number(), 0U);
  EXPECT_TRUE(store.submit(make_job(7, kMiB / 2)));
}

TEST_F(StorageQuota, FullContextRetiresJobsOfTheNextCaller) {
  Store store(make_config(64 * kMiB, 16 * kMiB));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(store.submit(make_job(8, kMiB)));
    send_reports(store, {make_end(claim(store).at(0).ref)});
  }
  for (int i = 0; i < 11; ++i) ASSERT_TRUE(store.submit(make_job(7, kMiB)));
  for (int i = 0; i < 5; ++i) tick_until_done(store);
  EXPECT_LE(read_stored_bytes("all"), 12 * kMiB + kMiB / 8);
  EXPECT_EQ(run_command({"EXISTS", "job:8:1"}).number(), 0U);
  EXPECT_EQ(run_command({"EXISTS", "job:7:1"}).number(), 1U);
}

TEST_F(StorageQuota, FullContextRetiresJobsOfItsLargestCaller) {
  Store store(make_config(64 * kMiB, 16 * kMiB));
  ASSERT_TRUE(store.submit(make_job(8, 100)));
  send_reports(store, {make_end(claim(store).at(0).ref)});
  for (int i = 0; i < 14; ++i) {
    ASSERT_TRUE(store.submit(make_job(7, kMiB)));
    send_reports(store, {make_end(claim(store).at(0).ref)});
  }
  ASSERT_TRUE(store.submit(make_job(8, kMiB)));  // exceeds seven eighths of the quota, by another caller
  tick_until_done(store);
  EXPECT_LE(read_stored_bytes("all"), 12 * kMiB);
  EXPECT_EQ(run_command({"EXISTS", "job:8:1"}).number(), 1U);
  EXPECT_EQ(run_command({"EXISTS", "job:7:1"}).number(), 0U);
}

TEST_F(StorageQuota, EndsOfSmallJobsDoNotAccessTheCounter) {
  Store store(make_config(16 * kMiB, 64 * kMiB));
  const auto count_commands = [&] {
    std::uint64_t calls = 0;
    const std::string text(run_command({"INFO", "commandstats"}).text());
    for (std::size_t at = text.find("calls="); at != std::string::npos; at = text.find("calls=", at + 1)) {
      std::uint64_t count = 0;
      parse_u64(std::string_view(text).substr(at + 6, text.find(',', at) - at - 6), count);
      calls += count;
    }
    return calls;
  };
  const auto measure_end_commands = [&](std::size_t result_bytes) {
    EXPECT_TRUE(store.submit(make_job(7, 100)));
    const auto claimed = claim(store);
    run_command({"CONFIG", "RESETSTAT"});
    send_reports(store, {make_end(claimed.at(0).ref, result_bytes)});
    return count_commands();
  };
  measure_end_commands(1);  // loads the script
  const std::uint64_t small = measure_end_commands(1);
  const std::uint64_t large = measure_end_commands(100000);
  EXPECT_EQ(large - small, 2U) << "the counter is read once and written once";
}

TEST_F(StorageQuota, CounterOfAnotherTypeStopsNoJob) {
  Store store(make_config(16 * kMiB, 64 * kMiB));
  run_command({"SET", "mj:stored-bytes", "nonsense"});
  run_command({"SET", "mj:stored-bytes-unqueued", "nonsense"});
  ASSERT_TRUE(store.submit(make_job(7, 100)));
  ASSERT_TRUE(store.create_job(make_job(7, 100)));
  const auto claimed = claim(store);
  ASSERT_EQ(claimed.size(), 1U);
  send_reports(store, {make_output(claimed[0].ref, 1, kMiB), make_end(claimed[0].ref, kMiB)});
  tick_until_done(store);
  ASSERT_TRUE(store.delete_record(1, claimed[0].ref.job_key));
}

TEST_F(StorageQuota, MessagesOfACallerCountUntilTheyAreDeleted) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  NewRecord message{"message:7:", "message:7", 0, {{"message", std::string(kMiB, 'm')}}};
  std::vector<std::string> submission;
  for (int i = 0; i < 3; ++i) {
    const auto one = store.create_record(1, message);
    ASSERT_TRUE(one) << one.error().message;
    submission.push_back(one->key);
  }
  const auto rejected = store.create_record(1, message);
  ASSERT_FALSE(rejected);
  EXPECT_NE(rejected.error().message.find("quota.caller_bytes"), std::string::npos) << rejected.error().message;
  ASSERT_TRUE(store.delete_record(1, submission[0]));
  EXPECT_TRUE(store.create_record(1, message));
}

TEST_F(StorageQuota, DefinitionsCountForTheCallerThatStoredThem) {
  const RedisStoreConfig own = make_config(4 * kMiB, 64 * kMiB);
  Store store(own);
  const auto flows = make_redis_flows(link_opener(own), own.instrumentation);
  const auto add = [&](Id caller, int number, const std::string& definition) {
    Schedule schedule;
    schedule.name = "s" + std::to_string(number);
    schedule.caller = caller;
    schedule.cron = "0 3 * * *";
    schedule.zone = "UTC";
    schedule.definition_hash = sha256_hex(definition);
    return flows->put_schedule(1, schedule, definition, 0);
  };
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(add(7, i, std::string(kMiB, static_cast<char>('a' + i))));
  const auto rejected = add(7, 4, std::string(kMiB, 'z'));
  ASSERT_FALSE(rejected);
  EXPECT_NE(rejected.error().message.find("quota.caller_bytes"), std::string::npos) << rejected.error().message;
  const std::uint64_t before = read_stored_bytes("7");
  ASSERT_TRUE(add(8, 5, std::string(kMiB, 'b'))) << "the definition is stored already";
  EXPECT_LT(read_stored_bytes("8"), kMiB / 8);
  EXPECT_TRUE(find_stored_bytes_problems(store, 1, [] {}).value().empty());
  ASSERT_TRUE(flows->remove_schedule(1, "s1"));  // s5 still uses the definition
  EXPECT_GT(read_stored_bytes("7"), before - kMiB / 8);
  ASSERT_TRUE(flows->remove_schedule(1, "s5"));
  EXPECT_LT(read_stored_bytes("7"), before - kMiB);
  for (const char* name : {"s2", "s3"}) ASSERT_TRUE(flows->remove_schedule(1, name));
  EXPECT_EQ(run_command({"EXISTS", "mj:stored-bytes"}).number(), 0U);
}

TEST_F(StorageQuota, SchedulesCountWithTheirLatestContent) {
  const RedisStoreConfig own = make_config(4 * kMiB, 64 * kMiB);
  Store store(own);
  const auto flows = make_redis_flows(link_opener(own), own.instrumentation);
  Schedule schedule;
  schedule.name = "nightly";
  schedule.caller = 7;
  schedule.cron = "0 3 * * *";
  schedule.zone = "UTC";
  schedule.definition_hash = sha256_hex("{}");
  ASSERT_TRUE(flows->put_schedule(1, schedule, "{}", 0));
  const std::uint64_t before = read_stored_bytes("7");
  schedule.zone = std::string(100000, 'z');
  ASSERT_TRUE(flows->put_schedule(1, schedule, "", 1));
  EXPECT_GT(read_stored_bytes("7"), before + 90000);
  EXPECT_TRUE(find_stored_bytes_problems(store, 1, [] {}).value().empty());
  schedule.zone = std::string(5 * kMiB, 'z');
  const auto rejected = flows->put_schedule(1, schedule, "", 2);
  ASSERT_FALSE(rejected);
  EXPECT_NE(rejected.error().message.find("quota.caller_bytes"), std::string::npos) << rejected.error().message;
  schedule.zone = "UTC";
  ASSERT_TRUE(flows->put_schedule(1, schedule, "", 2));
  EXPECT_EQ(read_stored_bytes("7"), before);
  ASSERT_TRUE(flows->remove_schedule(1, "nightly"));
  EXPECT_EQ(run_command({"EXISTS", "mj:stored-bytes"}).number(), 0U);
}

TEST_F(StorageQuota, JobsOfAFlowCountForTheCallerOfTheirKeys) {
  const RedisStoreConfig own = make_config(4 * kMiB, 64 * kMiB);
  Store store(own);
  const auto flows = make_redis_flows(link_opener(own), own.instrumentation);
  const FlowIds place = flows->create({1, 7, 1, "", ""}).value();
  run_command({"HDEL", "mj:flow:" + std::to_string(place.flow), "caller"});  // as flows of older versions
  Job job = make_job(7, 10000);
  job.id = place.first_job;
  ASSERT_TRUE(flows->put_jobs(1, place.flow, std::vector<Job>{job}));
  EXPECT_GE(read_stored_bytes("7"), 10000U);
  EXPECT_EQ(read_stored_bytes("0"), 0U);
}

TEST_F(StorageQuota, NodesOfAFlowAreNotWrittenBeyondTheQuota) {
  const RedisStoreConfig own = make_config(4 * kMiB, 64 * kMiB);
  Store store(own);
  const auto flows = make_redis_flows(link_opener(own), own.instrumentation);
  const FlowIds place = flows->create({1, 7, 0, "", ""}).value();
  Flow flow;
  flow.id = place.flow;
  flow.caller_id = 7;
  flow.context_id = 1;
  flow.definition_hash = sha256_hex("{}");
  ASSERT_TRUE(flows->put_flow(flow, "{}"));
  FlowCommit commit;
  commit.context = 1;
  commit.flow = place.flow;
  commit.facts.push_back({0, 0, "went_on", 0, ""});
  const auto dispatch = [](Id id) {
    FlowDispatch each{"job:7:" + std::to_string(id), {}};
    each.new_node_job = make_job(7, kMiB);
    each.new_node_job->id = id;
    return each;
  };
  for (Id id = 1; id <= 8; ++id) commit.dispatches.push_back(dispatch(id));
  const auto done = flows->commit(commit);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_LE(read_stored_bytes("7"), 4 * kMiB + kMiB / 2);
  EXPECT_EQ(read_field("job:7:1", "detail"), "queued");
  EXPECT_EQ(read_field("job:7:8", "status") + ' ' + read_field("job:7:8", "detail"), "error quota");
  EXPECT_NE(read_field("job:7:8", "error").find("quota.caller_bytes"), std::string::npos);
  expect_no_findings(store);

  // The next attempt stores the record once enough bytes are free.
  for (Id id = 1; id <= 4; ++id) {
    ASSERT_TRUE(store.cancel(1, "job:7:" + std::to_string(id)));
    run_command({"HSET", "mj:claim:job:7:" + std::to_string(id), "kept", "0"});
  }
  run_command({"HSET", "mj:stored-bytes", "7", "10000", "all", "10000"});
  FlowCommit again = commit;
  again.expected_revision = *done;
  again.dispatches = {dispatch(8)};
  again.requeued_jobs = {"job:7:8"};
  ASSERT_TRUE(flows->commit(again));
  EXPECT_EQ(read_field("job:7:8", "detail"), "queued");
  EXPECT_GE(read_field("job:7:8", "script").size(), kMiB);
  EXPECT_EQ(read_field("mj:claim:job:7:8", "unplanted"), "");
}

TEST_F(StorageQuota, CallerAndContextCountersDecreaseEqually) {
  Store store(make_config(64 * kMiB, 64 * kMiB));
  ASSERT_TRUE(store.submit(make_job(7, kMiB)));
  ASSERT_TRUE(store.submit(make_job(8, kMiB)));
  run_command({"HSET", "mj:stored-bytes", "7", "1000"});
  run_command({"HINCRBY", "mj:stored-bytes", "all", "-" + std::to_string(kMiB)});
  const std::uint64_t others = read_stored_bytes("8"), all = read_stored_bytes("all");
  ASSERT_TRUE(store.cancel(1, "job:7:1"));
  run_command({"DEL", "queue:python"});
  ASSERT_TRUE(store.delete_record(1, "job:7:1"));
  EXPECT_EQ(read_stored_bytes("7"), 0U);
  EXPECT_EQ(read_stored_bytes("8"), others);
  EXPECT_EQ(read_stored_bytes("all"), all - 1000);
}

TEST_F(StorageQuota, DriftingCountersAreFoundAndRepaired) {
  Store store(make_config(64 * kMiB, 64 * kMiB));
  ASSERT_TRUE(store.submit(make_job(7, kMiB)));
  const auto claimed = claim(store);
  send_reports(store, {make_output(claimed.at(0).ref, 1, 100000), make_end(claimed.at(0).ref, 100000)});
  ASSERT_TRUE(store.submit(make_job(8, 100)));
  ASSERT_TRUE(store.create_job(make_job(9, 100)));
  const auto look = [&] { return find_stored_bytes_problems(store, 1, [] {}).value(); };
  EXPECT_TRUE(look().empty());
  const std::uint64_t all = read_stored_bytes("all"), own = read_stored_bytes("7");
  for (const std::vector<std::string>& damage :
       std::vector<std::vector<std::string>>{{"DEL", "mj:stored-bytes"},
                                             {"HSET", "mj:stored-bytes", "7", "1"},
                                             {"HSET", "mj:stored-bytes", "7", "99999999999", "all", "x"},
                                             {"HSET", "mj:stored-bytes", "42", "5000"},
                                             {"HDEL", "mj:stored-bytes", "all", "8"}}) {
    run_command(damage);
    const auto troubles = look();
    EXPECT_FALSE(troubles.empty()) << damage[1];
    for (const StoredBytesProblem& each : troubles) ASSERT_TRUE(repair_stored_bytes(store, 1, each));
    EXPECT_TRUE(look().empty());
    EXPECT_EQ(read_stored_bytes("all"), all);
    EXPECT_EQ(read_stored_bytes("7"), own);
  }
}

TEST_F(StorageQuota, DoctorAndExplainShowUsageAndQuota) {
  Store store(make_config(4 * kMiB, 64 * kMiB));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(store.submit(make_job(7, kMiB)));
  const auto claimed = claim(store);
  send_reports(store, {make_output(claimed.at(0).ref, 1, kMiB), make_output(claimed.at(0).ref, 2, kMiB)});
  tick_until_done(store);
  const auto checks = diagnose_quota(store, 1);
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_EQ(checks[0].status, CheckStatus::ok);
  EXPECT_NE(checks[0].detail.find("quota.context_bytes"), std::string::npos) << checks[0].detail;
  EXPECT_NE(checks[1].name.find("7"), std::string::npos) << checks[1].name;
  const auto explanation = explain(store, 1, claimed[0].ref.job_key).value();
  std::string evidence;
  for (const std::string& line : explanation.evidence) evidence += line + "\n";
  EXPECT_NE(evidence.find("a part of its output was not kept"), std::string::npos) << evidence;
  EXPECT_NE(evidence.find("of 4194304 bytes (quota.caller_bytes)"), std::string::npos) << evidence;
}

}  // namespace
}  // namespace mycojobs
