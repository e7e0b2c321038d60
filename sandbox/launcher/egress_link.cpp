#include "sandbox/launcher/egress_link.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "base/errno_text.h"
#include "sandbox/egress/egress_messages.h"

namespace mycojobs::sandbox {

EgressLink::EgressLink(EventLoop& loop, Warn warn) : loop_(loop), warn_(std::move(warn)) {}
EgressLink::~EgressLink() { stop(); }

void EgressLink::stop() {
  if (!socket_) return;
  loop_.unwatch(watch_, socket_.get());
  loop_.unwatch(writable_watch_, writable_.get());
  socket_.reset();
  writable_.reset();
  unsent_.clear();
  served_runs_.clear();
  ::kill(child_.pid, SIGKILL);  // the proxy holds only connections of jobs
  wait_child(child_);
}

Result<void> EgressLink::start() {
  if (socket_) return {};
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return fail(Code::io, "no sockets for the proxy: " + errno_text(errno));
  }
  Fd launcher_end(pair[0]);
  const Fd proxy_end(pair[1]);
  SpawnSpec spec;
  spec.program = program_;
  spec.argv0 = egress::kEgressProgram;
  spec.inherited_descriptors = {{proxy_end.get(), egress::kLauncherSocket}};
  MJ_TRY(child, spawn(spec));
  child_ = std::move(child);
  socket_ = std::move(launcher_end);
  writable_.reset(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
  watch_ = loop_.watch(socket_.get(), [this](std::uint32_t) { read_all(); });
  return {};
}

// Messages that a busy proxy does not accept wait here. If the proxy were ended instead, many simultaneous runs would
// end the network of all runs.
int EgressLink::flush() {
  while (!unsent_.empty()) {
    const PendingFrame& first = unsent_.front();
    const std::vector<int> fds(first.listener ? 1 : 0, first.listener.get());
    const int error = send_raw(socket_.get(), first.frame, fds, MSG_DONTWAIT);
    if (error == EAGAIN) {
      if (writable_watch_ == 0)
        writable_watch_ = loop_.watch_writable(writable_.get(), [this](std::uint32_t) {
          if (flush() != 0) read_all();
        });
      return 0;
    }
    if (error != 0) return error;
    unsent_.pop_front();
  }
  loop_.unwatch(writable_watch_, writable_.get());
  return 0;
}

int EgressLink::send(std::string frame, Fd listener) {
  unsent_.push_back({std::move(frame), std::move(listener)});
  return flush();
}

Result<void> EgressLink::serve(std::uint64_t run, const std::vector<std::string>& allow, const Fd& listener) {
  MJ_CHECK(start());
  Fd copy(::fcntl(listener.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return fail(Code::io, "no descriptor for the proxy: " + errno_text(errno));
  if (int error = send(encode(egress::Serve{run, allow}), std::move(copy)); error != 0) {
    stop();
    return fail(Code::unavailable, "the proxy accepts no runs: " + errno_text(error));
  }
  refused_connections_[run];
  served_runs_.insert(run);
  return {};
}

std::vector<std::string> EgressLink::consume_refused(std::uint64_t run) {
  read_all();
  const auto refused = refused_connections_.find(run);
  if (refused == refused_connections_.end() || refused->second.empty()) return {};
  // an error means that the proxy has ended, which read_all() detects
  if (socket_) send(encode(egress::NextJob{run}), {});
  return std::exchange(refused->second, {});
}

std::vector<std::string> EgressLink::close(std::uint64_t run) {
  const auto refused = refused_connections_.find(run);
  if (refused == refused_connections_.end()) return {};
  read_all();
  auto lines = std::move(refused->second);
  refused_connections_.erase(refused);
  served_runs_.erase(run);
  // an error means that the proxy has ended, which read_all() detects
  if (socket_) send(encode(egress::Close{run}), {});
  return lines;
}

void EgressLink::read_all() {
  while (socket_) {
    RawFrame frame;
    const ReceiveResult received = receive_raw(socket_.get(), frame, MSG_DONTWAIT);
    if (received == ReceiveResult::would_block) return;
    if (received == ReceiveResult::frame && handle_frame(frame)) continue;
    warn_("mycojobs-egress has ended, or sends invalid messages; the next run with an allow-list starts it again");
    return stop();
  }
}

bool EgressLink::handle_frame(const RawFrame& frame) {
  egress::ConnectionDenied denied;
  egress::ProxyRunEnded ended;
  egress::ProxyProblem problem;
  if (decode(frame, denied)) {
    const auto run = refused_connections_.find(denied.run);
    if (run != refused_connections_.end() && run->second.size() < egress::kMaxDenied)
      run->second.push_back(denied.text.substr(0, 300));
    return true;
  }
  if (decode(frame, problem)) {
    warn_("egress: " + problem.text.substr(0, 1000));
    return true;
  }
  return decode(frame, ended);
}

}  // namespace mycojobs::sandbox
