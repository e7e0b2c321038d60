#include "worker/runs/job_pipes.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iterator>
#include <utility>

#include "base/fd.h"

namespace mycojobs {

void watch_descriptor(int epoll, int operation, int fd, std::uint64_t tag, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(epoll, operation, fd, &event);
}

namespace {

// Returns the number of bytes; 0 if none are available or the pipe has ended. Closes the descriptor at the end of the
// pipe.
std::size_t read_or_close(Fd& fd, std::span<char> buffer) {
  if (!fd) return 0;
  ssize_t count = 0;
  do {
    count = ::read(fd.get(), buffer.data(), buffer.size());
  } while (count < 0 && errno == EINTR);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) fd.reset();  // also leaves the epoll set
  return 0;
}

}  // namespace

std::string read_available(Fd& fd, std::size_t max) {
  std::string bytes(max, '\0');
  std::size_t total = 0;
  // A job can put its pipe into packet mode (O_DIRECT). A read with a buffer that is smaller than a packet
  // would lose the end of the packet.
  while (max - total >= PIPE_BUF) {
    const std::size_t count = read_or_close(fd, std::span(bytes).subspan(total));
    if (count == 0) break;
    total += count;
  }
  bytes.resize(total);
  return bytes;
}

JobPipes::JobPipes(int epoll, RunNumber run, const RunPipes& pipes, int attachment, bool makes_calls,
                   std::uint64_t now_boot_ms)
    : epoll_(epoll),
      run_(run),
      fds_{std::make_shared<Fd>(pipes.out), std::make_shared<Fd>(pipes.err), std::make_shared<Fd>(pipes.channel),
           std::make_shared<Fd>(pipes.requests)},
      attachment_(attachment),
      watches_channel_(makes_calls),
      watch_at_ms_(now_boot_ms + kWatchDelayMs) {
  refresh(JobPipe::channel);
}

void JobPipes::watch(JobPipe pipe, int operation, std::uint32_t events) {
  watch_descriptor(epoll_, operation, descriptor(pipe).get(), PipeTag{run_, pipe}.to_bits(), events);
}

// A pipe is in the epoll set only while its events are handled: otherwise epoll would report the end of the pipe in a
// loop.
void JobPipes::refresh(JobPipe pipe) {
  if (read_in_background_[index(pipe)] || !descriptor(pipe)) return;
  const bool may_watch = pipe == JobPipe::channel ? watches_channel_ : watch_at_ms_ == 0;
  const bool should_watch = may_watch && !is_paused(pipe);
  if (should_watch == is_watched_[index(pipe)]) return;
  watch(pipe, should_watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, EPOLLIN);
  is_watched_[index(pipe)] = should_watch;
}

void JobPipes::set_channel_held(bool held) {
  is_channel_held_ = held;
  refresh(JobPipe::channel);
}

// A pipe that is not watched yet can be paused too; it is added to the set after the pause.
void JobPipes::pause(JobPipe pipe, std::uint64_t until_boot_ms) {
  if (!read_in_background_[index(pipe)] && !descriptor(pipe)) return;
  paused_until_ms_[index(pipe)] = until_boot_ms;
  refresh(pipe);
}

std::uint64_t JobPipes::resume(std::uint64_t now_boot_ms) {
  std::uint64_t first_end = UINT64_MAX;
  for (JobPipe pipe : {JobPipe::out, JobPipe::err, JobPipe::channel}) {
    std::uint64_t& until = paused_until_ms_[index(pipe)];
    if (until > now_boot_ms) first_end = std::min(first_end, until);
    if (until == 0 || until > now_boot_ms) continue;
    until = 0;
    refresh(pipe);
  }
  return first_end;
}

std::shared_ptr<Fd> JobPipes::begin_background_read(JobPipe pipe) {
  if (read_in_background_[index(pipe)] || !descriptor(pipe)) return nullptr;
  if (std::exchange(is_watched_[index(pipe)], false)) watch(pipe, EPOLL_CTL_DEL, 0);
  read_in_background_[index(pipe)] = true;
  return fds_[index(pipe)];
}

void JobPipes::end_background_read(JobPipe pipe) {
  read_in_background_[index(pipe)] = false;
  refresh(pipe);
}

bool JobPipes::has_background_reads() const {
  return std::any_of(std::begin(read_in_background_), std::end(read_in_background_),
                     [](bool is_read) { return is_read; });
}

// Most requests fit into the buffer of the socket, so the job does not have to wait for its request.
void JobPipes::send(const std::function<std::string()>& next_bytes) {
  bool is_full = false;
  const Fd& requests = descriptor(JobPipe::requests);
  while (requests && !is_full) {
    if (sent_ == outgoing_.size()) {
      next_bytes().swap(outgoing_);  // an assignment of an empty string would keep the memory of a large request
      sent_ = 0;
      if (outgoing_.empty()) break;
    }
    const ssize_t sent = send_bytes(requests.get(), std::string_view(outgoing_).substr(sent_), attachment_);
    is_full = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (sent > 0) sent_ += static_cast<std::size_t>(sent), attachment_ = -1;
    if (sent < 0 && !is_full && errno != EINTR) sent_ = outgoing_.size();
  }
  is_sending_ = is_full;
  bool& is_watched = is_watched_[index(JobPipe::requests)];
  if (is_sending_ != is_watched) watch(JobPipe::requests, is_sending_ ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, EPOLLOUT);
  is_watched = is_sending_;
}

std::string_view JobPipes::read(JobPipe pipe, std::span<char> buffer) {
  return {buffer.data(), read_or_close(descriptor(pipe), buffer)};
}

bool JobPipes::watch_output(std::uint64_t now_boot_ms) {
  if (watch_at_ms_ == 0) return true;
  if (now_boot_ms < watch_at_ms_) return false;
  watch_at_ms_ = 0;
  watches_channel_ = true;
  for (JobPipe pipe : {JobPipe::out, JobPipe::err, JobPipe::channel}) refresh(pipe);
  return true;
}

}  // namespace mycojobs
