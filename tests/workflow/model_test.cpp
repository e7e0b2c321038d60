// Compares random machines, events, receipts (late, repeated, forged, faulty), applies, cancellations and crashes with
// the model.
// MYCOJOBS_MODEL_ROUNDS: number of rounds (the default suits a run of all tests). MYCOJOBS_MODEL_SEED: the first seed.
#include <gtest/gtest.h>

#include <iostream>

#include "support/test_settings.h"
#include "workflow/engine_fixture.h"
#include "workflow/model.h"
#include "workflows/engine/engine_pool.h"

namespace mycojobs::workflow_tests {
namespace {

TEST(WorkflowModel, KernelMatchesTheModel) {
  const auto first = test::read_setting("MYCOJOBS_MODEL_SEED", 1),
             rounds = test::read_setting("MYCOJOBS_MODEL_ROUNDS", 60);
  std::map<std::string, int> seen;
  std::size_t facts = 0;
  const Mutant none = no_mutant();
  workflow::EnginePool engines(workflow::options(), 1);
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
    ModelRound round(seed, none, engines.as_step_engine());
    const std::string wrong = round.run();
    ASSERT_EQ(wrong, "") << "MYCOJOBS_MODEL_SEED=" << seed << " MYCOJOBS_MODEL_ROUNDS=1";
    ASSERT_FALSE(engines.first_error());
    facts += round.journal().size();
    for (const auto& [what, count] : round.seen) seen[what] += count;
  }
  std::cout << rounds << " rounds from seed " << first << ": " << facts << " facts";
  for (const auto& [what, count] : seen) std::cout << ", " << what << ' ' << count;
  std::cout << '\n';
  if (rounds < 50) return;
  for (const char* what : {"sent", "event refused", "step", "step failed", "stale step", "published", "receipt",
                           "forged receipt", "faulty receipt", "repeated receipt", "unknown receipt", "applied",
                           "apply refused", "snapshot", "lost", "restart", "unfit", "cancelled", "removed"})
    EXPECT_GT(seen[what], 10) << what << ": the random rounds do not cover this kind";
}

TEST(WorkflowModel, EachInsertedBugIsFound) {
  for (const auto& mutant : mutants()) {
    std::string found;
    std::uint64_t seed = 1;
    for (; seed <= 60 && found.empty(); ++seed) found = ModelRound(seed, mutant).run();
    EXPECT_NE(found, "") << mutant.name;
    std::cout << mutant.name << ": seed " << seed - 1 << ", " << found << '\n';
  }
}

}  // namespace
}  // namespace mycojobs::workflow_tests
