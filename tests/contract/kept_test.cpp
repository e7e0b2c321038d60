// Quotas of the bytes that jobs store in Redis: the data that a caller submits, prints and reports must not grow
// without bound, must not block other callers, and must not fail a job.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/ids.h"
#include "base/sha256.h"
#include "bench.h"
#include "domain/codec.h"
#include "inspect/doctor.h"
#include "inspect/explain.h"
#include "inspect/kept_bytes.h"
#include "store/redis_flows.h"
#include "store/redis_store.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kMiB = 1ULL << 20;

class KeptBytes : public testing::Test {
 protected:
  KeptBytes() { plain({"FLUSHALL"}); }
  ~KeptBytes() override { plain({"FLUSHALL"}); }

  static Reply plain(const std::vector<std::string>& words) { return TestRedis::instance().plain(1, words); }

  static RedisStoreConfig config(std::uint64_t caller_bytes, std::uint64_t context_bytes) {
    RedisStoreConfig config;
    config.default_url = TestRedis::instance().url();
    config.observed.quota = {caller_bytes, context_bytes};
    return config;
  }
  static Job job_of(Id caller, std::size_t script_bytes) {
    Job job;
    job.caller_id = caller;
    job.context_id = 1;
    job.script_type = "python";
    job.script = std::string(script_bytes, '#');
    return job;
  }
  static std::uint64_t kept(const std::string& field) {
    std::uint64_t bytes = 0;
    parse_u64(plain({"HGET", "mj:kept", field}).text(), bytes);
    return bytes;
  }
  static std::vector<Claimed> claim(Store& store, std::uint32_t max = 1) {
    ClaimRequest request;
    request.context = 1;
    request.runner = 20;
    request.queues = {"queue:python"};
    request.max_jobs = max;
    request.max_bytes = 1ULL << 30;
    return store.claim(request).value().jobs;
  }
  static LogAppend output(const ClaimRef& ref, std::uint64_t seq, std::size_t bytes) {
    LogAppend append{ref, {}};
    Log line;
    line.seq = seq;
    line.text = std::string(bytes, 'x');
    append.lines.push_back(line);
    return append;
  }
  static EndReport ended(const ClaimRef& ref, std::size_t result_bytes = 0) {
    JobEnd end;
    end.status = JobStatus::finished;
    end.detail = "ok";
    if (result_bytes > 0) end.result["text"] = std::string(result_bytes, 'r');
    return {ref, end};
  }
  static void run(Store& store, const std::vector<Report>& reports) {
    const auto answers = store.report(1, reports);
    ASSERT_TRUE(answers) << answers.error().message;
    for (const auto& each : *answers) ASSERT_TRUE(each) << each.error().message;
  }
  static TickReply tick(Store& store) {
    TickRequest request;
    TickReply all;
    do {
      const TickReply one = store.tick(1, request).value();
      all.retired += one.retired;
      all.more = one.more;
    } while (all.more);
    return all;
  }
  static std::uint64_t bytes_of_keys() {
    return static_cast<std::uint64_t>(plain({"EVAL",
                                             "local n = 0 for _, k in ipairs(redis.call('KEYS', '*')) do n = n + "
                                             "redis.call('MEMORY', 'USAGE', k, 'SAMPLES', 0) end return n",
                                             "0"})
                                          .number());
  }
};

TEST_F(KeptBytes, QueueOfLargeScriptsIsRefusedAtTheQuota) {
  RedisStore store(config(16 * kMiB, 64 * kMiB));
  std::size_t accepted = 0;
  std::string refusal;
  while (accepted < 100 && refusal.empty()) {
    const auto made = store.submit(job_of(7, kMiB));
    if (made) ++accepted;
    if (!made) refusal = made.error().message;
  }
  EXPECT_EQ(accepted, 15U);
  EXPECT_NE(refusal.find("quota.caller_bytes"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find(std::to_string(16 * kMiB)), std::string::npos) << refusal;
  EXPECT_LE(bytes_of_keys(), 20 * kMiB);
  EXPECT_TRUE(store.submit(job_of(8, kMiB))) << "another caller is let in";
}

TEST_F(KeptBytes, JobsThatAreOnlyCreatedCountAndLeaveAgain) {
  RedisStore store(config(16 * kMiB, 64 * kMiB));
  Job first;
  for (int i = 0; i < 15; ++i) {
    const auto made = store.create_job(job_of(7, kMiB));
    ASSERT_TRUE(made) << made.error().message;
    if (i == 0) first = *made;
  }
  EXPECT_FALSE(store.create_job(job_of(7, kMiB)));
  ASSERT_TRUE(store.delete_record(1, redis_key(first)));
  EXPECT_TRUE(store.create_job(job_of(7, kMiB)));
  const std::uint64_t before = kept("7");
  const auto started = store.create_job(job_of(8, 100));
  ASSERT_TRUE(store.start_job(1, redis_key(*started)));
  const auto claimed = claim(store);
  ASSERT_EQ(claimed.size(), 1U);
  EXPECT_EQ(plain({"HLEN", "mj:kept-created"}).number(), 15U) << "its claim has what it was charged";
  run(store, {ended(claimed[0].ref)});
  ASSERT_TRUE(store.delete_record(1, redis_key(*started)));
  EXPECT_EQ(kept("8"), 0U);
  EXPECT_EQ(kept("7"), before);
}

TEST_F(KeptBytes, RecordsOfPlainClientsCountFromTheirClaim) {
  RedisStore store(config(16 * kMiB, 64 * kMiB));
  plain({"HSET", "job:7:1", "id", "1", "caller_id", "7", "context_id", "1", "script_type", "python", "status",
         "dispatched", "script", std::string(kMiB, '#')});
  plain({"LPUSH", "queue:python", "job:7:1"});
  const auto claimed = claim(store);
  ASSERT_EQ(claimed.size(), 1U);
  EXPECT_GE(kept("7"), kMiB);
  run(store, {ended(claimed[0].ref)});
  ASSERT_TRUE(store.delete_record(1, "job:7:1"));
  EXPECT_EQ(plain({"EXISTS", "mj:kept"}).number(), 0U) << "nothing is left of what it was charged";
}

TEST_F(KeptBytes, OldestEndedJobsOfTheCallerLeaveFirst) {
  RedisStore store(config(16 * kMiB, 64 * kMiB));
  ASSERT_TRUE(store.submit(job_of(8, 100)));
  run(store, {ended(claim(store).at(0).ref)});
  std::string newest;
  for (int i = 0; i < 60; ++i) {
    const auto made = store.submit(job_of(7, 100));
    ASSERT_TRUE(made) << made.error().message;
    newest = redis_key(*made);
    const auto claimed = claim(store);
    ASSERT_EQ(claimed.size(), 1U);
    run(store, {output(claimed[0].ref, 1, kMiB), ended(claimed[0].ref)});
    tick(store);
    ASSERT_LE(kept("7"), 16 * kMiB);
  }
  EXPECT_LE(bytes_of_keys(), 20 * kMiB);
  EXPECT_EQ(plain({"EXISTS", "job:7:1"}).number(), 0U);
  EXPECT_EQ(plain({"EXISTS", newest}).number(), 1U);
  EXPECT_EQ(plain({"EXISTS", "job:8:1"}).number(), 1U) << "the other caller's job stays";
}

TEST_F(KeptBytes, OtherCallersDoNotCostACallerItsEndedJobs) {
  RedisStore store(config(4 * kMiB, 40 * kMiB));
  for (Id other = 20; other < 30; ++other) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(store.submit(job_of(other, 100)));
      const auto claimed = claim(store);
      ASSERT_EQ(claimed.size(), 1U);
      run(store, {output(claimed[0].ref, 1, kMiB), ended(claimed[0].ref)});
    }
  }
  ASSERT_GT(kept("all"), 30 * kMiB) << "more than three quarters of the context, and less than seven eighths";
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store.submit(job_of(7, 100)));
    const auto claimed = claim(store);
    ASSERT_EQ(claimed.size(), 1U);
    run(store, {output(claimed[0].ref, 1, kMiB / 2), ended(claimed[0].ref)});
    tick(store);
    if (i > 6) EXPECT_GT(kept("7"), 2 * kMiB) << i;
    EXPECT_LE(kept("7"), 4 * kMiB) << i;
  }
}

TEST_F(KeptBytes, OutputBeyondTheQuotaIsDroppedAndTheJobFinishes) {
  RedisStore store(config(4 * kMiB, 64 * kMiB));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(store.submit(job_of(7, 100)));
  const auto claimed = claim(store, 8);
  ASSERT_EQ(claimed.size(), 8U);
  for (const Claimed& each : claimed) run(store, {output(each.ref, 1, kMiB), output(each.ref, 2, kMiB)});
  EXPECT_LE(kept("7"), 4 * kMiB);
  EXPECT_LE(bytes_of_keys(), 6 * kMiB);
  for (const Claimed& each : claimed) run(store, {ended(each.ref)});
  const auto page = store.logs(1, claimed.back().ref.job_key, 0, 100, 0);
  ASSERT_TRUE(page);
  ASSERT_EQ(page->lines.size(), 1U) << "one line says that output is missing";
  EXPECT_NE(page->lines[0].text.find("quota.caller_bytes"), std::string::npos) << page->lines[0].text;
  EXPECT_TRUE(page->ended);
  EXPECT_EQ(plain({"HGET", claimed.back().ref.job_key, "status"}).text(), "finished");
}

TEST_F(KeptBytes, EndsOfAttemptsReplaceOneAnother) {
  RedisStore store(config(16 * kMiB, 64 * kMiB));
  Job job = job_of(7, 100);
  job.retries = 10;
  ASSERT_TRUE(store.submit(job));
  for (int attempt = 0; attempt < 5; ++attempt) {
    plain({"EVAL",
           "for _, j in ipairs(redis.call('ZRANGE', 'mj:delayed', 0, -1)) do redis.call('ZADD', 'mj:delayed', 1, j) "
           "end",
           "0"});
    tick(store);
    const auto claimed = claim(store);
    ASSERT_EQ(claimed.size(), 1U);
    EndReport report = ended(claimed[0].ref);
    report.end.status = JobStatus::error;
    report.end.detail = "error";
    report.end.error_info = std::string(kMiB, 'e');
    report.retry_after_ms = 1;
    run(store, {report});
    EXPECT_GE(kept("7"), kMiB);
    EXPECT_LE(kept("7"), kMiB + kMiB / 8);
  }
}

TEST_F(KeptBytes, FullContextStillLetsSmallCallersIn) {
  RedisStore store(config(16 * kMiB, 32 * kMiB));
  for (const Id caller : {7U, 8U, 9U})
    for (int i = 0; i < 15; ++i) (void)store.submit(job_of(caller, kMiB));
  EXPECT_LE(kept("all"), 32 * kMiB);
  const auto refused = store.submit(job_of(9, kMiB));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("quota.context_bytes"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(store.submit(job_of(10, 1000)));
}

TEST_F(KeptBytes, FullContextRetiresJobsOfItsLargestCaller) {
  RedisStore store(config(64 * kMiB, 16 * kMiB));
  ASSERT_TRUE(store.submit(job_of(8, 100)));
  run(store, {ended(claim(store).at(0).ref)});
  for (int i = 0; i < 14; ++i) {
    ASSERT_TRUE(store.submit(job_of(7, kMiB)));
    run(store, {ended(claim(store).at(0).ref)});
  }
  ASSERT_TRUE(store.submit(job_of(8, kMiB)));  // exceeds seven eighths of the quota, by another caller
  tick(store);
  EXPECT_LE(kept("all"), 12 * kMiB);
  EXPECT_EQ(plain({"EXISTS", "job:8:1"}).number(), 1U);
  EXPECT_EQ(plain({"EXISTS", "job:7:1"}).number(), 0U);
}

TEST_F(KeptBytes, SmallJobsCostTheirEndNothing) {
  RedisStore store(config(16 * kMiB, 64 * kMiB));
  const auto spent = [&] {
    std::uint64_t calls = 0;
    const std::string text(plain({"INFO", "commandstats"}).text());
    for (std::size_t at = text.find("calls="); at != std::string::npos; at = text.find("calls=", at + 1)) {
      std::uint64_t more = 0;
      parse_u64(std::string_view(text).substr(at + 6, text.find(',', at) - at - 6), more);
      calls += more;
    }
    return calls;
  };
  const auto cost_of_end = [&](std::size_t result_bytes) {
    EXPECT_TRUE(store.submit(job_of(7, 100)));
    const auto claimed = claim(store);
    plain({"CONFIG", "RESETSTAT"});
    run(store, {ended(claimed.at(0).ref, result_bytes)});
    return spent();
  };
  cost_of_end(1);  // loads the script
  const std::uint64_t small = cost_of_end(1);
  const std::uint64_t large = cost_of_end(100000);
  EXPECT_EQ(large - small, 2U) << "the counter is read and written";
}

TEST_F(KeptBytes, CounterOfAnotherTypeStopsNoJob) {
  RedisStore store(config(16 * kMiB, 64 * kMiB));
  plain({"SET", "mj:kept", "nonsense"});
  plain({"SET", "mj:kept-created", "nonsense"});
  ASSERT_TRUE(store.submit(job_of(7, 100)));
  ASSERT_TRUE(store.create_job(job_of(7, 100)));
  const auto claimed = claim(store);
  ASSERT_EQ(claimed.size(), 1U);
  run(store, {output(claimed[0].ref, 1, kMiB), ended(claimed[0].ref, kMiB)});
  tick(store);
  ASSERT_TRUE(store.delete_record(1, claimed[0].ref.job_key));
}

TEST_F(KeptBytes, MessagesOfACallerCountUntilTheyAreDeleted) {
  RedisStore store(config(4 * kMiB, 64 * kMiB));
  NewRecord message{"message:7:", "message:7", 0, {{"message", std::string(kMiB, 'm')}}};
  std::vector<std::string> made;
  for (int i = 0; i < 3; ++i) {
    const auto one = store.create_record(1, message);
    ASSERT_TRUE(one) << one.error().message;
    made.push_back(one->key);
  }
  const auto refused = store.create_record(1, message);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("quota.caller_bytes"), std::string::npos) << refused.error().message;
  ASSERT_TRUE(store.delete_record(1, made[0]));
  EXPECT_TRUE(store.create_record(1, message));
}

TEST_F(KeptBytes, DefinitionsCountForTheCallerThatStoredThem) {
  const RedisStoreConfig own = config(4 * kMiB, 64 * kMiB);
  RedisStore store(own);
  const auto flows = make_redis_flows(link_opener(own), own.observed).value();
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
  const auto refused = add(7, 4, std::string(kMiB, 'z'));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("quota.caller_bytes"), std::string::npos) << refused.error().message;
  const std::uint64_t before = kept("7");
  ASSERT_TRUE(add(8, 5, std::string(kMiB, 'b'))) << "the definition is there already";
  EXPECT_LT(kept("8"), kMiB / 8);
  EXPECT_TRUE(look_at_kept_bytes(store, 1, [] {}).value().empty());
  ASSERT_TRUE(flows->remove_schedule(1, "s1"));  // s5 still uses the definition
  EXPECT_GT(kept("7"), before - kMiB / 8);
  ASSERT_TRUE(flows->remove_schedule(1, "s5"));
  EXPECT_LT(kept("7"), before - kMiB);
  for (const char* name : {"s2", "s3"}) ASSERT_TRUE(flows->remove_schedule(1, name));
  EXPECT_EQ(plain({"EXISTS", "mj:kept"}).number(), 0U);
}

TEST_F(KeptBytes, CountersThatDriftAreFoundAndMended) {
  RedisStore store(config(64 * kMiB, 64 * kMiB));
  ASSERT_TRUE(store.submit(job_of(7, kMiB)));
  const auto claimed = claim(store);
  run(store, {output(claimed.at(0).ref, 1, 100000), ended(claimed.at(0).ref, 100000)});
  ASSERT_TRUE(store.submit(job_of(8, 100)));
  ASSERT_TRUE(store.create_job(job_of(9, 100)));
  const auto look = [&] { return look_at_kept_bytes(store, 1, [] {}).value(); };
  EXPECT_TRUE(look().empty());
  const std::uint64_t all = kept("all"), own = kept("7");
  for (const std::vector<std::string>& damage :
       std::vector<std::vector<std::string>>{{"DEL", "mj:kept"},
                                             {"HSET", "mj:kept", "7", "1"},
                                             {"HSET", "mj:kept", "7", "99999999999", "all", "x"},
                                             {"HSET", "mj:kept", "42", "5000"},
                                             {"HDEL", "mj:kept", "all", "8"}}) {
    plain(damage);
    const auto troubles = look();
    EXPECT_FALSE(troubles.empty()) << damage[1];
    for (const KeptTrouble& each : troubles) ASSERT_TRUE(mend_kept_bytes(store, 1, each));
    EXPECT_TRUE(look().empty());
    EXPECT_EQ(kept("all"), all);
    EXPECT_EQ(kept("7"), own);
  }
}

TEST_F(KeptBytes, DoctorAndExplainShowUsageAndQuota) {
  RedisStore store(config(4 * kMiB, 64 * kMiB));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(store.submit(job_of(7, kMiB)));
  const auto claimed = claim(store);
  run(store, {output(claimed.at(0).ref, 1, kMiB), output(claimed.at(0).ref, 2, kMiB)});
  tick(store);
  const auto checks = examine_quota(store, 1);
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_EQ(checks[0].verdict, Verdict::ok);
  EXPECT_NE(checks[0].detail.find("quota.context_bytes"), std::string::npos) << checks[0].detail;
  EXPECT_NE(checks[1].name.find("7"), std::string::npos) << checks[1].name;
  const auto told = explain(store, 1, claimed[0].ref.job_key).value();
  std::string evidence;
  for (const std::string& line : told.evidence) evidence += line + "\n";
  EXPECT_NE(evidence.find("a part of its output was not kept"), std::string::npos) << evidence;
  EXPECT_NE(evidence.find("of 4194304 bytes (quota.caller_bytes)"), std::string::npos) << evidence;
}

}  // namespace
}  // namespace mycojobs
