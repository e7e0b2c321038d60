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

constexpr int kMaxDepth = 16;

std::int64_t clock_us(clockid_t clock) {
  timespec current{};
  ::clock_gettime(clock, &current);
  return static_cast<std::int64_t>(current.tv_sec) * 1000000 + current.tv_nsec / 1000;
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
bool read_process_stat(pid_t pid, ObservedProcess& observed) {
  observed.pid = pid;
  observed.real_us = clock_us(CLOCK_REALTIME);
  observed.before_us = clock_us(CLOCK_BOOTTIME);
  const std::string line = read_small("/proc/" + std::to_string(pid) + "/stat");
  observed.after_us = clock_us(CLOCK_BOOTTIME);
  const std::size_t name_begin = line.find('(');
  const std::size_t name_end = line.rfind(')');
  if (name_begin == std::string::npos || name_end == std::string::npos) return false;
  observed.comm = line.substr(name_begin + 1, name_end - name_begin - 1);
  std::istringstream fields(line.substr(name_end + 2));
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
    if (number == 3) observed.state = field[0];
    if (number == 22) observed.start_ticks = std::strtoull(field.c_str(), nullptr, 10);
  }
  return observed.start_ticks != 0;
}

bool is_guardian(const std::string& comm) { return comm.starts_with("mycojobs-g"); }
bool is_launcher(const std::string& comm) { return comm.starts_with("mycojobs-l"); }
bool is_zygote(const std::string& comm) { return comm.starts_with("mj-") || comm.starts_with("mycojobs-p"); }

}  // namespace

const char* to_string(Component component) {
  constexpr const char* kWords[] = {"agent", "guardian", "launcher", "zygote", "init", "job", "redis", "other"};
  return kWords[static_cast<int>(component)];
}

std::string ObservedProcess::to_text() const {
  return std::string(to_string(component)) + " " + std::to_string(pid) + " (" + comm + ") of " + std::to_string(parent);
}

std::int64_t boot_time_us() { return clock_us(CLOCK_BOOTTIME); }

void adopt_orphans() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw std::runtime_error("prctl(PR_SET_CHILD_SUBREAPER)");
}

bool signal_process(const ObservedProcess& process, int number) {
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  if (pidfd < 0) return false;
  ObservedProcess current;  // read while the descriptor reserves the pid
  const bool is_same_process =
      read_process_stat(process.pid, current) && current.start_ticks == process.start_ticks && !current.is_dead();
  const bool sent = is_same_process && ::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0) == 0;
  ::close(pidfd);
  return sent;
}

void ProcessTree::set_component(pid_t pid, Component component) {
  const std::lock_guard lock(mutex_);
  components_[pid] = component;
}

std::vector<ObservedProcess> ProcessTree::list_processes() {
  const std::lock_guard lock(mutex_);
  std::vector<ObservedProcess> observed;
  ObservedProcess self;
  self.pid = ::getpid();
  collect_descendants(self, observed, 0);
  return observed;
}

Component ProcessTree::classify(const ObservedProcess& parent, const ObservedProcess& child) {
  switch (parent.component) {
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
  if (const auto component = components_.find(child.pid); component != components_.end()) return component->second;
  if (is_guardian(child.comm)) return Component::guardian;
  if (is_launcher(child.comm)) return Component::launcher;
  return is_zygote(child.comm) ? Component::zygote : Component::other;
}

void ProcessTree::collect_descendants(const ObservedProcess& parent, std::vector<ObservedProcess>& observed,
                                      int depth) {
  for (const pid_t pid : find_children(parent.pid)) {
    ObservedProcess child;
    if (!read_process_stat(pid, child)) continue;
    child.component = classify(parent, child);
    // A launcher that is not reaped would appear to be alive, so its leftovers would not be removed.
    const bool is_orphan = depth == 0 && child.component != Component::agent && child.component != Component::redis &&
                           child.component != Component::other;
    if (child.is_dead()) {
      if (is_orphan) ::waitpid(pid, nullptr, WNOHANG);
      continue;
    }
    child.parent = parent.pid;
    child.agent_pid = child.component == Component::agent ? pid : parent.agent_pid;
    child.launcher_pid = child.component == Component::launcher ? pid : parent.launcher_pid;
    observed.push_back(child);
    if (depth < kMaxDepth) collect_descendants(child, observed, depth + 1);
  }
}

}  // namespace mycojobs::test
