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
  bool can_exec = false, has_network = false;
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
long read_kernel_kib() {
  long sum = 0;
  std::ifstream file("/proc/meminfo");
  std::string word;
  for (long value = 0; file >> word;) {
    if ((word == "SUnreclaim:" || word == "KernelStack:" || word == "PageTables:") && file >> value) sum += value;
  }
  // Sum over all networks, in pages. Memory of datagrams is part of the slabs.
  std::ifstream sockets("/proc/net/sockstat");
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t position = line.find(" mem ");
    if (line.rfind("TCP:", 0) == 0 && position != std::string::npos)
      sum += std::atol(line.c_str() + position + 5) * (::sysconf(_SC_PAGESIZE) / 1024);
  }
  return sum;
}

// Returns the KiB charged to the group of the launcher's newest run. Version 1 of cgroups counts connections
// separately.
long read_charged_kib(pid_t launcher) {
  const std::string launcher_infix = "-" + std::to_string(launcher) + "-";
  unsigned long newest_run = 0;
  long sum = 0;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator("/sys/fs/cgroup", error); it != fs::recursive_directory_iterator();
       it.increment(error)) {
    if (!it->is_directory(error) ||
        it->path().parent_path().filename().string().find(launcher_infix) == std::string::npos)
      continue;
    const unsigned long run = std::strtoul(it->path().filename().c_str(), nullptr, 10);
    long kib = 0, bytes = 0;
    for (const char* name : {"memory.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes", "memory.current"}) {
      std::ifstream file(it->path() / name);
      if (file >> bytes) kib += bytes / 1024;
    }
    if (kib == 0 || run < newest_run) continue;
    newest_run = run;
    sum = kib;
  }
  return sum;
}

struct Measurement {
  long host_kib = 0, group_kib = 0;
  std::string count;  // Number of allocations, with the errno of the first failure.
};

Measurement measure_once(const Kind& kind) {
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 0;
  const DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  RunSpec spec = make_spec(60000);
  spec.limits.memory_bytes = 64U << 20;
  spec.limits.exec = kind.can_exec;
  if (kind.has_network) spec.grants.network = Network::loopback;
  // The memory of an idle run is subtracted.
  StartedRun idle = start_attempts(*dedicated_sandbox.sandbox, spec, "pin_and_hold nothing");
  wait_for_output(idle, "\n");
  Measurement measurement;
  const long initial_host_kib = read_kernel_kib(), initial_group_kib = read_charged_kib(dedicated_sandbox.launcher);
  spec.run = next_run_id();
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, spec, std::string("pin_and_hold ") + kind.name);
  wait_for_output(started, "\n");
  ::usleep(200'000);  // The kernel charges memory in batches.
  measurement.host_kib = read_kernel_kib() - initial_host_kib;
  measurement.group_kib = read_charged_kib(dedicated_sandbox.launcher) - initial_group_kib;
  measurement.count = started.stdout_text.substr(0, started.stdout_text.find('\n'));
  dedicated_sandbox.sandbox->kill(spec.run, KillReason::cancelled, 0);
  wait_for_end(*dedicated_sandbox.sandbox, started);
  dedicated_sandbox.sandbox->kill(idle.spec.run, KillReason::cancelled, 0);
  wait_for_end(*dedicated_sandbox.sandbox, idle);
  return measurement;
}

void print_median(const Kind& kind) {
  std::array<Measurement, 3> measurements;
  for (auto& measurement : measurements) measurement = measure_once(kind);
  std::sort(measurements.begin(), measurements.end(),
            [](const auto& a, const auto& b) { return a.host_kib < b.host_kib; });
  const Measurement& median = measurements[1];
  std::printf("| %s%s%s | %s | %.1f | %.1f |\n", kind.name, kind.can_exec ? ", exec" : "",
              kind.has_network ? ", net" : "", median.count.c_str(), static_cast<double>(median.host_kib) / 1024,
              static_cast<double>(median.group_kib) / 1024);
  std::fflush(stdout);
}

}  // namespace
}  // namespace mycojobs::test

int main(int argc, char** argv) {
  using namespace mycojobs::test;
  const std::vector<std::string> requested_kinds(argv + 1, argv + argc);
  std::printf("| kind | taken | MiB of the host's kernel | MiB charged to the job |\n|---|---|---|---|\n");
  for (const auto& kind : kKinds) {
    if (requested_kinds.empty() ||
        std::find(requested_kinds.begin(), requested_kinds.end(), kind.name) != requested_kinds.end())
      print_median(kind);
  }
  return 0;
}
