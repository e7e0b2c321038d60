// Twenty thousand runs of all kinds leave the launcher, its zygotes and the host in their initial state.
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>

#include "fixture.h"
#include "support/test_settings.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

std::size_t count_entries(const std::string& folder) {
  std::error_code error;
  std::size_t count = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) ++count;
  return count;
}

struct ResourceCounts {
  std::size_t processes = 0, descriptors = 0, groups = 0, namespaces = 0, mounts = 0, own_descriptors = 0;
  bool operator==(const ResourceCounts&) const = default;
};

std::ostream& operator<<(std::ostream& out, const ResourceCounts& counts) {
  return out << "processes " << counts.processes << ", descriptors " << counts.descriptors << ", groups "
             << counts.groups << ", namespaces " << counts.namespaces << ", mounts " << counts.mounts
             << ", own descriptors " << counts.own_descriptors;
}

// Counts the resources of the launcher and all its descendants, and the mounts of the host.
ResourceCounts count_resources(const DedicatedSandbox& dedicated_sandbox) {
  ResourceCounts counts;
  std::set<std::string> namespaces;
  auto pids = find_descendants(dedicated_sandbox.launcher);
  pids.push_back(dedicated_sandbox.launcher);
  for (const pid_t pid : pids) {
    const std::string folder = "/proc/" + std::to_string(pid);
    counts.descriptors += count_entries(folder + "/fd");
    std::error_code error;
    for (const char* kind : {"mnt", "net", "pid", "ipc", "uts", "user", "cgroup"}) {
      namespaces.insert(fs::read_symlink(folder + "/ns/" + kind, error).string());
    }
  }
  counts.processes = pids.size();
  counts.groups = count_cgroups(dedicated_sandbox.launcher);
  counts.namespaces = namespaces.size();
  counts.mounts = host_mounts().size();
  counts.own_descriptors = count_entries("/proc/self/fd");
  return counts;
}

// Waits until the counts are stable: descriptors of the last runs are closed a little later than their processes end.
ResourceCounts wait_for_stable_counts(const DedicatedSandbox& dedicated_sandbox) {
  ResourceCounts counts = count_resources(dedicated_sandbox);
  int equal_count = 0;
  EXPECT_TRUE(eventually([&] {
    ::poll(nullptr, 0, 100);
    const ResourceCounts current_counts = count_resources(dedicated_sandbox);
    equal_count = current_counts == counts ? equal_count + 1 : 0;
    counts = current_counts;
    return equal_count == 10;
  }));
  return counts;
}

// Starts a run of kind i % 50. The kinds take different paths through the launcher.
StartedRun start_run_of_kind(Sandbox& sandbox, std::size_t i) {
  RunSpec spec = make_spec();
  std::string lines = "getpid";
  switch (i % 50) {
    case 1:
      lines = "call ptrace";
      break;
    case 2:
      spec.limits.exec = true;
      lines = "daemonize";
      break;
    case 3:
      spec.grants.network = Network::loopback;
      break;
    case 4:
      spec.grants.syscalls = {"inotify_init1"};
      break;
    case 5:
      spec.grants.fs_read = {"/var/nowhere"};  // The set-up fails.
      break;
    case 6:
      lines = "raise 11";
      break;
    case 7:
      spec.limits.memory_bytes = 64ULL << 20;
      break;
    case 8:
      lines = "open_create /tmp/file";
      break;
    default:
      break;
  }
  return start_attempts(sandbox, spec, lines);
}

// An agent would repeat lost runs.
std::size_t lost_run_count = 0;

// Runs four jobs at a time. Their output fits in the pipes and is not read.
void run_many(Sandbox& sandbox, std::size_t count) {
  std::map<std::uint64_t, StartedRun> active_runs;
  for (std::size_t i = 0; i < count || !active_runs.empty();) {
    if (i < count && active_runs.size() < 4) {
      StartedRun started = start_run_of_kind(sandbox, i++);
      active_runs.emplace(started.spec.run, std::move(started));
      continue;
    }
    pollfd event{sandbox.event_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&event, 1, 30000), 1) << "no run ends";
    for (const auto& ended : sandbox.read_ended()) {
      lost_run_count += ended.outcome.status == RunStatus::lost ? 1 : 0;
      const auto position = active_runs.find(ended.run);
      if (position == active_runs.end()) continue;
      const RunPipes& pipes = position->second.pipes;
      for (const int fd : {pipes.out, pipes.err, pipes.channel, pipes.requests}) ::close(fd);
      active_runs.erase(position);
    }
  }
}

TEST(Leaks, TwentyThousandRunsLeaveNothing) {
  const std::size_t runs = read_setting("MYCOJOBS_LEAK_RUNS", 20000);
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 2;
  config.max_zygote_runs = 3000;  // The runs use several zygotes, one after another.
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  run_many(*dedicated_sandbox.sandbox, 400);
  const auto wait_for_processes = [&dedicated_sandbox](std::size_t processes) {
    return eventually([&] { return find_descendants(dedicated_sandbox.launcher).size() == processes; });
  };
  // The zygote, the process that opens granted folders, and one idle sandbox with an init and a job.
  constexpr std::size_t kIdleProcesses = 1 + 1 + 2;
  ASSERT_TRUE(wait_for_processes(kIdleProcesses)) << count_resources(dedicated_sandbox);
  const ResourceCounts initial_counts = wait_for_stable_counts(dedicated_sandbox);
  const long initial_kib = read_status_kib(dedicated_sandbox.launcher, "VmRSS");
  const std::size_t initial_file_count = count_entries("/tmp");
  run_many(*dedicated_sandbox.sandbox, runs);
  EXPECT_TRUE(wait_for_processes(kIdleProcesses));
  EXPECT_TRUE(eventually([&] { return count_resources(dedicated_sandbox) == initial_counts; }))
      << count_resources(dedicated_sandbox) << "\nbefore: " << initial_counts;
  EXPECT_LE(read_status_kib(dedicated_sandbox.launcher, "VmRSS"), initial_kib + 2048);
  EXPECT_LE(count_entries("/tmp"), initial_file_count + 200) << "other tests use it too";
  EXPECT_LE(lost_run_count, 2U) << "of " << runs << ": rare, on a busy machine, and not explained yet";
  std::cout << runs << " runs, lost " << lost_run_count << "; launcher " << initial_kib << " KiB before, "
            << read_status_kib(dedicated_sandbox.launcher, "VmRSS") << " after; " << count_resources(dedicated_sandbox)
            << std::endl;
}

}  // namespace
}  // namespace mycojobs::test
