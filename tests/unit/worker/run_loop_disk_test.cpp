// A disk that hangs while a job writes to it delays neither output, cancellation and end of other jobs, nor the
// cancellation of the job itself. The tests check the order of events and do not assert times.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mailbox.h"
#include "support/fake_disk.h"
#include "support/fake_sandbox.h"
#include "support/process.h"
#include "worker/runs/run_loop.h"

namespace mycojobs::test {
namespace {

class RunLoopDisk : public ::testing::Test {
 protected:
  ~RunLoopDisk() override {
    gate_.open();
    loop_.stop();
  }
  static WorkerSettings make_settings(std::uint32_t slots) {
    WorkerSettings settings;
    settings.slots = slots;
    return settings;
  }
  void start(RunNumber run) {
    JobStart increment;
    increment.run = run;
    increment.claim = {1, "job:1:" + std::to_string(run), "claim", "token", "python", "", 1, 0};
    increment.context = 1;
    increment.specs.emplace_back().context = 1;
    increment.uses_object_store = true;  // the channel is polled without delay
    increment.artifacts = std::make_shared<ArtifactQueue>(std::make_unique<FakeDisk>(disk_));
    increment.conversation = std::make_unique<ArtifactConversation>(*increment.artifacts);
    loop_.start(std::move(increment));
    ASSERT_TRUE(eventually([&] { return control_.is_running(run); }));
  }
  void collect() {
    for (RunReport& each : posted_.consume_all()) {
      if (const auto* logs = std::get_if<LogAppend>(&each.report)) {
        for (const Log& line : logs->lines) lines_[each.run] += line.text;
      } else if (const auto* end = std::get_if<EndReport>(&each.report)) {
        ends_[each.run] = end->end;
      } else {
        released_.push_back(each.run);
      }
    }
  }
  bool has_ended(RunNumber run) {
    collect();
    return ends_.contains(run);
  }
  bool wait_for_line(RunNumber run, const std::string& line) {
    return eventually([&] {
      collect();
      return lines_[run].ends_with(line);
    });
  }
  // Runs two other jobs: the first writes output and ends, the second is cancelled.
  void expect_others_continue(RunNumber first) {
    start(first);
    control_.write(first, LogStream::out, "hello\n");
    EXPECT_TRUE(wait_for_line(first, "hello\n"));
    control_.end(first, RunStatus::ok);
    EXPECT_TRUE(eventually([&] { return has_ended(first); }));
    start(first + 1);
    loop_.kill(first + 1, KillReason::cancelled);
    EXPECT_TRUE(eventually([&] { return has_ended(first + 1); }));
    EXPECT_EQ(ends_[first + 1].detail, "cancelled");
  }
  // Writes as much as the channel accepts now.
  std::size_t send_artifact_bytes(RunNumber run, std::size_t bytes) {
    const std::string text(bytes, 'x');
    const std::lock_guard lock(control_.mutex);
    const ssize_t sent_bytes = ::send(control_.ends.at(run)[2].get(), text.data(), text.size(), MSG_NOSIGNAL);
    return sent_bytes < 0 ? 0 : static_cast<std::size_t>(sent_bytes);
  }

  BlockingGate gate_;
  DiskControl disk_{&gate_};
  SystemClock clock_;
  SandboxControl control_;
  WorkerSettings settings_ = make_settings(4);
  RunRate run_rate_;
  Mailbox<RunReport> posted_;
  std::map<RunNumber, std::string> lines_;
  std::map<RunNumber, JobEnd> ends_;
  std::vector<RunNumber> released_;
  RunLoop loop_{std::make_unique<FakeSandbox>(control_), clock_, settings_, run_rate_,
                RunLoop::Callbacks{[this](RunReport report) { posted_.post(std::move(report)); }}};
};

TEST_F(RunLoopDisk, EndFollowsItsBytesWithoutDelayingOthers) {
  start(1);
  send_artifact_bytes(1, 5);
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  expect_others_continue(2);
  send_artifact_bytes(1, 6);
  control_.end(1, RunStatus::ok);
  ASSERT_TRUE(eventually([&] { return loop_.ending_count() == 1; })) << "the slot of the run is free";
  expect_others_continue(4);
  EXPECT_EQ(gate_.waiting_count(), 1U);
  EXPECT_EQ(disk_.calls(), "");
  EXPECT_FALSE(has_ended(1));
  gate_.open();
  ASSERT_TRUE(eventually([&] { return has_ended(1); }));
  EXPECT_EQ(disk_.calls(), "open file write xxxxx write xxxxxx finish");
  EXPECT_EQ(ends_[1].artifacts, "{}");
  EXPECT_EQ(lines_[1], "finished\n");
}

TEST_F(RunLoopDisk, JobOnAHangingDiskIsCancelled) {
  start(1);
  send_artifact_bytes(1, 5);
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  loop_.kill(1, KillReason::cancelled);
  ASSERT_TRUE(eventually([&] { return loop_.ending_count() == 1; }));
  EXPECT_FALSE(control_.is_running(1));
  EXPECT_EQ(gate_.waiting_count(), 1U);
  EXPECT_FALSE(has_ended(1)) << "the artifacts are not stored yet";
  gate_.open();
  ASSERT_TRUE(eventually([&] { return has_ended(1); }));
  EXPECT_EQ(ends_[1].detail, "cancelled");
}

TEST_F(RunLoopDisk, JobOnAHangingDiskIsNotReadUntilItResumes) {
  constexpr std::size_t kPiece = 16384, kAll = 4U << 20;
  start(1);
  start(2);
  std::size_t sent = 0;
  int rounds = 0;
  for (bool full = false; !full && sent < kAll;) {
    const std::size_t sent_bytes = send_artifact_bytes(1, kPiece);
    sent += sent_bytes;
    if (sent_bytes > 0) continue;
    // Waits for an iteration of the loop: channel data that the loop accepts is read before this line, or together with
    // it.
    const std::string line = std::to_string(++rounds) + "\n";
    control_.write(2, LogStream::out, line);
    ASSERT_TRUE(wait_for_line(2, line));
    const std::size_t more = send_artifact_bytes(1, kPiece);
    sent += more;
    full = more == 0;
  }
  EXPECT_LT(sent, kAll) << "the channel is not paused";
  gate_.open();
  ASSERT_TRUE(eventually([&] {
    while (sent < kAll) {
      const std::size_t sent_bytes = send_artifact_bytes(1, std::min(kPiece, kAll - sent));
      sent += sent_bytes;
      if (sent_bytes == 0) return false;
    }
    return true;
  }));
  control_.end(1, RunStatus::ok);
  ASSERT_TRUE(eventually([&] { return has_ended(1); }));
  EXPECT_EQ(disk_.bytes(), kAll);
}

TEST_F(RunLoopDisk, FilesOfALostRunAreRemovedWithoutDelay) {
  start(1);
  send_artifact_bytes(1, 5);
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  control_.end(1, RunStatus::lost);
  ASSERT_TRUE(eventually([&] {
    collect();
    return released_ == std::vector<RunNumber>{1};
  }));
  expect_others_continue(2);
  EXPECT_EQ(disk_.calls(), "");
  gate_.open();
  ASSERT_TRUE(eventually([&] { return disk_.calls().ends_with("gone"); }));
  EXPECT_EQ(disk_.calls(), "open file write xxxxx gone");
}

}  // namespace
}  // namespace mycojobs::test
