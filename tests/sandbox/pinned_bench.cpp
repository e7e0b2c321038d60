// Measures the kernel memory that a job can allocate beyond the charge to its group, for the table of docs/sandbox.md:
//   ninja -C build pinned_bench && build/bin/pinned_bench [KIND...]
// Each kind is measured three times, in a job of 64 MiB that allocates and then holds the memory. The median counts,
// because a host is never idle. Kernel memory is read from /proc/meminfo (SUnreclaim, KernelStack, PageTables) and
// /proc/net/sockstat.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "fixture.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

struct Kind {
  const char* name;
  bool exec = false, network = false;
};
constexpr Kind kKinds[] = {
    {"nothing"},
    {"record_locks"},
    {"record_locks", true},
    {"flocks"},
    {"epoll_items"},
    {"epolls"},
    {"eventfds"},
    {"timerfds"},
    {"timers"},
    {"signals"},
    {"pipes"},
    {"pairs"},
    {"vmas"},
    {"page_tables"},
    {"files"},
    {"symlinks"},
    {"missing_names"},
    {"landlock_rules"},
    {"threads"},
    {"listeners", false, true},
    {"corked", false, true},
    {"pending", false, true},
    {"time_waits", false, true},
    {"datagrams", false, true},
};

// Returns the kernel memory of the host in KiB.
long kernel_memory() {
  long sum = 0;
  std::ifstream file("/proc/meminfo");
  std::string word;
  for (long value = 0; file >> word;) {
    if ((word == "SUnreclaim:" || word == "KernelStack:" || word == "PageTables:") && file >> value) sum += value;
  }
  // Sum over all networks, in pages. Memory of datagrams is part of the slabs.
  std::ifstream sockets("/proc/net/sockstat");
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t at = line.find(" mem ");
    if (line.rfind("TCP:", 0) == 0 && at != std::string::npos)
      sum += std::atol(line.c_str() + at + 5) * (::sysconf(_SC_PAGESIZE) / 1024);
  }
  return sum;
}

// Returns the KiB charged to the group of the run, the launcher's newest. Version 1 of cgroups counts connections
// separately.
long charged(pid_t launcher) {
  const std::string mark = "-" + std::to_string(launcher) + "-";
  unsigned long newest = 0;
  long sum = 0;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator("/sys/fs/cgroup", error); it != fs::recursive_directory_iterator();
       it.increment(error)) {
    if (!it->is_directory(error) || it->path().parent_path().filename().string().find(mark) == std::string::npos)
      continue;
    const unsigned long run = std::strtoul(it->path().filename().c_str(), nullptr, 10);
    long here = 0, bytes = 0;
    for (const char* name : {"memory.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes", "memory.current"}) {
      std::ifstream file(it->path() / name);
      if (file >> bytes) here += bytes / 1024;
    }
    if (here == 0 || run < newest) continue;
    newest = run;
    sum = here;
  }
  return sum;
}

struct Taken {
  long host = 0, group = 0;  // KiB
  std::string count;
};

Taken take(const Kind& kind) {
  SandboxConfig config = test_config();
  config.prewarmed = 0;
  const OwnSandbox own = own_sandbox(config);
  RunSpec spec = spec_with(60000);
  spec.limits.memory_bytes = 64U << 20;
  spec.limits.exec = kind.exec;
  if (kind.network) spec.grants.network = Network::loopback;
  // The memory of an idle run is subtracted.
  StartedRun idle = start_attempts(*own.sandbox, spec, "pin_and_hold nothing");
  wait_for_output(idle, "\n");
  Taken taken;
  const long before = kernel_memory(), group_before = charged(own.launcher);
  spec.run = next_run();
  StartedRun started = start_attempts(*own.sandbox, spec, std::string("pin_and_hold ") + kind.name);
  wait_for_output(started, "\n");
  ::usleep(200'000);  // the kernel charges in batches
  taken.host = kernel_memory() - before;
  taken.group = charged(own.launcher) - group_before;
  taken.count = started.out.substr(0, started.out.find('\n'));
  own.sandbox->kill(spec.run, KillReason::cancelled, 0);
  wait_for(*own.sandbox, started);
  own.sandbox->kill(idle.spec.run, KillReason::cancelled, 0);
  wait_for(*own.sandbox, idle);
  return taken;
}

void measure(const Kind& kind) {
  std::array<Taken, 3> all;
  for (auto& each : all) each = take(kind);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.host < b.host; });
  const Taken& median = all[1];
  std::printf("| %s%s%s | %s | %.1f | %.1f |\n", kind.name, kind.exec ? ", exec" : "", kind.network ? ", net" : "",
              median.count.c_str(), static_cast<double>(median.host) / 1024, static_cast<double>(median.group) / 1024);
  std::fflush(stdout);
}

}  // namespace
}  // namespace mycojobs::test

int main(int argc, char** argv) {
  using namespace mycojobs::test;
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  std::printf("| kind | taken | MiB of the host's kernel | MiB charged to the job |\n|---|---|---|---|\n");
  for (const auto& kind : kKinds) {
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), kind.name) != wanted.end()) measure(kind);
  }
  return 0;
}
