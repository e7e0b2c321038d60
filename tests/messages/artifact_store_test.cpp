// Files on their way in: put together from pieces, compared with their hash, handed to jobs, forgotten.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>

#include "base/sha256.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"
#include "worker/artifact_folder.h"
#include "worker/artifact_store.h"
#include "worker/artifacts.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

class IncomingFiles : public testing::Test {
 protected:
  std::uint64_t expect(const std::string& bytes) { return files_->expect(*store_, 1, "p", content(bytes)).value(); }
  Result<std::uint64_t> add(const std::string& bytes, std::uint64_t offset, std::size_t size) {
    return files_->add(1, "p", content(bytes), offset, std::string_view(bytes).substr(offset, size));
  }
  static FileContent content(const std::string& bytes) { return {sha256_hex(bytes), bytes.size()}; }
  std::string path(const std::string& name) const { return folder_ / ("contexts/1/" + name); }

  test::HandClock clock_;
  test::TempDir folder_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  std::shared_ptr<ArtifactStore> files_ = make_artifact_store(folder_.path().string(), clock_, 1000);
};

TEST_F(IncomingFiles, PiecesThatComeTwiceOrTooEarlyChangeNothing) {
  const std::string bytes = "0123456789";
  EXPECT_EQ(add(bytes, 0, 4).error().code, Code::not_found) << "nobody has asked for it";
  EXPECT_EQ(expect(bytes), 0U);
  EXPECT_EQ(add(bytes, 6, 4).value(), 0U) << "a gap";
  EXPECT_EQ(add(bytes, 0, 4).value(), 4U);
  EXPECT_EQ(add(bytes, 0, 4).value(), 4U);
  EXPECT_EQ(add(bytes, 2, 4).value(), 6U) << "half of it is new";
  EXPECT_EQ(expect(bytes), 6U);
  EXPECT_EQ(add(bytes, 6, 4).value(), 10U);
  EXPECT_EQ(add(bytes, 0, 4).value(), 10U) << "it is whole";
  EXPECT_EQ(expect(bytes), 10U);
  EXPECT_EQ(expect(""), 0U);
  EXPECT_TRUE(fs::exists(path("incoming/p/" + sha256_hex("")))) << "an empty one is whole at once";
}

TEST_F(IncomingFiles, OneWithAnotherHashOrLengthBeginsAnew) {
  const FileContent wanted = content("0123456789");
  ASSERT_TRUE(files_->expect(*store_, 1, "p", wanted));
  EXPECT_EQ(files_->add(1, "p", wanted, 0, "012345678x").error().code, Code::invalid);
  EXPECT_EQ(files_->expect(*store_, 1, "p", wanted).value(), 0U);
  EXPECT_EQ(files_->add(1, "p", wanted, 0, "0123456789 and more").error().code, Code::invalid);
  EXPECT_EQ(files_->expect(*store_, 1, "p", wanted).value(), 0U);
  const auto handed = files_->hand_over(*store_, 1, "p", {{"job:1:2", {wanted}}});
  ASSERT_FALSE(handed);
  EXPECT_EQ(handed.error().code, Code::not_found);
}

TEST_F(IncomingFiles, WhatIsHandedOverIsTheJobsUntilItsRecordSaysOtherwise) {
  const std::string bytes = "0123456789";
  ASSERT_EQ(expect(bytes), 0U);
  ASSERT_EQ(add(bytes, 0, 10).value(), 10U);
  const std::string job =
      ArtifactFolder(folder_.path().string(), 1).job(artifact_store_name(*store_, 1).value(), "job:1:2") + '/';
  const auto sweep = [&] {
    for (int i = 0; i < 300; ++i) {
      clock_.pass(100);
      ASSERT_TRUE(files_->tidy(*store_, 1));
    }
  };
  {
    const auto held = files_->hand_over(*store_, 1, "p", {{"job:1:2", {content(bytes)}}});
    ASSERT_TRUE(held) << held.error().message;
    sweep();
    EXPECT_TRUE(fs::exists(job + sha256_hex(bytes))) << "its record is not there yet";
    ASSERT_TRUE(store_->save(1, "job:1:2", {{"id", "2"}, {"status", "dispatched"}}));
  }
  ASSERT_TRUE(files_->hand_over(*store_, 1, "p", {{"job:1:2", {content(bytes)}}})) << "once more";
  files_->drop(1, "p");
  // The round that had to wait is followed by a long rest: another process has none.
  files_ = make_artifact_store(folder_.path().string(), clock_, 1000);
  ASSERT_TRUE(files_->hand_over(*store_, 1, "p", {{"job:1:2", {content(bytes)}}})) << "it has it";
  EXPECT_EQ(files_->read(*store_, 1, "job:1:2", content(bytes), 3, 4).value(), "3456");
  EXPECT_EQ(files_->read(*store_, 1, "job:1:2", content(bytes), 8, 4).value(), "89");
  EXPECT_TRUE(files_->has(*store_, 1, "job:1:2", {content(bytes)}).value());
  EXPECT_FALSE(files_->has(*store_, 1, "job:1:3", {content(bytes)}).value()) << "another job has not";
  sweep();
  EXPECT_TRUE(fs::exists(job + sha256_hex(bytes))) << "the job waits";
  ASSERT_TRUE(store_->save(1, "job:1:2", {{"status", "finished"}}));
  sweep();
  EXPECT_FALSE(fs::exists(job + sha256_hex(bytes)));
}

TEST_F(IncomingFiles, AParcelThatNobodyTouchesForAnHourGoes) {
  ASSERT_EQ(expect("0123456789"), 0U);
  ASSERT_TRUE(files_->tidy(*store_, 1));
  ASSERT_TRUE(fs::exists(path("incoming/p")));
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::minutes(61);
  for (const auto& each : fs::directory_iterator(path("incoming/p"))) fs::last_write_time(each.path(), long_ago);
  ASSERT_TRUE(files_->tidy(*store_, 1));
  ASSERT_TRUE(fs::exists(path("incoming/p"))) << "a file has just come into it";
  fs::last_write_time(path("incoming/p"), long_ago);
  ASSERT_TRUE(files_->tidy(*store_, 1));
  EXPECT_FALSE(fs::exists(path("incoming/p")));
}

}  // namespace
}  // namespace mycojobs
