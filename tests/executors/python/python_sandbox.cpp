#include "python_sandbox.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/clock.h"
#include "executors/python/python_executor.h"

namespace mycojobs::test {
namespace {

// Reads the available data. Returns false if the pipe is closed.
bool drain(int fd, std::string& into) {
  char part[65536];
  for (;;) {
    const ssize_t size = ::read(fd, part, sizeof part);
    if (size > 0) into.append(part, static_cast<std::size_t>(size));
    if (size == 0) return false;
    if (size < 0) return errno == EAGAIN || errno == EINTR;
  }
}

}  // namespace

Ran run_python_confined(const std::string& script, const Confined& how) {
  return run_python_confined(facts_of(script), how);
}

Ran run_python_confined(const JobFacts& wanted, const Confined& how) {
  JobFacts facts = wanted;
  if (!how.net.empty()) {
    facts.granted.network = Network::allow_list;
    facts.granted.net_allow = how.net;
  }
  facts.granted.warm_runs = how.warm.runs;
  facts.granted.exec = facts.granted.exec || how.exec;
  static std::atomic<std::uint64_t> next{1};
  Sandbox& sandbox = how.sandbox != nullptr ? *how.sandbox : shared_sandbox();
  auto job = PythonExecutor("").begin(facts, nullptr);
  if (!job) throw std::runtime_error(job.error().message);
  RunSpec spec;
  spec.run = next++;
  spec.context = how.context;
  spec.limits.wall_ms = how.wall_ms;
  spec.limits.exec = how.exec;
  spec.limits.pids = how.pids;
  spec.grants.network = facts.granted.network;
  spec.grants.net_allow = how.net;
  spec.limits.memory_bytes = how.memory_bytes;
  spec.limits.cpu_ms = how.cpu_ms;
  spec.warm = how.warm;
  for (std::string* key : {&spec.warm.key, &spec.warm.family}) {
    if (key->empty()) *key = std::string(64, 'k');
  }
  auto pipes = sandbox.launch(spec);
  if (!pipes) throw std::runtime_error(pipes.error().message);
  Ran ran;
  const std::string whole = (*job)->take_output();
  std::string_view request = whole;
  bool ended = false;
  const std::uint64_t deadline = SystemClock().boot_ms() + 55000;
  while (!ended && SystemClock().boot_ms() < deadline) {
    pollfd sources[] = {{sandbox.event_fd(), POLLIN, 0},
                        {pipes->out, POLLIN, 0},
                        {pipes->err, POLLIN, 0},
                        {pipes->channel, POLLIN, 0},
                        {request.empty() ? -1 : pipes->requests, POLLOUT, 0}};
    ::poll(sources, 5, 1000);
    if ((sources[4].revents & POLLOUT) != 0) {
      const ssize_t sent = ::send(pipes->requests, request.data(), request.size(), MSG_NOSIGNAL);
      request.remove_prefix(sent > 0 ? static_cast<std::size_t>(sent) : 0);
    }
    for (auto& each : sandbox.read_ended()) {
      if (each.run != spec.run) continue;
      ran.outcome = std::move(each.outcome);
      ended = true;
    }
    std::string up;
    for (auto [fd, into] : {std::pair{&pipes->out, &ran.out}, {&pipes->err, &ran.err}, {&pipes->channel, &up}}) {
      if (*fd >= 0 && !drain(*fd, *into)) *fd = (::close(*fd), -1);
    }
    (*job)->feed(up);
    for (auto& note : (*job)->take_notes()) ran.notes.push_back(std::move(note));
  }
  EXPECT_TRUE(ended) << "the run has not ended";
  for (int fd : {pipes->out, pipes->err, pipes->channel, pipes->requests}) {
    if (fd >= 0) ::close(fd);
  }
  ran.end = (*job)->finish(ran.outcome);
  return ran;
}

}  // namespace mycojobs::test
