// Storing artifacts in the folder, and removing them when no record refers to them.
#include "artifacts/job_artifacts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "artifacts/artifact_cleanup.h"
#include "artifacts/artifact_file.h"
#include "artifacts/artifact_folder.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "model/codec.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ArtifactsTest : public ::testing::Test {
 protected:
  TempDir folder_;
  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  std::string store_name_ = *artifact_store_name(*store_, 1);
  ArtifactCleanup cleanup_{clock_, folder_.path().string(), 1000};

  std::unique_ptr<RunArtifacts> run(const std::string& job = "job:1:1", std::uint64_t max_bytes = 1U << 20) {
    return make_run_artifacts(folder_.path().string(), 1, store_name_, job, max_bytes);
  }
  static bool add_file(RunArtifacts& run, const std::string& name, const std::string& bytes,
                       std::size_t piece_bytes = 65536) {
    if (!run.open(name, false)) return false;
    for (std::size_t from = 0; from < bytes.size(); from += piece_bytes) run.write(bytes.substr(from, piece_bytes));
    run.close();
    return true;
  }
  static json finish(RunArtifacts& run) {
    const std::string text = run.finish();
    return text.empty() ? json::object() : json::parse(text);
  }
  std::string get_object_path(const std::string& sha256) const {
    return object_path(folder_.path().string(), 1, sha256);
  }
  std::size_t count_files(const std::string& subfolder) const {
    std::size_t count = 0;
    std::error_code none;
    for (fs::recursive_directory_iterator entry(folder_ / ("contexts/1/" + subfolder), none), end;
         !none && entry != end; ++entry)
      count += entry->is_regular_file() ? 1 : 0;
    return count;
  }
  void save_job(const std::string& key, const std::string& status, const std::string& artifacts) {
    ASSERT_TRUE(store_->save(1, key, {{"id", "1"}, {"status", status}, {"artifacts", artifacts}}));
  }
  void sweep_all() {
    clock_.boot += 10000;
    for (int i = 0; i < 20; ++i) {
      auto next_step_ms = cleanup_.run_step(*store_, 1);
      ASSERT_TRUE(next_step_ms) << next_step_ms.error().message;
      clock_.boot += std::min<std::uint64_t>(*next_step_ms, 100);
    }
  }
};

TEST_F(ArtifactsTest, BytesAreStoredOnceForEveryNameAndJob) {
  auto one = run();
  ASSERT_TRUE(add_file(*one, "a.txt", "same"));
  ASSERT_TRUE(add_file(*one, "deep/er/b", "same"));
  ASSERT_TRUE(add_file(*one, "empty", ""));
  ASSERT_TRUE(add_file(*one, "bytes", std::string("\0\xff", 2)));
  const json kept = finish(*one);
  ASSERT_EQ(kept.size(), 4U);
  EXPECT_EQ(kept["a.txt"], json({{"sha256", sha256_hex("same")}, {"bytes", 4}, {"text", true}}));
  EXPECT_EQ(kept["deep/er/b"], kept["a.txt"]);
  EXPECT_EQ(kept["empty"]["text"], true);
  EXPECT_EQ(kept["bytes"]["text"], false);
  EXPECT_EQ(read_file(get_object_path(sha256_hex("same"))), "same");
  EXPECT_EQ(count_files("objects"), 3U);
  EXPECT_EQ(count_files("jobs"), 3U);
  EXPECT_EQ(count_files("spool"), 0U);
  auto two = run("job:1:2");
  ASSERT_TRUE(add_file(*two, "c", "same"));
  EXPECT_EQ(finish(*two)["c"]["sha256"], sha256_hex("same"));
  EXPECT_EQ(count_files("objects"), 3U);
  EXPECT_EQ(count_files("jobs"), 4U);
  EXPECT_EQ(fs::status(folder_ / "contexts").permissions(), fs::perms::owner_all);
}

TEST_F(ArtifactsTest, ExecutableFilesStayExecutable) {
  auto one = run();
  ASSERT_TRUE(one->open("tool", true));
  one->write("#!/bin/sh");
  one->close();
  ASSERT_TRUE(add_file(*one, "text", "#!/bin/sh"));
  const json all = finish(*one);
  EXPECT_TRUE(all.at("tool").value("executable", false));
  EXPECT_FALSE(all.at("text").contains("executable"));
  const auto read = read_artifacts(all.dump(), {folder_.path().string()});
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[0].executable, read[0].name == "tool");
  EXPECT_EQ(read[1].executable, read[1].name == "tool");
}

TEST_F(ArtifactsTest, InvalidNamesAreRejectedAndEscaped) {
  auto one = run();
  const std::string deep(600, 'x');
  for (const std::string& name :
       {std::string(), std::string("/etc/passwd"), std::string("../up"), std::string("a/../b"), std::string("a//b"),
        std::string("a/"), std::string("."), std::string("a\nb"), std::string("a\x1b[31mb"), std::string("a\xc2\x9b b"),
        std::string("a\0b", 3), std::string("\xff\xfe"), deep, "d/" + std::string(256, 'x')}) {
    EXPECT_FALSE(one->open(name, false)) << name;
    one->write("passed over");
    one->close();
  }
  EXPECT_TRUE(add_file(*one, std::string(255, 'y'), "x"));
  const auto notes = one->consume_notes();
  EXPECT_EQ(notes.size(), 14U);
  for (const auto& note : notes) {
    EXPECT_NE(note.find("not kept: "), std::string::npos) << note;
    EXPECT_EQ(note.find('\x1b'), std::string::npos);
    EXPECT_EQ(note.find('\n'), std::string::npos);
  }
  EXPECT_EQ(finish(*one).size(), 1U);
}

// A job can write to the channel directly, so the names that its script host would reject are rejected here too.
TEST_F(ArtifactsTest, NamesOverALimitAreRejectedWithThatLimit) {
  auto one = run();
  std::string deepest;
  for (int i = 0; i < 32; ++i) deepest += "d/";
  EXPECT_TRUE(add_file(*one, deepest + "file", "x"));
  for (const std::string& name : {deepest + "d/file", std::string(513, 'x'), "d/" + std::string(256, 'x')})
    EXPECT_FALSE(add_file(*one, name, "x"));
  const auto notes = one->consume_notes();
  ASSERT_EQ(notes.size(), 3U);
  EXPECT_NE(notes[0].find("not kept: it is 33 folders deep, over 32"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("not kept: its name has 513 bytes, over 512"), std::string::npos) << notes[1];
  EXPECT_NE(notes[2].find("not kept: a part of its name has over 255 bytes"), std::string::npos) << notes[2];
  EXPECT_EQ(finish(*one).size(), 1U);
}

TEST_F(ArtifactsTest, ConflictingNamesAreRejected) {
  auto one = run();
  EXPECT_TRUE(add_file(*one, "a", "1"));
  EXPECT_FALSE(add_file(*one, "a", "2"));
  EXPECT_FALSE(add_file(*one, "a/b", "3"));
  EXPECT_TRUE(add_file(*one, "d/e", "4"));
  EXPECT_FALSE(add_file(*one, "d", "5"));
  const json kept = finish(*one);
  EXPECT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept["a"]["sha256"], sha256_hex("1"));
}

TEST_F(ArtifactsTest, JobCannotUseTheNameOrTheSpaceOfItsLog) {
  auto one = run("job:1:1", 100);
  one->set_reserved_name("job.log.gz");
  EXPECT_FALSE(add_file(*one, "job.log.gz", "forged"));
  EXPECT_FALSE(add_file(*one, "job.log.gz/x", "forged"));
  EXPECT_TRUE(add_file(*one, "job.log.gz2", std::string(90, 'a')));
  one->release_reserved_name();
  EXPECT_TRUE(add_file(*one, "job.log.gz", std::string(80, 'b')));
  const json kept = finish(*one);
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept["job.log.gz"]["sha256"], sha256_hex(std::string(80, 'b')));
  EXPECT_EQ(one->dropped().size(), 2U);
}

TEST_F(ArtifactsTest, LimitsApplyToTheJobAndTheRestIsKept) {
  auto one = run("job:1:1", 100);
  EXPECT_TRUE(add_file(*one, "first", std::string(60, 'a'), 7));
  add_file(*one, "too much", std::string(60, 'b'), 30);
  EXPECT_TRUE(add_file(*one, "last", std::string(10, 'c')));
  const auto notes = one->consume_notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("job.max_artifact_bytes"), std::string::npos) << notes[0];
  const json kept = finish(*one);
  EXPECT_TRUE(kept.contains("first") && kept.contains("last") && !kept.contains("too much"));
  EXPECT_EQ(one->dropped(), (std::vector<DroppedArtifact>{{"too much", DropReason::bytes, 100}}));
}

TEST_F(ArtifactsTest, DroppedFilesAreListedWithoutSecrets) {
  auto one = run();
  one->set_redactor(std::make_shared<const Redactor>(std::vector<Secret>{{"K", "correct horse battery"}}));
  one->report_dropped({"of correct horse battery", DropReason::link, 0});
  EXPECT_EQ(finish(*one).size(), 0U);
  EXPECT_EQ(one->dropped(), (std::vector<DroppedArtifact>{{"of [secret K]", DropReason::link, 0}}));
}

TEST_F(ArtifactsTest, StoreWithoutANameDropsWithAReason) {
  auto one = make_run_artifacts(folder_.path().string(), 1, "", "job:1:1", 1000);
  EXPECT_FALSE(add_file(*one, "a", "x"));
  EXPECT_EQ(one->dropped(), (std::vector<DroppedArtifact>{{"a", DropReason::disk, 0}}));
}

TEST(DroppedArtifacts, RecordNamesReasonLimitAndSetting) {
  const std::vector<DroppedArtifact> all{
      {"big", DropReason::bytes, 100}, {"ln", DropReason::link, 0}, {"x", DropReason::disk, 0}};
  const std::string text = dropped_artifacts_to_json(all, false);
  EXPECT_EQ(text, R"([{"limit":100,"name":"big","reason":"bytes","setting":"job.max_artifact_bytes"},)"
                  R"({"name":"ln","optional":true,"reason":"link"},)"
                  R"({"name":"x","reason":"disk","setting":"state_dir"}])");
  EXPECT_EQ(
      format_dropped_artifacts(text),
      (std::vector<std::string>{
          "big: not kept: over the limit of 100 bytes for all artifacts of a job (setting job.max_artifact_bytes)",
          "ln: not kept: a link, or a file with a second name",
          "x: not kept: the host cannot store it (setting state_dir)"}));
  EXPECT_TRUE(has_lost_artifacts(text));
  EXPECT_FALSE(has_lost_artifacts(dropped_artifacts_to_json(all, true))) << "policy artifacts.optional";
  EXPECT_FALSE(has_lost_artifacts(dropped_artifacts_to_json({{"ln", DropReason::link, 0}}, false)));
  EXPECT_EQ(dropped_artifacts_to_json({}, false), "");
  for (const char* foreign : {"", "{}", "[1]", "nonsense", "[[]]"}) {
    EXPECT_FALSE(has_lost_artifacts(foreign)) << foreign;
    EXPECT_TRUE(format_dropped_artifacts(foreign).empty()) << foreign;
  }
}

TEST(DroppedArtifacts, ListIsBoundedAndLinksDoNotFillIt) {
  DroppedArtifacts list;
  for (int i = 0; i < 500; ++i) list.add({"l", DropReason::link, 0});
  for (int i = 0; i < 500; ++i) list.add({"b", DropReason::bytes, 1});
  EXPECT_EQ(list.all().size(), 2 * DroppedArtifacts::kMaxPerKind);
}

TEST_F(ArtifactsTest, OnlyAThousandOfManyFilesAreKeptWithFewNotes) {
  auto one = run();
  for (int i = 0; i < 10000; ++i) add_file(*one, "f" + std::to_string(i), "x");
  EXPECT_EQ(finish(*one).size(), kMaxArtifacts);
  EXPECT_EQ(one->consume_notes().size(), 21U);
  EXPECT_EQ(count_files("objects"), 1U);
}

TEST_F(ArtifactsTest, IncompleteFilesAndLostRunsLeaveNothing) {
  auto one = run();
  ASSERT_TRUE(one->open("half", false));
  one->write("half");
  EXPECT_EQ(finish(*one).size(), 0U);
  EXPECT_EQ(one->consume_notes().size(), 1U);
  auto lost = run();
  add_file(*lost, "whole", "bytes");
  EXPECT_EQ(count_files("spool"), 2U);  // the file and its lock
  lost.reset();
  EXPECT_EQ(count_files(""), 0U);
}

TEST_F(ArtifactsTest, SecretsAreRemovedFromTextAndNames) {
  const auto redactor = std::make_shared<const Redactor>(std::vector<Secret>{{"K", "correct horse battery"}});
  const std::string text = std::string(50, 'x') + "correct horse battery" + std::string(50, 'y') + "\xc3\xa9";
  for (std::size_t piece_bytes = 1; piece_bytes < 30; ++piece_bytes) {
    auto one = run();
    one->set_redactor(redactor);
    ASSERT_TRUE(add_file(*one, "of correct horse battery", text, piece_bytes));
    const json kept = finish(*one);
    ASSERT_TRUE(kept.contains("of [secret K]")) << kept;
    EXPECT_EQ(read_file(get_object_path(kept["of [secret K]"]["sha256"])),
              std::string(50, 'x') + "[secret K]" + std::string(50, 'y') + "\xc3\xa9");
  }
  EXPECT_EQ(count_files("objects"), 1U);
}

// Data that starts as text may turn out to be binary; then no byte may change.
TEST_F(ArtifactsTest, BinaryFilesAreUnchanged) {
  const auto redactor = std::make_shared<const Redactor>(std::vector<Secret>{{"K", "correct horse battery"}});
  for (const std::string& end : {std::string(1, '\0'), std::string("\xc3"), std::string("\xff tail")}) {
    auto one = run();
    one->set_redactor(redactor);
    const std::string bytes = "correct horse battery, and more" + end;
    ASSERT_TRUE(add_file(*one, "b", bytes, 5));
    const json kept = finish(*one);
    EXPECT_EQ(kept["b"]["text"], false);
    EXPECT_EQ(read_file(get_object_path(kept["b"]["sha256"])), bytes);
  }
}

TEST(TextWatch, DetectsTextInPiecesOfAnySize) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x8d\x84 z";
  for (std::size_t piece_bytes = 1; piece_bytes <= text.size(); ++piece_bytes) {
    TextDetector watch;
    for (std::size_t from = 0; from < text.size(); from += piece_bytes)
      EXPECT_TRUE(watch.feed(text.substr(from, piece_bytes)));
    EXPECT_TRUE(watch.finish());
  }
  for (const char* wrong : {"\x80", "a\xc3(", "\xf8\x88\x80\x80\x80", "\xed\xa0\x80", "\xe2\x82"}) {
    TextDetector watch;
    for (const char c : std::string(wrong)) watch.feed(std::string(1, c));
    EXPECT_FALSE(watch.finish()) << wrong;
  }
}

TEST_F(ArtifactsTest, FullDiskIsReportedAndOtherFilesAreKept) {
  auto one = run();
  ASSERT_TRUE(add_file(*one, "before", "x"));
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  add_file(*one, "large", std::string(5000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, ignored);
  const auto notes = one->consume_notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("artifact \"large\": not kept: this host cannot write it: EFBIG"), std::string::npos)
      << notes[0];
  EXPECT_EQ(finish(*one).size(), 1U);
  EXPECT_EQ(one->dropped(), (std::vector<DroppedArtifact>{{"large", DropReason::disk, 0}}));
}

TEST_F(ArtifactsTest, UncreatableFolderIsReportedInTheLog) {
  const std::string file = folder_.write("file", "");
  auto one = make_run_artifacts(file, 1, store_name_, "job:1:1", 1000);
  EXPECT_FALSE(add_file(*one, "a", "x"));
  EXPECT_EQ(finish(*one).size(), 0U);
  EXPECT_NE(one->consume_notes().at(0).find("ENOTDIR"), std::string::npos);
}

TEST_F(ArtifactsTest, DamagedObjectIsCreatedAgain) {
  auto one = run();
  add_file(*one, "a", "bytes");
  finish(*one);
  fs::resize_file(get_object_path(sha256_hex("bytes")), 0);
  auto two = run("job:1:2");
  add_file(*two, "a", "bytes");
  finish(*two);
  EXPECT_EQ(read_file(get_object_path(sha256_hex("bytes"))), "bytes");
}

TEST_F(ArtifactsTest, SweepKeepsReferencedFilesAndRemovesOthers) {
  auto one = run("job:1:1");
  add_file(*one, "a", "of one");
  add_file(*one, "both", "of both");
  save_job("job:1:1", "finished", one->finish());
  auto two = run("job:1:2");
  add_file(*two, "both", "of both");
  save_job("job:1:2", "finished", two->finish());
  sweep_all();
  EXPECT_EQ(count_files("objects"), 2U);
  EXPECT_EQ(count_files("jobs"), 3U);
  ASSERT_TRUE(store_->save(1, "job:1:1", {{"artifacts", ""}}));  // a later attempt stored no artifacts
  sweep_all();
  EXPECT_EQ(count_files("objects"), 1U);
  EXPECT_EQ(read_file(get_object_path(sha256_hex("of both"))), "of both");
}

TEST_F(ArtifactsTest, SweepRemovesTheFolderOfADeletedRecord) {
  auto one = run("job:9:9");
  add_file(*one, "a", "bytes");
  finish(*one);
  sweep_all();
  EXPECT_EQ(count_files("objects") + count_files("jobs"), 0U);
  EXPECT_FALSE(fs::exists(folder_ / ("contexts/1/jobs/" + store_name_ + "/9.9")));
}

TEST_F(ArtifactsTest, SweepKeepsJobsThatMayEndDifferently) {
  for (const char* status : {"dispatched", "started", "waiting_for_prerequisites", "a word of somebody else"}) {
    auto one = run();
    add_file(*one, "a", "bytes");
    finish(*one);
    save_job("job:1:1", status, "");
    sweep_all();
    EXPECT_EQ(count_files("objects"), 1U) << status;
  }
}

// Two agents with different stores share a folder; equal job keys of different stores are different jobs.
TEST_F(ArtifactsTest, SweepKeepsFilesOfAnotherStore) {
  auto other = make_run_artifacts(folder_.path().string(), 1, std::string(24, 'a'), "job:9:9", 1000);
  add_file(*other, "a", "bytes");
  finish(*other);
  sweep_all();
  EXPECT_EQ(count_files("jobs"), 1U);
  EXPECT_EQ(count_files("objects"), 1U);
}

TEST_F(ArtifactsTest, SweepRemovesOnlySpoolsOfDeadProcesses) {
  auto alive = run();
  add_file(*alive, "a", "bytes");
  folder_.write("contexts/1/spool/dead.lock", "");
  fs::create_directory(folder_ / "contexts/1/spool/dead");
  folder_.write("contexts/1/spool/dead/0", "half");
  sweep_all();
  EXPECT_EQ(count_files("spool"), 2U);
  EXPECT_FALSE(fs::exists(folder_ / "contexts/1/spool/dead"));
  EXPECT_EQ(finish(*alive).size(), 1U);
}

TEST_F(ArtifactsTest, LostObjectIsRestoredFromAnotherJob) {
  auto one = run();
  add_file(*one, "a", "bytes");
  save_job("job:1:1", "finished", one->finish());
  fs::remove(get_object_path(sha256_hex("bytes")));
  sweep_all();
  EXPECT_EQ(read_file(get_object_path(sha256_hex("bytes"))), "bytes");
}

TEST_F(ArtifactsTest, NothingIsRemovedWhileTheLockIsHeld) {
  auto one = run("job:9:9");
  add_file(*one, "a", "bytes");
  finish(*one);
  const auto lock = ArtifactFolder(folder_.path().string(), 1).lock(false, 0);
  ASSERT_TRUE(lock);
  sweep_all();
  EXPECT_EQ(count_files("jobs"), 1U);
}

TEST_F(ArtifactsTest, StoreKeepsItsName) {
  EXPECT_EQ(*artifact_store_name(*store_, 1), store_name_);
  EXPECT_NE(*artifact_store_name(*store_, 2), store_name_);
}

// Agents store and sweep the same content concurrently.
TEST_F(ArtifactsTest, ReferencedFilesSurviveConcurrentSweeps) {
  constexpr int kJobs = 150;
  std::atomic<bool> next_step_ms = false;
  std::atomic<int> missing = 0;
  const auto work = [&](int which) {
    auto store = *server_.open();
    for (int i = 0; i < kJobs; ++i) {
      // Each key is used repeatedly.
      const std::string key = job_key(static_cast<Id>(which), static_cast<Id>(i % 10 + 1));
      (void)store->save(1, key, {{"id", "1"}, {"status", "started"}});
      auto one = run(key);
      const std::string bytes = std::to_string(i % 3);
      add_file(*one, "a", bytes);
      (void)store->save(1, key, {{"artifacts", one->finish()}, {"status", i % 2 == 0 ? "finished" : "error"}});
      missing += fs::exists(get_object_path(sha256_hex(bytes))) ? 0 : 1;
    }
  };
  const auto sweep = [&] {
    auto store = *server_.open();
    ManualClock clock;
    ArtifactCleanup one(clock, folder_.path().string(), 1);
    while (!next_step_ms) {
      (void)one.run_step(*store, 1);
      clock.boot += 100;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lets the other threads acquire the lock
    }
  };
  std::vector<std::thread> sweepers;
  for (int i = 0; i < 2; ++i) sweepers.emplace_back(sweep);
  std::vector<std::thread> workers;
  for (int i = 1; i <= 3; ++i) workers.emplace_back(work, i);
  for (auto& each : workers) each.join();
  next_step_ms = true;
  for (auto& each : sweepers) each.join();
  EXPECT_EQ(missing, 0);
  sweep_all();
  EXPECT_EQ(count_files("objects"), 3U);
  EXPECT_EQ(count_files("jobs"), 30U);
  EXPECT_EQ(count_files("spool"), 0U);
}

}  // namespace
}  // namespace mycojobs::test
