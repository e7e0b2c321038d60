// Checks that the simulation finds bugs. Typical bugs of such systems are planted in the scripts of the store and in
// the agent, one at a time. Each bug must be found by a bounded number of schedules, be reproducible, and shrink.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>
#include <string_view>

#include "shortest.h"
#include "store/scripts/all_scripts.h"

namespace mycojobs::sim {

void PrintTo(const PlantedBug& planted_bug, std::ostream* out) { *out << planted_bug.name; }

namespace {

// The texts are those of the assembled scripts, in which functions are members of the table `fn` (assemble.py).
constexpr auto kPlantedBugs = std::to_array<PlantedBug>({
    {"EndNeedsNoClaim",
     "if not fn.is_live(claim, claim_id, token) then return fn.stale_reply(job, 'an end', claim_id) end",
     "if claim.state ~= 'live' then return fn.stale_reply(job, 'an end', claim_id) end"},
    {"ClaimReusesTheEpoch", "math.max(fn.to_number(claim.epoch) + 1, now_us)",
     "math.max(fn.to_number(claim.epoch), 1)"},
    {"RenewalIsNotStored",
     "redis.call('HSET', 'mj:claim:' .. job, 'until_ms', until_ms, 'lease_ms', fn.to_integer_text(lease_ms))", ""},
    {"RetryIsTheSameAttempt", "fn.to_number(claim.attempt) + 1, 'deliveries', 0",
     "fn.to_number(claim.attempt), 'deliveries', 0"},
    {"DependentsAreForgotten", "  fn.process_dependents(job, status)\n", ""},
    {"ConcurrencySlotIsLeaked", "fn.call_index('SREM', 'mj:running:' .. key, job)", ""},
    {"EndOfAnEarlierRunCounts", "return fn.is_claim_owner(claim, claim_id, token) and claim.state == 'live' and",
     "return claim and claim.state == 'live' and"},
    {.name = "FenceIsTooLate", .agent = PlantedBug::AgentBug::fences_late, .first_seed = 6100},
    {.name = "FenceIsMissing", .agent = PlantedBug::AgentBug::fences_never, .first_seed = 6100},
    {.name = "EndIsNotReported", .agent = PlantedBug::AgentBug::forgets_reports},
});

class InjectedBugs : public testing::TestWithParam<PlantedBug> {};

// Uses the schedules of every test run (Schedules.EndAsExpected), but far fewer of them.
TEST_P(InjectedBugs, AreFoundReplayedAndMinimized) {
  constexpr std::uint64_t kMaxSchedules = 2000;
  ASSERT_TRUE(std::any_of(scripts::all.begin(), scripts::all.end(), [](const mycojobs::Script* script) {
    return script->text.find(GetParam().original) != std::string_view::npos;
  })) << "no script contains the text that the planted bug replaces";
  LifeSettings settings = brief_life();
  settings.planted_bug = GetParam();
  settings.settle_timeout_ms = 60000;
  std::uint64_t seed = GetParam().first_seed;
  LifeReport found;
  while (found.violation.empty() && seed < GetParam().first_seed + kMaxSchedules) found = Life(++seed, settings).run();
  ASSERT_FALSE(found.violation.empty()) << "not found by " << kMaxSchedules << " schedules";
  const LifeReport repeated = Life(seed, settings).run();
  EXPECT_EQ(repeated.violation, found.violation);
  EXPECT_EQ(repeated.history, found.history);

  const MinimalFailure minimal = shorten(seed, settings);
  std::printf("seed %llu, %s\n", static_cast<unsigned long long>(seed),
              to_text(minimal).substr(0, to_text(minimal).find("\nThe last")).c_str());
  settings.suppressed_events = minimal.suppressed_events;
  EXPECT_EQ(Life(seed, settings).run().violation, minimal.violation);
  EXPECT_EQ(get_violation_kind(minimal.violation), get_violation_kind(found.violation));
  for (const std::string& each : minimal.event_names) {
    settings.suppressed_events = minimal.suppressed_events;
    settings.suppressed_events.insert(each);
    Life shorter_life(seed, settings);
    const std::string violation = shorter_life.run().violation;
    EXPECT_FALSE(get_violation_kind(violation) == get_violation_kind(found.violation) &&
                 shorter_life.event_names().size() < minimal.event_names.size())
        << "the failure occurs also without " << each;
  }
  settings.suppressed_events = minimal.suppressed_events;
  settings.planted_bug = {"none"};
  EXPECT_EQ(Life(seed, settings).run().violation, "") << "the violation must be caused by the planted bug";
}

INSTANTIATE_TEST_SUITE_P(OnPurpose, InjectedBugs, testing::ValuesIn(kPlantedBugs),
                         [](const testing::TestParamInfo<PlantedBug>& bug) { return bug.param.name; });

}  // namespace
}  // namespace mycojobs::sim
