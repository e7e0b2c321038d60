#include "chaos/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <stdexcept>

namespace mycojobs::test {
namespace {

constexpr int kDeepest = 16;

std::int64_t clock_us(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000000 + now.tv_nsec / 1000;
}

std::string read_small(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text(4096, '\0');
  const ssize_t size = ::read(file, text.data(), text.size());
  ::close(file);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

std::vector<pid_t> find_children(pid_t pid) {
  std::vector<pid_t> children;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  DIR* folder = ::opendir(tasks.c_str());
  if (folder == nullptr) return children;
  while (const dirent* task = ::readdir(folder)) {
    if (task->d_name[0] == '.') continue;
    std::istringstream list(read_small(tasks + "/" + task->d_name + "/children"));
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  ::closedir(folder);
  return children;
}

// Parses /proc/PID/stat, see proc(5). The name is in brackets and can contain any character.
bool look_at(pid_t pid, ProcessSeen& seen) {
  seen.pid = pid;
  seen.real_us = clock_us(CLOCK_REALTIME);
  seen.before_us = clock_us(CLOCK_BOOTTIME);
  const std::string line = read_small("/proc/" + std::to_string(pid) + "/stat");
  seen.after_us = clock_us(CLOCK_BOOTTIME);
  const std::size_t open = line.find('(');
  const std::size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return false;
  seen.comm = line.substr(open + 1, close - open - 1);
  std::istringstream rest(line.substr(close + 2));
  std::string field;
  for (int number = 3; number <= 22 && rest >> field; ++number) {
    if (number == 3) seen.state = field[0];
    if (number == 22) seen.started = std::strtoull(field.c_str(), nullptr, 10);
  }
  return seen.started != 0;
}

bool is_guardian(const std::string& comm) { return comm.starts_with("mycojobs-g"); }
bool is_launcher(const std::string& comm) { return comm.starts_with("mycojobs-l"); }
bool is_zygote(const std::string& comm) { return comm.starts_with("mj-") || comm.starts_with("mycojobs-p"); }

}  // namespace

const char* to_string(Component what) {
  constexpr const char* kWords[] = {"agent", "guardian", "launcher", "zygote", "init", "job", "redis", "other"};
  return kWords[static_cast<int>(what)];
}

std::string ProcessSeen::to_text() const {
  return std::string(to_string(what)) + " " + std::to_string(pid) + " (" + comm + ") of " + std::to_string(parent);
}

std::int64_t boot_us() { return clock_us(CLOCK_BOOTTIME); }

void adopt_orphans() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw std::runtime_error("prctl(PR_SET_CHILD_SUBREAPER)");
}

bool signal_process(const ProcessSeen& process, int number) {
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  if (pidfd < 0) return false;
  ProcessSeen now;  // read while the descriptor reserves the pid
  const bool same = look_at(process.pid, now) && now.started == process.started && !now.dead();
  const bool sent = same && ::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0) == 0;
  ::close(pidfd);
  return sent;
}

void ProcessTree::name(pid_t pid, Component what) {
  const std::lock_guard lock(mutex_);
  named_[pid] = what;
}

std::vector<ProcessSeen> ProcessTree::walk() {
  const std::lock_guard lock(mutex_);
  std::vector<ProcessSeen> seen;
  ProcessSeen self;
  self.pid = ::getpid();
  descend(self, seen, 0);
  return seen;
}

Component ProcessTree::classify(const ProcessSeen& parent, const ProcessSeen& child) {
  switch (parent.what) {
    case Component::agent:
      // The agent first tests its helpers. A guardian is named launcher until it has forked the launcher.
      return is_guardian(child.comm) || is_launcher(child.comm) ? Component::guardian : Component::other;
    case Component::guardian:
      return is_zygote(child.comm) ? Component::zygote : Component::launcher;  // or a zygote whose launcher has died
    case Component::launcher:
      return Component::zygote;
    case Component::zygote:
      return Component::init;
    case Component::init:
    case Component::job:
      return Component::job;
    case Component::redis:
      return Component::other;  // the process that rewrites its file
    case Component::other:
      break;
  }
  if (const auto known = named_.find(child.pid); known != named_.end()) return known->second;
  if (is_guardian(child.comm)) return Component::guardian;
  if (is_launcher(child.comm)) return Component::launcher;
  return is_zygote(child.comm) ? Component::zygote : Component::other;
}

void ProcessTree::descend(const ProcessSeen& parent, std::vector<ProcessSeen>& seen, int depth) {
  for (const pid_t pid : find_children(parent.pid)) {
    ProcessSeen child;
    if (!look_at(pid, child)) continue;
    child.what = classify(parent, child);
    // A launcher that is not reaped would appear to be alive, so its leftovers would not be removed.
    const bool orphan = depth == 0 && child.what != Component::agent && child.what != Component::redis &&
                        child.what != Component::other;
    if (child.dead()) {
      if (orphan) ::waitpid(pid, nullptr, WNOHANG);
      continue;
    }
    child.parent = parent.pid;
    child.agent = child.what == Component::agent ? pid : parent.agent;
    child.launcher = child.what == Component::launcher ? pid : parent.launcher;
    seen.push_back(child);
    if (depth < kDeepest) descend(child, seen, depth + 1);
  }
}

}  // namespace mycojobs::test
