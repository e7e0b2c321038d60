// Limits by cgroups. Each run has a group below a folder of this launcher, which is removed when the run has ended.
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

// Subgroup of the launcher's original group for the launcher and the agent, as a suffix of the path of that group.
inline constexpr std::string_view kLauncherGroup = "/mycojobs-self";

// A hierarchy in which this process may make groups.
struct CgroupHierarchy {
  int version = 2;
  bool has_memory = false, has_pids = false;  // usable controllers
  std::string path;                           // folder of this process's group
  bool records_peaks = true;                  // the kernel records the peaks of memory and processes
  bool accounts_cpu = false;                  // set for version 1 only; version 2 always accounts CPU time
};

// Returns each hierarchy in /proc with memory, pids or both; version 1, version 2 and a mix of them are supported. If
// needed, one more hierarchy is listed to account CPU time: version 2 without controllers, else cpuacct of version 1.
// Subgroups can use a controller only if this process's group has no process itself. Therefore the launcher and the
// agent are moved to the subgroup kLauncherGroup.
std::vector<CgroupHierarchy> find_cgroups();

// Returns the smallest limit of processes and threads (pids.max) of this process's own group and of those above it that
// can be seen here. Returns UINT64_MAX if there is no limit.
std::uint64_t read_task_limit();

// Returns "mycojobs-<pid namespace>-<pid>-<start time>". The name is never reused, so the groups of a launcher can be
// removed after its death. The processes of another pid namespace (of a container that has ended) cannot be checked;
// a launcher in another namespace is dead if its folder is not locked.
std::string launcher_group_name();
bool belongs_to_dead_launcher(const std::string& parent, const std::string& name);

// Resource usage of a run's group; 0 also if the hierarchy does not count the resource.
struct RunUsage {
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t oom_kills = 0;  // number of processes that the kernel killed at the memory limit
  // Allocations that met the limit. Version 1: failcnt, which newer kernels leave at 0.
  std::uint64_t memory_max_hits = 0;
  std::uint32_t pids_peak = 0;      // without init
  std::uint64_t pids_max_hits = 0;  // forks and threads that the limit refused
  std::uint64_t user_us = 0, system_us = 0;
};

class Cgroups {
 public:
  // Maximum error of a run's reported memory because of memory that an earlier run in the group had used.
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

  // Creates the run's group in every hierarchy and sets the limits. Returns the open cgroup.procs file of each group.
  // Error: errno and file; `error_number` receives the errno.
  Result<std::vector<Fd>> create_run_group(std::uint64_t run, const Limits&, int* error_number = nullptr);
  // Changes the limits of an existing group. If the new memory limit is below the usage, version 1 fails (EBUSY), and
  // in version 2 the kernel reclaims memory and then kills processes. Error: errno and file; some limits may have been
  // set.
  Result<void> set_limits(std::uint64_t run, std::uint64_t memory_bytes, std::uint32_t pids);
  RunUsage read_usage(std::uint64_t run) const;
  std::uint64_t read_cpu_us(std::uint64_t run) const;  // CPU time only, or 0 if no hierarchy accounts it
  // Returns the run's peaks and restarts the counts for the next run in the group. Requires that only init and a
  // waiting job are in the group. The next run's report includes at most `kMaxLeftoverBytes` bytes and `processes`
  // processes of earlier runs. Returns nothing if the group cannot serve another run: this run may have met a limit, or
  // the next report could not be guaranteed to be within these bounds.
  std::optional<RunUsage> reset_for_next_run(std::uint64_t run, const Limits&, std::uint32_t processes);
  // As reset_for_next_run(), but for a warm process that has stopped itself after a run and continues with the next
  // run. The group may contain only init and one thread of the process, and a limited amount of memory. Peaks are reset
  // if the kernel supports it; otherwise the report has the peaks of all runs of the process. Error: the reason why the
  // process cannot be reused.
  Result<RunUsage> reset_for_warm_run(std::uint64_t run, const Limits&);
  // Removes the group of a run that has ended. Remaining processes are killed.
  void remove_run_group(std::uint64_t run);

  // Kernels before 6.1 do not record all peaks. There a peak is the maximum that sample() has seen, so sample() must be
  // called periodically during runs. On other kernels sample() does nothing.
  bool must_sample() const;
  void sample();

 private:
  void remove_busy_groups();
  struct Peaks {
    std::uint64_t memory_bytes = 0;
    std::uint32_t pids = 0;
  };
  struct Tree {
    CgroupHierarchy hierarchy;
    // A subgroup can restart the count of processes only if the hierarchy does not count memory (version 1), or as a
    // threaded group (version 2), where memory is charged to the group above.
    bool can_restart_counting() const {
      return hierarchy.has_pids && (!hierarchy.has_memory || hierarchy.version == 2);
    }
    std::string folder;
    Fd fd;
    Fd lock;  // held while the launcher lives
  };
  // Files that stay open while a group serves several runs. A file is missing if its peak is sampled.
  struct PeakFiles {
    Fd memory, pids, pids_events;
    bool can_reset_memory_peak = false;
  };
  static void open_pids(int parent, const std::string& group, PeakFiles&);
  PeakFiles open_peaks(std::uint64_t run) const;
  RunUsage read_peaks(std::uint64_t run) const;
  void add_limit_hits(std::uint64_t run, RunUsage&) const;
  std::string read_run_file(const Tree&, std::uint64_t run, const std::string& file) const;
  std::uint64_t read_initial_memory_charge(std::uint64_t run, const PeakFiles&) const;  // minimum usage of the next run
  std::string get_pids_group(const Tree&, std::uint64_t run) const;                     // group of the run's processes
  bool move_to_new_subgroup(std::uint64_t run);
  std::vector<Tree> trees_;
  std::map<std::uint64_t, PeakFiles> peak_files_;
  // Open files of warm runs, by run and file name; no name is in two trees.
  mutable std::map<std::uint64_t, std::map<std::string, Fd>> warm_files_;
  std::map<std::uint64_t, bool> subgroups_;  // by run: false for the first of kSubgroups, true for the second
  std::map<std::uint64_t, Peaks> sampled_;   // by run, if must_sample()
  std::vector<std::uint64_t> busy_groups_;   // groups that could not be removed yet
};

}  // namespace mycojobs::sandbox
