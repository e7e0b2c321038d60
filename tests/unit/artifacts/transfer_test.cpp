// Transfers of artifacts between hosts: messages, requests of pieces, the holder and the receiver without threads.
#include <gmock/gmock.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/transfer/incoming_transfer.h"
#include "artifacts/transfer/transfer_message.h"
#include "artifacts/transfer/transfer_receiver.h"
#include "artifacts/transfer/transfer_sender.h"
#include "base/sha256.h"
#include "store/transfer_store.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::string kTransferId(32, 'a');
const std::string kReplyChannel = "mj:transfer:1:to:" + std::string(32, 'b');

PieceRequest make_piece_request(std::uint64_t bytes = 10, std::uint64_t offset = 0) {
  return {kTransferId, kReplyChannel, "job:12:7", {std::string(64, 'c'), bytes}, offset};
}

TEST(TransferMessage, RequestIsParsed) {
  const PieceRequest request = make_piece_request(3 * kPieceBytes, kPieceBytes);
  const auto parsed = parse_request(encode_request(request), 1);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->transfer_id, request.transfer_id);
  EXPECT_EQ(parsed->reply_channel, request.reply_channel);
  EXPECT_EQ(parsed->job_key, request.job_key);
  EXPECT_EQ(parsed->file.sha256, request.file.sha256);
  EXPECT_EQ(parsed->file.bytes, request.file.bytes);
  EXPECT_EQ(parsed->offset, request.offset);
}

TEST(TransferMessage, ForgedRequestsAreRejected) {
  const auto is_rejected = [](const std::function<void(PieceRequest&)>& change) {
    PieceRequest request = make_piece_request(2 * kPieceBytes);
    change(request);
    return !parse_request(encode_request(request), 1);
  };
  EXPECT_FALSE(is_rejected([](PieceRequest&) {}));
  for (const std::string key :
       {"job:12:../../etc", "job:12.7", "job:12:7/..", "job:12:7\n", "job:012:7", "flow:7", "job:99999999999:1", ""})
    EXPECT_TRUE(is_rejected([&](PieceRequest& request) { request.job_key = key; })) << key;
  for (const std::string hash : {"../../../etc/passwd", "", "C"})
    EXPECT_TRUE(is_rejected([&](PieceRequest& request) { request.file.sha256 = hash; })) << hash;
  for (const std::string& channel :
       {std::string("runner20"), std::string("mj:wake"), "mj:transfer:2:to:" + std::string(32, 'b'),
        std::string("mj:transfer:1:to:bb"), std::string("mj:transfer:1:20")})
    EXPECT_TRUE(is_rejected([&](PieceRequest& request) { request.reply_channel = channel; })) << channel;
  EXPECT_TRUE(is_rejected([](PieceRequest& request) { request.offset = 1; }));
  EXPECT_TRUE(is_rejected([](PieceRequest& request) { request.offset = 2 * kPieceBytes; }));
  EXPECT_TRUE(is_rejected([](PieceRequest& request) { request.transfer_id = "short"; }));
  EXPECT_FALSE(parse_request("get 1", 1));
  EXPECT_FALSE(parse_request(encode_request(make_piece_request()) + " more", 1));
}

TEST(TransferMessage, ReplyHasAnyBytes) {
  const std::string bytes("\n piece \0 missing", 17);
  const std::string message = encode_piece(kTransferId, kPieceBytes, bytes);
  const auto piece = parse_reply(message);
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->transfer_id, kTransferId);
  EXPECT_EQ(piece->offset, kPieceBytes);
  EXPECT_EQ(piece->bytes, bytes);
  const std::string missing = encode_missing(kTransferId);
  ASSERT_TRUE(parse_reply(missing));
  EXPECT_TRUE(parse_reply(missing)->is_missing);
  for (const std::string text : {"", "piece", "piece x 0\n", "missing x", "other", "\n"})
    EXPECT_FALSE(parse_reply(text)) << text;
}

TEST(IncomingTransfer, PiecesInUseAreLimited) {
  IncomingTransfer transfer(100 * kPieceBytes, 0);
  std::uint64_t now_ms = 0;
  std::set<std::uint64_t> outstanding;
  std::size_t max_outstanding = 0, written = 0;
  while (!transfer.is_complete()) {
    for (const std::uint64_t offset : transfer.pop_due_requests(100, now_ms)) outstanding.insert(offset);
    max_outstanding = std::max(max_outstanding, outstanding.size());
    ++now_ms;
    const std::uint64_t offset = *outstanding.begin();
    outstanding.erase(outstanding.begin());
    ASSERT_TRUE(transfer.add_piece(offset, std::string(kPieceBytes, 'x'), now_ms));
    while (transfer.pop_writable()) transfer.on_written(), ++written;
  }
  EXPECT_EQ(written, 100U);
  EXPECT_EQ(max_outstanding, IncomingTransfer::kMaxPieces);
  EXPECT_EQ(transfer.repeated_requests(), 0U);
}

TEST(IncomingTransfer, PiecesThatAreNotWrittenBlockRequests) {
  IncomingTransfer transfer(100 * kPieceBytes, 0);
  std::size_t received = 0;
  for (int round = 0; round < 100; ++round) {
    for (const std::uint64_t offset : transfer.pop_due_requests(4, 0)) {
      ASSERT_TRUE(transfer.add_piece(offset, std::string(kPieceBytes, 'x'), 0));
      ++received;
      (void)transfer.pop_writable();
    }
  }
  EXPECT_EQ(received, 4U);
  EXPECT_TRUE(transfer.is_writing());
}

TEST(IncomingTransfer, LostPiecesAreRequestedAgain) {
  IncomingTransfer transfer(2 * kPieceBytes + 5, 0);
  EXPECT_THAT(transfer.pop_due_requests(16, 0), ElementsAre(0, kPieceBytes, 2 * kPieceBytes));
  ASSERT_TRUE(transfer.add_piece(2 * kPieceBytes, "12345", 10));
  EXPECT_FALSE(transfer.pop_writable()) << "the first piece has not arrived";
  EXPECT_THAT(transfer.pop_due_requests(16, 1000), IsEmpty());
  EXPECT_EQ(transfer.next_timeout_ms(), IncomingTransfer::kMinTimeoutMs);
  EXPECT_THAT(transfer.pop_due_requests(16, IncomingTransfer::kMinTimeoutMs), ElementsAre(0, kPieceBytes));
  EXPECT_EQ(transfer.repeated_requests(), 2U);
}

TEST(IncomingTransfer, UnexpectedPiecesAreIgnored) {
  IncomingTransfer transfer(kPieceBytes + 5, 0);
  EXPECT_FALSE(transfer.add_piece(0, std::string(kPieceBytes, 'x'), 0)) << "not requested";
  (void)transfer.pop_due_requests(16, 0);
  EXPECT_FALSE(transfer.add_piece(kPieceBytes, "1234", 0)) << "wrong size";
  EXPECT_FALSE(transfer.add_piece(7, "12345", 0));
  EXPECT_TRUE(transfer.add_piece(kPieceBytes, "12345", 0));
  EXPECT_FALSE(transfer.add_piece(kPieceBytes, "12345", 0)) << "arrived before";
}

TEST(IncomingTransfer, FileWithoutBytesHasOnePiece) {
  IncomingTransfer transfer(0, 0);
  EXPECT_THAT(transfer.pop_due_requests(16, 0), ElementsAre(0));
  ASSERT_TRUE(transfer.add_piece(0, "", 0));
  EXPECT_FALSE(transfer.is_complete());
  ASSERT_TRUE(transfer.pop_writable());
  transfer.on_written();
  EXPECT_TRUE(transfer.is_complete());
}

class TransferSenderTest : public ::testing::Test {
 protected:
  TransferSender sender_{10 * kPieceBytes,
                         {.read = [this](Id, const PieceRequest& request) { read_.push_back(request); },
                          .publish = [this](const TransferSender::Piece& piece) { published_.push_back(piece); }}};
  std::deque<PieceRequest> read_;
  std::vector<TransferSender::Piece> published_;

  void answer_reads() {
    while (!read_.empty()) {
      const PieceRequest request = read_.front();
      read_.pop_front();
      sender_.on_read(1, request, std::string(kPieceBytes, 'x'));
    }
  }
};

TEST_F(TransferSenderTest, RateIsLimited) {
  std::uint64_t now_ms = 1'000'000;
  for (std::uint64_t piece = 0; piece < 100; ++piece)
    sender_.on_request(1, make_piece_request(100 * kPieceBytes, piece * kPieceBytes), now_ms);
  const std::uint64_t end_ms = now_ms + 2000;
  while (now_ms < end_ms) {
    const std::uint64_t wait_ms = sender_.run(now_ms);
    answer_reads();
    now_ms += std::clamp<std::uint64_t>(wait_ms, 1, 100);
  }
  EXPECT_GE(published_.size(), 18U);
  EXPECT_LE(published_.size(), 22U);
  EXPECT_EQ(published_.front().channel, kReplyChannel);
}

TEST_F(TransferSenderTest, RepeatedAndExcessiveRequestsAreDropped) {
  for (int i = 0; i < 5; ++i) sender_.on_request(1, make_piece_request(), 0);
  sender_.run(0);
  EXPECT_EQ(read_.size(), 1U);
  for (std::uint64_t piece = 0; piece < 2 * TransferSender::kMaxRequests; ++piece)
    sender_.on_request(1, make_piece_request(10000 * kPieceBytes, (piece + 1) * kPieceBytes), 0);
  sender_.run(0);
  EXPECT_EQ(read_.size(), TransferSender::kMaxPiecesInMemory);
  std::uint64_t now_ms = 0;
  while (!read_.empty()) {
    answer_reads();
    sender_.run(now_ms += 1000);
  }
  EXPECT_LE(published_.size(), TransferSender::kMaxRequests + 1);
}

TEST_F(TransferSenderTest, OldRequestsAreNotAnswered) {
  sender_.on_request(1, make_piece_request(), 0);
  sender_.run(TransferSender::kMaxRequestAgeMs + 1);
  EXPECT_THAT(read_, IsEmpty());
  sender_.on_request(1, make_piece_request(), 20000);
  sender_.run(20000);
  EXPECT_EQ(read_.size(), 1U) << "the same request is accepted again";
}

TEST_F(TransferSenderTest, MissingFileIsReportedAndErrorIsNot) {
  sender_.on_request(1, make_piece_request(), 0);
  sender_.run(0);
  sender_.on_read(1, read_.front(), fail(Code::io, "disk"));
  sender_.run(1000);
  EXPECT_THAT(published_, IsEmpty());
  sender_.on_request(1, make_piece_request(), 1000);
  sender_.run(1000);
  sender_.on_read(1, read_.back(), fail(Code::not_found, "no file"));
  sender_.run(2000);
  ASSERT_EQ(published_.size(), 1U);
  EXPECT_EQ(published_[0].message, encode_missing(kTransferId));
}

// Tests a receiver. serve() takes the part of the holder and answers requests from a text. Work for the disk waits in a
// list until do_disk_work() executes it.
class TransferReceiverTest : public ::testing::Test {
 protected:
  class Target final : public FileTarget {
   public:
    explicit Target(std::string folder) : folder_(std::move(folder)) {}
    Result<std::string> create_path() override { return folder_ + "/file"; }
    Result<void> on_created(const std::string& path) override {
      if (is_unnamed_) std::filesystem::remove(path);
      return {};
    }
    Result<void> store(const CompleteFile& file) override {
      if (!is_unnamed_) stored_ = read_file(file.path);
      return {};
    }
    std::optional<std::string> stored_;
    bool is_unnamed_ = false;

   private:
    std::string folder_;
  };

  TempDir folder_;
  std::shared_ptr<Target> target_ = std::make_shared<Target>(folder_.path().string());
  std::uint64_t now_ms_ = 1'000'000;
  std::uint64_t receivers_ = 1;
  bool is_subscribed_ = true;
  struct Request {
    std::string transfer_id;
    std::uint64_t offset;
  };
  std::vector<Request> requests_;
  std::deque<std::pair<ArtifactSource::FetchNumber, std::function<Result<void>()>>> disk_work_;
  std::vector<FetchEnd> ends_;
  TransferReceiver receiver_{
      {.request = [this](const RemoteArtifact&, const std::string& transfer_id,
                         std::uint64_t offset) -> Result<std::uint64_t> {
         requests_.push_back({transfer_id, offset});
         return receivers_;
       },
       .run_on_disk = [this](Id, ArtifactSource::FetchNumber number,
                             std::function<Result<void>()> work) { disk_work_.emplace_back(number, std::move(work)); },
       .is_subscribed = [this](Id) { return is_subscribed_; }}};

  void fetch(const std::string& content, ArtifactSource::FetchNumber number = 1) {
    receiver_.fetch(
        number, {1, 20, "job:12:7", {sha256_hex(content), content.size()}, "the artifact"}, target_,
        [this](FetchEnd end) { ends_.push_back(std::move(end)); }, now_ms_);
  }
  void do_disk_work() {
    while (!disk_work_.empty()) {
      const auto [number, work] = std::move(disk_work_.front());
      disk_work_.pop_front();
      receiver_.on_disk_result(number, work(), now_ms_);
    }
  }
  // Answers all requests from `content` until no request follows.
  void serve(const std::string& content) {
    receiver_.run(now_ms_);
    while (!requests_.empty()) {
      for (const Request& request : std::exchange(requests_, {})) {
        const std::size_t size = get_piece_size(content.size(), request.offset);
        receiver_.on_reply(encode_piece(request.transfer_id, request.offset, content.substr(request.offset, size)),
                           now_ms_);
      }
      do_disk_work();
      receiver_.run(++now_ms_);
    }
  }
  std::vector<FetchStatus> statuses() const {
    std::vector<FetchStatus> all;
    for (const FetchEnd& end : ends_) all.push_back(end.status);
    return all;
  }
};

TEST_F(TransferReceiverTest, FileIsStored) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{kPieceBytes}, std::size_t{5000001}}) {
    std::string content(size, 'x');
    for (std::size_t i = 0; i < size; i += 1000) content[i] = static_cast<char>(i / 1000);
    fetch(content);
    serve(content);
    ASSERT_THAT(statuses(), ElementsAre(FetchStatus::received)) << size << ends_.back().reason;
    EXPECT_EQ(target_->stored_, content);
    ends_.clear();
    std::filesystem::remove(folder_ / "file");
  }
}

// A target may remove the name of the file, as that of `job artifacts`.
TEST_F(TransferReceiverTest, FileNeedsNoName) {
  target_->is_unnamed_ = true;
  fetch("wrong");
  serve("right");
  EXPECT_THAT(statuses(), ElementsAre(FetchStatus::damaged));
  ends_.clear();
  fetch("right", 2);
  serve("right");
  EXPECT_THAT(statuses(), ElementsAre(FetchStatus::received));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "file"));
}

TEST_F(TransferReceiverTest, WrongBytesAreRequestedOnceAgain) {
  fetch("right");
  receiver_.run(now_ms_);
  const std::string first_id = requests_.at(0).transfer_id;
  serve("wrong");
  EXPECT_THAT(statuses(), ElementsAre(FetchStatus::damaged));
  EXPECT_FALSE(target_->stored_);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "file"));
  ends_.clear();
  fetch("right", 2);
  receiver_.run(now_ms_);
  receiver_.on_reply(encode_piece(requests_.at(0).transfer_id, 0, "wrong"), now_ms_);
  requests_.clear();
  do_disk_work();
  serve("right");
  EXPECT_THAT(statuses(), ElementsAre(FetchStatus::received));
  EXPECT_EQ(target_->stored_, "right");
}

TEST_F(TransferReceiverTest, MessagesOfStrangersAreIgnored) {
  fetch("right");
  receiver_.run(now_ms_);
  for (const std::string& id : {std::string(32, '0'), std::string(32, 'f')}) {
    receiver_.on_reply(encode_missing(id), now_ms_);
    receiver_.on_reply(encode_piece(id, 0, "wrong"), now_ms_);
  }
  receiver_.on_reply("garbage", now_ms_);
  EXPECT_THAT(disk_work_, IsEmpty());
  serve("right");
  EXPECT_THAT(statuses(), ElementsAre(FetchStatus::received));
}

TEST_F(TransferReceiverTest, HolderThatIsNotConnectedIsAwayAtOnce) {
  receivers_ = 0;
  fetch("right");
  receiver_.run(now_ms_);
  ASSERT_THAT(statuses(), ElementsAre(FetchStatus::away));
  EXPECT_THAT(ends_[0].reason, HasSubstr("runner 20 is not connected"));
}

TEST_F(TransferReceiverTest, SilentHolderIsAwayAfterATime) {
  fetch("right");
  receiver_.run(now_ms_);
  receiver_.run(now_ms_ += TransferReceiver::kSilenceMs - 1);
  EXPECT_THAT(ends_, IsEmpty());
  EXPECT_GT(requests_.size(), 1U) << "the request is repeated";
  receiver_.run(now_ms_ += 1);
  ASSERT_THAT(statuses(), ElementsAre(FetchStatus::away));
  EXPECT_THAT(ends_[0].reason, HasSubstr("runner 20 has not sent it"));
}

TEST_F(TransferReceiverTest, NothingIsRequestedWithoutASubscription) {
  is_subscribed_ = false;
  fetch("right");
  receiver_.run(now_ms_);
  EXPECT_THAT(requests_, IsEmpty());
  is_subscribed_ = true;
  serve("right");
  EXPECT_THAT(statuses(), ElementsAre(FetchStatus::received));
}

TEST_F(TransferReceiverTest, FileThatTheHolderLacksIsLost) {
  fetch("right");
  receiver_.run(now_ms_);
  receiver_.on_reply(encode_missing(requests_.at(0).transfer_id), now_ms_);
  EXPECT_THAT(statuses(), ElementsAre(FetchStatus::lost));
}

TEST_F(TransferReceiverTest, DiskThatDoesNotAnswerIsNoFaultOfTheHolder) {
  fetch("right");
  receiver_.run(now_ms_);
  receiver_.on_reply(encode_piece(requests_.at(0).transfer_id, 0, "right"), now_ms_);
  receiver_.run(now_ms_ += TransferReceiver::kSilenceMs);
  ASSERT_THAT(statuses(), ElementsAre(FetchStatus::failed));
  EXPECT_THAT(ends_[0].reason, HasSubstr("disk"));
}

TEST_F(TransferReceiverTest, TransfersAtOneTimeAndTheirPiecesAreLimited) {
  const std::string content(std::size_t{64} * kPieceBytes, 'x');
  for (ArtifactSource::FetchNumber number = 1; number <= 10; ++number) fetch(content, number);
  receiver_.run(now_ms_);
  std::map<std::string, std::size_t> requests_by_id;
  for (const Request& request : requests_) ++requests_by_id[request.transfer_id];
  EXPECT_EQ(requests_by_id.size(), TransferReceiver::kMaxTransfers);
  EXPECT_LE(requests_.size(), IncomingTransfer::kMaxPieces);
}

TEST_F(TransferReceiverTest, NewTransferWaitsForTheShareOfTheFirst) {
  const std::string content(std::size_t{64} * kPieceBytes, 'x');
  fetch(content, 1);
  receiver_.run(now_ms_);
  // The pieces arrive and are not written, so the first transfer uses all pieces.
  while (disk_work_.size() < IncomingTransfer::kMaxPieces && !requests_.empty()) {
    for (const Request& request : std::exchange(requests_, {}))
      receiver_.on_reply(encode_piece(request.transfer_id, request.offset, content.substr(0, kPieceBytes)), now_ms_);
    receiver_.run(now_ms_);
  }
  EXPECT_EQ(disk_work_.size(), IncomingTransfer::kMaxPieces);
  for (ArtifactSource::FetchNumber number = 2; number <= 4; ++number) fetch(content, number);
  receiver_.run(now_ms_);
  EXPECT_THAT(requests_, IsEmpty());
  do_disk_work();
  receiver_.run(now_ms_);
  EXPECT_THAT(requests_, SizeIs(IncomingTransfer::kMaxPieces));
}

TEST_F(TransferReceiverTest, FileThatWaitsForOthersBlamesNoHolder) {
  for (ArtifactSource::FetchNumber number = 1; number <= TransferReceiver::kMaxTransfers + 1; ++number)
    fetch("right", number);
  receiver_.run(now_ms_);
  receiver_.run(now_ms_ += TransferReceiver::kSilenceMs);
  EXPECT_THAT(statuses(), Contains(FetchStatus::busy).Times(1));
  EXPECT_THAT(statuses(), Contains(FetchStatus::away).Times(TransferReceiver::kMaxTransfers));
}

TEST_F(TransferReceiverTest, CancelledFetchLeavesNoFile) {
  const std::string content(std::size_t{3} * kPieceBytes, 'x');
  fetch(content);
  receiver_.run(now_ms_);
  receiver_.on_reply(encode_piece(requests_.at(0).transfer_id, 0, content.substr(0, kPieceBytes)), now_ms_);
  do_disk_work();
  EXPECT_TRUE(std::filesystem::exists(folder_ / "file"));
  receiver_.cancel(1);
  do_disk_work();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "file"));
  receiver_.on_reply(encode_piece(requests_.at(1).transfer_id, kPieceBytes, content.substr(0, kPieceBytes)), now_ms_);
  EXPECT_THAT(disk_work_, IsEmpty());
  EXPECT_THAT(ends_, IsEmpty());
}

class ArtifactCacheTest : public ::testing::Test {
 protected:
  TempDir folder_;
  const std::string store_name_ = std::string(24, 'a');

  ArtifactCache make_cache(std::uint64_t max_bytes, std::uint64_t max_age_ms = 3600000) const {
    return {ArtifactFolder(folder_.path().string(), 1), {max_bytes, max_age_ms}};
  }
  std::string path_of(const std::string& job_key, const std::string& content) const {
    return ArtifactFolder(folder_.path().string(), 1).cache_folder(store_name_, job_key) + '/' + sha256_hex(content);
  }
  void add(const ArtifactCache& cache, const std::string& job_key, const std::string& content) const {
    const auto target = cache.make_target(store_name_, job_key);
    ReceivedFile file({sha256_hex(content), content.size()}, target);
    ASSERT_TRUE(file.write(content));
    const auto stored = file.finish();
    ASSERT_TRUE(stored) << stored.error().message;
  }
  static void set_age(const std::string& path, std::chrono::seconds age) {
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - age);
  }
};

TEST_F(ArtifactCacheTest, PathNamesTheJobThatStoredTheFile) {
  add(make_cache(1000), "job:12:7", "text");
  EXPECT_EQ(read_file(path_of("job:12:7", "text")), "text");
  EXPECT_FALSE(std::filesystem::exists(path_of("job:12:8", "text")));
}

TEST_F(ArtifactCacheTest, LeastRecentlyUsedFileIsDeletedFirst) {
  const ArtifactCache cache = make_cache(100);
  add(cache, "job:12:1", std::string(40, '1'));
  add(cache, "job:12:2", std::string(40, '2'));
  set_age(path_of("job:12:1", std::string(40, '1')), std::chrono::seconds(50));
  set_age(path_of("job:12:2", std::string(40, '2')), std::chrono::seconds(100));
  ArtifactCache::mark_used_if_cached(path_of("job:12:2", std::string(40, '2')));
  add(cache, "job:12:3", std::string(40, '3'));
  EXPECT_FALSE(std::filesystem::exists(path_of("job:12:1", std::string(40, '1'))));
  EXPECT_TRUE(std::filesystem::exists(path_of("job:12:2", std::string(40, '2'))));
  EXPECT_TRUE(std::filesystem::exists(path_of("job:12:3", std::string(40, '3'))));
  EXPECT_EQ(cache.evict(), 80U);
}

TEST_F(ArtifactCacheTest, NumberOfFilesIsLimited) {
  const ArtifactCache cache(ArtifactFolder(folder_.path().string(), 1), {1000, 3600000, 10});
  for (int i = 0; i < 11; ++i) {
    const std::string content = std::to_string(100 + i);
    add(cache, "job:12:7", content);
    if (i < 10) set_age(path_of("job:12:7", content), std::chrono::seconds(100 - i));
    EXPECT_TRUE(std::filesystem::exists(path_of("job:12:7", content)));
  }
  EXPECT_FALSE(std::filesystem::exists(path_of("job:12:7", "100")));
  EXPECT_FALSE(std::filesystem::exists(path_of("job:12:7", "101"))) << "a tenth is free";
  EXPECT_EQ(cache.evict(), 27U);
}

TEST_F(ArtifactCacheTest, FolderIsReadAgainAboveALimitOnly) {
  const ArtifactCache cache = make_cache(100);
  add(cache, "job:12:1", "text");
  set_age(path_of("job:12:1", "text"), std::chrono::hours(2));
  add(cache, "job:12:2", "other");
  EXPECT_TRUE(std::filesystem::exists(path_of("job:12:1", "text"))) << "the folder was not read";
  add(cache, "job:12:3", std::string(95, 'x'));
  EXPECT_FALSE(std::filesystem::exists(path_of("job:12:1", "text")));
}

TEST_F(ArtifactCacheTest, DamagedFileIsDeleted) {
  add(make_cache(1000), "job:12:1", "text");
  ArtifactCache::delete_if_damaged(path_of("job:12:1", "text"), 4);
  EXPECT_TRUE(std::filesystem::exists(path_of("job:12:1", "text")));
  std::filesystem::resize_file(path_of("job:12:1", "text"), 3);
  ArtifactCache::delete_if_damaged(path_of("job:12:1", "text"), 4);
  EXPECT_FALSE(std::filesystem::exists(path_of("job:12:1", "text")));
  std::ofstream(folder_ / "text") << "tex";
  ArtifactCache::delete_if_damaged(folder_ / "text", 4);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "text")) << "in another folder";
}

TEST_F(ArtifactCacheTest, OldFilesAreDeleted) {
  add(make_cache(1000), "job:12:1", "old");
  add(make_cache(1000), "job:12:2", "new");
  set_age(path_of("job:12:1", "old"), std::chrono::hours(2));
  EXPECT_EQ(make_cache(1000).evict(), 3U);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(path_of("job:12:1", "old")).parent_path()));
}

}  // namespace
}  // namespace mycojobs::test
