#include "python_sandbox.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "base/clock.h"
#include "executors/python/python_executor.h"
#include "support/process.h"

namespace mycojobs::test {

RunResult run_python_confined(const std::string& script, const PythonRunOptions& options) {
  return run_python_confined(make_facts(script), options);
}

RunResult run_python_confined(const JobFacts& job_facts, const PythonRunOptions& options) {
  JobFacts facts = job_facts;
  if (!options.net.empty()) {
    facts.granted_policy.network = Network::allow_list;
    facts.granted_policy.net_allow = options.net;
  }
  facts.granted_policy.warm_runs = options.warm.runs;
  facts.granted_policy.exec = facts.granted_policy.exec || options.exec;
  static std::atomic<std::uint64_t> next{1};
  Sandbox& sandbox = options.sandbox != nullptr ? *options.sandbox : shared_sandbox();
  auto job = PythonExecutor("").begin(facts, nullptr);
  if (!job) throw std::runtime_error(job.error().message);
  RunSpec spec;
  spec.run = next++;
  spec.context = options.context;
  spec.limits.wall_ms = options.wall_ms;
  spec.limits.exec = options.exec;
  spec.limits.pids = options.pids;
  spec.grants.network = facts.granted_policy.network;
  spec.grants.net_allow = options.net;
  spec.limits.memory_bytes = options.memory_bytes;
  spec.limits.cpu_ms = options.cpu_ms;
  spec.warm = options.warm;
  for (std::string* key : {&spec.warm.key, &spec.warm.family}) {
    if (key->empty()) *key = std::string(64, 'k');
  }
  auto pipes = sandbox.launch(spec);
  if (!pipes) throw std::runtime_error(pipes.error().message);
  RunResult result;
  const std::string full_request = (*job)->consume_output();
  std::string_view request = full_request;
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
    for (auto& ended_run : sandbox.read_ended()) {
      if (ended_run.run != spec.run) continue;
      result.outcome = std::move(ended_run.outcome);
      ended = true;
    }
    std::string received;
    for (auto [fd, text] :
         {std::pair{&pipes->out, &result.out}, {&pipes->err, &result.err}, {&pipes->channel, &received}}) {
      if (*fd >= 0 && !read_available(*fd, *text)) *fd = (::close(*fd), -1);
    }
    (*job)->feed(received);
    for (auto& note : (*job)->consume_notes()) result.notes.push_back(std::move(note));
  }
  EXPECT_TRUE(ended) << "the run has not ended";
  for (int fd : {pipes->out, pipes->err, pipes->channel, pipes->requests}) {
    if (fd >= 0) ::close(fd);
  }
  result.end = (*job)->finish(result.outcome);
  return result;
}

}  // namespace mycojobs::test
