// Each scenario first runs undisturbed, which numbers its writing calls. Then the scenario is repeated with a fault at
// each call: the caller (agent or client) is killed before or after the call, or the request or the reply is lost.
// Every job must end as in the undisturbed run. The last test adds a second fault during the recovery.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "scenarios.h"

namespace mycojobs::sim {
namespace {

constexpr std::array kCallFaults{CallFault::killed_before, CallFault::killed_after, CallFault::reply_lost,
                                 CallFault::request_lost};

class CrashPoints : public testing::TestWithParam<Scenario> {
 protected:
  void SetUp() override { undisturbed_ = play(GetParam(), {}, false); }

  // Compares the outcomes; the callers stop after a few failures.
  void expect_the_same(const std::vector<Crash>& crashes, bool use_other_agent) {
    const CrashRunResult run_result = play(GetParam(), crashes, use_other_agent && !GetParam().needs_first_agent);
    last_writes_ = run_result.writes;
    if (run_result.violation.empty() && run_result.outcome == undisturbed_.outcome) return;
    ++failures_;
    std::string differences;
    for (const auto& [key, outcome] : undisturbed_.outcome) {
      const auto found = run_result.outcome.find(key);
      const std::string actual = found == run_result.outcome.end() ? "absent" : found->second;
      if (actual != outcome) differences += "\n  " + key + ": " + actual + ", undisturbed: " + outcome;
    }
    ADD_FAILURE() << GetParam().name << ": " << to_text(crashes) << (use_other_agent ? ", another agent recovers" : "")
                  << differences << '\n'
                  << run_result.violation;
  }
  bool has_enough_failures() const { return failures_ >= 3; }

  CrashRunResult undisturbed_;
  std::uint64_t last_writes_ = 0;
  int failures_ = 0;
};

TEST_P(CrashPoints, OneCrashAnywhereChangesNothing) {
  ASSERT_EQ(undisturbed_.violation, "");
  ASSERT_GT(undisturbed_.writes, 0U);
  std::size_t points = 0;
  for (std::uint64_t write = 1; write <= undisturbed_.writes && !has_enough_failures(); ++write) {
    for (const CallFault fault : kCallFaults) {
      for (const bool use_other_agent : {false, true}) {
        expect_the_same({{write, fault}}, use_other_agent);
        ++points;
      }
    }
  }
  std::printf("%s: %zu points (%llu writes)\n", GetParam().name, points,
              static_cast<unsigned long long>(undisturbed_.writes));
}

// Tests all pairs if MYCOJOBS_SIM_ROUNDS is set, otherwise a sample.
TEST_P(CrashPoints, TwoCrashesAnywhereChangeNothing) {
  ASSERT_EQ(undisturbed_.violation, "");
  const bool tests_all_pairs = std::getenv("MYCOJOBS_SIM_ROUNDS") != nullptr;
  constexpr std::uint64_t kMaxPairs = 400;
  const std::uint64_t stride = tests_all_pairs ? 1 : 1 + undisturbed_.writes * undisturbed_.writes / kMaxPairs;
  std::size_t points = 0;
  std::uint64_t pair_index = 0;
  for (std::uint64_t first = 1; first <= undisturbed_.writes && !has_enough_failures(); ++first) {
    std::uint64_t last = undisturbed_.writes * 2;
    for (std::uint64_t second = first + 1 + pair_index % stride; second <= last && !has_enough_failures();
         second += stride, ++pair_index) {
      expect_the_same({{first, kCallFaults[pair_index % 4]}, {second, kCallFaults[pair_index / 4 % 4]}},
                      pair_index / 16 % 2 == 1);
      last = last_writes_;
      ++points;
    }
  }
  std::printf("%s: %zu pairs, every %llu. second point\n", GetParam().name, points,
              static_cast<unsigned long long>(stride));
}

std::string get_param_name(const testing::TestParamInfo<Scenario>& info) {
  std::string name;
  bool starts_word = true;
  for (const char* c = info.param.name; *c != '\0'; ++c) {
    const bool is_letter = (*c >= 'a' && *c <= 'z');
    if (is_letter) name += starts_word ? static_cast<char>(*c - 'a' + 'A') : *c;
    starts_word = !is_letter && *c != '\'';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Of, CrashPoints, testing::ValuesIn(scenarios().begin(), scenarios().end()), get_param_name);

}  // namespace
}  // namespace mycojobs::sim
