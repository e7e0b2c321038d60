// Quotas for the artifacts that a host stores, by caller and by context. The quotas survive restarts of the agent,
// apply to agents that share a folder, and never fail a job.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/sha256.h"

#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

#include "artifacts/artifact_cleanup.h"
#include "artifacts/artifact_usage.h"
#include "artifacts/job_artifacts.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMiB = 1ULL << 20;

class ArtifactQuotaTest : public testing::Test {
 protected:
  TempDir folder_;
  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  std::string store_name_ = *artifact_store_name(*store_, 1);
  ArtifactCleanup cleanup_{clock_, folder_.path().string(), 1000};
  ArtifactUsage usage_{ArtifactFolder(folder_.path().string(), 1), store_name_};

  std::unique_ptr<RunArtifacts> start_run(const std::string& job, ArtifactQuota quota) const {
    return make_run_artifacts(folder_.path().string(), 1, store_name_, job, 64 * kMiB, quota);
  }
  static void add_file(RunArtifacts& start_run, const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(start_run.open(name, false));
    for (std::size_t from = 0; from < bytes.size(); from += 65536) start_run.write(bytes.substr(from, 65536));
    start_run.close();
  }
  static json finish(RunArtifacts& start_run) {
    const std::string text = start_run.finish();
    return text.empty() ? json::object() : json::parse(text);
  }
  // Runs a job that stores a file with unique content. Returns whether the file was stored.
  bool store_file(const std::string& job, std::size_t bytes, ArtifactQuota quota) const {
    const auto one = start_run(job, quota);
    add_file(*one, "a", job + std::string(bytes - job.size(), 'x'));
    return finish(*one).size() == 1;
  }
  std::uint64_t get_used_bytes(Id caller) const { return usage_.read().value().get_bytes(caller); }
  std::uint64_t count_blocks() const {
    std::uint64_t blocks = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "contexts/1/objects")) {
      struct stat info {};
      if (::lstat(entry.path().c_str(), &info) == 0) blocks += static_cast<std::uint64_t>(info.st_blocks) * 512;
    }
    return blocks;
  }
  void end_job(const std::string& job, const json& artifacts) {
    ASSERT_TRUE(store_->save(1, job, {{"id", "1"}, {"status", "finished"}, {"artifacts", artifacts.dump()}}));
  }
  // Runs exactly one sweep. Calls the function after each part.
  void sweep_once(const std::function<void()>& after_part = [] {}) {
    clock_.boot += 10000;
    for (std::uint64_t next_ms = 0; next_ms < 500;) {
      clock_.boot += next_ms;
      auto next_step_ms = cleanup_.run_step(*store_, 1);
      ASSERT_TRUE(next_step_ms) << next_step_ms.error().message;
      next_ms = *next_step_ms;
      after_part();
    }
  }
  void sweep_all() {
    clock_.boot += 10000;
    for (int i = 0; i < 20; ++i) {
      auto next_step_ms = cleanup_.run_step(*store_, 1);
      ASSERT_TRUE(next_step_ms) << next_step_ms.error().message;
      clock_.boot += std::min<std::uint64_t>(*next_step_ms, 100);
    }
  }
};

TEST_F(ArtifactQuotaTest, ManyJobsOfACallerStayWithinItsQuota) {
  const ArtifactQuota quota{4 * kMiB, 64 * kMiB};
  int stored_count = 0;
  for (int i = 1; i <= 12; ++i) stored_count += store_file("job:7:" + std::to_string(i), kMiB, quota) ? 1 : 0;
  EXPECT_EQ(stored_count, 4);
  EXPECT_LE(count_blocks(), 4 * kMiB);
  EXPECT_TRUE(store_file("job:8:1", kMiB, quota)) << "another caller has a quota of its own";
}

TEST_F(ArtifactQuotaTest, DroppedFileNamesLimitAndSetting) {
  const auto one = start_run("job:7:1", {kMiB, 64 * kMiB});
  add_file(*one, "large", std::string(2 * kMiB, 'l'));
  add_file(*one, "small", "bytes");
  const json stored_count = finish(*one);
  EXPECT_TRUE(stored_count.contains("small") && !stored_count.contains("large"));
  EXPECT_EQ(json::parse(dropped_artifacts_to_json(one->dropped(), false)),
            json::parse(R"([{"name": "large", "reason": "caller_quota", "limit": 1048576,
                             "setting": "quota.caller_artifact_bytes"}])"));
  const auto notes = one->consume_notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("quota.caller_artifact_bytes"), std::string::npos) << notes[0];
}

TEST_F(ArtifactQuotaTest, FullContextAcceptsSmallCallers) {
  const ArtifactQuota quota{4 * kMiB, 8 * kMiB};
  for (const char* job : {"job:7:1", "job:8:1"}) EXPECT_TRUE(store_file(job, 4 * kMiB, quota)) << job;
  const auto one = start_run("job:9:1", quota);
  add_file(*one, "large", std::string(kMiB, 'l'));
  add_file(*one, "small", "bytes");
  EXPECT_TRUE(finish(*one).contains("small"));
  EXPECT_EQ(one->dropped(), (std::vector<DroppedArtifact>{{"large", DropReason::context_quota, 8 * kMiB}}));
}

TEST_F(ArtifactQuotaTest, SparseFilesStaySparseAndCountByLength) {
  const ArtifactQuota quota{64 * kMiB, 64 * kMiB};
  const auto one = start_run("job:7:1", quota);
  std::string sparse(16 * kMiB, '\0');
  sparse[5 * kMiB + 100] = 'x';
  add_file(*one, "sparse", sparse);
  add_file(*one, "zeros", std::string(3 * kMiB, '\0'));
  add_file(*one, "short", std::string(100, '\0'));
  const json stored_count = finish(*one);
  ASSERT_EQ(stored_count.size(), 3U);
  EXPECT_EQ(stored_count["sparse"]["sha256"], sha256_hex(sparse));
  EXPECT_EQ(stored_count["sparse"]["bytes"], 16 * kMiB);
  std::ifstream file(object_path(folder_.path().string(), 1, sha256_hex(sparse)), std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), sparse);
  EXPECT_EQ(fs::file_size(object_path(folder_.path().string(), 1, stored_count["zeros"]["sha256"])), 3 * kMiB);
  EXPECT_LE(count_blocks(), 64U << 10);
  EXPECT_EQ(get_used_bytes(7), 19 * kMiB + 4096);
}

TEST_F(ArtifactQuotaTest, EmptyFilesUseABlockEach) {
  const auto one = start_run("job:7:1", {40960, 0});
  for (int i = 0; i < 20; ++i) add_file(*one, std::to_string(i), std::to_string(i));
  EXPECT_EQ(finish(*one).size(), 10U);
}

TEST_F(ArtifactQuotaTest, QuotaIsFreedWhenRecordsAreRemoved) {
  const ArtifactQuota quota{2 * kMiB, 0};
  EXPECT_TRUE(store_file("job:7:1", 2 * kMiB, quota));
  EXPECT_FALSE(store_file("job:7:2", kMiB, quota));
  sweep_all();  // removes the artifacts, since the job has no record
  EXPECT_EQ(get_used_bytes(7), 0U);
  EXPECT_TRUE(store_file("job:7:3", kMiB, quota));
}

TEST_F(ArtifactQuotaTest, RepeatedAttemptUsesNoQuotaForTheSameBytes) {
  const ArtifactQuota quota{3 * kMiB, 0};
  for (int attempt = 0; attempt < 5; ++attempt) EXPECT_TRUE(store_file("job:7:1", 2 * kMiB, quota)) << attempt;
  EXPECT_EQ(get_used_bytes(7), 2 * kMiB);
}

TEST_F(ArtifactQuotaTest, TotalsNameTheLargestCaller) {
  const ArtifactQuota quota{4 * kMiB, 0};
  EXPECT_EQ(read_artifact_totals(folder_.path().string(), 1).bytes, 0U);
  EXPECT_TRUE(store_file("job:7:1", kMiB, quota));
  EXPECT_TRUE(store_file("job:8:1", 2 * kMiB, quota));
  const ArtifactTotals totals = read_artifact_totals(folder_.path().string(), 1);
  EXPECT_EQ(totals.bytes, 3 * kMiB);
  EXPECT_EQ(totals.largest_caller, 8U);
  EXPECT_EQ(totals.largest_bytes, 2 * kMiB);
  EXPECT_EQ(read_artifact_totals(folder_.path().string(), 2).bytes, 0U);
}

TEST_F(ArtifactQuotaTest, LostCountIsRebuiltFromTheFolders) {
  const ArtifactQuota quota{2 * kMiB, 0};
  EXPECT_TRUE(store_file("job:7:1", 2 * kMiB, quota));
  const auto path = folder_ / ("contexts/1/usage-" + store_name_);
  ASSERT_TRUE(fs::remove(path));
  EXPECT_FALSE(store_file("job:7:2", kMiB, quota));
  EXPECT_EQ(get_used_bytes(7), 2 * kMiB);
  for (const char* damaged :
       {"nonsense", "1\n7 x 1\n", "1\n7 5 1", "1\n7 5\n", "1\n7 5 x\n", "1\n99999999999 5 1\n", ""}) {
    std::ofstream(path) << damaged;
    EXPECT_EQ(get_used_bytes(7), 2 * kMiB) << damaged;
  }
}

// An agent that is killed between reserving space and creating the link leaves a count that is too high.
TEST_F(ArtifactQuotaTest, SweepCorrectsTheCountOfAKilledAgent) {
  const ArtifactQuota quota{4 * kMiB, 0};
  const auto one = start_run("job:7:1", quota);
  add_file(*one, "a", std::string(kMiB, 'x'));
  end_job("job:7:1", finish(*one));
  ASSERT_TRUE(usage_.reserve(7, {2 * kMiB}, quota));
  ASSERT_TRUE(usage_.reserve(9, {kMiB}, quota));
  EXPECT_EQ(get_used_bytes(7), 3 * kMiB);
  sweep_all();
  EXPECT_EQ(get_used_bytes(7), kMiB);
  EXPECT_EQ(get_used_bytes(9), 0U);
}

TEST_F(ArtifactQuotaTest, SweepKeepsCountsThatChangeConcurrently) {
  EXPECT_TRUE(store_file("job:8:1", kMiB, {}));
  const auto before = usage_.read().value();
  ASSERT_TRUE(usage_.reserve(7, {kMiB}, {}));
  ASSERT_TRUE(usage_.reserve(9, {kMiB}, {}));
  ASSERT_TRUE(usage_.release_bytes(9, kMiB));
  ASSERT_TRUE(usage_.apply_recount({before.last_change_number, {{8, kMiB}, {9, kMiB}}, {}}));
  EXPECT_EQ(get_used_bytes(7), kMiB);
  EXPECT_EQ(get_used_bytes(8), kMiB);
  EXPECT_EQ(get_used_bytes(9), 0U) << "the file was deleted after the start of the sweep";
}

TEST_F(ArtifactQuotaTest, SweepCorrectsACallerDuringOtherWrites) {
  const auto one = start_run("job:7:1", {});
  add_file(*one, "a", std::string(kMiB, 'x'));
  end_job("job:7:1", finish(*one));
  ASSERT_TRUE(usage_.reserve(7, {2 * kMiB}, {}));
  ASSERT_TRUE(usage_.reserve(9, {kMiB}, {}));
  unsigned left = 0;
  sweep_once([&] { EXPECT_TRUE(store_file("job:8:" + std::to_string(++left), 4096, {})); });
  EXPECT_GT(left, 2U);
  EXPECT_EQ(get_used_bytes(7), kMiB);
  EXPECT_EQ(get_used_bytes(9), 0U);
  EXPECT_EQ(get_used_bytes(8), left * 4096);
}

// A round that deletes files of a caller changes the count itself.
TEST_F(ArtifactQuotaTest, SweepCorrectsTheCountOfDeletedFiles) {
  const auto one = start_run("job:7:1", {});
  add_file(*one, "a", std::string(kMiB, 'x'));
  end_job("job:7:1", finish(*one));
  for (int i = 2; i <= 4; ++i) EXPECT_TRUE(store_file("job:7:" + std::to_string(i), kMiB, {}));  // they have no record
  ASSERT_TRUE(usage_.reserve(7, {2 * kMiB}, {}));
  sweep_once();
  EXPECT_EQ(get_used_bytes(7), kMiB);
}

// Agents that cannot keep files must not lower the count of others that were kept.
TEST_F(ArtifactQuotaTest, DroppedNamesOfOneContentReleaseQuotaOnce) {
  EXPECT_TRUE(store_file("job:7:1", 2 * kMiB, {}));
  const std::string same(64U << 10, 's');
  fs::create_directories(folder_ / ("contexts/1/objects/" + sha256_hex(same)));  // so that no object can be made
  const auto one = start_run("job:7:2", {});
  for (int i = 0; i < 20; ++i) add_file(*one, std::to_string(i), same);
  EXPECT_EQ(finish(*one).size(), 0U);
  EXPECT_EQ(one->dropped().size(), 20U);
  EXPECT_EQ(get_used_bytes(7), 2 * kMiB);
}

// A full caller changes nothing in the count, and the count of a folder from before there were counts is made once.
TEST_F(ArtifactQuotaTest, FirstCountIsStoredDespiteRejectedFiles) {
  EXPECT_TRUE(store_file("job:7:1", 2 * kMiB, {}));
  const auto path = folder_ / ("contexts/1/usage-" + store_name_);
  ASSERT_TRUE(fs::remove(path));
  EXPECT_FALSE(store_file("job:7:2", kMiB, {kMiB, 0}));
  EXPECT_TRUE(fs::exists(path));
  ASSERT_TRUE(fs::remove(path));
  EXPECT_EQ(get_used_bytes(7), 2 * kMiB);
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(ArtifactQuotaTest, AgentsThatShareAFolderShareTheQuota) {
  const ArtifactQuota quota{8 * kMiB, 0};
  std::atomic<int> stored_count = 0;
  std::vector<std::thread> agents;
  for (int agent = 0; agent < 4; ++agent) {
    agents.emplace_back([&, agent] {
      for (int i = 1; i <= 6; ++i) {
        if (store_file("job:7:" + std::to_string(10 * agent + i), kMiB, quota)) ++stored_count;
      }
    });
  }
  for (std::thread& each : agents) each.join();
  EXPECT_EQ(stored_count, 8);
  EXPECT_EQ(get_used_bytes(7), 8 * kMiB);
}

}  // namespace
}  // namespace mycojobs::test
