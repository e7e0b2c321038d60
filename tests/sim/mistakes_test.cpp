// Does the simulation find what is wrong? Mistakes that such a system is known for are made on purpose, one at a time,
// in the store's scripts and in the agent; each must be found by a few random lives.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <ostream>

#include "life.h"

namespace mycojobs::sim {

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

namespace {

constexpr auto kMistakes = std::to_array<Mistake>({
    {"AnEndNeedsNoClaim", "if not is_live(claim, claim_id, token) then return stale(job, 'an end', claim_id) end",
     "if claim.state ~= 'live' then return stale(job, 'an end', claim_id) end"},
    {"AClaimHasTheNumberOfTheLastOne", "math.max(num(claim.epoch) + 1, now_us)", "math.max(num(claim.epoch), 1)"},
    {"ARenewalIsNotStored", "redis.call('HSET', 'mj:claim:' .. job, 'until_ms', until_ms, 'lease_ms', dec(lease_ms))",
     ""},
    {"ARetryIsTheSameAttempt", "num(claim.attempt) + 1, 'deliveries', 0", "num(claim.attempt), 'deliveries', 0"},
    {"DependentsAreForgotten", "  settle_dependents(job, status)\n", ""},
    {"AConcurrencySlotIsKept", "redis.call('SREM', 'mj:running:' .. key, job)", ""},
    {"AnEndOfTheFormerRunCounts", "return owns(claim, claim_id, token) and claim.state == 'live' and",
     "return claim and claim.state == 'live' and"},
    {.name = "AFenceIsTooLate", .agent = Mistake::Agent::fences_late},
    {.name = "NobodyIsFenced", .agent = Mistake::Agent::fences_never},
    {.name = "AnEndIsNotReported", .agent = Mistake::Agent::forgets_reports},
});

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreFound) {
  constexpr std::uint64_t kMost = 60;
  for (std::uint64_t seed = 1; seed <= kMost; ++seed) {
    const LifeReport life = Life(seed, {.mistake = GetParam()}).run();
    if (life.trouble.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                life.trouble.substr(0, life.trouble.find('\n')).c_str());
    return;
  }
  ADD_FAILURE() << "not found by " << kMost << " lives";
}

INSTANTIATE_TEST_SUITE_P(OnPurpose, Mistakes, testing::ValuesIn(kMistakes),
                         [](const testing::TestParamInfo<Mistake>& mistake) { return mistake.param.name; });

}  // namespace
}  // namespace mycojobs::sim
