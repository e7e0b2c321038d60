#include "sandbox/tree_cpu.h"

#include <fmt/core.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace mycojobs::sandbox {
namespace {

constexpr std::size_t kMostProcesses = 4096;

std::uint64_t own_us(pid_t pid) {
  clockid_t clock = 0;
  timespec time{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<std::uint64_t>(time.tv_sec) * 1000000 + static_cast<std::uint64_t>(time.tv_nsec) / 1000;
}

// Fields 16 and 17 of proc(5)'s stat, counted from behind the name, which may hold anything.
std::uint64_t waited_for_us(pid_t pid) {
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

void add_children(pid_t pid, std::vector<pid_t>& out) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", pid));
  for (pid_t child = 0; file >> child;) out.push_back(child);
}

}  // namespace

std::vector<pid_t> tree_of(pid_t root) {
  std::vector<pid_t> all{root};
  for (std::size_t i = 0; i < all.size() && all.size() < kMostProcesses; ++i) add_children(all[i], all);
  return all;
}

std::uint64_t tree_cpu_us(pid_t root) {
  std::uint64_t sum = 0;
  for (const pid_t pid : tree_of(root)) sum += own_us(pid) + waited_for_us(pid);
  return sum;
}

}  // namespace mycojobs::sandbox
