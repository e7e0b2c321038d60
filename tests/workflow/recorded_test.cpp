// Histories recorded by a coordinator with its Redis (order-live) or by scenarios. Running the code again must give
// every output, byte for byte: with the normal build, without optimization, and as on another machine. An engine with
// other answers breaks replays: its name must change (engine_name()), and it cannot replay instances of the old engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "support/build_paths.h"
#include "workflow/engine_fixture.h"
#include "workflows/engine/engine_pool.h"
#include "workflows/tools/workflow_history.h"

namespace mycojobs::workflow {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> histories() {
  std::vector<fs::path> files;
  for (const auto& each : fs::directory_iterator(mj::test::source_path("tests/workflow/histories")))
    files.push_back(each);
  std::sort(files.begin(), files.end());
  return files;
}
WorkflowHistory history_in(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return read_history(text).value();
}
StepReplayResult replayed(const WorkflowHistory& history, DeploymentState& deployment,
                          const EngineOptions& with = options()) {
  deployment.id = history.deployment;
  EnginePool engines(with, 1);
  const auto verdict =
      verify_replay(deployment, build_catalog(history).value(), history.facts, engines.as_step_engine());
  EXPECT_FALSE(engines.first_error());
  return verdict;
}

TEST(WorkflowRecorded, HistoriesProduceTheSameBytes) {
  EXPECT_GE(histories().size(), 4U);
  for (const auto& file : histories()) {
    const auto history = history_in(file);
    for (const auto& engine : all_options()) {
      DeploymentState deployment;
      const auto verdict = replayed(history, deployment, engine);
      EXPECT_GT(verdict.steps, 2U) << file << engine.program;
      EXPECT_FALSE(verdict.problem) << file << engine.program << verdict.problem->text;
      EXPECT_FALSE(verdict.mismatch) << file << engine.program << " at height " << verdict.mismatch->height;
      EXPECT_EQ(deployment, fold_history(history).value()) << file << engine.program;
    }
  }
}

// Control case: a changed output is found at its height.
TEST(WorkflowRecorded, OtherOutputIsFoundAtItsHeight) {
  for (const auto& file : histories()) {
    auto history = history_in(file);
    std::uint64_t height = 0;
    for (auto& fact : history.facts)
      if (auto* step = std::get_if<StepTaken>(&fact.content); step != nullptr && height == 0) {
        step->output.back() = step->output.back() == '0' ? '1' : '0';
        height = fact.height;
      }
    DeploymentState deployment;
    const auto verdict = replayed(history, deployment);
    ASSERT_TRUE(verdict.mismatch) << file;
    EXPECT_EQ(verdict.mismatch->height, height) << file;
  }
}

}  // namespace
}  // namespace mycojobs::workflow
