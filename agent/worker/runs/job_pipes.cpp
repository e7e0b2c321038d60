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
  // A job can put its pipe into packet mode (O_DIRECT). A buffer that is smaller than a packet would lose the rest of
  // it.
  while (max - total >= PIPE_BUF) {
    const std::size_t count = read_or_close(fd, std::span(bytes).subspan(total));
    if (count == 0) break;
    total += count;
  }
  bytes.resize(total);
  return bytes;
}

JobPipes::JobPipes(int epoll, RunNumber run, const RunPipes& pipes, int attachment, bool converses,
                   std::uint64_t now_boot_ms)
    : epoll_(epoll),
      run_(run),
      fds_{std::make_shared<Fd>(pipes.out), std::make_shared<Fd>(pipes.err), std::make_shared<Fd>(pipes.channel),
           std::make_shared<Fd>(pipes.requests)},
      attachment_(attachment),
      received_(converses),
      listen_at_ms_(now_boot_ms + kListenMs) {
  refresh(JobPipe::channel);
}

void JobPipes::watch(JobPipe pipe, int operation, std::uint32_t events) {
  watch_descriptor(epoll_, operation, of(pipe).get(), PipeTag{run_, pipe}.bits(), events);
}

// A pipe is in the epoll set only while its events are wanted: otherwise epoll would report the end of the pipe in a
// loop.
void JobPipes::refresh(JobPipe pipe) {
  if (elsewhere_[index(pipe)] || !of(pipe)) return;
  const bool is_heard = pipe == JobPipe::channel ? received_ : listen_at_ms_ == 0;
  const bool wanted = is_heard && !is_held(pipe);
  if (wanted == watched_[index(pipe)]) return;
  watch(pipe, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, EPOLLIN);
  watched_[index(pipe)] = wanted;
}

void JobPipes::hold(bool held) {
  held_ = held;
  refresh(JobPipe::channel);
}

// A pipe that is not watched yet can be paused too; it is added to the set after the pause.
void JobPipes::pause(JobPipe pipe, std::uint64_t until_boot_ms) {
  if (!elsewhere_[index(pipe)] && !of(pipe)) return;
  paused_until_ms_[index(pipe)] = until_boot_ms;
  refresh(pipe);
}

std::uint64_t JobPipes::resume(std::uint64_t now_boot_ms) {
  std::uint64_t next = UINT64_MAX;
  for (JobPipe pipe : {JobPipe::out, JobPipe::err, JobPipe::channel}) {
    std::uint64_t& until = paused_until_ms_[index(pipe)];
    if (until > now_boot_ms) next = std::min(next, until);
    if (until == 0 || until > now_boot_ms) continue;
    until = 0;
    refresh(pipe);
  }
  return next;
}

std::shared_ptr<Fd> JobPipes::begin_background_read(JobPipe pipe) {
  if (elsewhere_[index(pipe)] || !of(pipe)) return nullptr;
  if (std::exchange(watched_[index(pipe)], false)) watch(pipe, EPOLL_CTL_DEL, 0);
  elsewhere_[index(pipe)] = true;
  return fds_[index(pipe)];
}

void JobPipes::end_background_read(JobPipe pipe) {
  elsewhere_[index(pipe)] = false;
  refresh(pipe);
}

bool JobPipes::has_background_reads() const {
  return std::any_of(std::begin(elsewhere_), std::end(elsewhere_), [](bool elsewhere) { return elsewhere; });
}

// Most requests fit into the buffer of the socket, so the job does not have to wait for its request.
void JobPipes::send(const std::function<std::string()>& next) {
  bool full = false;
  const Fd& requests = of(JobPipe::requests);
  while (requests && !full) {
    if (sent_ == outgoing_.size()) {
      outgoing_ = next();
      sent_ = 0;
      if (outgoing_.empty()) break;
    }
    const ssize_t sent = send_bytes(requests.get(), std::string_view(outgoing_).substr(sent_), attachment_);
    full = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (sent > 0) sent_ += static_cast<std::size_t>(sent), attachment_ = -1;
    if (sent < 0 && !full && errno != EINTR) sent_ = outgoing_.size();
  }
  writing_ = full;
  bool& watched = watched_[index(JobPipe::requests)];
  if (writing_ != watched) watch(JobPipe::requests, writing_ ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, EPOLLOUT);
  watched = writing_;
}

std::string_view JobPipes::read(JobPipe pipe, std::span<char> buffer) {
  return {buffer.data(), read_or_close(of(pipe), buffer)};
}

bool JobPipes::listen(std::uint64_t now_boot_ms) {
  if (listen_at_ms_ == 0) return true;
  if (now_boot_ms < listen_at_ms_) return false;
  listen_at_ms_ = 0;
  received_ = true;
  for (JobPipe pipe : {JobPipe::out, JobPipe::err, JobPipe::channel}) refresh(pipe);
  return true;
}

}  // namespace mycojobs
