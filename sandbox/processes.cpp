#include "sandbox/processes.h"

#include <dirent.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace mycojobs::sandbox {
namespace {

constexpr std::size_t kMaxTreeSize = 4096;

std::uint64_t read_process_cpu_us(pid_t pid) {
  clockid_t clock = 0;
  timespec time{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<std::uint64_t>(time.tv_sec) * 1000000 + static_cast<std::uint64_t>(time.tv_nsec) / 1000;
}

// Returns fields 16 and 17 of /proc/PID/stat (proc(5)), counted after the name, which may contain any characters.
std::uint64_t read_reaped_children_cpu_us(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 3; i < 16; ++i) fields >> skipped;
  long long user = 0, system = 0;
  fields >> user >> system;
  return static_cast<std::uint64_t>(user + system) * 1000000 / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
}

void append_children(pid_t pid, std::vector<pid_t>& out) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", pid));
  for (pid_t child = 0; file >> child;) out.push_back(child);
}

constexpr std::size_t kMaxDescribedProcesses = 3;

struct Process {
  pid_t pid = 0, parent = 0;
  std::string name;
  char state = '?';
};

// Parses "pid (name) state parent ..." in /proc/PID/stat. A process can choose its name, including parentheses.
std::optional<Process> read_process(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string line;
  std::getline(file, line, '\0');
  const std::size_t begin = line.find('(');
  const std::size_t end = line.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin || line.size() < end + 5) return {};
  Process process;
  process.pid = std::atoi(pid.c_str());
  process.parent = std::atoi(line.c_str() + end + 4);
  process.state = line[end + 2];
  process.name = line.substr(begin + 1, end - begin - 1);
  std::replace_if(
      process.name.begin(), process.name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return process;
}

std::vector<Process> list_processes() {
  std::vector<Process> processes;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return processes;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    if (auto process = read_process(entry->d_name)) processes.push_back(std::move(*process));
  }
  ::closedir(folder);
  return processes;
}

}  // namespace

std::optional<long> read_number_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string token; file >> token;) {
    long number = 0;
    if (token == key && file >> number) return number;
  }
  return {};
}

std::optional<long> read_pid(int pidfd) {
  return read_number_after(fmt::format("/proc/self/fdinfo/{}", pidfd), "Pid:");
}

std::vector<pid_t> list_process_tree(pid_t root) {
  std::vector<pid_t> processes{root};
  for (std::size_t i = 0; i < processes.size() && processes.size() < kMaxTreeSize; ++i)
    append_children(processes[i], processes);
  return processes;
}

std::uint64_t read_tree_cpu_us(pid_t root) {
  std::uint64_t sum = 0;
  for (const pid_t pid : list_process_tree(root)) sum += read_process_cpu_us(pid) + read_reaped_children_cpu_us(pid);
  return sum;
}

std::string describe_survivors(pid_t init) {
  const std::vector<Process> processes = list_processes();
  std::set<pid_t> descendants{init};
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (const Process& process : processes)
      has_changed = (descendants.contains(process.parent) && descendants.insert(process.pid).second) || has_changed;
  }
  std::string text;
  std::size_t count = 0;
  for (const Process& process : processes) {
    const bool is_survivor = descendants.contains(process.pid) && (process.pid != init || descendants.size() == 1);
    if (!is_survivor || count++ >= kMaxDescribedProcesses) continue;
    text +=
        fmt::format("{}process {} ({}, state {})", text.empty() ? "" : ", ", process.pid, process.name, process.state);
  }
  if (count > kMaxDescribedProcesses) text += fmt::format(" and {} more", count - kMaxDescribedProcesses);
  return text;
}

}  // namespace mycojobs::sandbox
