// Pipes that the job can make the agent wait for: the kernel holds the lock of a pipe during a page fault of a write.
// The test lets such a fault wait by userfaultfd(2), as a hung disk would. Other runs continue, and nothing is lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mailbox.h"
#include "support/fake_sandbox.h"
#include "support/process.h"
#include "worker/runs/run_loop.h"

namespace mycojobs::test {
namespace {

constexpr std::size_t kPage = 4096;

// A page whose first access waits for fill().
class HangingPage {
 public:
  HangingPage() : faults_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK))) {
    uffdio_api api{};
    api.api = UFFD_API;
    page_ = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_register range{};
    range.range = {reinterpret_cast<std::uintptr_t>(page_), kPage};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    works_ = faults_ && ::ioctl(faults_.get(), UFFDIO_API, &api) == 0 &&
             ::ioctl(faults_.get(), UFFDIO_REGISTER, &range) == 0;
  }
  HangingPage(const HangingPage&) = delete;
  HangingPage& operator=(const HangingPage&) = delete;
  ~HangingPage() { ::munmap(page_, kPage); }

  bool works() const { return works_; }
  void* get() const { return page_; }
  bool wait_for_access() const {
    pollfd ready{faults_.get(), POLLIN, 0};
    return ::poll(&ready, 1, 10'000) == 1;
  }
  void fill() const {
    uffdio_zeropage zero{};
    zero.range = {reinterpret_cast<std::uintptr_t>(page_), kPage};
    EXPECT_EQ(::ioctl(faults_.get(), UFFDIO_ZEROPAGE, &zero), 0);
  }

 private:
  Fd faults_;
  void* page_ = nullptr;
  bool works_ = false;
};

Grants make_grants(std::vector<std::string> Grants::*list, const std::string& item) {
  Grants grants;
  (grants.*list).push_back(item);
  return grants;
}

struct SilentConversation final : Conversation {
  std::string consume_output() override { return {}; }
  void feed(std::string_view) override {}
  std::vector<std::string> consume_notes() override { return {}; }
  JobEnd finish(const Outcome&) const override { return {}; }
};

class RunLoopPipes : public ::testing::Test {
 protected:
  static constexpr RunNumber kHolder = 1;

  void SetUp() override {
    if (!page_.works()) GTEST_SKIP() << "this user cannot create a userfaultfd";
    control_.uses_pipes = true;
    // Before the agent has its ends: a page of text is in the pipe, and the next one waits with the lock of the pipe.
    control_.on_launch = [this](std::uint64_t run, std::vector<Fd>& ends) {
      if (run != kHolder) return;
      writer_ = std::thread([this, out = Fd(::fcntl(ends[0].get(), F_DUPFD_CLOEXEC, 0))] {
        std::string text = std::string(kPage - 1, 'x') + "\n";
        const iovec parts[] = {{text.data(), text.size()}, {page_.get(), kPage}};
        written_ = ::writev(out.get(), parts, 2);
      });
      EXPECT_TRUE(page_.wait_for_access());
    };
  }
  void TearDown() override { release(); }
  void release() {
    if (!writer_.joinable()) return;
    page_.fill();
    writer_.join();
  }
  void start(RunNumber run, const Grants& grants = {}, Id context = 1) {
    JobStart increment;
    increment.run = run;
    increment.claim = {context, "job:1:" + std::to_string(run), "claim", "token", "python", "", 1, 0};
    increment.context = context;
    increment.specs.emplace_back().context = context;
    increment.specs.back().grants = grants;
    increment.conversation = std::make_unique<SilentConversation>();
    loop_.start(std::move(increment));
    ASSERT_TRUE(eventually([&] { return control_.is_running(run); }));
  }
  void collect() {
    for (RunReport& each : posted_.consume_all()) {
      if (const auto* logs = std::get_if<LogAppend>(&each.report)) {
        for (const Log& line : logs->lines) text_[each.run] += line.text;
      } else {  // EndReport or Release
        ended_[each.run] = true;
      }
    }
  }
  bool wait_for_end(RunNumber run) {
    return eventually([&] {
      collect();
      return ended_[run];
    });
  }
  bool wait_for_text(RunNumber run, const std::string& text) {
    return eventually([&] {
      collect();
      return text_[run].find(text) != std::string::npos;
    });
  }
  // A run that writes and ends, and one that is cancelled. The output of a run is read some time after its start, so
  // the first one has been read when its text is there.
  void expect_others_continue(RunNumber first) {
    start(first);
    control_.write(first, LogStream::out, "hello\n");
    ASSERT_TRUE(wait_for_text(first, "hello\n"));
    control_.end(first, RunStatus::ok);
    ASSERT_TRUE(wait_for_end(first));
    start(first + 1);
    loop_.kill(first + 1, KillReason::cancelled);
    ASSERT_TRUE(wait_for_end(first + 1));
  }
  static WorkerSettings settings() {
    WorkerSettings settings;
    settings.slots = 4;
    settings.folder_contexts = {7};
    return settings;
  }

  HangingPage page_;
  std::thread writer_;
  std::atomic<ssize_t> written_ = -1;
  SystemClock clock_;
  SandboxControl control_;
  WorkerSettings settings_ = settings();
  RunRate run_rate_;
  Mailbox<RunReport> posted_;
  std::map<RunNumber, std::string> text_;
  std::map<RunNumber, bool> ended_;
  RunLoop loop_{std::make_unique<FakeSandbox>(control_), clock_, settings_, run_rate_,
                RunLoop::Callbacks{[this](RunReport report) { posted_.post(std::move(report)); }}};
};

TEST_F(RunLoopPipes, JobThatBlocksItsPipeDelaysNoOther) {
  start(kHolder, make_grants(&Grants::fs_read, "/srv/data"));
  expect_others_continue(2);
  collect();
  EXPECT_EQ(text_[kHolder], "");
  release();
  EXPECT_TRUE(wait_for_text(kHolder, std::string(kPage - 1, 'x') + "\n"));
  control_.end(kHolder, RunStatus::ok);
  EXPECT_TRUE(wait_for_end(kHolder));
  EXPECT_EQ(written_, static_cast<ssize_t>(2 * kPage));
}

TEST_F(RunLoopPipes, EndIsReportedAfterTheBlockedRead) {
  start(kHolder, make_grants(&Grants::fs_write, "/srv/data"));
  expect_others_continue(2);
  control_.end(kHolder, RunStatus::ok);
  expect_others_continue(4);
  EXPECT_FALSE(ended_[kHolder]);
  release();
  ASSERT_TRUE(wait_for_end(kHolder));
  EXPECT_EQ(text_[kHolder].find(std::string(kPage - 1, 'x') + "\n"), 0U) << "the output is complete";
}

// The launcher and its guardian were killed, so `lost` does not prove that the blocked writer has ended.
TEST_F(RunLoopPipes, LostRunDoesNotWaitForTheBlockedRead) {
  start(kHolder, make_grants(&Grants::fs_write, "/srv/data"));
  expect_others_continue(2);
  control_.end(kHolder, RunStatus::lost);
  ASSERT_TRUE(wait_for_end(kHolder));
  expect_others_continue(4);
  start(6, make_grants(&Grants::fs_write, "/srv/data"));
  control_.write(6, LogStream::out, "not read by the blocked lane\n");
  EXPECT_TRUE(wait_for_text(6, "not read by the blocked lane\n"));
  EXPECT_EQ(text_[kHolder], "");
}

TEST_F(RunLoopPipes, HangingVirtualEnvironmentDelaysNoOther) {
  start(kHolder, {}, 7);
  expect_others_continue(2);
  release();
  EXPECT_TRUE(wait_for_text(kHolder, "x\n"));
}

TEST_F(RunLoopPipes, HangingFaultOfAnAddedCallDelaysNoOther) {
  start(kHolder, make_grants(&Grants::syscalls, "fallocate"));
  expect_others_continue(2);
}

// Otherwise a stopping agent would wait for a job that never ends.
TEST_F(RunLoopPipes, SandboxEndsBeforeTheReadsAreAwaited) {
  bool ended = false;
  control_.on_ended = [&] {
    ended = true;
    release();
  };
  start(kHolder, make_grants(&Grants::fs_read, "/srv/data"));
  expect_others_continue(2);
  loop_.stop();
  EXPECT_TRUE(ended);
  control_.on_ended = [] {};
}

// A pipe in packet mode returns one packet for each read, however large the buffer is.
TEST_F(RunLoopPipes, PacketsAreReadCompletelyAtTheEnd) {
  control_.on_launch = [this](std::uint64_t run, std::vector<Fd>& ends) {
    EXPECT_EQ(::fcntl(ends[0].get(), F_SETFL, O_DIRECT | O_NONBLOCK), 0);
    for (int i = 0; i < 10; ++i) {
      const std::string line = std::to_string(i) + "\n";
      EXPECT_EQ(::write(ends[0].get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
    }
    control_.ended.push_back({run, {}});
    control_.ended.back().outcome.status = RunStatus::ok;
    const std::uint64_t increment = 1;
    EXPECT_EQ(::write(control_.event.get(), &increment, sizeof increment), 8);
  };
  start(2);
  ASSERT_TRUE(wait_for_end(2));
  EXPECT_EQ(text_[2], "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
}

}  // namespace
}  // namespace mycojobs::test
