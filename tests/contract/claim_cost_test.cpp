// The cost of a claim must not depend on the length of the queue or of the journal.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/parse.h"
#include "store/redis/redis_stores.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

// Cost of a number of claims: calls of Redis commands, and time that Redis spent in scripts.
struct Cost {
  double commands = 0, script_us = 0;
};

class ClaimCost : public testing::Test {
 protected:
  static Reply run_command(const std::vector<std::string>& words) {
    return TestRedis::instance().run_command(1, words);
  }

  // Replaces the content of the store by queued jobs in the form of a plain client, and by journal facts of ended jobs.
  static void fill_store(std::uint64_t jobs, std::uint64_t facts) {
    run_command({"FLUSHALL"});
    const std::string add_jobs_script =
        "for i = ARGV[1], ARGV[1] + 9999 do "
        "  if i > tonumber(ARGV[2]) then break end "
        "  local key = 'job:12:' .. string.format('%d', i) "
        "  redis.call('HSET', key, 'id', i, 'caller_id', 12, 'context_id', 1, 'script', 'pass', 'script_type', "
        "'python', "
        "    'status', 'dispatched') "
        "  redis.call('LPUSH', 'queue:python', key) "
        "end";
    for (std::uint64_t first = 1; first <= jobs; first += 10000) {
      run_command({"EVAL", add_jobs_script, "0", std::to_string(first), std::to_string(jobs)});
    }
    const std::string add_facts_script =
        "for i = ARGV[1], ARGV[1] + 9999 do "
        "  redis.call('XADD', 'mj:journal:queue:python', string.format('%d-0', i), 'f', 'completed', 'j', "
        "    'job:13:' .. string.format('%d', i), 'at', '1700000000000', 'detail', 'ok', 'c', '0123456789abcdef', 'e', "
        "    '1700000000000000', 'g', '0123456789012345678901234567890123456789') "
        "end";
    for (std::uint64_t first = 1; first <= facts; first += 10000)
      run_command({"EVAL", add_facts_script, "0", std::to_string(first)});
  }

  // Returns the total cost since the last CONFIG RESETSTAT, from INFO commandstats. Calls that scripts make are counted
  // as commands.
  static Cost read_total_cost() {
    const std::string text(run_command({"INFO", "commandstats"}).text());
    Cost total;
    for (std::size_t position = text.find("cmdstat_"); position != std::string::npos;
         position = text.find("cmdstat_", position + 1)) {
      const auto read_number = [&](std::string_view name) {
        std::uint64_t value = 0;
        const auto begin = text.find(name, position) + name.size();
        parse_u64(std::string_view(text).substr(begin, text.find(',', begin) - begin), value);
        return static_cast<double>(value);
      };
      const bool is_script = text.compare(position, 12, "cmdstat_eval") == 0;
      if (is_script) total.script_us += read_number("usec=");
      if (!is_script) total.commands += read_number("calls=");
    }
    return total;
  }

  // Returns the cost of one claimed job in a store with this number of queued jobs and facts.
  static Cost measure_claim_cost(std::uint64_t jobs, std::uint64_t facts) {
    fill_store(jobs, facts);
    constexpr std::uint32_t kJobsPerClaim = 16;
    constexpr std::uint32_t kClaimCalls = 50;
    constexpr double kClaimedJobs = kClaimCalls * kJobsPerClaim;
    RedisStoreConfig config;
    config.default_url = TestRedis::instance().url();
    Store store(config);
    ClaimRequest request;
    request.context = 1;
    request.runner = 20;
    request.queues = {"queue:python"};
    request.max_jobs = kJobsPerClaim;
    EXPECT_EQ(store.claim(request).value().jobs.size(), kJobsPerClaim);  // loads the script
    run_command({"CONFIG", "RESETSTAT"});
    for (std::uint32_t i = 0; i < kClaimCalls; ++i) EXPECT_EQ(store.claim(request).value().jobs.size(), kJobsPerClaim);
    const Cost total = read_total_cost();
    return {total.commands / kClaimedJobs, total.script_us / kClaimedJobs};
  }
};

TEST_F(ClaimCost, IsIndependentOfQueueAndJournalLength) {
  const Cost small_store_cost = measure_claim_cost(1000, 1000);
  const Cost large_store_cost = measure_claim_cost(100000, 1000000);
  std::printf("claim: %.2f commands, %.1f us of Redis with 1,000 queued and 1,000 facts\n", small_store_cost.commands,
              small_store_cost.script_us);
  std::printf("claim: %.2f commands, %.1f us of Redis with 100,000 queued and 1,000,000 facts (%.2f times)\n",
              large_store_cost.commands, large_store_cost.script_us,
              large_store_cost.script_us / small_store_cost.script_us);
  EXPECT_GT(small_store_cost.commands, 5);
  EXPECT_LE(large_store_cost.commands, small_store_cost.commands * 1.1);
  run_command({"FLUSHALL"});
}

}  // namespace
}  // namespace mycojobs
