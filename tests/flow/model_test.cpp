// Compares random graphs, ends, controls, times, crashes and repetitions with the model.
// MYCOJOBS_MODEL_ROUNDS: number of rounds (the default suits a run of all tests). MYCOJOBS_MODEL_SEED: the first seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "flow/model_round.h"

namespace mycojobs {
namespace {

std::uint64_t number_of_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Tally {
  std::size_t facts = 0, retried = 0, compensated = 0, expanded = 0;
};

Tally run_rounds(std::uint64_t first, std::uint64_t rounds, bool compared) {
  Tally tally;
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
    Round round(seed, compared);
    round.run();
    tally.facts += round.facts();
    tally.retried += round.retried() ? 1 : 0;
    tally.compensated += round.compensated() ? 1 : 0;
    tally.expanded += round.expanded() ? 1 : 0;
    if (round.wrong().empty()) continue;
    ADD_FAILURE() << "MYCOJOBS_MODEL_SEED=" << seed << " MYCOJOBS_MODEL_ROUNDS=1\n" << round.wrong();
    break;
  }
  std::cout << rounds << " runs from seed " << first << ": " << tally.facts << " facts, " << tally.retried
            << " runs retried, " << tally.compensated << " with compensations, " << tally.expanded
            << " with nodes of lists\n";
  return tally;
}

TEST(RunModel, AgreesOnEveryNodeAfterEveryEvent) {
  const auto rounds = number_of_environment("MYCOJOBS_MODEL_ROUNDS", 700);
  const Tally tally = run_rounds(number_of_environment("MYCOJOBS_MODEL_SEED", 1), rounds, true);
  if (rounds < 100) return;
  EXPECT_GT(tally.retried, rounds / 50) << "the random rounds do not cover this case";
  EXPECT_GT(tally.compensated, rounds / 50) << "the random rounds do not cover this case";
  EXPECT_GT(tally.expanded, rounds / 10) << "the random rounds do not cover this case";
}

TEST(RunModel, EventsBetweenCommitsLoseAndRepeatNothing) {
  const auto rounds = number_of_environment("MYCOJOBS_MODEL_ROUNDS", 700);
  run_rounds(number_of_environment("MYCOJOBS_MODEL_SEED", 500001), rounds, false);
}

}  // namespace
}  // namespace mycojobs
