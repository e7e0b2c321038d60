// Transfers between two processes through a real server and its imitation.
#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <future>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/logs/log_spool.h"
#include "artifacts/logs/spooled_log.h"
#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/transfer/job_log_reader.h"
#include "artifacts/transfer/transfer_loop.h"
#include "base/sha256.h"
#include "model/output_gap.h"
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

class TransferredLogs : public Transfers {
 protected:
  static constexpr Id kLogHolder = 20, kOtherHolder = 31;

  std::string key_ = "job:12:1";

  // Submits and claims a job with the head "head\n" and the tail "end\n" in the store. Between them, 500,000 bytes are
  // on the disk of the host only.
  ClaimedJob run_job(const Host& host) {
    submit(1);
    ClaimedJob job = claim_one();
    write_log(host, job);
    return job;
  }
  std::shared_ptr<LogSpool> make_spool(const Host& host, const ClaimedJob& job) const {
    LogSpool::Settings settings;
    settings.state_dir = host.folder.path();
    settings.context = 1;
    settings.store_name = store_name_;
    settings.job_key = job.ref.job_key;
    settings.run = job.epoch;
    settings.log_base = job.log_base;
    return std::make_shared<LogSpool>(std::move(settings));
  }
  void write_log(const Host& host, const ClaimedJob& job) {
    const auto spool = make_spool(host, job);
    for (std::uint64_t i = 1; i <= 5000; ++i) spool->add_entry({i, 1 + i * 100, LogStream::out, make_log_line(i), 100});
    spool->add_entry({9, 500'005, LogStream::out, "end\n", 4});
    EXPECT_TRUE(spool->make_close_task()().notes.empty());
    EXPECT_EQ(outcome(report(
                  LogAppend{job.ref, {{1, 1, LogStream::out, "head\n"}, {9, 500'005, LogStream::out, "end\n", 4}}})),
              "ok");
  }
  ClaimedJob claim_as(Id runner) {
    ClaimRequest claim_request = request();
    claim_request.runner = runner;
    auto reply = store_->claim(claim_request);
    EXPECT_TRUE(reply && reply->jobs.size() == 1U);
    return std::move(reply.value().jobs.at(0));
  }
  static std::string make_log_line(std::uint64_t number) {
    std::string text = std::to_string(number);
    text.resize(99, '.');
    return text + '\n';
  }
  static std::string make_log() {
    std::string text = "head\n";
    for (std::uint64_t i = 1; i <= 5000; ++i) text += make_log_line(i);
    return text + "end\n";
  }
  // Reads the log page by page. Checks that the numbers ascend.
  std::string read_log(JobLogReader& reader, std::size_t max_lines = 100) {
    std::string text;
    std::uint64_t last_seq = 0;
    for (bool has_lines = true; has_lines;) {
      const LogPage page = reader.read(*store_, 1, key_, last_seq, max_lines, 0).value();
      for (const Log& line : page.lines) {
        EXPECT_GT(line.seq, last_seq);
        if (line.seq <= last_seq) return text;  // otherwise the loop would not end
        last_seq = line.seq;
        text += line.text;
      }
      has_lines = !page.lines.empty() && !page.ended;
    }
    return text;
  }
};

TEST_P(TransferredLogs, GapOfTheStoreIsFilledFromTheRunner) {
  const auto holder = start_host(kLogHolder);
  run_job(*holder);
  const TempFolder other;
  for (const std::string& state_dir : {std::string(), other.path(), holder->folder.path()}) {
    JobLogReader reader(backend_->stores(), clock_, state_dir);
    EXPECT_EQ(read_log(reader) == make_log(), true) << state_dir;
    EXPECT_EQ(read_log(reader, 1) == make_log(), true) << state_dir;
  }
}

TEST_P(TransferredLogs, GapNamesARunnerThatIsAway) {
  const auto holder = start_host(kLogHolder);
  const ClaimedJob job = run_job(*holder);
  ASSERT_EQ(outcome(end(job.ref, finished())), "ok");
  JobLogReader reader(backend_->stores(), clock_, "");
  holder->thread.reset();
  holder->loop.reset();
  const std::string text = read_log(reader);
  EXPECT_EQ(text, "head\n500000 bytes of output dropped here: runner 20, which has these lines, is away\nend\n");
}

TEST_P(TransferredLogs, RunnerWithoutTheLogAnswers) {
  const auto holder = start_host(kLogHolder), other = start_host(31);
  const ClaimedJob job = run_job(*other);
  ASSERT_EQ(outcome(end(job.ref, finished())), "ok");
  JobLogReader reader(backend_->stores(), clock_, "");
  EXPECT_EQ(read_log(reader), "head\n500000 bytes of output dropped here\nend\n");
}

TEST_P(TransferredLogs, LastLinesOfTheStoreNeedNoRunner) {
  const auto holder = start_host(kLogHolder);
  const ClaimedJob job = run_job(*holder);
  ASSERT_EQ(outcome(report(
                LogAppend{job.ref, {{9, 500'007, LogStream::out, "2\n", 2}, {9, 500'009, LogStream::out, "3\n", 2}}})),
            "ok");
  const auto find = [&](std::size_t lines) {
    return JobLogReader::find_last_lines(*store_, 1, "job:12:1", 0, lines).value();
  };
  EXPECT_EQ(find(2), 500'001U);
  EXPECT_EQ(find(3), 0U) << "the first line behind the gap can be incomplete";
}

TEST_P(TransferredLogs, ReaderOfANumberOfAnotherJobGetsNothing) {
  const auto holder = start_host(kLogHolder);
  const ClaimedJob job = run_job(*holder);
  LogFetcher fetcher(backend_->stores(), clock_);
  EXPECT_EQ(fetcher.read(1, kLogHolder, "job:12:1", {100, 150, job.epoch}).value().lines.at(0).text,
            make_log().substr(104, 50));
  EXPECT_TRUE(fetcher.read(1, kLogHolder, "job:12:2", {100, 150, job.epoch}).value().lines.empty());
  EXPECT_EQ(fetcher.read(1, 77, "job:12:1", {100, 150, job.epoch}).error().code, Code::unavailable);
}

// The store has a gap line of its own if nothing of the output's end was stored.
TEST_P(TransferredLogs, StoredGapLineIsFilledOnce) {
  const auto holder = start_host(kLogHolder);
  submit(1);
  const ClaimedJob job = claim_one();
  const auto spool = make_spool(*holder, job);
  std::string expected = "head\n";
  for (std::uint64_t i = 1; i <= 5; ++i) {
    const auto stream = i % 2 == 0 ? LogStream::err : LogStream::out;
    spool->add_entry({i, 1 + i * 4, stream, "l" + std::to_string(i) + ".\n", 4});
    expected += "l" + std::to_string(i) + ".\n";
  }
  spool->make_close_task()();
  ASSERT_EQ(outcome(report(LogAppend{
                job.ref, {{1, 1, LogStream::out, "head\n"}, {9, 31, LogStream::system, format_output_gap(30), 30}}})),
            "ok");
  ASSERT_EQ(outcome(end(job.ref, finished())), "ok");
  expected += "10 bytes of output dropped here\n";
  JobLogReader reader(backend_->stores(), clock_, "");
  EXPECT_EQ(read_log(reader, 1), expected);
  EXPECT_EQ(read_log(reader), expected);
}

// A quota of the store that is used up drops the rest of the output there, but not on the disk of the runner.
TEST_P(TransferredLogs, OutputBehindAFullQuotaIsReadFromTheRunner) {
  const auto holder = start_host(kLogHolder);
  submit(1);
  const ClaimedJob job = claim_one();
  const auto spool = make_spool(*holder, job);
  std::string expected = "head\n";
  for (std::uint64_t i = 1; i <= 5000; ++i) {
    spool->add_entry({i, 1 + i * 100, LogStream::out, make_log_line(i), 100});
    expected += make_log_line(i);
  }
  spool->make_close_task()();
  const std::string notice = "output is not kept from here on\n";
  ASSERT_EQ(outcome(report(LogAppend{job.ref,
                                     {{1, 1, LogStream::out, "head\n"},
                                      {9, 101, LogStream::out, make_log_line(1), 100},
                                      {9, 201, LogStream::system, notice}}})),
            "ok");
  backend_->run_command(1, {"HSET", "mj:claim:job:12:1", "log_full", "1"});
  ASSERT_EQ(outcome(end(job.ref, finished())), "ok");
  const TempFolder other;
  for (const std::string& state_dir : {std::string(), other.path(), holder->folder.path()}) {
    JobLogReader reader(backend_->stores(), clock_, state_dir);
    EXPECT_EQ(read_log(reader) == expected, true) << state_dir;
    EXPECT_EQ(read_log(reader, 1) == expected, true) << state_dir;
  }
  holder->thread.reset();
  holder->loop.reset();
  JobLogReader reader(backend_->stores(), clock_, "");
  EXPECT_EQ(read_log(reader),
            "head\n" + make_log_line(1) + notice + "further output: runner 20, which has these lines, is away\n");
}

// A run whose agent was killed has written more to its disk than to the store, so the next run uses its numbers again.
TEST_P(TransferredLogs, NumbersOfALostRunAreThoseOfTheNextRun) {
  for (const bool is_same_host : {true, false}) {
    const Id runner = is_same_host ? kLogHolder : kOtherHolder;
    const Id id = is_same_host ? 1 : 2;
    key_ = "job:12:" + std::to_string(id);
    const auto first_host = start_host(kLogHolder);
    const auto second_host = is_same_host ? nullptr : start_host(runner);
    submit(id);
    const ClaimedJob first = claim_one();
    ASSERT_EQ(outcome(report(LogAppend{first.ref, {{1, 1, LogStream::out, "lost\n"}}})), "ok");
    const auto lost_spool = make_spool(*first_host, first);
    lost_spool->add_entry({1, 600'001, LogStream::out, std::string(600'000, 'L'), 600'000});
    (*lost_spool->pop_write_task())();
    ASSERT_EQ(outcome(report(Release{first.ref, "killed"})), "ok");
    const ClaimedJob second = claim_as(runner);
    write_log(is_same_host ? *first_host : *second_host, second);
    (*lost_spool).make_close_task()();
    const std::string expected = "lost\nattempt 1, delivery 2, runner " + std::to_string(runner) + "\n" + make_log();
    for (const std::string& state_dir : {std::string(), first_host->folder.path()}) {
      JobLogReader reader(backend_->stores(), clock_, state_dir);
      EXPECT_EQ(read_log(reader) == expected, true) << is_same_host << state_dir;
    }
  }
}

TEST_P(TransferredLogs, EachAttemptIsReadFromItsRunner) {
  const auto first_host = start_host(kLogHolder), second_host = start_host(kOtherHolder);
  const ClaimedJob first = run_job(*first_host);
  JobEnd error;
  error.status = JobStatus::error;
  error.detail = "exit";
  ASSERT_EQ(outcome(report(EndReport{first.ref, error, 1})), "ok");
  {
    JobLogReader reader(backend_->stores(), clock_, "");
    EXPECT_EQ(read_log(reader) == make_log(), true) << "while the job waits for its next attempt";
  }
  ASSERT_TRUE(eventually([&] {
    (void)store_->tick(1, {});
    return field(key_, "detail") != "retry_wait";
  }));
  const ClaimedJob second = claim_as(kOtherHolder);
  write_log(*second_host, second);
  ASSERT_EQ(outcome(end(second.ref, finished())), "ok");
  const std::string expected = make_log() + "attempt 2, delivery 1, runner 31\n" + make_log();
  for (const std::string& state_dir : {std::string(), first_host->folder.path(), second_host->folder.path()}) {
    JobLogReader reader(backend_->stores(), clock_, state_dir);
    EXPECT_EQ(read_log(reader) == expected, true) << state_dir;
  }
}

TEST_P(TransferredLogs, RunnerThatIsAwayInOneContextIsAskedInOthers) {
  const auto holder = start_host(kLogHolder);
  run_job(*holder);
  Job other = job(1);
  other.context_id = 2;
  ASSERT_TRUE(store_->submit(other));
  ClaimRequest claim_request = request();
  claim_request.context = 2;
  const auto claimed = store_->claim(claim_request).value().jobs;
  ASSERT_EQ(claimed.size(), 1U);
  const std::array<Report, 1> reports{LogAppend{claimed[0].ref, {{9, 105, LogStream::out, "end\n", 4}}}};
  ASSERT_TRUE(store_->report(2, reports).value().at(0));
  JobLogReader reader(backend_->stores(), clock_, "");
  EXPECT_THAT(reader.read(*store_, 2, "job:12:1", 0, 10, 0).value().lines.at(0).text, HasSubstr("is away"));
  EXPECT_EQ(read_log(reader) == make_log(), true);
}

TEST_P(TransferredLogs, LinesThatAreNotOnTheDiskYetAreReadLater) {
  const auto holder = start_host(kLogHolder);
  submit(1);
  const ClaimedJob job = claim_one();
  const std::uint64_t now_ms = clock_.unix_ms();
  ASSERT_EQ(outcome(report(LogAppend{
                job.ref, {{now_ms, 1, LogStream::out, "head\n"}, {now_ms, 205, LogStream::out, "end\n", 4}}})),
            "ok");
  const auto spool = make_spool(*holder, job);
  spool->add_entry({now_ms, 101, LogStream::out, make_log_line(1), 100});
  (*spool->pop_write_task())();
  spool->on_write_done();
  for (const std::string& state_dir : {std::string(), holder->folder.path()}) {
    JobLogReader reader(backend_->stores(), clock_, state_dir);
    EXPECT_EQ(read_log(reader), "head\n" + make_log_line(1));
  }
  spool->add_entry({now_ms, 201, LogStream::out, make_log_line(2), 100});
  (*spool->pop_write_task())();
  JobLogReader reader(backend_->stores(), clock_, "");
  EXPECT_EQ(read_log(reader), "head\n" + make_log_line(1) + make_log_line(2) + "end\n");
}

TEST_P(TransferredLogs, LinesThatARunHasStoppedToWriteAreNamed) {
  const auto holder = start_host(kLogHolder);
  submit(1);
  const ClaimedJob job = claim_one();
  const std::uint64_t now_ms = clock_.unix_ms();
  ASSERT_EQ(outcome(report(LogAppend{job.ref, {{now_ms, 205, LogStream::out, "end\n", 4}}})), "ok");
  const std::string folder = ArtifactFolder(holder->folder.path(), 1).log_folder(store_name_, key_);
  ASSERT_TRUE(ArtifactFolder(holder->folder.path(), 1).create(store_name_));
  std::filesystem::create_directory(folder);
  mark_log_stopped(folder, job.epoch);
  JobLogReader reader(backend_->stores(), clock_, "");
  EXPECT_EQ(read_log(reader), "201 bytes of output dropped here\nend\n");
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
MJ_BOTH_STORES(TransferredLogs);

}  // namespace
}  // namespace mycojobs
