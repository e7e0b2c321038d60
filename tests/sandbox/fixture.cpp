#include "fixture.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

constexpr const char* kHostName = "attempt";
constexpr std::uint64_t kHangTimeoutMs = 300000;  // Long enough for an emulated machine on a busy host.

std::map<std::string, std::string> parse_results(const std::string& text) {
  std::map<std::string, std::string> results;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) results[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return results;
}

}  // namespace

GrantedFolder::GrantedFolder() : TempDir(kGrantableParent) { ::chmod(path().c_str(), 0777); }

std::string RunResult::get_result(const std::string& attempt) const {
  const auto position = results.find(attempt);
  return position == results.end() ? "no answer (" + outcome.reason + ")" : position->second;
}

SandboxConfig make_test_config() {
  SandboxConfig config;
  config.libexec_dir = mj::test::programs_folder();
  config.hosts = {{kHostName, mj::test::program_path("attempt_host")}};
  if (!can_limit_by_cgroup()) config.allow_missing = {"cgroup:memory", "cgroup:pids"};
  return config;
}

bool can_limit_by_cgroup() {
  static const bool kCanLimit = [] {
    SandboxConfig config;
    config.libexec_dir = mj::test::programs_folder();
    const auto layers = probe_layers(config);
    if (!layers) return true;  // The tests report the error.
    bool has_cgroups = true;
    for (const auto& layer : *layers) has_cgroups = has_cgroups && (layer.ok || layer.name.rfind("cgroup:", 0) != 0);
    return has_cgroups;
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
  spec.host = kHostName;
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
               MSG_NOSIGNAL);  // A rejected run has closed the socket.
  ::shutdown(pipes->requests, SHUT_WR);
  return {spec, *pipes, {}};
}

RunResult wait_for_end(Sandbox& sandbox, StartedRun& started) {
  RunResult result;
  result.stdout_text = started.stdout_text;
  std::string channel_text;
  bool has_ended = started.pipes.out < 0;
  const SystemClock clock;
  const std::uint64_t deadline = clock.boot_ms() + kHangTimeoutMs;
  while (!has_ended && clock.boot_ms() < deadline) {
    pollfd poll_fds[] = {{sandbox.event_fd(), POLLIN, 0},
                         {started.pipes.out, POLLIN, 0},
                         {started.pipes.err, POLLIN, 0},
                         {started.pipes.channel, POLLIN, 0}};
    ::poll(poll_fds, 4, 1000);
    if (!read_available(started.pipes.out, result.stdout_text)) started.pipes.out = (::close(started.pipes.out), -1);
    if (!read_available(started.pipes.err, result.stderr_text)) started.pipes.err = (::close(started.pipes.err), -1);
    if (!read_available(started.pipes.channel, channel_text))
      started.pipes.channel = (::close(started.pipes.channel), -1);
    for (auto& report : sandbox.read_ended()) {
      if (report.run != started.spec.run) continue;
      result.outcome = std::move(report.outcome);
      has_ended = true;
    }
  }
  EXPECT_TRUE(has_ended) << "the run has not ended";
  for (int fd : {started.pipes.out, started.pipes.err, started.pipes.channel}) {
    if (fd < 0) continue;
    read_available(fd, fd == started.pipes.out   ? result.stdout_text
                       : fd == started.pipes.err ? result.stderr_text
                                                 : channel_text);
    ::close(fd);
  }
  ::close(started.pipes.requests);
  result.results = parse_results(channel_text);
  return result;
}

void wait_for_output(StartedRun& started, const std::string& text) {
  const std::uint64_t deadline = now_boot_ms() + kHangTimeoutMs;
  while (started.stdout_text.find(text) == std::string::npos && now_boot_ms() < deadline) {
    pollfd poll_fd{started.pipes.out, POLLIN, 0};
    ::poll(&poll_fd, 1, 1000);
    if (!read_available(started.pipes.out, started.stdout_text)) break;
  }
  EXPECT_NE(started.stdout_text.find(text), std::string::npos);
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
  std::vector<pid_t> processes = find_children(parent);
  for (std::size_t i = 0; i < processes.size(); ++i) {
    for (pid_t child : find_children(processes[i])) processes.push_back(child);
  }
  return processes;
}

bool is_reaped(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

std::size_t count_cgroups(pid_t launcher) {
  std::size_t count = 0;
  const std::string launcher_infix = "-" + std::to_string(launcher) + "-";
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator("/sys/fs/cgroup", error);
       it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename();
    if (it->is_directory(error) && name.rfind("mycojobs-", 0) == 0 && name.find(launcher_infix) != std::string::npos) {
      ++count;
      for (const auto& run : std::filesystem::directory_iterator(it->path(), error)) count += run.is_directory(error);
    }
  }
  return count;
}

DedicatedSandbox start_dedicated_sandbox(const SandboxConfig& config) {
  const auto previous_children = find_children(::getpid());
  auto started = start_sandbox(config);
  if (!started) {
    ADD_FAILURE() << started.error().message;
    std::abort();
  }
  DedicatedSandbox dedicated_sandbox{std::move(*started), -1, -1};
  for (pid_t pid : find_children(::getpid())) {
    if (std::find(previous_children.begin(), previous_children.end(), pid) == previous_children.end())
      dedicated_sandbox.guardian = pid;
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
