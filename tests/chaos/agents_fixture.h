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
    tree_.set_component(agents_.back()->pid(), Component::agent);
    return *agents_.back();
  }
  static void run_workload(Workload& workload, double seconds) {
    eventually(
        [&] {
          workload.run_once(true);
          return false;
        },
        Seconds(seconds));
  }
  // Waits until all jobs have ended after the fault, and checks their ends.
  Verdict wait_and_check_ends(Workload& workload, const RedisServer& redis, bool wall_clock_jumped = false) {
    EXPECT_TRUE(eventually(
        [&] {
          workload.run_once(false);
          return workload.all_ended();
        },
        Seconds(90)))
        << agents_.front()->err();
    const auto lifetimes = witness_.lifetimes();
    Evidence evidence{workload.jobs(), {}, 0, lifetimes};
    evidence.wall_clock_jumped = wall_clock_jumped;
    Verdict verdict = make_verdict(evidence, redis);
    for (const auto& problem : verdict.problems) ADD_FAILURE() << problem;
    std::cout << "jobs " << verdict.jobs << ", runs seen " << verdict.runs << ", lost " << verdict.lost << ", doubled "
              << verdict.ended_twice << ", overlaps " << verdict.overlaps << std::endl;
    return verdict;
  }

  TempDir folder_;
  Random random_{7};
  ProcessTree tree_;
  Witness witness_{tree_};
  std::vector<std::unique_ptr<Process>> agents_;
};

}  // namespace mycojobs::test
