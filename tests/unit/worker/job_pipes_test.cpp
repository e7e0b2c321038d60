// The descriptors of a run: a full channel, pipes that end, and the delay before output is polled.
#include "worker/runs/job_pipes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <vector>

namespace mycojobs::test {
namespace {

constexpr RunNumber kRun = 5;

class JobPipesTest : public ::testing::Test {
 protected:
  void SetUp() override { begin(true); }
  void begin(bool makes_calls) {
    RunPipes agent_ends;
    for (int i = 0; i < 4; ++i) {
      std::array<int, 2> pair{};
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()), 0);
      *std::array{&agent_ends.out, &agent_ends.err, &agent_ends.channel,
                  &agent_ends.requests}[static_cast<std::size_t>(i)] = pair[0];
      job_ends_[static_cast<std::size_t>(i)].reset(pair[1]);
    }
    pipes_.emplace(epoll_.get(), kRun, agent_ends, -1, makes_calls, 1000);
  }
  Fd& job_end(JobPipe pipe) { return job_ends_[static_cast<std::size_t>(pipe)]; }
  void write(JobPipe pipe, std::string_view text) {
    ASSERT_EQ(::write(job_end(pipe).get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string_view read(JobPipe pipe) { return pipes_->read(pipe, buffer_); }
  // Returns the pipes that are ready now, with their events.
  std::vector<std::pair<JobPipe, std::uint32_t>> wait_for_events() {
    std::array<epoll_event, 8> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    std::vector<std::pair<JobPipe, std::uint32_t>> found;
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const PipeTag tag = PipeTag::from_bits(event.data.u64);
      EXPECT_EQ(tag.run, kRun);
      found.emplace_back(tag.pipe, event.events);
    }
    return found;
  }
  void send() {
    pipes_->send([this] {
      if (to_say_.empty()) return std::string();
      std::string next = std::move(to_say_.front());
      to_say_.pop_front();
      return next;
    });
  }
  std::size_t drain_requests() {
    std::size_t total = 0;
    std::vector<char> buffer(1U << 16);
    for (ssize_t size = 1; size > 0; total += static_cast<std::size_t>(std::max<ssize_t>(0, size)))
      size = ::read(job_end(JobPipe::requests).get(), buffer.data(), buffer.size());
    return total;
  }

  Fd epoll_{::epoll_create1(EPOLL_CLOEXEC)};
  std::array<Fd, 4> job_ends_;
  std::optional<JobPipes> pipes_;
  std::array<char, 8> buffer_{};
  std::deque<std::string> to_say_;
};

TEST(PipeTag, SeparatesRunAndPipe) {
  for (JobPipe pipe : {JobPipe::out, JobPipe::err, JobPipe::channel, JobPipe::requests}) {
    for (RunNumber run : {RunNumber{1}, RunNumber{1} << 55}) {
      const PipeTag back = PipeTag::from_bits(PipeTag{run, pipe}.to_bits());
      EXPECT_EQ(back.run, run);
      EXPECT_EQ(back.pipe, pipe);
      EXPECT_GE((PipeTag{run, pipe}.to_bits()), 4U);
    }
  }
}

TEST_F(JobPipesTest, ReadsUpToTheBufferSize) {
  write(JobPipe::out, "0123456789");
  EXPECT_EQ(read(JobPipe::out), "01234567");
  EXPECT_EQ(read(JobPipe::out), "89");
  EXPECT_EQ(read(JobPipe::out), "") << "the pipe is open and empty";
  write(JobPipe::out, "more");
  EXPECT_EQ(read(JobPipe::out), "more");
}

TEST_F(JobPipesTest, EndedPipeYieldsItsRestAndNoMoreEvents) {
  write(JobPipe::channel, "last");
  job_end(JobPipe::channel).reset();
  ASSERT_EQ(wait_for_events().size(), 1U);
  EXPECT_EQ(read(JobPipe::channel), "last");
  EXPECT_EQ(read(JobPipe::channel), "");
  EXPECT_TRUE(wait_for_events().empty()) << "a closed pipe is not in the epoll set";
}

TEST_F(JobPipesTest, OutputIsPolledLaterThanTheChannel) {
  write(JobPipe::out, "x");
  write(JobPipe::err, "x");
  EXPECT_TRUE(wait_for_events().empty());
  EXPECT_FALSE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs - 1));
  EXPECT_TRUE(wait_for_events().empty());
  EXPECT_TRUE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs));
  EXPECT_EQ(wait_for_events().size(), 2U);
  EXPECT_TRUE(pipes_->watch_output(0)) << "output is watched from this time";
  write(JobPipe::channel, "x");
  EXPECT_EQ(wait_for_events().size(), 3U);
}

TEST_F(JobPipesTest, ChannelWithAPendingReplyIsPolledWithItsOutput) {
  begin(false);
  write(JobPipe::channel, "x");
  EXPECT_TRUE(wait_for_events().empty());
  EXPECT_EQ(read(JobPipe::channel), "x") << "the remaining data is read at the end";
  write(JobPipe::channel, "y");
  EXPECT_TRUE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs));
  EXPECT_EQ(wait_for_events().size(), 1U);
}

TEST_F(JobPipesTest, FullSocketWithAPendingReplyIsPolled) {
  begin(false);
  to_say_ = {std::string(4U << 20, 'x')};
  send();
  ASSERT_TRUE(pipes_->is_sending());
  EXPECT_TRUE(wait_for_events().empty());
  std::array<char, 65536> some{};
  while (::read(job_end(JobPipe::requests).get(), some.data(), some.size()) > 0) {
  }
  EXPECT_EQ(wait_for_events().size(), 1U);
}

TEST_F(JobPipesTest, FullSocketIsPolledWithoutNewRequests) {
  const std::string large(4U << 20, 'x');
  to_say_ = {large, "behind it"};
  send();
  ASSERT_TRUE(pipes_->is_sending());
  EXPECT_EQ(to_say_.size(), 1U) << "the second request is taken only after the first was sent";
  EXPECT_TRUE(wait_for_events().empty());
  std::size_t size = 0;
  while (pipes_->is_sending()) {
    size += drain_requests();
    const auto events = wait_for_events();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].second, static_cast<std::uint32_t>(EPOLLOUT));
    send();
  }
  size += drain_requests();
  EXPECT_EQ(size, large.size() + 9);
  EXPECT_TRUE(to_say_.empty());
  EXPECT_TRUE(wait_for_events().empty()) << "a writable socket without data causes no wake-up";
}

TEST_F(JobPipesTest, JobThatDoesNotReadDelaysNoOther) {
  job_end(JobPipe::requests).reset();
  to_say_ = {"one", "two"};
  send();
  EXPECT_FALSE(pipes_->is_sending());
  EXPECT_TRUE(to_say_.empty());
}

TEST_F(JobPipesTest, PausedChannelIsNotPolledAndLosesNothing) {
  write(JobPipe::channel, "x");
  ASSERT_EQ(wait_for_events().size(), 1U);
  pipes_->set_channel_held(true);
  EXPECT_TRUE(pipes_->is_paused(JobPipe::channel));
  EXPECT_FALSE(pipes_->is_paused(JobPipe::out));
  EXPECT_TRUE(wait_for_events().empty());
  EXPECT_TRUE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs));
  EXPECT_TRUE(wait_for_events().empty()) << "the channel stays paused";
  write(JobPipe::out, "x");
  EXPECT_EQ(wait_for_events().size(), 1U) << "the output is not paused";
  pipes_->set_channel_held(false);
  EXPECT_EQ(wait_for_events().size(), 2U);
  EXPECT_EQ(read(JobPipe::channel), "x");
}

TEST_F(JobPipesTest, EndOfAPausedChannelCausesNoWakeUp) {
  write(JobPipe::channel, "x");
  pipes_->set_channel_held(true);
  job_end(JobPipe::channel).reset();
  EXPECT_TRUE(wait_for_events().empty());
  pipes_->set_channel_held(false);
  EXPECT_EQ(wait_for_events().size(), 1U);
  EXPECT_EQ(read(JobPipe::channel), "x");
}

TEST_F(JobPipesTest, PausedChannelStillSends) {
  to_say_ = {std::string(4U << 20, 'x')};
  send();
  ASSERT_TRUE(pipes_->is_sending());
  pipes_->set_channel_held(true);
  write(JobPipe::channel, "x");
  while (pipes_->is_sending()) {
    drain_requests();
    ASSERT_EQ(wait_for_events().size(), 1U);
    send();
  }
  EXPECT_TRUE(wait_for_events().empty());
}

TEST_F(JobPipesTest, PipeReadByAnotherThreadIsNotPolled) {
  EXPECT_TRUE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs));
  write(JobPipe::out, "0123");
  const auto descriptor = pipes_->begin_background_read(JobPipe::out);
  ASSERT_TRUE(descriptor);
  EXPECT_TRUE(pipes_->has_background_reads());
  EXPECT_FALSE(pipes_->begin_background_read(JobPipe::out)) << "one read at a time";
  EXPECT_TRUE(wait_for_events().empty());
  pipes_->pause(JobPipe::out, 2000);
  EXPECT_EQ(pipes_->resume(2000), UINT64_MAX);
  EXPECT_TRUE(wait_for_events().empty()) << "the pipe is not watched while a background read is in progress";
  EXPECT_EQ(read_available(*descriptor, 16384), "0123");
  write(JobPipe::out, "4");
  pipes_->end_background_read(JobPipe::out);
  EXPECT_FALSE(pipes_->has_background_reads());
  EXPECT_EQ(wait_for_events().size(), 1U);
  EXPECT_EQ(read(JobPipe::out), "4");
}

TEST_F(JobPipesTest, PipeThatEndsInABackgroundReadIsClosed) {
  write(JobPipe::channel, "last");
  job_end(JobPipe::channel).reset();
  const auto descriptor = pipes_->begin_background_read(JobPipe::channel);
  ASSERT_TRUE(descriptor);
  EXPECT_EQ(read_available(*descriptor, 16384), "last");
  EXPECT_FALSE(*descriptor);
  pipes_->end_background_read(JobPipe::channel);
  EXPECT_TRUE(wait_for_events().empty());
  EXPECT_FALSE(pipes_->begin_background_read(JobPipe::channel));
  EXPECT_EQ(read(JobPipe::channel), "");
}

TEST_F(JobPipesTest, AttachmentIsSentOnceWithTheFirstByte) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()), 0);
  const Fd other(pair[1]);
  const Fd attached(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  JobPipes pipes(epoll_.get(), kRun + 1, {-1, -1, -1, pair[0]}, attached.get(), true, 0);
  std::deque<std::string> to_say{"a", "b", ""};
  pipes.send([&] {
    std::string next = to_say.front();
    to_say.pop_front();
    return next;
  });
  int descriptors = 0;
  std::string text;
  for (int i = 0; i < 2; ++i) {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ASSERT_EQ(::recvmsg(other.get(), &message, MSG_CMSG_CLOEXEC), 1);
    text += byte;
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header), sizeof received);
      ::close(received);
      ++descriptors;
    }
  }
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(descriptors, 1);
}

}  // namespace
}  // namespace mycojobs::test
