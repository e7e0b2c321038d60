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

constexpr std::array kFates{Fate::killed_before, Fate::killed_after, Fate::reply_lost, Fate::request_lost};

class CrashPoints : public testing::TestWithParam<Scenario> {
 protected:
  void SetUp() override { undisturbed_ = play(GetParam(), {}, false); }

  // Compares the outcomes; the callers stop after a few failures.
  void expect_the_same(const std::vector<Crash>& crashes, bool other) {
    const CrashRunResult run_result = play(GetParam(), crashes, other && !GetParam().bound);
    last_writes_ = run_result.writes;
    if (run_result.violation.empty() && run_result.outcome == undisturbed_.outcome) return;
    ++failures_;
    std::string differences;
    for (const auto& [key, outcome] : undisturbed_.outcome) {
      const auto found = run_result.outcome.find(key);
      const std::string is = found == run_result.outcome.end() ? "not there" : found->second;
      if (is != outcome) differences += "\n  " + key + ": " + is + ", undisturbed: " + outcome;
    }
    ADD_FAILURE() << GetParam().name << ": " << to_text(crashes) << (other ? ", another agent recovers" : "")
                  << differences << '\n'
                  << run_result.violation;
  }
  bool enough() const { return failures_ >= 3; }

  CrashRunResult undisturbed_;
  std::uint64_t last_writes_ = 0;
  int failures_ = 0;
};

TEST_P(CrashPoints, OneCrashAnywhereChangesNothing) {
  ASSERT_EQ(undisturbed_.violation, "");
  ASSERT_GT(undisturbed_.writes, 0U);
  std::size_t points = 0;
  for (std::uint64_t write = 1; write <= undisturbed_.writes && !enough(); ++write) {
    for (const Fate fate : kFates) {
      for (const bool other : {false, true}) {
        expect_the_same({{write, fate}}, other);
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
  const bool all = std::getenv("MYCOJOBS_SIM_ROUNDS") != nullptr;
  constexpr std::uint64_t kFew = 400;
  const std::uint64_t stride = all ? 1 : 1 + undisturbed_.writes * undisturbed_.writes / kFew;
  std::size_t points = 0;
  std::uint64_t turn = 0;
  for (std::uint64_t first = 1; first <= undisturbed_.writes && !enough(); ++first) {
    std::uint64_t last = undisturbed_.writes * 2;
    for (std::uint64_t second = first + 1 + turn % stride; second <= last && !enough(); second += stride, ++turn) {
      expect_the_same({{first, kFates[turn % 4]}, {second, kFates[turn / 4 % 4]}}, turn / 16 % 2 == 1);
      last = last_writes_;
      ++points;
    }
  }
  std::printf("%s: %zu pairs, every %llu. second point\n", GetParam().name, points,
              static_cast<unsigned long long>(stride));
}

std::string get_param_name(const testing::TestParamInfo<Scenario>& info) {
  std::string name;
  bool upper = true;
  for (const char* c = info.param.name; *c != '\0'; ++c) {
    const bool letter = (*c >= 'a' && *c <= 'z');
    if (letter) name += upper ? static_cast<char>(*c - 'a' + 'A') : *c;
    upper = !letter && *c != '\'';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Of, CrashPoints, testing::ValuesIn(scenarios().begin(), scenarios().end()), get_param_name);

}  // namespace
}  // namespace mycojobs::sim
