// Agents that run jobs while a fault is present, and the verdict after all jobs have ended. The tests kill no process,
// so every job must have the end of its kind.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "chaos/round.h"
#include "chaos/verdict.h"

namespace mycojobs::test {

class AgentsTest : public testing::Test {
 protected:
  AgentsTest() {
    adopt_orphans();
    std::filesystem::create_directory(folder_ / "tmp");
  }
  // Starts an agent. `url` is the address of Redis or of a proxy in between.
  Process& start_agent(const std::string& url, int runner, const std::string& contexts,
                       std::vector<std::string> environment = {}) {
    agents_.push_back(start_chaos_agent(folder_, url, runner, contexts, std::move(environment)));
    tree_.name(agents_.back()->pid(), Component::agent);
    return *agents_.back();
  }
  static void work(Workload& work, double seconds) {
    eventually(
        [&] {
          work.turn(true);
          return false;
        },
        Seconds(seconds));
  }
  // Waits until all jobs have ended after the fault, and checks their ends.
  Verdict settle(Workload& work, const RedisServer& redis, bool wall_clock_jumped = false) {
    EXPECT_TRUE(eventually(
        [&] {
          work.turn(false);
          return work.all_ended();
        },
        Seconds(90)))
        << agents_.front()->err();
    const auto lives = witness_.lives();
    Evidence evidence{work.jobs(), {}, 0, lives};
    evidence.wall_clock_jumped = wall_clock_jumped;
    Verdict verdict = judge(evidence, redis);
    for (const auto& problem : verdict.problems) ADD_FAILURE() << problem;
    std::cout << "jobs " << verdict.jobs << ", runs seen " << verdict.runs << ", lost " << verdict.lost << ", doubled "
              << verdict.doubled << ", overlaps " << verdict.overlaps << std::endl;
    return verdict;
  }

  TempDir folder_;
  Random random_{7};
  ProcessTree tree_;
  Witness witness_{tree_};
  std::vector<std::unique_ptr<Process>> agents_;
};

}  // namespace mycojobs::test
