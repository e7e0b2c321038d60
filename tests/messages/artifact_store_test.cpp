// Received files: assembled from pieces, checked against their hash, passed to jobs, and removed.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <optional>

#include "artifacts/artifact_folder.h"
#include "artifacts/artifact_usage.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/local_artifact_store.h"
#include "artifacts/transfer/transfer_loop.h"
#include "base/loop_thread.h"
#include "base/sha256.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class IncomingFiles : public testing::Test {
 protected:
  std::uint64_t expect(const std::string& bytes) {
    EXPECT_TRUE(files_->reserve_files(*store_, 1, kParcel, {content(bytes)}));
    return files_->received_bytes(1, kParcel, content(bytes)).value();
  }
  Result<std::uint64_t> add(const std::string& bytes, std::uint64_t offset, std::size_t size) {
    return files_->add_piece(1, kParcel, content(bytes), offset, std::string_view(bytes).substr(offset, size));
  }
  // Returns a file whose content differs for each number.
  static FileContent large(int number, std::uint64_t bytes) { return {sha256_hex(std::to_string(number)), bytes}; }
  // Returns the error for a parcel of this sender that is named by the number and has a file of this size.
  std::string refusal(const std::string& sender, int number, std::uint64_t bytes, Id context = 1) {
    auto let_in = files_->reserve_files(*store_, context, {std::to_string(number), sender}, {large(number, bytes)});
    if (let_in) return "";
    EXPECT_EQ(let_in.error().code, Code::unavailable) << let_in.error().message;
    return let_in.error().message;
  }
  static FileContent content(const std::string& bytes) { return {sha256_hex(bytes), bytes.size()}; }
  std::string path(const std::string& name) const { return folder_ / ("contexts/1/" + name); }

  const InboundBundleId kParcel{"p", "ann"};
  static constexpr std::uint64_t kRoom = 4U << 20, kShare = kRoom / 4;
  test::ManualClock clock_;
  test::TempDir folder_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  std::shared_ptr<ArtifactStore> files_ = make_artifact_store(folder_.path().string(), clock_, 1000, kRoom);
};

TEST_F(IncomingFiles, RepeatedOrEarlyPiecesChangeNothing) {
  const std::string bytes = "0123456789";
  EXPECT_EQ(add(bytes, 0, 4).error().code, Code::not_found) << "the file was not requested";
  EXPECT_EQ(expect(bytes), 0U);
  EXPECT_EQ(add(bytes, 6, 4).value(), 0U) << "the data leaves a gap";
  EXPECT_EQ(add(bytes, 0, 4).value(), 4U);
  EXPECT_EQ(add(bytes, 0, 4).value(), 4U);
  EXPECT_EQ(add(bytes, 2, 4).value(), 6U) << "half of the data is new";
  EXPECT_EQ(expect(bytes), 6U);
  EXPECT_EQ(add(bytes, 6, 4).value(), 10U);
  EXPECT_EQ(add(bytes, 0, 4).value(), 10U) << "the file is complete";
  EXPECT_EQ(expect(bytes), 10U);
  EXPECT_EQ(expect(""), 0U);
  EXPECT_TRUE(fs::exists(path("incoming/p.ann/" + sha256_hex("") + ".0"))) << "an empty file is complete immediately";
}

TEST_F(IncomingFiles, OtherHashOrLengthRestarts) {
  const FileContent file = content("0123456789");
  ASSERT_TRUE(files_->reserve_files(*store_, 1, kParcel, {file}));
  EXPECT_EQ(files_->add_piece(1, kParcel, file, 0, "012345678x").error().code, Code::invalid);
  EXPECT_EQ(files_->received_bytes(1, kParcel, file), 0U) << "the received length is unchanged";
  EXPECT_EQ(files_->add_piece(1, kParcel, file, 0, "0123456789 and more").error().code, Code::invalid);
  EXPECT_EQ(files_->received_bytes(1, kParcel, file), 0U) << "the received length is unchanged";
  const auto handed = files_->retain_files(*store_, 1, kParcel, {{"job:1:2", {file}}});
  ASSERT_FALSE(handed);
  EXPECT_EQ(handed.error().code, Code::not_found);
}

TEST_F(IncomingFiles, HandedOverFilesBelongToTheJob) {
  const std::string bytes = "0123456789";
  ASSERT_EQ(expect(bytes), 0U);
  ASSERT_EQ(add(bytes, 0, 10).value(), 10U);
  const std::string job =
      ArtifactFolder(folder_.path().string(), 1).job_folder(artifact_store_name(*store_, 1).value(), "job:1:2") + '/';
  const auto sweep = [&] {
    for (int i = 0; i < 300; ++i) {
      clock_.advance(100);
      ASSERT_TRUE(files_->clean_up(*store_, 1));
    }
  };
  {
    const auto held = files_->retain_files(*store_, 1, kParcel, {{"job:1:2", {content(bytes)}}});
    ASSERT_TRUE(held) << held.error().message;
    sweep();
    EXPECT_TRUE(fs::exists(job + sha256_hex(bytes))) << "the record does not exist yet";
    ASSERT_TRUE(store_->save(1, "job:1:2", {{"id", "2"}, {"status", "dispatched"}}));
  }
  ASSERT_TRUE(files_->retain_files(*store_, 1, kParcel, {{"job:1:2", {content(bytes)}}})) << "repeated";
  files_->remove_bundle(1, kParcel);
  // A tidying round that had to wait is followed by a long pause; a new store starts without the pause.
  files_ = make_artifact_store(folder_.path().string(), clock_, 1000, kRoom);
  ASSERT_TRUE(files_->retain_files(*store_, 1, kParcel, {{"job:1:2", {content(bytes)}}})) << "the job has the file";
  EXPECT_EQ(files_->read_file(*store_, 1, "job:1:2", content(bytes), 3, 4).value(), "3456");
  EXPECT_EQ(files_->read_file(*store_, 1, "job:1:2", content(bytes), 8, 4).value(), "89");
  EXPECT_TRUE(files_->has_files(*store_, 1, "job:1:2", {content(bytes)}).value());
  EXPECT_FALSE(files_->has_files(*store_, 1, "job:1:3", {content(bytes)}).value())
      << "another job does not have the file";
  sweep();
  EXPECT_TRUE(fs::exists(job + sha256_hex(bytes))) << "the job is waiting";
  ASSERT_TRUE(store_->save(1, "job:1:2", {{"status", "finished"}}));
  sweep();
  EXPECT_FALSE(fs::exists(job + sha256_hex(bytes)));
}

TEST_F(IncomingFiles, FailedHandOverCountsNothing) {
  const std::string first = "0123456789", second(5000, 's');
  for (const std::string& bytes : {first, second}) {
    expect(bytes);
    ASSERT_TRUE(add(bytes, 0, bytes.size()));
  }
  const ArtifactUsage usage(ArtifactFolder(folder_.path().string(), 1), *artifact_store_name(*store_, 1));
  const std::vector<JobFiles> to{{"job:1:2", {content(first), content(second), content(second)}}};
  const std::string in_the_way = path("objects/" + sha256_hex(second));
  fs::create_directories(in_the_way);  // so that no object can be made
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(files_->retain_files(*store_, 1, kParcel, to));
    EXPECT_LE(usage.read()->get_bytes(1), 4096U) << i;
  }
  EXPECT_FALSE(files_->retain_files(*store_, 1, kParcel, {{"job:1:3", {content(first), large(1, 10)}}}))
      << "a file has not been received";
  EXPECT_LE(usage.read()->get_bytes(1), 4096U);
  fs::remove(in_the_way);
  EXPECT_TRUE(files_->retain_files(*store_, 1, kParcel, to));
  EXPECT_TRUE(files_->retain_files(*store_, 1, kParcel, to)) << "the files are retained again";
  EXPECT_EQ(usage.read()->get_bytes(1), 4096U + 8192U) << "equal files are stored once";
}

TEST_F(IncomingFiles, IdleTransferIsRemovedAfterAnHour) {
  ASSERT_EQ(expect("0123456789"), 0U);
  ASSERT_TRUE(files_->clean_up(*store_, 1));
  ASSERT_TRUE(fs::exists(path("incoming/p.ann")));
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::minutes(61);
  for (const auto& each : fs::directory_iterator(path("incoming/p.ann"))) fs::last_write_time(each.path(), long_ago);
  clock_.advance(5000);
  ASSERT_TRUE(files_->clean_up(*store_, 1));
  ASSERT_TRUE(fs::exists(path("incoming/p.ann"))) << "a file was received a moment ago";
  fs::last_write_time(path("incoming/p.ann"), long_ago);
  clock_.advance(5000);
  ASSERT_TRUE(files_->clean_up(*store_, 2)) << "context 1 is no longer served";
  EXPECT_FALSE(fs::exists(path("incoming/p.ann")));
}

// ---- quota ----

TEST_F(IncomingFiles, SenderIsLimitedToItsShare) {
  EXPECT_EQ(refusal("ann", 1, kShare - 300000), "");
  EXPECT_THAT(refusal("ann", 2, 300001),
              HasSubstr("sender ann that are in transfer take 748576 bytes, and no sender has more than a quarter of "
                        "message.max_incoming_bytes, which is 4194304 there: try again later"));
  EXPECT_THAT(refusal("ann", 2, 300001, 2), HasSubstr("748576 bytes")) << "in another context";
  EXPECT_FALSE(fs::exists(path("incoming/2.ann"))) << "a refused file leaves nothing on the disk";
  EXPECT_EQ(refusal("ann", 3, 300000), "");
  EXPECT_EQ(refusal("bob", 4, kShare), "");
  files_->remove_bundle(1, {"3", "ann"});
  EXPECT_EQ(refusal("ann", 2, 300000), "");
}

TEST_F(IncomingFiles, TotalIsLimited) {
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(refusal("sender" + std::to_string(i), i, kShare, static_cast<Id>(i)), "");
  EXPECT_EQ(refusal("sender4", 4, kShare / 2), "");
  EXPECT_THAT(refusal("sender5", 5, kShare),
              HasSubstr("in transfer take 3670016 bytes, and the limit is message.max_incoming_bytes, which is "
                        "4194304 there: try again later"));
  files_->remove_bundle(2, {"2", "sender2"});
  EXPECT_EQ(refusal("sender5", 5, kShare), "");
}

TEST_F(IncomingFiles, StoredFilesCountForTheNextSender) {
  ASSERT_EQ(expect("0123456789"), 0U);
  ASSERT_EQ(add("0123456789", 0, 10).value(), 10U);
  EXPECT_EQ(refusal("ann", 1, 300000), "");
  files_ = make_artifact_store(folder_.path().string(), clock_, 1000, kRoom);
  // After the restart, the complete small file counts with the minimum size of a parcel, and the announced file with
  // its full size.
  EXPECT_THAT(refusal("ann", 2, kShare / 2), HasSubstr(std::to_string(300000 + kMinAccountedBundleBytes) + " bytes"));
  EXPECT_EQ(refusal("ann", 2, kShare - 300000 - kMinAccountedBundleBytes), "");
}

TEST_F(IncomingFiles, AdmittedFileCompletesDespiteAFullQuota) {
  const std::string first(700000, 'a'), second(300000, 'b');
  ASSERT_TRUE(files_->reserve_files(*store_, 1, kParcel, {content(first), content(second)}));
  EXPECT_NE(refusal("ann", 1, 1), "");
  EXPECT_EQ(add(first, 0, first.size()).value(), first.size());
  EXPECT_EQ(files_->add_piece(1, kParcel, content(second), 0, std::string(300000, 'x')).error().code, Code::invalid);
  EXPECT_NE(refusal("ann", 1, 1), "") << "a damaged file keeps its reservation";
  EXPECT_EQ(add(second, 0, second.size()).value(), second.size());
  EXPECT_TRUE(files_->reserve_files(*store_, 1, kParcel, {content(first), content(second)}))
      << "the files are requested again";
}

TEST_F(IncomingFiles, ManySmallFilesUseQuota) {
  for (int i = 1; i <= 4; ++i) EXPECT_EQ(refusal("ann", i, 1), "");
  EXPECT_NE(refusal("ann", 5, 1), "");
  std::vector<FileContent> files;
  for (int i = 0; i < 257; ++i) files.push_back(large(i, 1));
  auto many = files_->reserve_files(*store_, 1, {"6", "bob"}, files);
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().code, Code::too_large) << "the files never fit";
  EXPECT_THAT(many.error().message, HasSubstr("message.max_incoming_bytes"));
  files.pop_back();
  EXPECT_TRUE(files_->reserve_files(*store_, 1, {"6", "bob"}, files));
}

TEST_F(IncomingFiles, PieceOfALargerFileThanAdmittedIsRejected) {
  ASSERT_EQ(expect("0123456789"), 0U);
  FileContent larger = content("0123456789");
  larger.bytes = 1U << 20;
  EXPECT_EQ(files_->add_piece(1, kParcel, larger, 0, std::string(1000, 'x')).error().code, Code::not_found);
  EXPECT_EQ(files_->add_piece(1, {"p", "bob"}, content("0123456789"), 0, "0").error().code, Code::not_found);
}

// A coordinator whose agents have other state folders.
class FilesOfRunners : public testing::Test {
 protected:
  SystemClock clock_;
  test::TempDir folder_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open(), holder_store_ = *server_.open();
  const std::string holder_folder_ = folder_ / "holder", coordinator_folder_ = folder_ / "coordinator";
  std::shared_ptr<ArtifactStore> files_ = make_artifact_store(
      coordinator_folder_, clock_, 1000, 4U << 20, std::nullopt,
      std::make_shared<ArtifactFetcher>(server_, clock_, ArtifactFetcher::Settings{coordinator_folder_, {}}));
  TransferLoop holder_{*holder_store_, {.contexts = {1}, .holder = 3, .state_dir = holder_folder_}, clock_};
  std::optional<LoopThread<TransferLoop>> holder_thread_;

  void SetUp() override {
    ASSERT_TRUE(store_->save(1, "runner:3", {{"id", "3"}}));
    ASSERT_TRUE(holder_.subscribe(server_));
  }
  FileContent store_file(const std::string& bytes) {
    auto run = make_run_artifacts(holder_folder_, 1, *artifact_store_name(*store_, 1), "job:1:2", 1U << 20);
    EXPECT_TRUE(run->open("app", false));
    run->write(bytes);
    run->close();
    EXPECT_TRUE(store_->save(1, "job:1:2", {{"id", "2"}, {"runner_id", "3"}, {"artifacts", run->finish()}}));
    return {sha256_hex(bytes), bytes.size()};
  }
  Code read_error(const FileContent& file) {
    const auto bytes = files_->read_file(*store_, 1, "job:1:2", file, 0, 10);
    return bytes ? Code::internal : bytes.error().code;
  }
};

TEST_F(FilesOfRunners, FileOfARunnerIsFetched) {
  const FileContent file = store_file("0123456789");
  holder_thread_.emplace(holder_, "holder");
  EXPECT_TRUE(files_->has_files(*store_, 1, "job:1:2", {file}).value()) << "it can be read later";
  EXPECT_TRUE(test::eventually([&] {
    const auto bytes = files_->read_file(*store_, 1, "job:1:2", file, 3, 4);
    EXPECT_TRUE(bytes || bytes.error().code == Code::io);
    return bytes && *bytes == "3456";
  }));
  holder_thread_.reset();
  EXPECT_EQ(files_->read_file(*store_, 1, "job:1:2", file, 8, 4).value(), "89") << "from the cache";
  EXPECT_EQ(files_->read_file(*store_, 1, "job:1:3", file, 0, 4).error().code, Code::not_found) << "another job";
}

TEST_F(FilesOfRunners, AbsentRunnerIsAwaitedAndADeletedOneIsNot) {
  const FileContent file = store_file("0123456789");
  EXPECT_TRUE(files_->has_files(*store_, 1, "job:1:2", {file}).value());
  EXPECT_EQ(read_error(file), Code::io) << "the agent may return";
  const FileContent other = store_file("abc");
  server_.erase(1, "runner:3");
  EXPECT_FALSE(files_->has_files(*store_, 1, "job:1:2", {other}).value());
  EXPECT_EQ(read_error(other), Code::not_found);
}

TEST_F(FilesOfRunners, FileThatTheRunnerDoesNotHaveIsLost) {
  const FileContent file = store_file("0123456789");
  fs::remove_all(ArtifactFolder(holder_folder_, 1).path() + "/jobs");
  holder_thread_.emplace(holder_, "holder");
  EXPECT_TRUE(test::eventually([&] { return read_error(file) == Code::not_found; }));
  EXPECT_FALSE(files_->has_files(*store_, 1, "job:1:2", {file}).value());
}

}  // namespace
}  // namespace mycojobs
