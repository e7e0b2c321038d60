// Kills and stops real processes at random while jobs of all kinds run, then checks the properties of the whole
// system.
// `./dev chaos` sets MYCOJOBS_CHAOS_ROUNDS and MYCOJOBS_CHAOS_SEED.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "chaos/leftovers.h"
#include "chaos/round.h"
#include "chaos/verdict.h"
#include "support/test_settings.h"

namespace mycojobs::test {
namespace {

constexpr unsigned kRounds = 2;  // one for each value of appendfsync
constexpr unsigned kMaxShown = 12;

struct Totals {
  SignalCounts signal_counts;
  std::map<std::string, unsigned> job_kinds;
  unsigned jobs = 0, runs = 0, lost = 0, ended_twice = 0, overlaps = 0, outlived_end = 0, lost_tail_count = 0;
  std::int64_t median_scan_us = 0, max_scan_us = 0, settled_us = 0;

  void add(const ChaosRound& round, const Verdict& verdict) {
    for (const auto& [target, count] : round.signal_counts()) signal_counts[target] += count;
    for (const auto& job : round.jobs()) ++job_kinds[job.kind->name];
    jobs += verdict.jobs, runs += verdict.runs, lost += verdict.lost, ended_twice += verdict.ended_twice;
    overlaps += verdict.overlaps, outlived_end += verdict.outlived_end, lost_tail_count += round.lost_tail_count();
    const auto [median, max] = round.witness().resolution_us();
    median_scan_us = std::max(median_scan_us, median), max_scan_us = std::max(max_scan_us, max);
    settled_us = std::max(settled_us, round.settled_us());
  }
  unsigned count_signals(int signal) const {
    unsigned sum = 0;
    for (const auto& [target, count] : signal_counts) sum += target.second == signal ? count : 0;
    return sum;
  }
  void print(std::uint64_t seed, std::uint64_t rounds) const {
    std::cout << "chaos: rounds " << rounds << " seed " << seed << "; kills " << count_signals(SIGKILL) << " (";
    for (const auto& [target, count] : signal_counts)
      if (target.second == SIGKILL) std::cout << " " << to_string(target.first) << " " << count;
    std::cout << " ), stops " << count_signals(SIGSTOP) << " (";
    for (const auto& [target, count] : signal_counts)
      if (target.second == SIGSTOP) std::cout << " " << to_string(target.first) << " " << count;
    std::cout << " ); jobs " << jobs << " (";
    for (const auto& [name, count] : job_kinds) std::cout << " " << name << " " << count;
    std::cout << " ), runs seen " << runs << "; lost " << lost << ", doubled " << ended_twice << ", overlaps "
              << overlaps << ", outlived their end " << outlived_end << "; everysec lost a tail " << lost_tail_count
              << " times; witness looked every " << median_scan_us / 1000 << " ms, at worst " << max_scan_us / 1000
              << " ms; all had ended " << settled_us / 1000 << " ms after the faults" << std::endl;
  }
};

std::vector<std::string> verify(const TempDir& folder, const RedisServer& redis) {
  std::vector<std::string> problems;
  for (const char* context : {"1", "2"}) {
    const ProcessResult result = run(folder, {program_path(), "verify", "--redis", redis.url(), "--context", context});
    if (result.code != 0) problems.push_back("mycojobs verify: " + result.out + result.err);
  }
  return problems;
}

// Keeps the folder of a failed round.
void keep_folder(const TempDir& folder, const std::vector<std::string>& problems) {
  const std::string kept_path = folder.path().string() + "-kept";
  std::filesystem::rename(folder.path(), kept_path);
  std::ofstream problem_file(kept_path + "/problems.txt");
  for (const auto& problem : problems) problem_file << "- " << problem << "\n";
  std::string report;
  for (std::size_t i = 0; i < problems.size() && i < kMaxShown; ++i) report += "- " + problems[i] + "\n";
  if (problems.size() > kMaxShown) report += "... and " + std::to_string(problems.size() - kMaxShown) + " more\n";
  ADD_FAILURE() << report << "all of them, Redis' files and the agents' logs: " << kept_path;
}

void run_round(std::uint64_t seed, bool fsync_always, Totals& totals) {
  const TempDir folder;
  std::filesystem::create_directory(folder / "tmp");
  const Leftovers leftovers(folder);
  std::vector<std::string> problems;
  {
    ChaosRound round(folder, {seed, fsync_always});
    const auto add = [&problems](std::vector<std::string> new_problems) {
      problems.insert(problems.end(), new_problems.begin(), new_problems.end());
    };
    add(round.run());
    const auto lifetimes = round.witness().lifetimes();
    const Verdict verdict = make_verdict({round.jobs(), round.jobs_with_killed_process(),
                                          round.unidentified_kill_count(), lifetimes, round.lost_tail_count() > 0},
                                         round.redis());
    add(verdict.problems);
    add(verify(folder, round.redis()));
    add(round.stop_agents());
    add(leftovers.find(round.tree(), round.witness().launchers()));
    totals.add(round, verdict);
  }
  if (!problems.empty()) keep_folder(folder, problems);
}

TEST(Chaos, TwoHundredKills) {
  adopt_orphans();
  const std::uint64_t seed = read_setting("MYCOJOBS_CHAOS_SEED", std::random_device{}());
  const std::uint64_t rounds = read_setting("MYCOJOBS_CHAOS_ROUNDS", kRounds);
  std::cout << "chaos: seed " << seed << std::endl;
  Totals totals;
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round)
    run_round(seed + round, round % 2 == 1, totals);
  totals.print(seed, rounds);
  if (HasFailure()) return;
  EXPECT_GE(totals.count_signals(SIGKILL), 100 * rounds);
  for (const auto target : {Component::agent, Component::guardian, Component::launcher, Component::zygote,
                            Component::init, Component::job, Component::redis}) {
    EXPECT_GE((totals.signal_counts[{target, SIGKILL}]), 10 * rounds) << to_string(target);
  }
}

}  // namespace
}  // namespace mycojobs::test
