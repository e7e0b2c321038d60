// Calls of the object storage, its sweep, and downloads from it, with a storage in this process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "artifacts/artifact_cleanup.h"
#include "artifacts/bucket/artifact_bucket.h"
#include "artifacts/bucket/bucket_sweep.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/bucket_source.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "support/fake_object_storage.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;

const std::string kContent = "the content of a file";

class ObjectStorageTest : public testing::Test {
 protected:
  static ArtifactBucket::Key make_key(const std::string& content = kContent) {
    return {{"store", 1}, "job:12:7", sha256_hex(content)};
  }
  Result<void> upload(const ArtifactBucket& bucket, const ArtifactBucket::Key& key, const std::string& content) {
    const std::string path = folder_.write("file", content);
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return bucket.upload(key, fd.get(), content.size(), nullptr);
  }
  static Result<std::string> download(const ArtifactBucket& bucket, const ArtifactBucket::Key& key) {
    std::string content;
    MJ_CHECK(bucket.download(
        key,
        [&](std::string_view piece) -> Result<void> {
          content += piece;
          return {};
        },
        nullptr));
    return content;
  }

  TempDir folder_;
  FakeObjectStorage storage_;
};

TEST_F(ObjectStorageTest, NamesOfObjectsHaveDatabaseContextAndJob) {
  const auto bucket = storage_.open_bucket(folder_.path().string());
  ASSERT_TRUE(upload(*bucket, make_key(), kContent));
  EXPECT_THAT(storage_.objects(), Contains(Key("store/1/12.7/" + sha256_hex(kContent))));
  EXPECT_EQ(download(*bucket, make_key()).value_or(""), kContent);
  EXPECT_TRUE(bucket->list({"store", 2}, "", nullptr)->objects.empty()) << "another context";
  EXPECT_EQ(bucket->list({"store", 1}, "", nullptr)->objects.size(), 1U);
}

TEST_F(ObjectStorageTest, OnlyTheAnswerOfTheProtocolMeansThatAnObjectIsMissing) {
  const auto bucket = storage_.open_bucket(folder_.path().string());
  EXPECT_EQ(download(*bucket, make_key()).error().code, Code::not_found);
  storage_.set_fault([](const auto&...) { return FakeObjectStorage::Answer{404, "<html>not found</html>"}; });
  EXPECT_EQ(download(*bucket, make_key()).error().code, Code::invalid);
  EXPECT_THAT(download(*bucket, make_key()).error().message, HasSubstr("artifacts.store_endpoint"));
  storage_.set_fault(nullptr);
  std::filesystem::remove(folder_ / "credentials");  // while another program replaces the file
  EXPECT_EQ(download(*bucket, make_key()).error().code, Code::unavailable);
}

TEST_F(ObjectStorageTest, FileWithOtherContentIsNotStored) {
  for (const std::uint64_t part_bytes : {std::uint64_t{1} << 20, std::uint64_t{4}}) {
    const auto bucket = storage_.open_bucket(folder_.path().string(), part_bytes);
    auto result = upload(*bucket, make_key("other content"), kContent);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::conflict);
    EXPECT_TRUE(storage_.objects().empty()) << part_bytes;
    EXPECT_EQ(storage_.upload_count(), 0U) << "the upload is aborted";
    ASSERT_TRUE(upload(*bucket, make_key(), kContent));
    EXPECT_EQ(download(*bucket, make_key()).value_or(""), kContent);
    ASSERT_TRUE(bucket->remove({make_key()}, nullptr));
    std::filesystem::remove(folder_ / "credentials");
  }
}

TEST_F(ObjectStorageTest, CheckNamesTheMissingRight) {
  const auto bucket = storage_.open_bucket(folder_.path().string());
  EXPECT_TRUE(bucket->check(nullptr));
  EXPECT_TRUE(storage_.objects().empty());
  EXPECT_EQ(storage_.upload_count(), 0U);
  const auto check_without = [&](const std::string& denied_method, const std::string& denied_query) {
    storage_.set_fault([=](const std::string& method, const auto&, const std::string& query) {
      const bool is_denied = method == denied_method && query.find(denied_query) != std::string::npos;
      return is_denied ? std::optional(FakeObjectStorage::make_error(403, "AccessDenied")) : std::nullopt;
    });
    const auto result = bucket->check(nullptr);
    return result ? "" : result.error().message;
  };
  EXPECT_THAT(check_without("GET", "&uploads="), HasSubstr("s3:ListBucketMultipartUploads"));
  EXPECT_THAT(check_without("DELETE", "&uploadId="), HasSubstr("s3:AbortMultipartUpload"));
}

TEST_F(ObjectStorageTest, AbortedUploadCanBeAbortedAgain) {
  const auto bucket = storage_.open_bucket(folder_.path().string());
  EXPECT_TRUE(bucket->remove({make_key(), "unknown"}, nullptr));
}

class BucketSweepTest : public ObjectStorageTest {
 protected:
  static constexpr std::uint64_t kIntervalMs = 900'000;

  void SetUp() override {
    std::filesystem::create_directories(folder_ / "contexts/1");
    store_name_ = artifact_store_name(*store_, 1).value();
    listed_ = name_object(7, kContent);
    orphan_ = name_object(7, "of another delivery");
    deleted_job_ = name_object(8, kContent);
    running_job_ = name_object(9, kContent);
    for (const std::string& name : {listed_, orphan_, deleted_job_, running_job_}) storage_.put(name, "x");
    const std::string artifacts = R"({"file":{"sha256":")" + sha256_hex(kContent) + R"(","bytes":1}})";
    ASSERT_TRUE(store_->save(1, "job:12:7", {{"id", "7"}, {"status", "finished"}, {"artifacts", artifacts}}));
    ASSERT_TRUE(store_->save(1, "job:12:9", {{"id", "9"}, {"status", "started"}}));
  }
  std::string name_object(Id job, const std::string& content) const {
    return store_name_ + "/1/12." + std::to_string(job) + '/' + sha256_hex(content);
  }
  std::string owner_name() const { return store_name_ + "/1/owner"; }
  std::string make_marker(const std::string& id) const { return id + ' ' + std::to_string(clock_.unix); }
  void run_rounds(int count) {
    for (const std::uint64_t end_ms = clock_.boot + static_cast<std::uint64_t>(count) * kIntervalMs;
         clock_.boot < end_ms;)
      clock_.advance(std::max<std::uint64_t>(sweep_.run_once(), 1));
  }

  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  const std::shared_ptr<ArtifactBucket> bucket_ = storage_.open_bucket(folder_.path().string());
  BucketSweep sweep_{*store_, bucket_, clock_, {1}, folder_.path().string(), kIntervalMs};
  std::string store_name_, listed_, orphan_, deleted_job_, running_job_;
};

TEST_F(BucketSweepTest, ObjectsWithoutARecordAreDeletedByTheOwner) {
  run_rounds(1);
  EXPECT_EQ(storage_.objects().size(), 5U) << "the first round writes the marker";
  run_rounds(2);
  const auto objects = storage_.objects();
  EXPECT_EQ(objects.size(), 3U);
  for (const std::string& name : {listed_, running_job_, owner_name()}) EXPECT_THAT(objects, Contains(Key(name)));
}

TEST_F(BucketSweepTest, ObjectsOfAnotherOwnerStay) {
  storage_.put(owner_name(), make_marker("another"));
  run_rounds(4);
  EXPECT_EQ(storage_.objects().size(), 5U);
  clock_.advance(BucketSweep::kMaxOwnerSilenceMs);
  run_rounds(1);
  EXPECT_EQ(storage_.objects().size(), 5U) << "the first round of a new owner writes the marker";
  run_rounds(2);
  EXPECT_EQ(storage_.objects().size(), 3U);
}

TEST_F(BucketSweepTest, YoungObjectsStay) {
  storage_.set_modified("2100-01-01T00:00:00.000Z");
  run_rounds(4);
  EXPECT_EQ(storage_.objects().size(), 5U);
}

TEST_F(BucketSweepTest, RefusedRequestsDoNotKeepOtherObjects) {
  storage_.set_fault([this](const std::string& method, const std::string& key, const std::string& query) {
    const bool is_refused = (method == "DELETE" && key == orphan_) || query.find("&uploads=") != std::string::npos;
    return is_refused ? std::optional(FakeObjectStorage::make_error(403, "AccessDenied")) : std::nullopt;
  });
  run_rounds(4);
  EXPECT_THAT(storage_.objects(), Contains(Key(orphan_)));
  EXPECT_THAT(storage_.objects(), Not(Contains(Key(deleted_job_))));
}

TEST_F(BucketSweepTest, DeletionIsNotRepeatedLater) {
  std::atomic<int> deletions{0};
  run_rounds(1);
  storage_.set_fault([&](const std::string& method, const auto&, const auto&) {
    if (method != "DELETE") return std::optional<FakeObjectStorage::Answer>();
    ++deletions;
    return std::optional(FakeObjectStorage::make_error(503, "SlowDown"));
  });
  while (deletions == 0) clock_.advance(std::max<std::uint64_t>(sweep_.run_once(), 1));
  EXPECT_EQ(deletions, 1);
  storage_.set_fault(nullptr);
}

// Keeps the fetches. The test ends them.
class FakeRunners final : public ArtifactSource {
 public:
  FetchNumber fetch(const RemoteArtifact&, std::shared_ptr<FileTarget>, OnEnd on_end) override {
    const std::lock_guard lock(mutex_);
    ends_.push_back(std::move(on_end));
    return ends_.size();
  }
  void cancel(FetchNumber number) override { cancelled = number; }
  OnEnd find_fetch() {
    const std::lock_guard lock(mutex_);
    return ends_.empty() ? nullptr : ends_.back();
  }
  void forget_fetches() {
    const std::lock_guard lock(mutex_);
    ends_.clear();
  }
  std::atomic<FetchNumber> cancelled{0};

 private:
  std::mutex mutex_;
  std::vector<OnEnd> ends_;
};

class NoTarget final : public FileTarget {
 public:
  Result<std::string> create_path() override { return fail(Code::io, "the disk is full"); }
  Result<void> store(const CompleteFile&) override { return {}; }
};

class BucketSourceTest : public ObjectStorageTest {
 protected:
  template <class Condition>
  static void wait_until(Condition condition) {
    for (int i = 0; i < 60000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(condition());
  }
  ArtifactSource::FetchNumber begin_fetch(Id holder = 21) {
    has_ended_ = false;
    RemoteArtifact artifact{1, holder, "job:12:7", {sha256_hex(kContent), kContent.size()}, "label"};
    artifact.object_store = bucket_->url();
    artifact.store_names = {"store"};
    return source_.fetch(artifact, std::make_shared<NoTarget>(), [this](FetchEnd fetch_end) {
      end_ = std::move(fetch_end);
      has_ended_ = true;
    });
  }
  FetchEnd fetch_from_both(const FetchEnd& runner_end) {
    runners_.forget_fetches();
    begin_fetch();
    wait_until([&] { return runners_.find_fetch() != nullptr; });
    runners_.find_fetch()(runner_end);
    return end_;
  }
  void deny() {
    storage_.set_fault([](const auto&...) { return FakeObjectStorage::make_error(403, "AccessDenied"); });
  }

  const std::shared_ptr<ArtifactBucket> bucket_ = storage_.open_bucket(folder_.path().string());
  FakeRunners runners_;
  FetchEnd end_;
  std::atomic<bool> has_ended_{false};
  BucketSource source_{bucket_, runners_};
};

TEST_F(BucketSourceTest, MissingObjectIsFetchedFromItsRunner) {
  EXPECT_EQ(fetch_from_both({FetchStatus::received, ""}).status, FetchStatus::received);
  const FetchEnd lost = fetch_from_both({FetchStatus::lost, "runner 21 does not have it"});
  EXPECT_EQ(lost.status, FetchStatus::lost);
  EXPECT_THAT(lost.reason, HasSubstr("s3://bucket"));
  EXPECT_EQ(fetch_from_both({FetchStatus::away, "runner 21 is away"}).status, FetchStatus::away);
}

TEST_F(BucketSourceTest, FileIsNotLostWhileTheStorageIsAway) {
  deny();
  EXPECT_EQ(fetch_from_both({FetchStatus::received, ""}).status, FetchStatus::received);
  for (const FetchStatus status : {FetchStatus::lost, FetchStatus::away}) {
    const FetchEnd away = fetch_from_both({status, "runner 21"});
    EXPECT_EQ(away.status, FetchStatus::storage_away);
    EXPECT_THAT(away.reason, HasSubstr("AccessDenied"));
    EXPECT_THAT(away.reason, HasSubstr("runner 21"));
  }
}

TEST_F(BucketSourceTest, WithoutARunnerTheStorageDecides) {
  begin_fetch(0);
  wait_until([&] { return has_ended_.load(); });
  EXPECT_EQ(end_.status, FetchStatus::lost);
}

TEST_F(BucketSourceTest, CancelEndsTheFetchFromTheRunner) {
  const auto number = begin_fetch();
  wait_until([&] { return runners_.find_fetch() != nullptr; });
  wait_until([&] {  // the number of the runner's fetch is known after fetch() has returned
    source_.cancel(number);
    return runners_.cancelled != 0;
  });
}

}  // namespace
}  // namespace mycojobs::test
