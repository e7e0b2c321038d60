// The cost of a claim must not depend on the length of the queue or of the journal.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/parse.h"
#include "store/redis/redis_store.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

struct Cost {
  double commands = 0, us = 0;  // of one claimed job
};

class ClaimCost : public testing::Test {
 protected:
  static Reply run_command(const std::vector<std::string>& words) {
    return TestRedis::instance().run_command(1, words);
  }

  // Creates jobs as a plain client writes them, and facts of jobs that ended long ago.
  static void fill(std::uint64_t jobs, std::uint64_t facts) {
    run_command({"FLUSHALL"});
    const std::string more_jobs =
        "for i = ARGV[1], ARGV[1] + 9999 do "
        "  if i > tonumber(ARGV[2]) then break end "
        "  local key = 'job:12:' .. string.format('%d', i) "
        "  redis.call('HSET', key, 'id', i, 'caller_id', 12, 'context_id', 1, 'script', 'pass', 'script_type', "
        "'python', "
        "    'status', 'dispatched') "
        "  redis.call('LPUSH', 'queue:python', key) "
        "end";
    for (std::uint64_t from = 1; from <= jobs; from += 10000) {
      run_command({"EVAL", more_jobs, "0", std::to_string(from), std::to_string(jobs)});
    }
    const std::string more_facts =
        "for i = ARGV[1], ARGV[1] + 9999 do "
        "  redis.call('XADD', 'mj:journal:queue:python', string.format('%d-0', i), 'f', 'completed', 'j', "
        "    'job:13:' .. string.format('%d', i), 'at', '1700000000000', 'detail', 'ok', 'c', '0123456789abcdef', 'e', "
        "    '1700000000000000', 'g', '0123456789012345678901234567890123456789') "
        "end";
    for (std::uint64_t from = 1; from <= facts; from += 10000)
      run_command({"EVAL", more_facts, "0", std::to_string(from)});
  }

  // Sums INFO commandstats: the number of calls, including those of scripts, and the time of whole scripts.
  static Cost spent() {
    const std::string text(run_command({"INFO", "commandstats"}).text());
    Cost sum;
    for (std::size_t at = text.find("cmdstat_"); at != std::string::npos; at = text.find("cmdstat_", at + 1)) {
      const auto number = [&](std::string_view name) {
        std::uint64_t value = 0;
        const auto from = text.find(name, at) + name.size();
        parse_u64(std::string_view(text).substr(from, text.find(',', from) - from), value);
        return static_cast<double>(value);
      };
      const bool script = text.compare(at, 12, "cmdstat_eval") == 0;
      if (script) sum.us += number("usec=");
      if (!script) sum.commands += number("calls=");
    }
    return sum;
  }

  static Cost of_claims(std::uint64_t jobs, std::uint64_t facts) {
    fill(jobs, facts);
    RedisStoreConfig config;
    config.default_url = TestRedis::instance().url();
    RedisStore store(config);
    ClaimRequest request;
    request.context = 1;
    request.runner = 20;
    request.queues = {"queue:python"};
    request.max_jobs = 16;
    constexpr int kCalls = 50;
    EXPECT_EQ(store.claim(request).value().jobs.size(), 16U);  // loads the script
    run_command({"CONFIG", "RESETSTAT"});
    for (int i = 0; i < kCalls; ++i) EXPECT_EQ(store.claim(request).value().jobs.size(), 16U);
    const Cost all = spent();
    return {all.commands / (kCalls * 16), all.us / (kCalls * 16)};
  }
};

TEST_F(ClaimCost, IsIndependentOfQueueAndJournalLength) {
  const Cost few = of_claims(1000, 1000);
  const Cost many = of_claims(100000, 1000000);
  std::printf("claim: %.2f commands, %.1f us of Redis with 1,000 queued and 1,000 facts\n", few.commands, few.us);
  std::printf("claim: %.2f commands, %.1f us of Redis with 100,000 queued and 1,000,000 facts (%.2f times)\n",
              many.commands, many.us, many.us / few.us);
  EXPECT_GT(few.commands, 5);
  EXPECT_LE(many.commands, few.commands * 1.1);
  run_command({"FLUSHALL"});
}

}  // namespace
}  // namespace mycojobs
