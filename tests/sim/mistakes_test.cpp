// Checks that the simulation finds bugs. Typical bugs of such systems are planted in the scripts of the store and in
// the agent, one at a time. Each bug must be found by a bounded number of schedules, be reproducible, and shrink.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>
#include <string_view>

#include "shortest.h"
#include "store/all_scripts.h"

namespace mycojobs::sim {

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

namespace {

constexpr auto kMistakes = std::to_array<Mistake>({
    {"EndNeedsNoClaim",
     "if not is_live(claim, claim_id, token) then return stale_reply(job, 'an end', claim_id) end",
     "if claim.state ~= 'live' then return stale_reply(job, 'an end', claim_id) end"},
    {"ClaimReusesTheEpoch", "math.max(to_number(claim.epoch) + 1, now_us)", "math.max(to_number(claim.epoch), 1)"},
    {"RenewalIsNotStored",
     "redis.call('HSET', 'mj:claim:' .. job, 'until_ms', until_ms, 'lease_ms', to_integer_text(lease_ms))", ""},
    {"RetryIsTheSameAttempt", "to_number(claim.attempt) + 1, 'deliveries', 0",
     "to_number(claim.attempt), 'deliveries', 0"},
    {"DependentsAreForgotten", "  process_dependents(job, status)\n", ""},
    {"ConcurrencySlotIsLeaked", "call_index('SREM', 'mj:running:' .. key, job)", ""},
    {"EndOfAnEarlierRunCounts", "return is_claim_owner(claim, claim_id, token) and claim.state == 'live' and",
     "return claim and claim.state == 'live' and"},
    {.name = "FenceIsTooLate", .agent = Mistake::Agent::fences_late, .first_seed = 2700},
    {.name = "FenceIsMissing", .agent = Mistake::Agent::fences_never, .first_seed = 2300},
    {.name = "EndIsNotReported", .agent = Mistake::Agent::forgets_reports},
});

class InjectedBugs : public testing::TestWithParam<Mistake> {};

// Uses the schedules of every test run (Schedules.EndAsExpected), but far fewer of them.
TEST_P(InjectedBugs, AreFoundReplayedAndMinimized) {
  constexpr std::uint64_t kMaxSchedules = 2000;
  ASSERT_TRUE(std::any_of(scripts::all.begin(), scripts::all.end(), [](const mycojobs::Script* script) {
    return script->text.find(GetParam().instead_of) != std::string_view::npos;
  })) << "no script has the text that the mistake replaces";
  LifeSettings settings = brief_life();
  settings.mistake = GetParam();
  settings.settle_timeout_ms = 60000;
  std::uint64_t seed = GetParam().first_seed;
  LifeReport found;
  while (found.violation.empty() && seed < GetParam().first_seed + kMaxSchedules) found = Life(++seed, settings).run();
  ASSERT_FALSE(found.violation.empty()) << "not found by " << kMaxSchedules << " schedules";
  const LifeReport again = Life(seed, settings).run();
  EXPECT_EQ(again.violation, found.violation);
  EXPECT_EQ(again.history, found.history);

  const Shortest shortest = shorten(seed, settings);
  std::printf("seed %llu, %s\n", static_cast<unsigned long long>(seed),
              to_text(shortest).substr(0, to_text(shortest).find("\nThe last")).c_str());
  settings.suppressed_events = shortest.suppressed_events;
  EXPECT_EQ(Life(seed, settings).run().violation, shortest.violation);
  EXPECT_EQ(get_violation_kind(shortest.violation), get_violation_kind(found.violation));
  for (const std::string& each : shortest.event_names) {
    settings.suppressed_events = shortest.suppressed_events;
    settings.suppressed_events.insert(each);
    Life shorter(seed, settings);
    const std::string violation = shorter.run().violation;
    EXPECT_FALSE(get_violation_kind(violation) == get_violation_kind(found.violation) &&
                 shorter.event_names().size() < shortest.event_names.size())
        << "it goes wrong without " << each;
  }
  settings.suppressed_events = shortest.suppressed_events;
  settings.mistake = {"none"};
  EXPECT_EQ(Life(seed, settings).run().violation, "") << "it is the mistake that is found";
}

INSTANTIATE_TEST_SUITE_P(OnPurpose, InjectedBugs, testing::ValuesIn(kMistakes),
                         [](const testing::TestParamInfo<Mistake>& mistake) { return mistake.param.name; });

}  // namespace
}  // namespace mycojobs::sim
