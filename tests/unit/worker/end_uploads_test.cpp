// Ends of jobs while their artifacts are uploaded, with an object storage in this process.
#include "worker/reports/end_uploads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <thread>

#include "artifacts/job_artifacts.h"
#include "base/sha256.h"
#include "support/fake_object_storage.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::SizeIs;

class EndUploadsTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kTimeoutMs = 3'600'000;

  void SetUp() override {
    fs::create_directories(folder_ / "contexts/1");
    store_name_ = artifact_store_name(*store_, 1).value();
  }
  void TearDown() override {
    storage_.set_fault(nullptr);
    is_blocked_ = false;
  }
  std::string ends_folder() const { return folder_ / ("contexts/1/ends/" + store_name_ + ".21"); }
  std::size_t count_saved_ends() const {
    std::error_code error;
    std::size_t count = 0;
    for (fs::directory_iterator entry(ends_folder(), error), end; !error && entry != end; entry.increment(error))
      count += entry->path().extension() == ".new" ? 0 : 1;
    return count;
  }
  std::string job_folder(RunNumber run) const {
    return folder_ / ("contexts/1/jobs/" + store_name_ + "/12." + std::to_string(run));
  }
  // Submits the end of a run that has stored one artifact.
  void submit(RunNumber run, std::size_t result_bytes = 0) {
    const std::string content = "content " + std::to_string(run), hash = sha256_hex(content);
    fs::create_directories(job_folder(run));
    folder_.write("contexts/1/jobs/" + store_name_ + "/12." + std::to_string(run) + '/' + hash, content);
    EndReport end;
    end.claim.context = 1;
    end.claim.job_key = "job:12:" + std::to_string(run);
    end.claim.claim_id = "claim" + std::to_string(run);
    end.end.status = JobStatus::finished;
    end.end.detail = "ok";
    end.end.result["text"] = std::string(result_bytes, 'x');
    end.end.artifacts = R"({"file":{"sha256":")" + hash + R"(","bytes":)" + std::to_string(content.size()) + "}}";
    uploads_->submit(RunReport{run, std::move(end), true});
  }
  // Runs the loop until the condition is true.
  template <class Condition>
  void run_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (uploads_->run_once(), !condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::vector<JobEnd> ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }
  std::vector<DetailUpdate> updates() {
    const std::lock_guard lock(mutex_);
    return updates_;
  }
  bool has_saved_mark() {
    const auto all = updates();
    return std::any_of(all.begin(), all.end(), [](const auto& update) { return update.is_end_saved; });
  }
  bool has_reason() {
    const auto all = updates();
    return std::any_of(all.begin(), all.end(), [](const auto& update) { return !update.reason.empty(); });
  }
  // Requests that store files get no answer.
  void block_storage() {
    is_blocked_ = true;
    storage_.set_fault([this](const std::string& method, const auto&, const auto&) {
      if (method == "PUT") ++blocked_requests_;
      while (method == "PUT" && is_blocked_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return std::optional<FakeObjectStorage::Answer>();
    });
  }
  void deny_requests() {
    storage_.set_fault([](const auto&...) { return FakeObjectStorage::make_error(403, "AccessDenied"); });
  }
  void start() {
    uploads_ = std::make_unique<EndUploads>(
        *store_, bucket_, EndUploads::Settings{{1}, 21, folder_.path().string(), kTimeoutMs}, clock_,
        EndUploads::Callbacks{.report =
                                  [this](RunReport report) {
                                    const std::lock_guard lock(mutex_);
                                    if (auto* end = std::get_if<EndReport>(&report.report))
                                      ends_.push_back(end->end);
                                    else
                                      updates_.push_back(std::get<DetailUpdate>(report.report));
                                  },
                              .on_adopted = [this](RunNumber, const ClaimRef&) { ++adopted_; }},
        no_metrics());
  }

  TempDir folder_;
  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  std::string store_name_;
  std::mutex mutex_;
  std::vector<JobEnd> ends_;
  std::vector<DetailUpdate> updates_;
  std::atomic<int> adopted_{0}, blocked_requests_{0};
  std::atomic<bool> is_blocked_{false};
  FakeObjectStorage storage_;
  const std::shared_ptr<ArtifactBucket> bucket_ = storage_.open_bucket(folder_.path().string());
  std::unique_ptr<EndUploads> uploads_;
};

TEST_F(EndUploadsTest, EndIsReportedAfterTheUpload) {
  start();
  submit(7);
  run_until([&] { return ends().size() == 1; });
  EXPECT_EQ(ends()[0].detail, "ok");
  EXPECT_THAT(ends()[0].artifacts, HasSubstr(R"("store":"s3://bucket")"));
  EXPECT_TRUE(storage_.objects().contains(store_name_ + "/1/12.7/" + sha256_hex("content 7")));
  EXPECT_TRUE(has_saved_mark());
  EXPECT_EQ(uploads_->slotless_count(), 1U);
  uploads_->on_settled(std::vector<RunNumber>{7});
  run_until([&] { return count_saved_ends() == 0 && uploads_->slotless_count() == 0; });
}

TEST_F(EndUploadsTest, EndsAreSavedAndCancelledWhileUploadsHang) {
  start();
  block_storage();
  for (RunNumber run = 1; run <= 6; ++run) submit(run);
  run_until([&] { return count_saved_ends() == 6 && blocked_requests_ == 4; });
  EXPECT_TRUE(ends().empty());
  for (RunNumber run = 1; run <= 6; ++run) uploads_->on_cancelled(run);
  run_until([&] { return ends().size() == 6; });
  for (const JobEnd& end : ends()) EXPECT_EQ(end.detail, "cancelled");
}

TEST_F(EndUploadsTest, TimeLimitEndsAnUploadThatHangs) {
  start();
  block_storage();
  submit(7);
  run_until([&] { return blocked_requests_ > 0; });
  clock_.advance(kTimeoutMs);
  run_until([&] { return ends().size() == 1; });
  EXPECT_EQ(ends()[0].detail, "artifact_store");
  EXPECT_THAT(ends()[0].error, HasSubstr("artifacts.store_timeout"));
}

TEST_F(EndUploadsTest, EndThatCannotBeSavedIsNotCountedAndSavedLater) {
  folder_.write("contexts/1/ends", "not a folder");
  start();
  deny_requests();
  submit(7);
  run_until([&] { return has_reason(); });
  EXPECT_FALSE(has_saved_mark());
  EXPECT_EQ(uploads_->failing_count(), 0U) << "the next agent would not know the end";
  fs::remove(folder_ / "contexts/1/ends");
  clock_.advance(60000);
  run_until([&] { return has_saved_mark(); });
  clock_.advance(60000);
  run_until([&] { return uploads_->failing_count() == 1; });
}

TEST_F(EndUploadsTest, TemporaryErrorsDoNotEndTheJob) {
  start();
  const std::string credentials = folder_ / "credentials", away = folder_ / "away";
  fs::rename(credentials, away);
  submit(7);
  run_until([&] { return has_reason(); });
  EXPECT_TRUE(ends().empty());
  fs::rename(away, credentials);
  clock_.advance(60000);
  run_until([&] { return ends().size() == 1; });
  EXPECT_EQ(ends()[0].detail, "ok");
}

TEST_F(EndUploadsTest, FolderThatIsNotMountedDoesNotEndTheJob) {
  start();
  deny_requests();
  submit(7);
  run_until([&] { return uploads_->failing_count() == 1; });
  fs::rename(folder_ / "contexts", folder_ / "away");
  storage_.set_fault(nullptr);
  clock_.advance(60000);
  run_until([&] {
    const auto all = updates();
    return all.back().reason.find("is the disk mounted?") != std::string::npos;
  });
  EXPECT_TRUE(ends().empty());
  fs::rename(folder_ / "away", folder_ / "contexts");
  clock_.advance(60000);
  run_until([&] { return ends().size() == 1; });
  EXPECT_EQ(ends()[0].detail, "ok");
}

TEST_F(EndUploadsTest, DeletedOrChangedFileEndsTheJob) {
  start();
  deny_requests();
  submit(7);
  submit(8);
  run_until([&] { return uploads_->failing_count() == 2; });
  fs::remove_all(job_folder(7));
  const std::string changed = job_folder(8) + '/' + sha256_hex("content 8");
  fs::resize_file(changed, 0);
  fs::resize_file(changed, std::string("content 8").size());
  storage_.set_fault(nullptr);
  clock_.advance(60000);
  run_until([&] { return ends().size() == 2; });
  for (const JobEnd& end : ends()) EXPECT_EQ(end.detail, "artifact_store");
  EXPECT_TRUE(storage_.objects().empty());
}

TEST_F(EndUploadsTest, NextAgentOfTheRunnerContinues) {
  start();
  deny_requests();
  submit(7);
  run_until([&] { return uploads_->failing_count() == 1; });
  uploads_.reset();
  storage_.set_fault(nullptr);
  start();
  run_until([&] { return ends().size() == 1; });
  EXPECT_EQ(adopted_, 1);
  EXPECT_EQ(ends()[0].detail, "ok");
}

TEST_F(EndUploadsTest, LargeEndsOccupySlots) {
  start();
  block_storage();
  submit(1, 40U << 20);
  submit(2, 40U << 20);
  EXPECT_EQ(uploads_->slotless_count(), 1U);
  is_blocked_ = false;
  run_until([&] { return ends().size() == 2; });
  uploads_->on_settled(std::vector<RunNumber>{1, 2});
  run_until([&] { return uploads_->slotless_count() == 0; });
  submit(3, 40U << 20);
  EXPECT_EQ(uploads_->slotless_count(), 1U);
}

}  // namespace
}  // namespace mycojobs::test
