// Kills and stops real processes at random while jobs of all kinds run, then checks the properties of the whole system.
// `./dev chaos` sets MYCOJOBS_CHAOS_ROUNDS and MYCOJOBS_CHAOS_SEED.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "chaos/leftovers.h"
#include "chaos/round.h"
#include "chaos/verdict.h"

namespace mycojobs::test {
namespace {

constexpr unsigned kRounds = 2;  // one for each value of appendfsync
constexpr unsigned kMaxShown = 12;

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Totals {
  Tally tally;
  std::map<std::string, unsigned> kinds;
  unsigned jobs = 0, runs = 0, lost = 0, doubled = 0, overlaps = 0, outlived = 0, lost_tails = 0;
  std::int64_t middle_us = 0, longest_us = 0, settled_us = 0;

  void add(const Round& round, const Verdict& verdict) {
    for (const auto& [what, count] : round.tally()) tally[what] += count;
    for (const auto& job : round.jobs()) ++kinds[job.kind->name];
    jobs += verdict.jobs, runs += verdict.runs, lost += verdict.lost, doubled += verdict.doubled;
    overlaps += verdict.overlaps, outlived += verdict.outlived, lost_tails += round.lost_tails();
    const auto [middle, longest] = round.witness().resolution_us();
    middle_us = std::max(middle_us, middle), longest_us = std::max(longest_us, longest);
    settled_us = std::max(settled_us, round.settled_us());
  }
  unsigned kills(int signal) const {
    unsigned sum = 0;
    for (const auto& [what, count] : tally) sum += what.second == signal ? count : 0;
    return sum;
  }
  void print(std::uint64_t seed, std::uint64_t rounds) const {
    std::cout << "chaos: rounds " << rounds << " seed " << seed << "; kills " << kills(SIGKILL) << " (";
    for (const auto& [what, count] : tally)
      if (what.second == SIGKILL) std::cout << " " << to_string(what.first) << " " << count;
    std::cout << " ), stops " << kills(SIGSTOP) << " (";
    for (const auto& [what, count] : tally)
      if (what.second == SIGSTOP) std::cout << " " << to_string(what.first) << " " << count;
    std::cout << " ); jobs " << jobs << " (";
    for (const auto& [name, count] : kinds) std::cout << " " << name << " " << count;
    std::cout << " ), runs seen " << runs << "; lost " << lost << ", doubled " << doubled << ", overlaps " << overlaps
              << ", outlived their end " << outlived << "; everysec lost a tail " << lost_tails
              << " times; witness looked every " << middle_us / 1000 << " ms, at worst " << longest_us / 1000
              << " ms; all had ended " << settled_us / 1000 << " ms after the faults" << std::endl;
  }
};

std::vector<std::string> verify(const TempDir& folder, const RedisServer& redis) {
  std::vector<std::string> problems;
  for (const char* context : {"1", "2"}) {
    const ProcessResult verified =
        run(folder, {program_path(), "verify", "--redis", redis.url(), "--context", context});
    if (verified.code != 0) problems.push_back("mycojobs verify: " + verified.out + verified.err);
  }
  return problems;
}

// Keeps the folder of a failed round.
void keep(const TempDir& folder, const std::vector<std::string>& problems) {
  const std::string kept = folder.path().string() + "-kept";
  std::filesystem::rename(folder.path(), kept);
  std::ofstream all(kept + "/problems.txt");
  for (const auto& problem : problems) all << "- " << problem << "\n";
  std::string report;
  for (std::size_t i = 0; i < problems.size() && i < kMaxShown; ++i) report += "- " + problems[i] + "\n";
  if (problems.size() > kMaxShown) report += "... and " + std::to_string(problems.size() - kMaxShown) + " more\n";
  ADD_FAILURE() << report << "all of them, Redis' files and the agents' logs: " << kept;
}

void play(std::uint64_t seed, bool fsync_always, Totals& totals) {
  const TempDir folder;
  std::filesystem::create_directory(folder / "tmp");
  const Leftovers leftovers(folder);
  std::vector<std::string> problems;
  {
    Round round(folder, {seed, fsync_always});
    const auto add = [&problems](std::vector<std::string> more) {
      problems.insert(problems.end(), more.begin(), more.end());
    };
    add(round.run());
    const auto lives = round.witness().lives();
    const Verdict verdict =
        judge({round.jobs(), round.hits(), round.unnamed_hits(), lives, round.lost_tails() > 0}, round.redis());
    add(verdict.problems);
    add(verify(folder, round.redis()));
    add(round.stop_agents());
    add(leftovers.look(round.tree(), round.witness().launchers()));
    totals.add(round, verdict);
  }
  if (!problems.empty()) keep(folder, problems);
}

TEST(Chaos, TwoHundredKills) {
  adopt_orphans();
  const std::uint64_t seed = setting("MYCOJOBS_CHAOS_SEED", std::random_device{}());
  const std::uint64_t rounds = setting("MYCOJOBS_CHAOS_ROUNDS", kRounds);
  std::cout << "chaos: seed " << seed << std::endl;
  Totals totals;
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) play(seed + round, round % 2 == 1, totals);
  totals.print(seed, rounds);
  if (HasFailure()) return;
  EXPECT_GE(totals.kills(SIGKILL), 100 * rounds);
  for (const auto what : {Component::agent, Component::guardian, Component::launcher, Component::zygote,
                          Component::init, Component::job, Component::redis}) {
    EXPECT_GE((totals.tally[{what, SIGKILL}]), 10 * rounds) << to_string(what);
  }
}

}  // namespace
}  // namespace mycojobs::test
