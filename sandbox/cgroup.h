// Limits by cgroups: one group a run, below a folder of this launcher, removed when the run has ended.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

// Child of the launcher's own group that takes the launcher and the agent, as a suffix of the path of that group.
inline constexpr std::string_view kLauncherGroup = "/mycojobs-self";

// A hierarchy in which this process may make groups.
struct CgroupHierarchy {
  int version = 2;
  bool memory = false, pids = false;  // usable controllers
  std::string path;                   // folder of this process's group
  bool peaks = true;                  // the kernel records peaks
  bool cpu = false;                   // version 1: accounts CPU time, as version 2 always does
};

// Returns each hierarchy in /proc with memory, pids or both; version 1, version 2 and a mix of them are supported. If
// needed, one more hierarchy is listed to account CPU time: version 2 without controllers, else cpuacct of version 1.
// Children can use a controller only if our own group has no process of its own. So the launcher and the agent move to
// the child group kLauncherGroup.
std::vector<CgroupHierarchy> find_cgroups();

// The smallest limit of processes and threads (pids.max) of this process's own group and of those above it that can be
// seen here; UINT64_MAX: none.
std::uint64_t task_limit();

// mycojobs-<pid namespace>-<pid>-<start time>: identifies a launcher for good, so that its groups can be removed after
// its death. The processes of another pid namespace (of a container that has ended) cannot be looked up; there the lock
// that a launcher holds on its folder decides.
std::string launcher_group_name();
bool belongs_to_dead_launcher(const std::string& parent, const std::string& name);

// Resource usage of a run's group; 0 also if the hierarchy does not count the resource.
struct RunUsage {
  std::uint64_t memory_peak = 0;  // bytes
  std::uint64_t oom_kills = 0;    // processes that the kernel killed for want of memory: above 0, that was the end
  // Allocations that met the limit. Version 1: failcnt, which newer kernels leave at 0.
  std::uint64_t memory_max_hits = 0;
  std::uint32_t pids_peak = 0;      // without init
  std::uint64_t pids_max_hits = 0;  // forks and threads that the limit refused
  std::uint64_t user_us = 0, system_us = 0;
};

class Cgroups {
 public:
  // Maximum error, in bytes, of a run's report because of memory that an earlier run in the group had used.
  static constexpr std::uint64_t kMaxLeftoverBytes = 6U << 20;

  Cgroups() = default;
  ~Cgroups();  // removes the launcher's folders
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  // Creates the launcher's folders. Removes the folders of dead launchers and kills the processes in them.
  void open(const std::vector<CgroupHierarchy>& hierarchies = find_cgroups());
  // Removes the folders of launchers that have died since open(). Processes in them are killed; a folder that is still
  // busy is removed at the next call.
  void remove_leftovers();
  bool has_memory() const;
  bool has_pids() const;

  // Creates the run's group in every hierarchy and sets the limits. Returns an open cgroup.procs of each. Error: errno
  // and file; the errno also in `why`.
  Result<std::vector<Fd>> make(std::uint64_t run, const Limits&, int* error_number = nullptr);
  // Changes the limits of an existing group. If the new memory limit is below the usage, version 1 fails (EBUSY), and
  // in version 2 the kernel reclaims memory and then kills processes. Error: errno and file; some limits may have been
  // set.
  Result<void> set_limits(std::uint64_t run, std::uint64_t memory_bytes, std::uint32_t pids);
  RunUsage usage(std::uint64_t run) const;
  std::uint64_t cpu_us(std::uint64_t run) const;  // CPU time only; 0: no hierarchy accounts it
  // Returns the run's peaks and restarts the counts for the next run in the group. Requires that only init and a
  // waiting job are in the group. The next run's report includes at most `kMaxLeftoverBytes` bytes and `processes`
  // processes of earlier runs. Returns nothing if the group cannot serve another run: this run may have met a limit, or
  // that bound would not hold.
  std::optional<RunUsage> reset_for_next_run(std::uint64_t run, const Limits&, std::uint32_t processes);
  // The same for a warm process that has stopped itself after a run and continues with the next run: the group must
  // hold only init and one thread of the process, and not too much memory. Peaks are reset if the kernel supports it;
  // otherwise the report has the peaks of all runs of the process. Error: the reason why the process cannot be reused.
  Result<RunUsage> reset_for_warm_run(std::uint64_t run, const Limits&);
  // Removes the group of a run that has ended. Remaining processes are killed.
  void remove(std::uint64_t run);

  // Kernels before 6.1 do not record all peaks. There a peak is the maximum that sample() has seen, so sample() must be
  // called periodically during runs. On other kernels sample() does nothing.
  bool must_sample() const;
  void sample();

 private:
  void remove_stuck();
  struct Peaks {
    std::uint64_t memory = 0;
    std::uint32_t pids = 0;
  };
  struct Tree {
    CgroupHierarchy hierarchy;
    // A subgroup can restart the count of processes only if the hierarchy does not count memory (version 1), or as a
    // threaded group (version 2), where memory is charged to the group above.
    bool can_restart_counting() const { return hierarchy.pids && (!hierarchy.memory || hierarchy.version == 2); }
    std::string folder;
    Fd fd;
    Fd lock;  // held while the launcher lives
  };
  struct PeakFiles {  // kept open while a group serves one run after another; none where peaks are sampled
    Fd memory, pids, pids_events;
    bool memory_peak_restarts = false;
  };
  static void open_pids(int parent, const std::string& group, PeakFiles&);
  PeakFiles open_peaks(std::uint64_t run) const;
  RunUsage peaks(std::uint64_t run) const;
  void add_limits_met(std::uint64_t run, RunUsage&) const;
  std::string read_run_file(const Tree&, std::uint64_t run, const std::string& file) const;
  std::uint64_t initial_memory_charge(std::uint64_t run, const PeakFiles&) const;  // minimum usage of the next run
  std::string pids_group(const Tree&, std::uint64_t run) const;                    // group of the run's processes
  bool move_to_new_subgroup(std::uint64_t run);
  std::vector<Tree> trees_;
  std::map<std::uint64_t, PeakFiles> peak_files_;
  mutable std::map<std::uint64_t, std::map<std::string, Fd>> warm_files_;  // by run, by name; no name is in two trees
  std::map<std::uint64_t, bool> subgroups_;  // runs with processes in a subgroup; true: the second of two
  std::map<std::uint64_t, Peaks> sampled_;   // by run, if must_sample()
  std::vector<std::uint64_t> stuck_;         // groups that could not be removed yet
};

}  // namespace mycojobs::sandbox
