// Transfers between two processes through a real server and its imitation.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/transfer/transfer_loop.h"
#include "base/sha256.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

class Transfers : public StoreContract {
 protected:
  static constexpr Id kHolder = 30;

  // A process with a state folder and a thread for its transfers.
  struct Host {
    TempFolder folder;
    std::unique_ptr<Store> store;
    std::unique_ptr<TransferLoop> loop;
    std::optional<LoopThread<TransferLoop>> thread;
    ~Host() { thread.reset(); }
  };
  std::unique_ptr<Host> start_host(Id runner, std::uint64_t rate = 0) {
    auto host = std::make_unique<Host>();
    host->store = *backend_->stores().open();
    host->loop = std::make_unique<TransferLoop>(*host->store,
                                                TransferLoop::Settings{{1}, runner, host->folder.path(), rate}, clock_);
    EXPECT_TRUE(host->loop->subscribe(backend_->stores()));
    host->thread.emplace(*host->loop);
    return host;
  }
  // Stores a file as an artifact of a job on the host. Returns its hash.
  std::string add_artifact(Host& host, const std::string& job_key, const std::string& content) {
    auto run = make_run_artifacts(host.folder.path(), 1, *artifact_store_name(*host.store, 1), job_key, 1U << 30);
    EXPECT_TRUE(run->open("name", false));
    run->write(content);
    run->close();
    EXPECT_NE(run->finish(), "");
    return sha256_hex(content);
  }
  FetchEnd fetch(Host& host, const std::string& job_key, const FileContent& content, Id holder = kHolder) {
    const ArtifactCache cache(ArtifactFolder(host.folder.path(), 1), {});
    const auto promise = std::make_shared<std::promise<FetchEnd>>();
    auto future = promise->get_future();
    host.loop->fetch({1, holder, job_key, content, "the artifact"}, cache.make_target(store_name_, job_key),
                     [promise](FetchEnd end) { promise->set_value(std::move(end)); });
    return future.get();
  }
  std::string read_cached(Host& host, const std::string& job_key, const std::string& sha256) {
    const std::string folder = ArtifactFolder(host.folder.path(), 1).cache_folder(store_name_, job_key);
    std::ifstream file(folder + '/' + sha256, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string make_content(std::size_t bytes) {
    std::string content(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(i * 7 + i / 1000);
    return content;
  }

  void SetUp() override {
    StoreContract::SetUp();
    store_name_ = *artifact_store_name(*store_, 1);
  }

  SystemClock clock_;
  std::string store_name_;
};

TEST_P(Transfers, FileIsFetchedIntoTheCache) {
  const auto holder = start_host(kHolder);
  const auto receiver = start_host(31);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{20} << 20}) {
    const std::string content = make_content(bytes);
    const std::string sha256 = add_artifact(*holder, "job:12:1", content);
    const FetchEnd end = fetch(*receiver, "job:12:1", {sha256, bytes});
    ASSERT_EQ(end.status, FetchStatus::received) << end.reason;
    EXPECT_EQ(read_cached(*receiver, "job:12:1", sha256), content);
  }
  EXPECT_TRUE(std::filesystem::is_empty(ArtifactFolder(receiver->folder.path(), 1).spool_folder()));
}

// A record is written by clients, so its hash alone permits nothing.
TEST_P(Transfers, HashOfAnotherJobIsNotSent) {
  const auto holder = start_host(kHolder);
  const auto receiver = start_host(31);
  const std::string sha256 = add_artifact(*holder, "job:12:1", "secret");
  EXPECT_EQ(fetch(*receiver, "job:13:1", {sha256, 6}).status, FetchStatus::lost);
  ASSERT_EQ(fetch(*receiver, "job:12:1", {sha256, 6}).status, FetchStatus::received);
  EXPECT_EQ(fetch(*receiver, "job:13:1", {sha256, 6}).status, FetchStatus::lost) << "although the cache has the bytes";
  EXPECT_EQ(fetch(*receiver, "job:12:1", {sha256, 5}).status, FetchStatus::lost) << "another size";
}

TEST_P(Transfers, LinkInTheFolderIsNotFollowed) {
  const auto holder = start_host(kHolder);
  const auto receiver = start_host(31);
  add_artifact(*holder, "job:12:1", "text");
  const std::string folder =
      artifact_folders(holder->folder.path(), 1, "job:12:1", *artifact_store_names(*store_, 1)).at(0);
  std::ofstream(holder->folder.path() + "/outside") << "outside";
  std::filesystem::create_symlink(holder->folder.path() + "/outside", folder + '/' + sha256_hex("outside"));
  const FetchEnd end = fetch(*receiver, "job:12:1", {sha256_hex("outside"), 7});
  EXPECT_NE(end.status, FetchStatus::received);
}

TEST_P(Transfers, DamagedFileIsNotStored) {
  const auto holder = start_host(kHolder);
  const auto receiver = start_host(31);
  const std::string sha256 = add_artifact(*holder, "job:12:1", "right");
  const std::string folder =
      artifact_folders(holder->folder.path(), 1, "job:12:1", *artifact_store_names(*store_, 1)).at(0);
  std::ofstream(folder + '/' + sha256) << "wrong";
  const FetchEnd end = fetch(*receiver, "job:12:1", {sha256, 5});
  EXPECT_EQ(end.status, FetchStatus::damaged);
  EXPECT_EQ(read_cached(*receiver, "job:12:1", sha256), "");
}

TEST_P(Transfers, HolderWithoutAProcessIsAway) {
  const auto receiver = start_host(31);
  const FetchEnd end = fetch(*receiver, "job:12:1", {sha256_hex("x"), 1});
  EXPECT_EQ(end.status, FetchStatus::away);
  EXPECT_THAT(end.reason, HasSubstr("runner 30 is not connected"));
}

TEST_P(Transfers, ForgedMessagesDoNotDisturb) {
  const auto holder = start_host(kHolder);
  const auto receiver = start_host(31);
  const std::string content = make_content(3U << 20);
  const std::string sha256 = add_artifact(*holder, "job:12:1", content);
  std::atomic<bool> has_ended{false};
  std::thread stranger([&] {
    while (!has_ended) {
      for (const std::string& text : {std::string("get 1 x"), "missing " + std::string(32, '0'), std::string("\n\n")})
        backend_->publish("mj:transfer:1:30", text);
    }
  });
  const FetchEnd end = fetch(*receiver, "job:12:1", {sha256, content.size()});
  has_ended = true;
  stranger.join();
  ASSERT_EQ(end.status, FetchStatus::received) << end.reason;
  EXPECT_EQ(read_cached(*receiver, "job:12:1", sha256), content);
}

TEST_P(Transfers, SeveralFilesAreFetchedAtTheSameTime) {
  const auto holder = start_host(kHolder);
  const auto receiver = start_host(31);
  std::vector<std::future<FetchEnd>> ends;
  for (int i = 0; i < 12; ++i) {
    const std::string content = make_content(700000) + std::to_string(i);
    const std::string key = "job:12:" + std::to_string(i + 1);
    const FileContent file{add_artifact(*holder, key, content), content.size()};
    ends.push_back(
        std::async(std::launch::async, [this, &receiver, key, file] { return fetch(*receiver, key, file); }));
  }
  for (auto& end : ends) EXPECT_EQ(end.get().status, FetchStatus::received);
}

MJ_BOTH_STORES(Transfers);

}  // namespace
}  // namespace mycojobs
