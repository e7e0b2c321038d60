// Logs on the disk of the agent: segments, ranges, the dropped middle, quotas, the archive, and messages of readers.
#include <gmock/gmock.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "artifacts/artifact_cleanup.h"
#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/logs/log_record.h"
#include "artifacts/logs/log_spool.h"
#include "artifacts/logs/spooled_log.h"
#include "artifacts/transfer/log_request.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::string kLogJob = "job:12:7";
const std::string kLogTransferId(32, 'a');
const std::string kLogReplyChannel = "mj:transfer:1:to:" + std::string(32, 'b');

// Collects the artifacts that a spool stores.
class CollectingSink final : public ArtifactSink {
 public:
  bool open(const std::string& name, bool) override {
    name_ = name;
    return true;
  }
  void write(std::string_view bytes) override { files_[name_].append(bytes); }
  void close() override {}
  void report_dropped(const DroppedArtifact& dropped) override { dropped_.push_back(dropped.name); }
  std::map<std::string, std::string> files_;
  std::vector<std::string> dropped_;

 private:
  std::string name_;
};

class LogSpoolTest : public testing::Test {
 protected:
  LogSpool::Settings make_settings() const {
    LogSpool::Settings settings;
    settings.state_dir = folder_.path().string();
    settings.context = 1;
    settings.store_name = store_name_;
    settings.job_key = kLogJob;
    return settings;
  }
  // Writes this number of lines of 100 bytes, each with its number, and closes the spool. Returns the notes.
  static std::vector<std::string> write_lines(const std::shared_ptr<LogSpool>& spool, std::uint64_t count,
                                              std::uint64_t head_entries = 1) {
    std::vector<std::string> notes;
    for (std::uint64_t i = 1; i <= count; ++i) {
      spool->add_entry(make_line(i, head_entries));
      if (i % 64 != 0) continue;
      if (const auto work = spool->pop_write_task()) {
        for (const std::string& note : (*work)().notes) notes.push_back(note);
        spool->on_write_done();
      }
    }
    for (const std::string& note : spool->make_close_task()().notes) notes.push_back(note);
    return notes;
  }
  static Log make_line(std::uint64_t number, std::uint64_t head_entries) {
    std::string text = std::to_string(number);
    text.resize(99, '.');
    return {number, head_entries + number * 100, LogStream::out, text + '\n', 100};
  }
  std::string job_folder() const { return ArtifactFolder(folder_.path().string(), 1).log_folder(store_name_, kLogJob); }
  std::string read_all(std::uint64_t after, std::uint64_t until) const {
    std::string text;
    for (LogRange range{after, until}; range.after_seq < range.until_seq;) {
      const SpooledLines lines = read_spooled_lines({job_folder()}, range).value();
      if (lines.lines.empty()) break;
      for (const Log& line : lines.lines) {
        EXPECT_GT(line.seq, range.after_seq);
        EXPECT_EQ(line.size, line.text.size());
        range.after_seq = line.seq;
        text += line.text;
      }
    }
    return text;
  }
  std::uint64_t count_bytes() const {
    std::uint64_t bytes = 0;
    for (const LogSegment& segment : list_log_segments(job_folder())) bytes += segment.bytes;
    return bytes;
  }
  ArtifactUsage usage() const {
    return ArtifactUsage::of_logs(ArtifactFolder(folder_.path().string(), 1), store_name_);
  }

  TempDir folder_;
  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  std::string store_name_ = *artifact_store_name(*store_, 1);
};

TEST_F(LogSpoolTest, OutputOfTheHeadNeedsNoFiles) {
  const auto spool = std::make_shared<LogSpool>(make_settings());
  spool->add_entry({1, 1, LogStream::out, "head\n"});
  spool->add_entry({1, 2, LogStream::system, "note\n", 1});
  EXPECT_FALSE(spool->is_used());
  EXPECT_FALSE(spool->pop_write_task());
  EXPECT_FALSE(fs::exists(job_folder()));
}

TEST_F(LogSpoolTest, RangesAreCutToTheByte) {
  LogSpool::Settings settings = make_settings();
  settings.log_base = 1000;
  EXPECT_THAT(write_lines(std::make_shared<LogSpool>(std::move(settings)), 10'000), IsEmpty());
  const std::string all = read_all(1001, 1001 + 1'000'000);
  ASSERT_EQ(all.size(), 1'000'000U);
  EXPECT_EQ(all.substr(0, 4), "1...");
  for (const auto& [after, until] : {std::pair(1U, 2U), {99U, 101U}, {150U, 420U}, {999'900U, 1'000'000U}})
    EXPECT_EQ(read_all(1001 + after, 1001 + until), all.substr(after, until - after)) << after;
  const SpooledLines first = read_spooled_lines({job_folder()}, {1001, 1001 + 1'000'000}).value();
  EXPECT_EQ(first.lines.front().ts_ms, 1U);
  EXPECT_GT(first.lines.size(), 1U);
  EXPECT_LE(encode_spooled_lines(first).size(), kMaxLogRangeBytes);
}

TEST_F(LogSpoolTest, LinesThatAreNotWrittenYetDifferFromDroppedLines) {
  write_lines(std::make_shared<LogSpool>(make_settings()), 10);
  EXPECT_TRUE(read_spooled_lines({job_folder()}, {1101, 1102}).value().has_pending_lines);
  EXPECT_FALSE(read_spooled_lines({job_folder()}, {0, 50}).value().has_pending_lines);
  EXPECT_TRUE(read_spooled_lines({folder_ / "missing"}, {0, 50}).value().has_pending_lines);
}

TEST_F(LogSpoolTest, MiddleOfALongLogIsDropped) {
  LogSpool::Settings settings = make_settings();
  settings.max_bytes = 1U << 20;
  EXPECT_THAT(write_lines(std::make_shared<LogSpool>(std::move(settings)), 50'000), IsEmpty());
  EXPECT_LE(count_bytes(), 1.1 * (1U << 20));
  EXPECT_GE(count_bytes(), 0.8 * (1U << 20));
  const std::string head = read_all(101, 300'000);
  EXPECT_EQ(head.size(), 299'899U) << "the head has no gap";
  const std::string tail = read_all(4'800'001, 5'000'001);
  EXPECT_EQ(tail.size(), 200'000U);
  EXPECT_TRUE(tail.ends_with('\n'));
  EXPECT_THAT(tail, HasSubstr("50000..."));
  const SpooledLines after_gap = read_spooled_lines({job_folder()}, {2'500'000, 5'000'001}).value();
  EXPECT_FALSE(after_gap.lines.empty()) << "the next lines behind a gap are returned";
}

TEST_F(LogSpoolTest, RunsOfAJobShareTheLimit) {
  for (std::uint64_t run = 0; run < 4; ++run) {
    LogSpool::Settings settings = make_settings();
    settings.max_bytes = 1U << 20;
    settings.log_base = run * 1'000'000;
    write_lines(std::make_shared<LogSpool>(std::move(settings)), 9'000);
  }
  EXPECT_LE(count_bytes(), 1.2 * (1U << 20));
  EXPECT_THAT(read_all(1, 101), HasSubstr("1...")) << "the head is that of the first run";
  EXPECT_THAT(read_all(3'899'901, 3'900'101), HasSubstr("9000..."));
  EXPECT_EQ(usage().read().value().get_bytes(12), measure_folder(job_folder()));
}

TEST_F(LogSpoolTest, ShortEntriesAreJoined) {
  const auto spool = std::make_shared<LogSpool>(make_settings());
  for (std::uint64_t i = 1; i <= 1000; ++i)
    spool->add_entry({i / 100, i, i > 900 ? LogStream::err : LogStream::out, "x", 1});
  spool->add_entry({9, 1002, LogStream::err, "y", 1});
  spool->make_close_task()();
  const SpooledLines lines = read_spooled_lines({job_folder()}, {0, 2000}).value();
  ASSERT_THAT(lines.lines, SizeIs(3));
  EXPECT_EQ(lines.lines[0].text, std::string(900, 'x'));
  EXPECT_EQ(lines.lines[1].seq, 1000U);
  EXPECT_EQ(lines.lines[2].seq, 1002U) << "behind a gap";
}

TEST_F(LogSpoolTest, KilledAgentLeavesItsCompleteRecords) {
  const auto spool = std::make_shared<LogSpool>(make_settings());
  for (std::uint64_t i = 1; i <= 100; ++i) spool->add_entry(make_line(i, 1));
  (*spool->pop_write_task())();
  const std::string path = list_log_segments(job_folder()).front().path;
  fs::resize_file(path, fs::file_size(path) - 30);
  EXPECT_EQ(read_all(1, 10'001).size(), 8'400U) << "the last record had 16 lines";
}

TEST_F(LogSpoolTest, QuotaStopsALogAndKeepsItsEnd) {
  LogSpool::Settings settings = make_settings();
  settings.max_bytes = 32U << 20;
  settings.quota = {3U << 20, 100U << 20};
  EXPECT_THAT(write_lines(std::make_shared<LogSpool>(settings), 100'000), ElementsAre(HasSubstr("of its caller")));
  EXPECT_LE(count_bytes(), 3.1 * (1U << 20));
  EXPECT_LE(usage().read().value().get_bytes(12), 3U << 20);
  settings.job_key = "job:13:1";
  EXPECT_THAT(write_lines(std::make_shared<LogSpool>(settings), 1000), IsEmpty()) << "other callers are not affected";
}

TEST_F(LogSpoolTest, FullQueueDropsOutputAndReportsIt) {
  LogSpool::Settings settings = make_settings();
  settings.max_queued_bytes = 10'000;
  const auto spool = std::make_shared<LogSpool>(std::move(settings));
  for (std::uint64_t i = 1; i <= 100; ++i) spool->add_entry(make_line(i, 1));
  EXPECT_THAT((*spool->pop_write_task())().notes, ElementsAre(HasSubstr("too slow")));
  spool->on_write_done();
  spool->add_entry(make_line(101, 1));
  EXPECT_THAT(spool->make_close_task()().notes, IsEmpty()) << "reported once";
  const SpooledLines lines = read_spooled_lines({job_folder()}, {101, 20'000}).value();
  EXPECT_EQ(lines.lines.back().seq, 10'101U);
  EXPECT_GT(lines.lines.back().seq - lines.lines.back().size, lines.lines.front().seq) << "a gap";
}

// A short entry can be queued behind a long one that was dropped.
TEST_F(LogSpoolTest, LossIsReportedAlthoughLaterEntriesWereQueued) {
  LogSpool::Settings settings = make_settings();
  settings.max_queued_bytes = 1000;
  const auto spool = std::make_shared<LogSpool>(std::move(settings));
  spool->add_entry({1, 2000, LogStream::out, std::string(2000, 'x'), 2000});
  spool->add_entry({1, 2100, LogStream::out, std::string(100, 'y'), 100});
  EXPECT_THAT(spool->make_close_task()().notes, ElementsAre(HasSubstr("too slow")));
}

TEST_F(LogSpoolTest, QueuesOfSeveralRunsShareALimit) {
  const auto bytes = std::make_shared<LogQueueBytes>(3000);
  const auto make_spool = [&] {
    LogSpool::Settings settings = make_settings();
    settings.all_queued_bytes = bytes;
    return std::make_shared<LogSpool>(std::move(settings));
  };
  const auto hanging = make_spool(), other = make_spool();
  hanging->add_entry({1, 2500, LogStream::out, std::string(2500, 'x'), 2500});
  const auto close = hanging->make_close_task();
  other->add_entry({1, 2500, LogStream::out, std::string(2500, 'y'), 2500});
  EXPECT_FALSE(other->pop_write_task()) << "nothing is queued";
  hanging->abandon();
  hanging->add_entry({1, 5000, LogStream::out, std::string(2500, 'x'), 2500});
  other->add_entry({1, 5000, LogStream::out, std::string(2500, 'y'), 2500});
  EXPECT_TRUE(other->pop_write_task());
  close();
  EXPECT_THAT(list_log_segments(job_folder()), IsEmpty());
  EXPECT_FALSE(bytes->try_add(1000));
  EXPECT_THAT(other->make_close_task()().notes, ElementsAre(HasSubstr("too slow")));
  EXPECT_TRUE(bytes->try_add(3000));
}

TEST_F(LogSpoolTest, RunsWithTheSameNumbersAreApart) {
  const auto make_spool = [&](std::uint64_t run) {
    LogSpool::Settings settings = make_settings();
    settings.run = run;
    return std::make_shared<LogSpool>(std::move(settings));
  };
  const auto lost = make_spool(7), next = make_spool(8);
  for (std::uint64_t i = 1; i <= 100; ++i) {
    lost->add_entry(make_line(i, 1));
    next->add_entry({1, 51 + i, LogStream::out, "n", 1});
    if (i == 50) (*lost->pop_write_task())();
  }
  EXPECT_THAT(next->make_close_task()().notes, IsEmpty());
  EXPECT_THAT(lost->make_close_task()().notes, IsEmpty());
  const SpooledLines lines = read_spooled_lines({job_folder()}, {0, 100'000, 8}).value();
  ASSERT_THAT(lines.lines, SizeIs(1));
  EXPECT_EQ(lines.lines[0].text, std::string(100, 'n'));
  EXPECT_TRUE(read_spooled_lines({job_folder()}, {0, 100'000, 9}).value().lines.empty());
  EXPECT_TRUE(has_log_of_run(job_folder(), 7));
  EXPECT_FALSE(has_log_of_run(job_folder(), 9));
}

TEST_F(LogSpoolTest, StoppedRunIsNotBehind) {
  LogSpool::Settings settings = make_settings();
  settings.quota = {1, 1};
  settings.run = 5;
  EXPECT_THAT(write_lines(std::make_shared<LogSpool>(std::move(settings)), 10),
              ElementsAre(HasSubstr("of its caller")));
  EXPECT_FALSE(read_spooled_lines({job_folder()}, {1, 1001, 5}).value().has_pending_lines);
  EXPECT_TRUE(read_spooled_lines({job_folder()}, {1, 1001, 6}).value().has_pending_lines) << "another run";
  EXPECT_EQ(measure_folder(job_folder()), 0U);
}

TEST_F(LogSpoolTest, ReadEndsAtTheNumberOfLines) {
  const auto spool = std::make_shared<LogSpool>(make_settings());
  for (std::uint64_t i = 1; i <= 10; ++i) spool->add_entry({i * 100, i * 10, LogStream::out, "123456789\n", 10});
  spool->make_close_task()();
  LogRange range{10, 100};
  range.max_lines = 3;
  EXPECT_THAT(read_spooled_lines({job_folder()}, range).value().lines, SizeIs(3));
}

TEST_F(LogSpoolTest, FailedSegmentReleasesItsQuota) {
  const auto spool = std::make_shared<LogSpool>(make_settings());
  fs::create_directories(job_folder());
  fs::create_directory(make_segment_path(job_folder(), 0, 2));
  spool->add_entry(make_line(1, 1));
  EXPECT_THAT(spool->make_close_task()().notes, ElementsAre(HasSubstr("not kept on the disk of this host")));
  EXPECT_EQ(usage().read().value().get_bytes(12), 0U);
}

TEST_F(LogSpoolTest, DiskErrorIsReportedOnceAndHarmsNoJob) {
  std::ofstream(folder_ / "contexts") << "not a folder";
  const auto notes = write_lines(std::make_shared<LogSpool>(make_settings()), 1000);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("not kept on the disk of this host")));
}

std::string read_gzip(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  std::string text, piece(65536, '\0');
  for (int size = 0; (size = gzread(file, piece.data(), static_cast<unsigned>(piece.size()))) > 0;)
    text.append(piece, 0, static_cast<std::size_t>(size));
  EXPECT_EQ(gzclose(file), Z_OK);
  return text;
}

TEST_F(LogSpoolTest, ArchiveHasTheCompleteLog) {
  LogSpool::Settings settings = make_settings();
  settings.has_archive = true;
  settings.max_archive_bytes = 1U << 20;
  const auto spool = std::make_shared<LogSpool>(std::move(settings));
  spool->add_entry({1, 1, LogStream::out, "head\n"});
  spool->add_entry({1, 2, LogStream::system, "note\n"});
  spool->add_entry({1, 7, LogStream::err, "tail\n", 5});
  CollectingSink sink;
  const auto archive = spool->make_archive_task()();
  spool->add_entry({1, 8, LogStream::system, "a later note\n"});
  spool->make_close_task()();
  LogSpool::store_archive(archive, kLogJob, sink);
  std::ofstream(folder_ / "log.gz", std::ios::binary) << sink.files_.at(LogSpool::kArchiveName);
  EXPECT_EQ(read_gzip(folder_ / "log.gz"), "head\nnote\ntail\n");
  EXPECT_THAT(sink.dropped_, IsEmpty());
}

TEST_F(LogSpoolTest, ArchiveNamesOutputThatTheQueueDropped) {
  LogSpool::Settings settings = make_settings();
  settings.has_archive = true;
  settings.max_archive_bytes = 1U << 20;
  settings.max_queued_bytes = 1000;
  const auto spool = std::make_shared<LogSpool>(std::move(settings));
  spool->add_entry({1, 1, LogStream::out, "head\n"});
  spool->add_entry({1, 3001, LogStream::out, std::string(3000, 'x'), 3000});
  CollectingSink sink;
  LogSpool::store_archive(spool->make_archive_task()(), kLogJob, sink);
  std::ofstream(folder_ / "log.gz", std::ios::binary) << sink.files_.at(LogSpool::kArchiveName);
  EXPECT_EQ(read_gzip(folder_ / "log.gz"), "head\n3000 bytes of output dropped here\n");
}

TEST_F(LogSpoolTest, ArchiveWithAnErrorIsReportedAsDropped) {
  std::ofstream(folder_ / "contexts") << "not a folder";
  LogSpool::Settings settings = make_settings();
  settings.has_archive = true;
  const auto spool = std::make_shared<LogSpool>(std::move(settings));
  spool->add_entry({1, 1, LogStream::out, "head\n"});
  const auto archive = spool->make_archive_task()();
  EXPECT_THAT(archive.notes, ElementsAre(HasSubstr("job.log.gz is not kept")));
  CollectingSink sink;
  LogSpool::store_archive(archive, kLogJob, sink);
  EXPECT_THAT(sink.dropped_, ElementsAre(LogSpool::kArchiveName));
}

TEST_F(LogSpoolTest, ArchiveEndsAtTheLimitOfArtifacts) {
  LogSpool::Settings settings = make_settings();
  settings.has_archive = true;
  settings.max_archive_bytes = 200'000;
  const auto spool = std::make_shared<LogSpool>(std::move(settings));
  std::uint32_t random = 1;
  for (std::uint64_t i = 1; i <= 100; ++i) {
    std::string text(8000, ' ');
    for (char& c : text) c = static_cast<char>('!' + ((random = random * 1664525 + 1013904223) >> 24) % 90);
    spool->add_entry({1, i * 8000, LogStream::out, text, 8000});
  }
  CollectingSink sink;
  LogSpool::store_archive(spool->make_archive_task()(), kLogJob, sink);
  EXPECT_TRUE(fs::is_empty(ArtifactFolder(folder_.path().string(), 1).spool_folder()));
  const std::string& file = sink.files_.at(LogSpool::kArchiveName);
  EXPECT_LE(file.size(), 200'000U);
  std::ofstream(folder_ / "log.gz", std::ios::binary) << file;
  EXPECT_THAT(read_gzip(folder_ / "log.gz"), HasSubstr(" bytes of output dropped here\n"));
}

TEST_F(LogSpoolTest, CleanupDeletesTheLogWithTheRecordOfItsJob) {
  ASSERT_TRUE(store_->save(1, kLogJob, {{"id", "7"}, {"status", "started"}}));
  write_lines(std::make_shared<LogSpool>(make_settings()), 1000);
  ArtifactCleanup cleanup(clock_, folder_.path().string(), 1000);
  const auto run_round = [&](int steps = 200) {
    for (int step = 0; step < steps; ++step) {
      ASSERT_TRUE(cleanup.run_step(*store_, 1));
      clock_.advance(2000);
    }
  };
  run_round();
  EXPECT_FALSE(list_log_segments(job_folder()).empty()) << "the job runs";
  ASSERT_TRUE(store_->save(1, kLogJob, {{"status", "finished"}}));
  run_round();
  EXPECT_FALSE(list_log_segments(job_folder()).empty()) << "the record exists";
  EXPECT_GT(usage().read().value().get_bytes(12), 0U);
  ASSERT_TRUE(store_->delete_record(1, kLogJob));
  {
    const auto lock = ArtifactFolder(folder_.path().string(), 1).lock(true, 1000);
    run_round(20);
    EXPECT_FALSE(list_log_segments(job_folder()).empty()) << "another agent deletes files";
  }
  run_round();
  EXPECT_FALSE(fs::exists(job_folder()));
  EXPECT_EQ(usage().read().value().get_bytes(12), 0U);
}

TEST(LogRecord, DamagedRecordsAreRejected) {
  std::string text;
  append_log_record(text, {5, 12, LogStream::err, "two\nlines\n"});
  std::string_view records = text;
  const auto entry = pop_log_record(records);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->text, "two\nlines\n");
  EXPECT_EQ(entry->seq, 12U);
  EXPECT_EQ(entry->stream, LogStream::err);
  EXPECT_TRUE(records.empty());
  for (std::size_t size = 0; size < text.size(); ++size) {
    std::string_view cut = std::string_view(text).substr(0, size);
    EXPECT_FALSE(pop_log_record(cut)) << size;
    EXPECT_EQ(cut.size(), size);
  }
  for (const char* damaged : {"1 1 out 2\nab\n", "9 1 out 0\n\n", "9 1 none 1\na\n",
                              "9 1 out 99999999999999999999\na\n", "x 1 out 1\na\n", "9 1 out 1\nab\n"}) {
    std::string_view view = damaged;
    EXPECT_FALSE(pop_log_record(view)) << damaged;
  }
}

PieceRequest make_log_request() {
  PieceRequest request{kLogTransferId, kLogReplyChannel, kLogJob, {}};
  request.log_range = LogRange{100, 200, 77, 12};
  return request;
}

TEST(LogRequest, RequestIsParsedAndForgedRequestsAreRejected) {
  const auto parsed = parse_log_request(encode_log_request(make_log_request()), 1);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->log_range, make_log_request().log_range);
  EXPECT_EQ(parsed->job_key, kLogJob);
  EXPECT_FALSE(parse_request(encode_log_request(make_log_request()), 1));
  const auto is_rejected = [](const std::function<void(PieceRequest&)>& change) {
    PieceRequest request = make_log_request();
    change(request);
    return !parse_log_request(encode_log_request(request), 1);
  };
  EXPECT_TRUE(is_rejected([](PieceRequest& request) { request.job_key = "job:12:../../etc"; }));
  EXPECT_TRUE(is_rejected([](PieceRequest& request) { request.reply_channel = "mj:wake"; }));
  EXPECT_TRUE(is_rejected([](PieceRequest& request) { request.transfer_id = "short"; }));
  EXPECT_TRUE(is_rejected([](PieceRequest& request) { request.log_range = LogRange{200, 200}; }));
  EXPECT_TRUE(is_rejected([](PieceRequest& request) { request.log_range = LogRange{100, 200, 77, 0}; }));
  EXPECT_FALSE(parse_log_request(encode_log_request(make_log_request()) + " more", 1));
  EXPECT_FALSE(parse_log_request("log 1", 1));
}

TEST(LogRequest, LinesOfAReplyAreCutToTheRequestedRange) {
  SpooledLines sent;
  sent.lines = {{1, 110, LogStream::out, "0123456789", 10}, {2, 130, LogStream::err, "abcdefghij", 10}};
  const std::string message = encode_log_reply(kLogTransferId, encode_spooled_lines(sent));
  const auto reply = parse_log_reply(message);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->transfer_id, kLogTransferId);
  const SpooledLines lines = decode_spooled_lines(reply->lines, {104, 125});
  ASSERT_THAT(lines.lines, SizeIs(2));
  EXPECT_EQ(lines.lines[0].text, "456789");
  EXPECT_EQ(lines.lines[1].text, "abcde");
  EXPECT_EQ(lines.lines[1].seq, 125U);
  std::swap(sent.lines[0], sent.lines[1]);
  EXPECT_THAT(decode_spooled_lines(encode_spooled_lines(sent), {104, 125}).lines, SizeIs(1)) << "a forged order";
}

}  // namespace
}  // namespace mycojobs::test
