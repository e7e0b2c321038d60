#include "worker/job_pipes.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fd.h"

namespace mycojobs {

void watch_descriptor(int epoll, int operation, int fd, std::uint64_t tag, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(epoll, operation, fd, &event);
}

JobPipes::JobPipes(int epoll, RunNumber run, const RunPipes& pipes, int attachment, bool converses,
                   std::uint64_t now_boot_ms)
    : epoll_(epoll),
      run_(run),
      out_(pipes.out),
      err_(pipes.err),
      channel_(pipes.channel),
      requests_(pipes.requests),
      attachment_(attachment),
      heard_(converses),
      listen_at_ms_(now_boot_ms + kListenMs) {
  watch_channel();
}

Fd& JobPipes::of(JobPipe pipe) {
  switch (pipe) {
    case JobPipe::out:
      return out_;
    case JobPipe::err:
      return err_;
    case JobPipe::channel:
      return channel_;
    case JobPipe::requests:
      break;
  }
  return requests_;
}

void JobPipes::watch(JobPipe pipe, int operation, std::uint32_t events) {
  watch_descriptor(epoll_, operation, of(pipe).get(), PipeTag{run_, pipe}.bits(), events);
}

// Out of the set while nothing is wanted of it: epoll would report its end again and again.
void JobPipes::watch_channel() {
  const bool wanted = heard_ && !is_held(JobPipe::channel);
  if (!channel_ || wanted == channel_watched_) return;
  watch(JobPipe::channel, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, EPOLLIN);
  channel_watched_ = wanted;
}

void JobPipes::hold(bool held) {
  held_ = held;
  watch_channel();
}

// Output is in the set once it is listened to.
void JobPipes::pause(JobPipe pipe, std::uint64_t until_boot_ms) {
  if (!of(pipe)) return;
  const bool was_paused = pause_of(pipe) > 0;
  paused_until_ms_[static_cast<std::size_t>(pipe)] = until_boot_ms;
  if (pipe == JobPipe::channel) {
    watch_channel();
  } else if (listen_at_ms_ == 0 && !was_paused) {
    watch(pipe, EPOLL_CTL_DEL, 0);
  }
}

std::uint64_t JobPipes::resume(std::uint64_t now_boot_ms) {
  std::uint64_t next = UINT64_MAX;
  for (JobPipe pipe : {JobPipe::out, JobPipe::err, JobPipe::channel}) {
    std::uint64_t& until = paused_until_ms_[static_cast<std::size_t>(pipe)];
    if (until > now_boot_ms) next = std::min(next, until);
    if (until == 0 || until > now_boot_ms) continue;
    until = 0;
    if (pipe == JobPipe::channel) {
      watch_channel();
    } else if (listen_at_ms_ == 0 && of(pipe)) {
      watch(pipe, EPOLL_CTL_ADD, EPOLLIN);
    }
  }
  return next;
}

// Most requests fit at once, and the job finds its script waiting.
void JobPipes::send(const std::function<std::string()>& next) {
  bool full = false;
  while (requests_ && !full) {
    if (sent_ == outgoing_.size()) {
      outgoing_ = next();
      sent_ = 0;
      if (outgoing_.empty()) break;
    }
    const ssize_t sent = send_bytes(requests_.get(), std::string_view(outgoing_).substr(sent_), attachment_);
    full = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (sent > 0) sent_ += static_cast<std::size_t>(sent), attachment_ = -1;
    if (sent < 0 && !full && errno != EINTR) sent_ = outgoing_.size();
  }
  writing_ = full;
  if (writing_ != requests_watched_) watch(JobPipe::requests, writing_ ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, EPOLLOUT);
  requests_watched_ = writing_;
}

std::string_view JobPipes::read(JobPipe pipe, std::span<char> buffer) {
  Fd& fd = of(pipe);
  if (!fd) return {};
  ssize_t count = 0;
  do {
    count = ::read(fd.get(), buffer.data(), buffer.size());
  } while (count < 0 && errno == EINTR);
  if (count > 0) return {buffer.data(), static_cast<std::size_t>(count)};
  if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) fd.reset();  // also leaves the epoll set
  return {};
}

bool JobPipes::listen(std::uint64_t now_boot_ms) {
  if (listen_at_ms_ == 0) return true;
  if (now_boot_ms < listen_at_ms_) return false;
  listen_at_ms_ = 0;
  for (JobPipe pipe : {JobPipe::out, JobPipe::err}) {
    if (pause_of(pipe) == 0) watch(pipe, EPOLL_CTL_ADD, EPOLLIN);
  }
  heard_ = true;
  watch_channel();
  return true;
}

}  // namespace mycojobs
