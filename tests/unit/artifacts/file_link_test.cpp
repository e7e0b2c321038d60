// Links to files of a holder: messages, validity, and the receiver that downloads by them, without sockets.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <deque>
#include <filesystem>
#include <fstream>

#include "artifacts/transfer/file_link.h"
#include "artifacts/transfer/transfer_message.h"
#include "artifacts/transfer/transfer_receiver.h"
#include "base/sha256.h"
#include "support/hand_clock.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

using testing::HasSubstr;

const std::string kLinkTransferId(32, 'a');
const FileLink kLink{"10.0.0.5:7443", std::string(32, 'b'), std::string(64, 'c')};

TEST(FileLinkMessage, RequestAndRepliesAreParsed) {
  PieceRequest request{
      kLinkTransferId, "mj:transfer:1:to:" + std::string(32, 'b'), "job:12:7", {std::string(64, 'c'), 5'000'000}};
  request.is_link = true;
  const std::string message = encode_request(request);
  EXPECT_FALSE(parse_request(message, 1)) << "holders of earlier versions ignore it";
  const auto parsed = parse_link_request(message, 1);
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->is_link);
  EXPECT_EQ(parsed->job_key, request.job_key);
  EXPECT_EQ(parsed->file.bytes, request.file.bytes);
  EXPECT_FALSE(parse_link_request(message, 2)) << "the reply channel is of another database";
  EXPECT_FALSE(parse_link_request(message + " 0", 1));

  const std::string reply_text = encode_link(kLinkTransferId, kLink);
  const auto reply = parse_reply(reply_text);
  ASSERT_TRUE(reply && reply->link);
  EXPECT_EQ(reply->transfer_id, kLinkTransferId);
  EXPECT_EQ(format_link_url(*reply->link), "https://10.0.0.5:7443/files?ticket=" + kLink.ticket);
  const std::string none_text = encode_link(kLinkTransferId, std::nullopt);
  const auto none = parse_reply(none_text);
  ASSERT_TRUE(none && none->is_link);
  EXPECT_FALSE(none->link);
}

TEST(FileLinkMessage, ForgedLinksAreRejected) {
  for (const std::string address : {"10.0.0.5", "10.0.0.5:0", "a/b:1", "user@host:1", "host:1/path", "host:1?x", ":1",
                                    "[::1", "host:99999", "h\to:1"})
    EXPECT_FALSE(parse_reply(encode_link(kLinkTransferId, FileLink{address, kLink.ticket, kLink.server_key_sha256})))
        << address;
  EXPECT_FALSE(parse_reply(encode_link(kLinkTransferId, FileLink{kLink.address, "../x", kLink.server_key_sha256})));
  EXPECT_FALSE(parse_reply(encode_link(kLinkTransferId, FileLink{kLink.address, kLink.ticket, "sha256//x"})));
}

class HeldFileLinksTest : public ::testing::Test {
 protected:
  TempDir folder_;
  ManualClock clock_;
  HeldFileLinks links_{clock_};
  Fd open_file() { return Fd(::open((folder_.path() / "file").c_str(), O_RDONLY | O_CLOEXEC | O_CREAT, 0600)); }
  void set_server() {
    links_.set_server("10.0.0.5:7443", [] { return std::string(64, 'c'); });
  }
};

TEST_F(HeldFileLinksTest, LinkIsValidOnceAndForATime) {
  EXPECT_FALSE(links_.create(1, open_file(), {"", 5})) << "there is no server";
  set_server();
  const auto link = links_.create(1, open_file(), {"", 5});
  ASSERT_TRUE(link);
  EXPECT_TRUE(is_valid_link(*link));
  EXPECT_EQ(links_.find_context(link->ticket), std::optional<Id>(1));
  EXPECT_FALSE(links_.find_context(std::string(32, '0')));
  EXPECT_FALSE(links_.consume(""));
  const auto file = links_.consume(link->ticket);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, 5U);
  EXPECT_FALSE(links_.consume(link->ticket)) << "used before";
  const auto expired = links_.create(1, open_file(), {"", 5});
  clock_.advance(HeldFileLinks::kLifetimeMs);
  EXPECT_FALSE(links_.find_context(expired->ticket));
  EXPECT_FALSE(links_.consume(expired->ticket));
}

TEST_F(HeldFileLinksTest, ContextCannotUseUpTheLinksOfOthers) {
  set_server();
  for (std::size_t i = 0; i < HeldFileLinks::kMaxLinksOfContext; ++i)
    ASSERT_TRUE(links_.create(1, open_file(), {"", 5}));
  EXPECT_FALSE(links_.create(1, open_file(), {"", 5}));
  EXPECT_TRUE(links_.create(2, open_file(), {"", 5}));
  clock_.advance(HeldFileLinks::kLifetimeMs);
  EXPECT_TRUE(links_.create(1, open_file(), {"", 5}));
}

TEST_F(HeldFileLinksTest, FilesOfExpiredLinksAreClosed) {
  set_server();
  Fd file = open_file();
  const int number = file.get();
  ASSERT_TRUE(links_.create(1, std::move(file), {"", 5}));
  clock_.advance(HeldFileLinks::kLifetimeMs - 1);
  EXPECT_EQ(links_.close_expired(), 1U);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
  clock_.advance(1);
  EXPECT_EQ(links_.close_expired(), HeldFileLinks::kLifetimeMs);
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

// The test takes the part of the holder, of the disk and of the downloads.
class LinkReceiverTest : public ::testing::Test {
 protected:
  class Target final : public FileTarget {
   public:
    explicit Target(std::string path) : path_(std::move(path)) {}
    Result<std::string> create_path() override { return path_; }
    Result<void> store(const CompleteFile& file) override {
      is_stored = true;
      bytes = file.bytes;
      return {};
    }
    bool is_stored = false;
    std::uint64_t bytes = 0;

   private:
    std::string path_;
  };
  struct Download {
    TransferReceiver::DownloadNumber number = 0;
    std::uint64_t offset = 0;
  };

  TempDir folder_;
  std::shared_ptr<Target> target_ = std::make_shared<Target>(folder_ / "file");
  std::uint64_t now_ms_ = 1'000'000, downloaded_bytes_ = 0, requested_bytes_ = 0;
  std::string content_ = std::string(20 * kPieceBytes + 5, 'x');
  std::vector<std::pair<std::string, std::uint64_t>> requests_;  // transfer and offset
  std::vector<std::string> link_requests_;                       // transfers
  std::vector<Download> downloads_;
  std::vector<TransferReceiver::DownloadNumber> cancelled_;
  std::vector<std::string> link_errors_;
  std::deque<std::pair<ArtifactSource::FetchNumber, std::function<Result<void>()>>> disk_work_;
  std::vector<FetchEnd> ends_;
  TransferReceiver receiver_{make_callbacks()};

  TransferReceiver::Callbacks make_callbacks() {
    TransferReceiver::Callbacks callbacks;
    callbacks.request = [this](const RemoteArtifact&, const std::string& id, std::uint64_t offset) {
      requests_.emplace_back(id, offset);
      return Result<std::uint64_t>(1);
    };
    callbacks.run_on_disk = [this](Id, ArtifactSource::FetchNumber number, std::function<Result<void>()> work) {
      disk_work_.emplace_back(number, std::move(work));
    };
    callbacks.is_subscribed = [](Id) { return true; };
    callbacks.count_bytes = [this](Id, std::uint64_t bytes) { requested_bytes_ += bytes; };
    callbacks.request_link = [this](const RemoteArtifact&, const std::string& id) { link_requests_.push_back(id); };
    callbacks.start_download = [this](TransferReceiver::DownloadNumber number, const FileLink&, std::uint64_t,
                                      std::uint64_t offset) {
      downloads_.push_back({number, offset});
    };
    callbacks.resume_download = [](TransferReceiver::DownloadNumber) {};
    callbacks.cancel_download = [this](TransferReceiver::DownloadNumber number) { cancelled_.push_back(number); };
    callbacks.on_link_failed = [this](const RemoteArtifact&, const Error& error) {
      link_errors_.push_back(error.message);
    };
    callbacks.count_downloaded_bytes = [this](Id, std::uint64_t bytes) { downloaded_bytes_ += bytes; };
    return callbacks;
  }
  void fetch(ArtifactSource::FetchNumber number = 1) {
    receiver_.fetch(
        number, {1, 20, "job:12:7", {sha256_hex(content_), content_.size()}, "the artifact"}, target_,
        [this](FetchEnd end) { ends_.push_back(std::move(end)); }, now_ms_);
    receiver_.run(now_ms_);
  }
  void reply_link() { receiver_.on_reply(encode_link(link_requests_.back(), kLink), now_ms_); }
  std::string piece_at(std::uint64_t offset) const {
    return content_.substr(offset, get_piece_size(content_.size(), offset));
  }
  void send_downloaded(std::uint64_t offset) {
    receiver_.on_download_piece(downloads_.back().number, offset, piece_at(offset), now_ms_);
    do_disk_work();
  }
  void end_download(Result<void> result) {
    receiver_.on_download_end(downloads_.back().number, result, now_ms_);
    receiver_.run(++now_ms_);
  }
  void do_disk_work() {
    while (!disk_work_.empty()) {
      const auto [number, work] = std::move(disk_work_.front());
      disk_work_.pop_front();
      receiver_.on_disk_result(number, work(), now_ms_);
    }
  }
  // Answers one request for a piece.
  void serve_one() {
    ASSERT_FALSE(requests_.empty());
    const auto [id, offset] = requests_.front();
    requests_.erase(requests_.begin());
    receiver_.on_reply(encode_piece(id, offset, piece_at(offset)), now_ms_);
    do_disk_work();
    receiver_.run(++now_ms_);
  }
  void serve_all() {
    while (ends_.empty() && !requests_.empty()) serve_one();
  }
};

TEST_F(LinkReceiverTest, RestOfALargeFileIsDownloaded) {
  fetch();
  ASSERT_EQ(link_requests_.size(), 1U);
  EXPECT_EQ(requests_.size(), 1U) << "the transfer begins without waiting for the link";
  serve_one();
  reply_link();
  ASSERT_EQ(downloads_.size(), 1U);
  EXPECT_EQ(downloads_[0].offset, 2 * kPieceBytes) << "behind the pieces that were requested";
  serve_one();  // a piece that was requested while the connection was opened
  ASSERT_EQ(requests_.size(), 1U);
  for (std::uint64_t offset = downloads_[0].offset; offset < content_.size(); offset += kPieceBytes) {
    send_downloaded(offset);
    receiver_.run(++now_ms_);
  }
  EXPECT_EQ(requests_.size(), 1U) << "no piece was requested during the download";
  end_download({});
  serve_all();
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status, FetchStatus::received) << ends_[0].reason;
  EXPECT_TRUE(target_->is_stored);
  EXPECT_GT(downloaded_bytes_, 16 * kPieceBytes);
  EXPECT_EQ(downloaded_bytes_ + requested_bytes_, content_.size());
}

TEST_F(LinkReceiverTest, SmallFileAndHolderWithoutAListenerUseRedis) {
  content_.resize(TransferReceiver::kMinLinkBytes - 1);
  fetch();
  EXPECT_TRUE(link_requests_.empty());
  serve_all();
  ASSERT_EQ(ends_.size(), 1U);
  content_ = std::string(20 * kPieceBytes, 'y');
  std::filesystem::remove(folder_ / "file");
  for (const bool has_answer : {true, false}) {
    ends_.clear(), requests_.clear(), link_requests_.clear();
    fetch(has_answer ? 2 : 3);
    ASSERT_EQ(link_requests_.size(), 1U);
    if (has_answer) {
      receiver_.on_reply(encode_link(link_requests_.back(), std::nullopt), now_ms_);
      receiver_.run(now_ms_);
    } else {
      EXPECT_LE(receiver_.run(now_ms_), LinkTimes().reply_ms);
      receiver_.run(now_ms_ += LinkTimes().reply_ms);
    }
    EXPECT_GT(requests_.size(), 1U) << "several pieces at a time";
    serve_all();
    ASSERT_EQ(ends_.size(), 1U);
    EXPECT_EQ(ends_[0].status, FetchStatus::received);
    std::filesystem::remove(folder_ / "file");
  }
  EXPECT_TRUE(downloads_.empty());
}

TEST_F(LinkReceiverTest, BrokenDownloadIsContinuedWithoutLoss) {
  fetch();
  reply_link();
  std::uint64_t offset = downloads_[0].offset;
  for (int i = 0; i < 3; ++i, offset += kPieceBytes) send_downloaded(offset);
  end_download(fail(Code::unavailable, "the connection was lost"));
  EXPECT_TRUE(link_errors_.empty());
  ASSERT_EQ(link_requests_.size(), 2U) << "another link is requested";
  reply_link();
  ASSERT_EQ(downloads_.size(), 2U);
  EXPECT_GE(downloads_[1].offset, offset) << "nothing is downloaded again";
  end_download(fail(Code::unavailable, "connection refused"));
  EXPECT_EQ(link_errors_.size(), 1U);
  EXPECT_EQ(link_requests_.size(), 2U) << "the holder is not reached any more";
  serve_all();
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status, FetchStatus::received) << ends_[0].reason;
  EXPECT_EQ(downloaded_bytes_, 3 * kPieceBytes);
  EXPECT_EQ(downloaded_bytes_ + requested_bytes_, content_.size());
  std::filesystem::remove(folder_ / "file");
  fetch(2);
  EXPECT_EQ(link_requests_.size(), 2U) << "the next file does not try it";
  receiver_.cancel(2);
  now_ms_ += TransferReceiver::kLinkPauseMs;
  fetch(3);
  EXPECT_EQ(link_requests_.size(), 3U);
}

// The server sends something else, or this process has no thread for the download.
TEST_F(LinkReceiverTest, DownloadWithoutAPieceIsGivenUp) {
  fetch();
  reply_link();
  serve_all();
  ASSERT_TRUE(ends_.empty()) << "only a few pieces are requested while the download begins";
  now_ms_ += LinkTimes().first_piece_ms;
  receiver_.run(now_ms_);
  EXPECT_EQ(cancelled_, std::vector<TransferReceiver::DownloadNumber>{downloads_[0].number});
  EXPECT_EQ(link_errors_.size(), 1U);
  serve_all();
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status, FetchStatus::received) << ends_[0].reason;
  std::filesystem::remove(folder_ / "file");
  fetch(2);
  EXPECT_EQ(link_requests_.size(), 1U) << "the holder is not tried for a time";
}

TEST_F(LinkReceiverTest, RefusedLinkDoesNotStopOthers) {
  fetch();
  reply_link();
  end_download(fail(Code::not_found, "the holder answers with status 404"));
  EXPECT_TRUE(link_errors_.empty());
  EXPECT_EQ(link_requests_.size(), 1U) << "this file is received through Redis";
  serve_all();
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status, FetchStatus::received) << ends_[0].reason;
  std::filesystem::remove(folder_ / "file");
  fetch(2);
  EXPECT_EQ(link_requests_.size(), 2U);
}

TEST_F(LinkReceiverTest, WrongBytesOfADownloadAreRequestedThroughRedis) {
  fetch();
  reply_link();
  for (std::uint64_t offset = downloads_[0].offset; offset < content_.size(); offset += kPieceBytes) {
    std::string bytes = piece_at(offset);
    bytes[0] = 'w';
    receiver_.on_download_piece(downloads_[0].number, offset, bytes, now_ms_);
    do_disk_work();
  }
  end_download({});
  serve_all();
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status, FetchStatus::received) << ends_[0].reason;
  EXPECT_EQ(link_requests_.size(), 1U);
  EXPECT_GE(requested_bytes_, content_.size());
}

TEST_F(LinkReceiverTest, UnexpectedPiecesAndLinksAreIgnored) {
  fetch();
  receiver_.on_reply(encode_link(std::string(32, '9'), kLink), now_ms_);
  EXPECT_TRUE(downloads_.empty()) << "the link of another transfer";
  reply_link();
  reply_link();
  ASSERT_EQ(downloads_.size(), 1U) << "one link for one request";
  const std::uint64_t offset = downloads_[0].offset;
  receiver_.on_download_piece(99, offset, piece_at(offset), now_ms_);
  receiver_.on_download_piece(downloads_[0].number, offset + kPieceBytes, piece_at(offset), now_ms_);
  receiver_.on_download_piece(downloads_[0].number, offset, "short", now_ms_);
  EXPECT_EQ(downloaded_bytes_, 0U);
  receiver_.cancel(1);
  EXPECT_EQ(cancelled_, std::vector<TransferReceiver::DownloadNumber>{downloads_[0].number});
  send_downloaded(offset);
  EXPECT_EQ(downloaded_bytes_, 0U);
}

}  // namespace
}  // namespace mycojobs::test
