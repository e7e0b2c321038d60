#include "fixture.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "sandbox/launcher_client.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

constexpr const char* kHost = "attempt";
constexpr std::uint64_t kTimeoutMs = 300000;  // reached only by a hang, also under emulation on a busy host

std::map<std::string, std::string> parse_answers(const std::string& text) {
  std::map<std::string, std::string> answers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) answers[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return answers;
}

}  // namespace

std::string RunResult::answer(const std::string& attempt) const {
  const auto found = answers.find(attempt);
  return found == answers.end() ? "no answer (" + outcome.reason + ")" : found->second;
}

SandboxConfig make_test_config() {
  SandboxConfig config;
  config.libexec_dir = mj::test::programs_folder();
  config.hosts = {{kHost, mj::test::program_path("attempt_host")}};
  if (!can_limit_by_cgroup()) config.allow_missing = {"cgroup:memory", "cgroup:pids"};
  return config;
}

bool can_limit_by_cgroup() {
  static const bool kCanLimit = [] {
    SandboxConfig config;
    config.libexec_dir = mj::test::programs_folder();
    const auto layers = probe_layers(config);
    if (!layers) return true;  // the tests report the reason
    bool all = true;
    for (const auto& layer : *layers) all = all && (layer.ok || layer.name.rfind("cgroup:", 0) != 0);
    return all;
  }();
  return kCanLimit;
}

Sandbox& shared_sandbox() {
  static const std::unique_ptr<Sandbox> kSandbox = [] {
    auto started = start_sandbox(make_test_config());
    if (!started) {
      ADD_FAILURE() << started.error().message;
      std::abort();
    }
    return std::move(*started);
  }();
  return *kSandbox;
}

std::uint64_t next_run_id() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

RunSpec make_spec(std::uint64_t wall_ms) {
  RunSpec spec;
  spec.run = next_run_id();
  spec.host = kHost;
  spec.context = 1;
  spec.limits.wall_ms = wall_ms;
  return spec;
}

StartedRun start_attempts(Sandbox& sandbox, RunSpec spec, const std::string& attempts) {
  auto pipes = sandbox.launch(spec);
  if (!pipes) {
    ADD_FAILURE() << pipes.error().message;
    return {spec, {}, {}};
  }
  (void)::send(pipes->requests, attempts.data(), attempts.size(),
               MSG_NOSIGNAL);  // a rejected run has closed the socket
  ::shutdown(pipes->requests, SHUT_WR);
  return {spec, *pipes, {}};
}

RunResult wait_for_end(Sandbox& sandbox, StartedRun& started) {
  RunResult result;
  result.out = started.out;
  std::string answers;
  bool ended = started.pipes.out < 0;
  const SystemClock clock;
  const std::uint64_t deadline = clock.boot_ms() + kTimeoutMs;
  while (!ended && clock.boot_ms() < deadline) {
    pollfd sources[] = {{sandbox.event_fd(), POLLIN, 0},
                        {started.pipes.out, POLLIN, 0},
                        {started.pipes.err, POLLIN, 0},
                        {started.pipes.channel, POLLIN, 0}};
    ::poll(sources, 4, 1000);
    if (!read_available(started.pipes.out, result.out)) started.pipes.out = (::close(started.pipes.out), -1);
    if (!read_available(started.pipes.err, result.err)) started.pipes.err = (::close(started.pipes.err), -1);
    if (!read_available(started.pipes.channel, answers)) started.pipes.channel = (::close(started.pipes.channel), -1);
    for (auto& report : sandbox.read_ended()) {
      if (report.run != started.spec.run) continue;
      result.outcome = std::move(report.outcome);
      ended = true;
    }
  }
  EXPECT_TRUE(ended) << "the run has not ended";
  for (int fd : {started.pipes.out, started.pipes.err, started.pipes.channel}) {
    if (fd < 0) continue;
    read_available(fd, fd == started.pipes.out ? result.out : fd == started.pipes.err ? result.err : answers);
    ::close(fd);
  }
  ::close(started.pipes.requests);
  result.answers = parse_answers(answers);
  return result;
}

void wait_for_output(StartedRun& started, const std::string& text) {
  const std::uint64_t deadline = now_boot_ms() + kTimeoutMs;
  while (started.out.find(text) == std::string::npos && now_boot_ms() < deadline) {
    pollfd source{started.pipes.out, POLLIN, 0};
    ::poll(&source, 1, 1000);
    if (!read_available(started.pipes.out, started.out)) break;
  }
  EXPECT_NE(started.out.find(text), std::string::npos);
}

std::uint64_t now_boot_ms() { return SystemClock().boot_ms(); }

std::vector<pid_t> find_children(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);
    const std::size_t end = line.rfind(')');
    if (end == std::string::npos || line.size() < end + 4 || line[end + 2] == 'Z') continue;
    if (std::stoi(line.substr(end + 4)) == parent) children.push_back(std::stoi(name));
  }
  return children;
}

std::vector<pid_t> find_descendants(pid_t parent) {
  std::vector<pid_t> all = find_children(parent);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (pid_t child : find_children(all[i])) all.push_back(child);
  }
  return all;
}

bool is_reaped(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

std::size_t count_cgroups(pid_t launcher) {
  std::size_t count = 0;
  const std::string infix = "-" + std::to_string(launcher) + "-";
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator("/sys/fs/cgroup", error);
       it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    if (it->is_directory(error) && name.rfind("mycojobs-", 0) == 0 && name.find(infix) != std::string::npos) {
      ++count;
      for (const auto& run : std::filesystem::directory_iterator(it->path(), error)) count += run.is_directory(error);
    }
  }
  return count;
}

DedicatedSandbox start_dedicated_sandbox(const SandboxConfig& config) {
  const auto before = find_children(::getpid());
  auto started = start_sandbox(config);
  if (!started) {
    ADD_FAILURE() << started.error().message;
    std::abort();
  }
  DedicatedSandbox dedicated_sandbox{std::move(*started), -1, -1};
  for (pid_t pid : find_children(::getpid())) {
    if (std::find(before.begin(), before.end(), pid) == before.end()) dedicated_sandbox.guardian = pid;
  }
  dedicated_sandbox.launcher = find_children(dedicated_sandbox.guardian).at(0);
  return dedicated_sandbox;
}

RunResult run_attempts(Sandbox& sandbox, RunSpec spec, const std::string& attempts) {
  StartedRun started = start_attempts(sandbox, std::move(spec), attempts);
  return wait_for_end(sandbox, started);
}

RunResult run_attempts(const std::string& attempts, std::uint64_t wall_ms) {
  return run_attempts(shared_sandbox(), make_spec(wall_ms), attempts);
}

RunResult run_attempts_with_exec(const std::string& attempts, std::uint64_t wall_ms) {
  RunSpec spec = make_spec(wall_ms);
  spec.limits.exec = true;
  return run_attempts(shared_sandbox(), spec, attempts);
}

std::string get_violation(const RunResult& result) {
  EXPECT_EQ(to_string(result.outcome.status), "violation") << result.outcome.reason;
  return result.outcome.violation ? result.outcome.violation->syscall : "";
}

}  // namespace mycojobs::test
