// Uploads of files over HTTP: rights, tickets, limits, and clients that send other or no bytes.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>

#include "api/artifacts/artifact_uploads.h"
#include "api_fixture.h"
#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/held_file_sender.h"
#include "artifacts/transfer/holder_name.h"
#include "artifacts/transfer/transfer_loop.h"
#include "artifacts/uploads/upload_cleanup.h"
#include "artifacts/uploads/upload_folder.h"
#include "base/fd.h"
#include "base/loop_thread.h"
#include "base/sha256.h"
#include "model/file_holder.h"
#include "model/upload.h"
#include "raw_http.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ArtifactUploadTest : public ApiTest {
 protected:
  struct Reply {
    int status = 0;
    std::string body;
    std::string word() const {
      const json reply = json::parse(body, nullptr, false);
      return reply.is_object() && reply.contains("error") ? reply["error"]["data"].value("word", "") : body;
    }
  };
  const std::string state_dir_ = folder_ / "coordinator";
  const std::string content_ = std::string(3U << 20, 'x') + "end";
  std::unique_ptr<Store> store_ = *redis_.open();

  void SetUp() override {
    settings_.contexts = {1};
    settings_.state_dir = state_dir_;
  }
  void TearDown() override { server_.reset(); }

  static json describe(const std::string& content) {
    return {{"bytes", content.size()}, {"sha256", sha256_hex(content)}};
  }
  json put(const std::string& content) { return ok("artifact.put", describe(content)); }
  Fd connect() const { return test::connect_to_loopback(server_->port()); }
  std::string format_head(const std::string& path, std::size_t bytes, const std::string& headers = "") const {
    return "PUT " + path + " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(server_->port()) +
           "\r\nConnection: close\r\nContent-Length: " + std::to_string(bytes) + "\r\n" + headers + "\r\n";
  }
  static Reply read_reply(const Fd& socket) {
    const test::RawReply reply = test::read_raw_reply(socket);
    return {reply.status, reply.body};
  }
  Reply send(const std::string& path, const std::string& content, const std::string& headers = "") const {
    const Fd socket = connect();
    const std::string request = format_head(path, content.size(), headers) + content;
    // The server may answer and close the connection before it has read all bytes.
    for (std::size_t offset = 0; offset < request.size();) {
      const ssize_t sent = ::send(socket.get(), request.data() + offset, request.size() - offset, MSG_NOSIGNAL);
      if (sent <= 0) break;
      offset += static_cast<std::size_t>(sent);
    }
    return read_reply(socket);
  }
  std::string upload(const std::string& content) {
    const json started = put(content);
    const Reply reply = send(started.value("link", ""), content);
    EXPECT_EQ(reply.status, 201) << reply.body;
    EXPECT_EQ(json::parse(reply.body).value("upload", ""), started.value("upload", ""));
    return started.value("upload", "");
  }
  std::string folder_of(const std::string& reference) {
    return upload_folder(ArtifactFolder(state_dir_, 1), *artifact_store_name(*store_, 1),
                         parse_upload_reference(reference)->id);
  }
  std::vector<std::string> list_files(const std::string& reference) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_of(reference), error))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  static std::string bearer(const std::string& token) { return "Authorization: Bearer " + token + "\r\n"; }
  Id start_job_with(const std::string& reference) {
    return new_job({{"files", {{"data/big.bin", {{"upload", reference}}}}}});
  }
};

TEST_F(ArtifactUploadTest, FileIsStoredForJobsOfItsCaller) {
  start_anonymous();
  const std::string reference = upload(content_);
  EXPECT_EQ(list_files(reference), (std::vector<std::string>{sha256_hex(content_), "lock"}));
  std::ifstream file(folder_of(reference) + '/' + sha256_hex(content_), std::ios::binary);
  std::stringstream stored;
  stored << file.rdbuf();
  EXPECT_TRUE(stored.str() == content_);
  const Id id = start_job_with(reference);
  const json described = ok("job.get", {{"id", id}}).value("files", json::object());
  EXPECT_EQ(described.value("data/big.bin", json()), describe(content_)) << described;
}

TEST_F(ArtifactUploadTest, EmptyFileIsAnUpload) {
  start_anonymous();
  start_job_with(upload(""));
}

TEST_F(ArtifactUploadTest, RepeatedUploadOfACompleteFileSucceeds) {
  start_anonymous();
  const json started = put("hello");
  EXPECT_EQ(send(started.value("link", ""), "hello").status, 201);
  EXPECT_EQ(send(started.value("link", ""), "hello").status, 201) << "the answer was lost";
}

TEST_F(ArtifactUploadTest, OtherBytesAreRefused) {
  start_anonymous();
  const json started = put(content_);
  const std::string link = started.value("link", ""), reference = started.value("upload", "");
  std::string wrong = content_;
  wrong[5] = 'y';
  EXPECT_THAT(send(link, wrong).body, HasSubstr("artifact.put has named another"));
  EXPECT_EQ(send(link, content_ + "more").status, 413);
  EXPECT_EQ(send(link, content_.substr(1)).status, 400);
  EXPECT_EQ(list_files(reference), (std::vector<std::string>{"lock"})) << "no bytes remain";
  EXPECT_EQ(to_string("job.create",
                      {{"script", "1"}, {"script_type", "python"}, {"files", {{"a", {{"upload", reference}}}}}}),
            "not_found");
  EXPECT_EQ(send(link, content_).status, 201) << "the upload can be repeated";
}

TEST_F(ArtifactUploadTest, InterruptedUploadLeavesNoFileThatCounts) {
  start_anonymous();
  const json started = put(content_);
  const std::string link = started.value("link", ""), reference = started.value("upload", "");
  {
    const Fd socket = connect();
    ASSERT_TRUE(write_all(socket.get(), format_head(link, content_.size()) + content_.substr(0, 1U << 20)));
    ASSERT_TRUE(test::eventually([&] { return list_files(reference).size() == 2U; }));
    EXPECT_EQ(send(link, content_).status, 409) << "another client sends it now";
  }
  ASSERT_TRUE(test::eventually([&] { return list_files(reference) == std::vector<std::string>{"lock"}; }));
  // A crash leaves the incomplete file, which the next upload replaces.
  std::ofstream(folder_of(reference) + "/part") << "old";
  EXPECT_EQ(send(link, content_).status, 201);
}

TEST_F(ArtifactUploadTest, SlowClientIsDisconnected) {
  settings_.limits.body_part_timeout_ms = 200;
  start_anonymous();
  const json started = put(content_);
  const Fd socket = connect();
  ASSERT_TRUE(write_all(socket.get(), format_head(started.value("link", ""), content_.size()) + "x"));
  EXPECT_EQ(read_reply(socket).status, 400);
}

TEST_F(ArtifactUploadTest, LimitsAreEnforcedBeforeTheBody) {
  settings_.uploads.max_file_bytes = 1000;
  settings_.uploads.max_caller_bytes = 100000;
  start_anonymous();
  EXPECT_THAT(error("artifact.put", describe(content_)).value("message", ""),
              HasSubstr("job.max_artifact_bytes is 1000"));
  put("a");
  EXPECT_THAT(error("artifact.put", describe("b")).value("message", ""),
              HasSubstr("uploads.caller_bytes allows 100000"));
  EXPECT_EQ(to_string("artifact.put", {{"bytes", 1}, {"sha256", std::string(64, 'A')}}), "invalid");
}

TEST_F(ArtifactUploadTest, ServerWithoutFolderRefuses) {
  settings_.state_dir.clear();
  start_anonymous();
  EXPECT_EQ(to_string("artifact.put", describe("a")), "unsupported");
}

TEST_F(ArtifactUploadTest, TicketIsForOneUploadOfItsCaller) {
  const std::string own = make_token(5), other = make_token(6);
  token_ = make_token(0, true);
  start();
  ok("context.create", {{"id", 1}, {"admins", {1}}, {"submitters", {5, 6}}});
  token_ = own;
  const json first = put("first"), second = put("second");
  const std::string link = first.value("link", ""), path = link.substr(0, link.find("&ticket="));
  const std::string second_link = second.value("link", "");
  const std::string stolen = path + second_link.substr(second_link.find("&ticket="));
  EXPECT_EQ(send(stolen, "first").status, 403) << "a ticket of another upload";
  EXPECT_EQ(send(path, "first").status, 401);
  EXPECT_EQ(send(path, "first", bearer(other)).status, 404) << "an upload of another caller";
  EXPECT_EQ(send(path, "first", bearer(own)).status, 201);
  EXPECT_EQ(send("/artifacts?context=1&upload=../../x%0a&ticket=x", "a").status, 403);
  EXPECT_EQ(send("/artifacts?context=1&upload=..%2f..%2fx%0a", "a", bearer(own)).status, 400);
  // The ticket of an upload reads no artifact.
  const std::string ticket = link.substr(link.find("&ticket="));
  const Fd socket = connect();
  ASSERT_TRUE(write_all(socket.get(), "GET " + path + "&job=5:1&name=a" + ticket + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" +
                                          "Connection: close\r\n\r\n"));
  EXPECT_EQ(read_reply(socket).status, 403);
  token_ = other;
  EXPECT_EQ(to_string("job.create", {{"script", "1"},
                                     {"script_type", "python"},
                                     {"files", {{"a", {{"upload", first.value("upload", "")}}}}}}),
            "denied");
}

TEST_F(ArtifactUploadTest, ExpiredFilesAreDeletedFromTheDisk) {
  start_anonymous();
  const std::string unused = upload("unused"), used = upload("used file");
  start_job_with(used);
  const json abandoned = put("abandoned");
  fs::create_directories(folder_of(abandoned.value("upload", "")));
  for (const std::string& reference : {unused, used, abandoned.value("upload", "")})
    (void)redis_.run_command(1, {"ZADD", "mj:uploads", "1", parse_upload_reference(reference)->id});
  UploadCleanup cleanup(clock_, state_dir_);
  ASSERT_TRUE(cleanup.run_step(*store_, 1));
  EXPECT_FALSE(fs::exists(folder_of(unused)));
  EXPECT_FALSE(fs::exists(folder_of(abandoned.value("upload", ""))));
  EXPECT_TRUE(fs::exists(folder_of(used) + '/' + sha256_hex("used file")));
}

TEST_F(ArtifactUploadTest, RecordWithoutFolderExpires) {
  start_anonymous();
  const json abandoned = put("abandoned");
  const std::string id = parse_upload_reference(abandoned.value("upload", ""))->id;
  (void)redis_.run_command(1, {"ZADD", "mj:uploads", "1", id});
  ASSERT_FALSE(fs::exists(uploads_folder(ArtifactFolder(state_dir_, 1))));
  UploadCleanup cleanup(clock_, state_dir_);
  ASSERT_TRUE(cleanup.run_step(*store_, 1));
  EXPECT_FALSE(store_->find_upload(1, id).value());
}

TEST_F(ArtifactUploadTest, BadRecordDelaysNoOtherFile) {
  start_anonymous();
  const std::string bad = upload("bad"), unused = upload("unused");
  (void)redis_.run_command(1, {"SET", "mj:upload:" + parse_upload_reference(bad)->id, "x"});
  (void)redis_.run_command(1, {"UNLINK", "mj:upload:" + parse_upload_reference(unused)->id});
  UploadCleanup cleanup(clock_, state_dir_);
  EXPECT_FALSE(cleanup.run_step(*store_, 1));
  EXPECT_FALSE(fs::exists(folder_of(unused)));
  EXPECT_TRUE(fs::exists(folder_of(bad)));
}

TEST_F(ArtifactUploadTest, FullDiskRefusesTheFile) {
  start_anonymous();
  put("creates the folder");
  UploadRecord upload;
  upload.caller = 1;
  upload.reference = {make_upload_id(1, std::string(32, '1')), 1ULL << 52, std::string(64, 'b')};
  upload.holder = find_holder_name(ArtifactFolder(state_dir_, 1));
  ASSERT_TRUE(store_->begin_upload(1, upload, 3600000, (1ULL << 53) - 1));
  const Reply reply = send(api::format_upload_path(1, upload.reference), "x");
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, HasSubstr("free bytes"));
}

TEST_F(ArtifactUploadTest, RequestWithoutAnUploadCreatesNoFolder) {
  settings_.contexts = {};
  const std::string own = make_token(5);
  token_ = make_token(0, true);
  start();
  ok("context.create", {{"id", 1}, {"admins", {1}}, {"submitters", {5}}});
  const std::string reference =
      mycojobs::to_string(UploadReference{make_upload_id(5, std::string(32, '1')), 1, std::string(64, 'b')});
  for (const std::string context : {"1", "7"}) {
    const Reply reply = send("/artifacts?context=" + context + "&upload=" + reference, "x", bearer(own));
    EXPECT_THAT(reply.status, testing::AnyOf(403, 404)) << reply.body;
    EXPECT_FALSE(fs::exists(state_dir_ + "/contexts/" + context));
  }
}

class SetClock final : public Clock {
 public:
  std::atomic<std::uint64_t> boot{1000};
  std::uint64_t unix_ms() const override { return 1'700'000'000'000 + boot; }
  std::uint64_t boot_ms() const override { return boot; }
};

TEST_F(ArtifactUploadTest, OnlyServedContextsAreSent) {
  const std::string served = *find_or_create_holder_name(ArtifactFolder(state_dir_, 1));
  const std::string other = *find_or_create_holder_name(ArtifactFolder(state_dir_, 2));
  HeldFileSender sender(redis_, clock_, {[](Id context) { return context == 1; }, state_dir_, 0});
  sender.run_once();
  EXPECT_TRUE(store_->is_holding_files(1, served).value());
  EXPECT_FALSE(store_->is_holding_files(2, other).value());
}

TEST_F(ArtifactUploadTest, FolderIsServedUnderItsPresentName) {
  const std::string first = *find_or_create_holder_name(ArtifactFolder(state_dir_, 1));
  SetClock clock;
  HeldFileSender sender(redis_, clock, {[](Id) { return true; }, state_dir_, 0});
  sender.run_once();
  ASSERT_TRUE(store_->is_holding_files(1, first).value());
  fs::remove(ArtifactFolder(state_dir_, 1).path() + "/holder");
  const std::string second = *find_or_create_holder_name(ArtifactFolder(state_dir_, 1));
  const auto run_after_pause = [&] {
    (void)redis_.run_command(1, {"UNLINK", "mj:file-holders"});
    clock.boot += HeldFileSender::kRegistrationIntervalMs;
    sender.run_once();
  };
  run_after_pause();
  EXPECT_FALSE(store_->is_holding_files(1, first).value());
  EXPECT_TRUE(store_->is_holding_files(1, second).value());
  fs::remove(ArtifactFolder(state_dir_, 1).path() + "/holder");
  run_after_pause();
  EXPECT_FALSE(store_->is_holding_files(1, second).value()) << "the disk is not mounted";
}

// Receives the file of a job from a holder.
class UploadTarget final : public FileTarget {
 public:
  explicit UploadTarget(std::string path) : path_(std::move(path)) {}
  Result<std::string> create_path() override { return path_; }
  Result<void> store(const CompleteFile&) override { return {}; }

 private:
  const std::string path_;
};

TEST_F(ArtifactUploadTest, FileIsSentForJobsThatNameIt) {
  start_anonymous();
  const std::string reference = upload(content_);
  const Id id = start_job_with(reference);
  const std::string holder = find_holder_name(ArtifactFolder(state_dir_, 1));
  HeldFileSender sender(redis_, clock_, {[](Id) { return true; }, state_dir_, 0});
  const LoopThread<HeldFileSender> thread(sender, "sender");
  ASSERT_TRUE(test::eventually([&] { return store_->is_holding_files(1, holder).value_or(false); }));
  const auto receiver_store = *redis_.open();
  SetClock silence;  // advances faster if the holder is expected to be silent
  TransferLoop receiver(*receiver_store, {.contexts = {1}, .state_dir = folder_ / "agent"}, silence);
  ASSERT_TRUE(receiver.subscribe(redis_));
  const LoopThread<TransferLoop> receiver_thread(receiver, "receiver");
  const auto fetch = [&](const std::string& job_key, int number, bool is_silent = false) {
    std::promise<FetchEnd> promise;
    receiver.fetch({1, parse_file_holder(holder), job_key, {sha256_hex(content_), content_.size()}, "the file"},
                   std::make_shared<UploadTarget>(folder_ / ("received" + std::to_string(number))),
                   [&](FetchEnd end) { promise.set_value(std::move(end)); });
    std::future<FetchEnd> end = promise.get_future();
    while (end.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready)
      silence.boot += is_silent ? 1000 : 20;
    return end.get().status;
  };
  EXPECT_EQ(fetch("job:1:" + std::to_string(id), 1), FetchStatus::received);
  EXPECT_EQ(fs::file_size(folder_ / "received1"), content_.size());
  EXPECT_EQ(fetch("job:1:99", 2), FetchStatus::lost) << "another job does not name the upload";
  fs::remove(folder_of(reference) + '/' + sha256_hex(content_));
  EXPECT_EQ(fetch("job:1:" + std::to_string(id), 3, true), FetchStatus::away) << "its disk may not be mounted";
}

}  // namespace
}  // namespace mycojobs
