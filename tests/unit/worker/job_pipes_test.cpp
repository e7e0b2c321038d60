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
    RunPipes ours;
    for (int i = 0; i < 4; ++i) {
      std::array<int, 2> pair{};
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()), 0);
      *std::array{&ours.out, &ours.err, &ours.channel, &ours.requests}[static_cast<std::size_t>(i)] = pair[0];
      theirs_[static_cast<std::size_t>(i)].reset(pair[1]);
    }
    pipes_.emplace(epoll_.get(), kRun, ours, -1, makes_calls, 1000);
  }
  Fd& job(JobPipe pipe) { return theirs_[static_cast<std::size_t>(pipe)]; }
  void write(JobPipe pipe, std::string_view text) {
    ASSERT_EQ(::write(job(pipe).get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string_view read(JobPipe pipe) { return pipes_->read(pipe, buffer_); }
  // Returns the pipes that are ready now, with their events.
  std::vector<std::pair<JobPipe, std::uint32_t>> ready() {
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
    for (ssize_t got = 1; got > 0; total += static_cast<std::size_t>(std::max<ssize_t>(0, got)))
      got = ::read(job(JobPipe::requests).get(), buffer.data(), buffer.size());
    return total;
  }

  Fd epoll_{::epoll_create1(EPOLL_CLOEXEC)};
  std::array<Fd, 4> theirs_;
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
  EXPECT_EQ(read(JobPipe::out), "") << "open and empty";
  write(JobPipe::out, "more");
  EXPECT_EQ(read(JobPipe::out), "more");
}

TEST_F(JobPipesTest, EndedPipeYieldsItsRestAndNoMoreEvents) {
  write(JobPipe::channel, "last");
  job(JobPipe::channel).reset();
  ASSERT_EQ(ready().size(), 1U);
  EXPECT_EQ(read(JobPipe::channel), "last");
  EXPECT_EQ(read(JobPipe::channel), "");
  EXPECT_TRUE(ready().empty()) << "closed, it is in the epoll set no more";
}

TEST_F(JobPipesTest, OutputIsPolledLaterThanTheChannel) {
  write(JobPipe::out, "x");
  write(JobPipe::err, "x");
  EXPECT_TRUE(ready().empty());
  EXPECT_FALSE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs - 1));
  EXPECT_TRUE(ready().empty());
  EXPECT_TRUE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs));
  EXPECT_EQ(ready().size(), 2U);
  EXPECT_TRUE(pipes_->watch_output(0)) << "from now on";
  write(JobPipe::channel, "x");
  EXPECT_EQ(ready().size(), 3U);
}

TEST_F(JobPipesTest, ChannelWithAPendingReplyIsPolledWithItsOutput) {
  begin(false);
  write(JobPipe::channel, "x");
  EXPECT_TRUE(ready().empty());
  EXPECT_EQ(read(JobPipe::channel), "x") << "what is there at its end";
  write(JobPipe::channel, "y");
  EXPECT_TRUE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs));
  EXPECT_EQ(ready().size(), 1U);
}

TEST_F(JobPipesTest, FullSocketWithAPendingReplyIsPolled) {
  begin(false);
  to_say_ = {std::string(4U << 20, 'x')};
  send();
  ASSERT_TRUE(pipes_->is_sending());
  EXPECT_TRUE(ready().empty());
  std::array<char, 65536> some{};
  while (::read(job(JobPipe::requests).get(), some.data(), some.size()) > 0) {
  }
  EXPECT_EQ(ready().size(), 1U);
}

TEST_F(JobPipesTest, FullSocketIsPolledWithoutNewRequests) {
  const std::string large(4U << 20, 'x');
  to_say_ = {large, "behind it"};
  send();
  ASSERT_TRUE(pipes_->is_sending());
  EXPECT_EQ(to_say_.size(), 1U) << "the second is asked for when the first has gone";
  EXPECT_TRUE(ready().empty());
  std::size_t got = 0;
  while (pipes_->is_sending()) {
    got += drain_requests();
    const auto events = ready();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].second, static_cast<std::uint32_t>(EPOLLOUT));
    send();
  }
  got += drain_requests();
  EXPECT_EQ(got, large.size() + 9);
  EXPECT_TRUE(to_say_.empty());
  EXPECT_TRUE(ready().empty()) << "nobody is woken for a socket that takes more";
}

TEST_F(JobPipesTest, JobThatDoesNotReadDelaysNoOther) {
  job(JobPipe::requests).reset();
  to_say_ = {"one", "two"};
  send();
  EXPECT_FALSE(pipes_->is_sending());
  EXPECT_TRUE(to_say_.empty());
}

TEST_F(JobPipesTest, PausedChannelIsNotPolledAndLosesNothing) {
  write(JobPipe::channel, "x");
  ASSERT_EQ(ready().size(), 1U);
  pipes_->set_channel_held(true);
  EXPECT_TRUE(pipes_->is_paused(JobPipe::channel));
  EXPECT_FALSE(pipes_->is_paused(JobPipe::out));
  EXPECT_TRUE(ready().empty());
  EXPECT_TRUE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs));
  EXPECT_TRUE(ready().empty()) << "it stays so";
  write(JobPipe::out, "x");
  EXPECT_EQ(ready().size(), 1U) << "its output does not wait";
  pipes_->set_channel_held(false);
  EXPECT_EQ(ready().size(), 2U);
  EXPECT_EQ(read(JobPipe::channel), "x");
}

TEST_F(JobPipesTest, EndOfAPausedChannelCausesNoWakeUp) {
  write(JobPipe::channel, "x");
  pipes_->set_channel_held(true);
  job(JobPipe::channel).reset();
  EXPECT_TRUE(ready().empty());
  pipes_->set_channel_held(false);
  EXPECT_EQ(ready().size(), 1U);
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
    ASSERT_EQ(ready().size(), 1U);
    send();
  }
  EXPECT_TRUE(ready().empty());
}

TEST_F(JobPipesTest, PipeReadByAnotherThreadIsNotPolled) {
  EXPECT_TRUE(pipes_->watch_output(1000 + JobPipes::kWatchDelayMs));
  write(JobPipe::out, "0123");
  const auto descriptor = pipes_->begin_background_read(JobPipe::out);
  ASSERT_TRUE(descriptor);
  EXPECT_TRUE(pipes_->has_background_reads());
  EXPECT_FALSE(pipes_->begin_background_read(JobPipe::out)) << "one read at a time";
  EXPECT_TRUE(ready().empty());
  pipes_->pause(JobPipe::out, 2000);
  EXPECT_EQ(pipes_->resume(2000), UINT64_MAX);
  EXPECT_TRUE(ready().empty()) << "it stays so after a pause";
  EXPECT_EQ(read_available(*descriptor, 16384), "0123");
  write(JobPipe::out, "4");
  pipes_->end_background_read(JobPipe::out);
  EXPECT_FALSE(pipes_->has_background_reads());
  EXPECT_EQ(ready().size(), 1U);
  EXPECT_EQ(read(JobPipe::out), "4");
}

TEST_F(JobPipesTest, PipeThatEndsInABackgroundReadIsClosed) {
  write(JobPipe::channel, "last");
  job(JobPipe::channel).reset();
  const auto descriptor = pipes_->begin_background_read(JobPipe::channel);
  ASSERT_TRUE(descriptor);
  EXPECT_EQ(read_available(*descriptor, 16384), "last");
  EXPECT_FALSE(*descriptor);
  pipes_->end_background_read(JobPipe::channel);
  EXPECT_TRUE(ready().empty());
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
