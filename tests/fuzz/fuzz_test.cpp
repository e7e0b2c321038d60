// Runs each target with its corpus and some thousand mutations of it. `./dev fuzz` does the same for minutes.
// MYCOJOBS_FUZZ_SEED repeats a run; MYCOJOBS_FUZZ_ROUNDS sets the number of mutations.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "fuzz/mutation.h"
#include "fuzz/watched.h"
#include "support/build_paths.h"
#include "support/test_settings.h"

namespace mycojobs::fuzz {
namespace {

const std::string kCorpus = mj::test::source_path("tests/fuzz/corpus");
constexpr std::uint64_t kRounds = 2000;

class Fuzz : public ::testing::TestWithParam<Target> {};

TEST_P(Fuzz, CorpusIsAcceptedOrRejectedByName) {
  std::set<std::string> kinds;
  for (const auto& [name, text] : load_corpus(kCorpus, GetParam().name)) {
    const std::string kind = name.substr(0, name.find('-'));
    kinds.insert(kind);
    EXPECT_TRUE(kind == "taken" || kind == "refused") << name;
    EXPECT_EQ(run_watched(GetParam(), text), kind == "taken" ? 1 : 0) << GetParam().name << '/' << name;
  }
  EXPECT_TRUE(kinds.contains("taken"));
}

TEST_P(Fuzz, MutationsOfTheCorpusAreHarmless) {
  const Corpus corpus = load_corpus(kCorpus, GetParam().name);
  ASSERT_FALSE(corpus.empty());
  Random random(test::choose_seed("MYCOJOBS_FUZZ_SEED"));
  const std::uint64_t rounds = test::read_setting("MYCOJOBS_FUZZ_ROUNDS", kRounds);
  std::uint64_t taken = 0;
  for (std::uint64_t round = 0; round < rounds; ++round)
    taken += static_cast<std::uint64_t>(run_watched(GetParam(), mutated(corpus, GetParam().pieces, random)));
  EXPECT_GE(taken, rounds / 100) << "the mutations leave little that is taken: they test too little";
}

INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(FuzzCorpus, HasAFolderForEachTargetAndSmallFiles) {
  std::set<std::string> folders, names;
  for (const Target& target : targets()) names.emplace(target.name);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kCorpus)) {
    if (entry.is_directory()) folders.insert(entry.path().filename());
    if (entry.is_regular_file()) {
      EXPECT_LE(entry.file_size(), 4096U) << entry.path();
    }
  }
  EXPECT_EQ(folders, names);
}

TEST(FuzzMutations, AreTheSameForTheSameSeed) {
  const Corpus corpus{{"taken-a", "{\"a\":1}"}, {"taken-b", "[]"}};
  Random one(7), other(7);
  std::set<std::string> seen;
  for (int i = 0; i < 200; ++i) {
    const std::string text = mutated(corpus, targets().front().pieces, one);
    EXPECT_EQ(text, mutated(corpus, targets().front().pieces, other));
    seen.insert(text);
  }
  EXPECT_GT(seen.size(), 150U);
}

TEST(FuzzMustDeathTest, FailedPropertyAbortsAndKeepsTheInput) {
  const Target broken{"broken", [](std::string_view text) { return must(text != "bad", "it is bad"), 1; }, {}};
  EXPECT_EQ(run_watched(broken, "good"), 1);
  std::filesystem::remove("found-broken");
  EXPECT_EXIT(run_watched(broken, "bad"), ::testing::KilledBySignal(SIGABRT), "does not hold: it is bad");
  EXPECT_EQ(std::filesystem::file_size("found-broken"), 3U);
  std::filesystem::remove("found-broken");
}

}  // namespace
}  // namespace mycojobs::fuzz
