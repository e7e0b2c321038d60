#include "sandbox/survivors.h"

#include <dirent.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <vector>

namespace mycojobs::sandbox {
namespace {

constexpr std::size_t kMost = 3;

struct Process {
  pid_t pid = 0, parent = 0;
  std::string name;
  char state = '?';
};

// /proc/PID/stat: pid (name) state parent ...; the name is the process's own choice, parentheses included.
std::optional<Process> process_at(const std::string& pid) {
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

std::vector<Process> all_processes() {
  std::vector<Process> all;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return all;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    if (auto process = process_at(entry->d_name)) all.push_back(std::move(*process));
  }
  ::closedir(folder);
  return all;
}

}  // namespace

std::string describe_survivors(pid_t init) {
  const std::vector<Process> all = all_processes();
  std::set<pid_t> below{init};
  for (bool more = true; more;) {
    more = false;
    for (const Process& process : all)
      more = (below.contains(process.parent) && below.insert(process.pid).second) || more;
  }
  std::string text;
  std::size_t told = 0;
  for (const Process& process : all) {
    const bool counts = below.contains(process.pid) && (process.pid != init || below.size() == 1);
    if (!counts || told++ >= kMost) continue;
    text +=
        fmt::format("{}process {} ({}, state {})", text.empty() ? "" : ", ", process.pid, process.name, process.state);
  }
  if (told > kMost) text += fmt::format(" and {} more", told - kMost);
  return text;
}

}  // namespace mycojobs::sandbox
