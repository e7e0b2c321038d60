#include "worker/reports/saved_ends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace mycojobs {
namespace {

constexpr const char* kStoreName = "0123456789abcdef01234567";

class SavedEndsTest : public testing::Test {
 protected:
  SavedEndsTest() {
    std::filesystem::create_directories(folder_ + "/contexts/1");
    saved_.started_unix_ms = 1234;
    saved_.report.claim = {1, "job:12:7", "claim", std::string(64, 'a'), "python", "", 2, 99};
    JobEnd& end = saved_.report.end;
    end.status = JobStatus::finished;
    end.detail = "ok";
    end.result = {{"key", "value"}, {"bytes", std::string("\xff\0x", 3)}};
    end.result_json = {"key"};
    end.artifacts = R"({"file":{"bytes":1}})";
    end.receipt = "{}";
    saved_.report.retry_after_ms = 5;
  }
  ~SavedEndsTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = testing::TempDir() + "saved_ends_test." + std::to_string(::getpid());
  const SavedEnds ends_{folder_, 21};
  SavedEnd saved_;
};

TEST_F(SavedEndsTest, LoadedEndIsTheSame) {
  ASSERT_TRUE(ends_.save(kStoreName, saved_));
  const auto loaded = ends_.load(1, kStoreName);
  ASSERT_EQ(loaded.size(), 1U);
  EXPECT_EQ(loaded[0].started_unix_ms, 1234U);
  EXPECT_EQ(loaded[0].report.end, saved_.report.end);
  EXPECT_EQ(loaded[0].report.retry_after_ms, saved_.report.retry_after_ms);
  EXPECT_EQ(loaded[0].report.claim.job_key, "job:12:7");
  EXPECT_EQ(loaded[0].report.claim.token, std::string(64, 'a'));
  EXPECT_EQ(loaded[0].report.claim.attempt, 2U);
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/contexts/1/ends/" + kStoreName + ".21/claim").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U) << "the file has the token of the claim";
}

TEST_F(SavedEndsTest, OtherRunnersAndDatabasesHaveOtherEnds) {
  ASSERT_TRUE(ends_.save(kStoreName, saved_));
  EXPECT_TRUE(SavedEnds(folder_, 22).load(1, kStoreName).empty());
  EXPECT_TRUE(ends_.load(1, std::string(24, 'b')).empty());
  EXPECT_TRUE(ends_.load(2, kStoreName).empty());
  ends_.remove(kStoreName, saved_.report.claim);
  EXPECT_TRUE(ends_.load(1, kStoreName).empty());
}

TEST_F(SavedEndsTest, DamagedFilesAreDeleted) {
  ASSERT_TRUE(ends_.save(kStoreName, saved_));
  const std::string parent = folder_ + "/contexts/1/ends/" + kStoreName + ".21/";
  std::filesystem::resize_file(parent + "claim", 20);
  std::ofstream(parent + "other.new") << "incomplete";
  EXPECT_TRUE(ends_.load(1, kStoreName).empty());
  EXPECT_TRUE(std::filesystem::is_empty(parent));
}

}  // namespace
}  // namespace mycojobs
