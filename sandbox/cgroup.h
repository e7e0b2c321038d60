// Limits by cgroups: one group a run, below a folder of this launcher, removed when the run has ended.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "mycojobs/result.h"
#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

// Child of the launcher's own group that takes the launcher and the agent, as a suffix of the path of that group.
inline constexpr std::string_view kLauncherGroup = "/mycojobs-self";

// A hierarchy in which this process may make groups.
struct CgroupPlace {
  int version = 2;
  bool memory = false, pids = false;  // its controllers that we may use
  std::string path;                   // our own group's folder
  bool peaks = true;                  // the kernel keeps them
  bool cpu = false;                   // of version 1: it counts CPU, as version 2 always does
};

// Found in /proc, for version 1, version 2 and both at once: each hierarchy with memory, pids or both. To count CPU one
// more is listed if need be: version 2 without controllers, else cpuacct of version 1.
// Children can use a controller only if our own group has no process of its own. So the launcher and the agent move to
// the child group kLauncherGroup.
std::vector<CgroupPlace> find_cgroups();

// The smallest limit of processes and threads (pids.max) of this process's own group and of those above it that can be
// seen here; UINT64_MAX: none.
std::uint64_t task_limit();

// mycojobs-<pid namespace>-<pid>-<start time>: identifies a launcher for good, so that its groups can be removed after
// its death. The processes of another pid namespace (of a container that has ended) cannot be looked up; there the lock
// that a launcher holds on its folder decides.
std::string own_group_name();
bool left_by_dead_launcher(const std::string& parent, const std::string& name);

// What a run's group has counted; 0 also where this hierarchy does not count it.
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
  // Bytes that a run's report may have too much, because an earlier run in its group had used them.
  static constexpr std::uint64_t kMostLeft = 6U << 20;

  Cgroups() = default;
  ~Cgroups();  // removes the launcher's folders
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  // Makes the launcher's own folders, and removes what dead launchers left, with whatever still runs in it.
  void open(const std::vector<CgroupPlace>& places = find_cgroups());
  // Of launchers that have died since, too. What is still in it is killed, and waited for at the next call.
  void remove_leftovers();
  bool has_memory() const;
  bool has_pids() const;

  // The run's group in every hierarchy, limits set; returns an open cgroup.procs of each. Error: errno and file;
  // the errno also in `why`.
  Result<std::vector<Fd>> make(std::uint64_t run, const Limits&, int* why = nullptr);
  // Other limits for a group that exists. Less memory than is in use: version 1 refuses it (EBUSY), in version 2 the
  // kernel takes back what it can and then kills. Error: errno and file; a part may have been set.
  Result<void> set_limits(std::uint64_t run, std::uint64_t memory_bytes, std::uint32_t pids);
  RunUsage usage(std::uint64_t run) const;
  std::uint64_t cpu_us(std::uint64_t run) const;  // of usage() the CPU alone; 0: no hierarchy counts it
  // The run's peaks. From now on the group counts for the next run in it. Call it while only init and a job that waits
  // are in the group. The next run's report has at most `kMostLeft` bytes and `processes` of the earlier ones.
  // Nothing: the group cannot serve another run. This one may have met a limit, or that bound would not hold.
  std::optional<RunUsage> turn_over(std::uint64_t run, const Limits&, std::uint32_t processes);
  // The same of a warm process that has stopped itself after a run, and goes on with the next one: the group holds init
  // and its one thread, and not too much memory. Peaks begin anew where the kernel can (elsewhere the report has those
  // of all its runs). Error: what stands against it.
  Result<RunUsage> stay(std::uint64_t run, const Limits&);
  // The run has ended: what is still in its group is killed.
  void remove(std::uint64_t run);

  // Kernels before 6.1 do not keep all peaks. There a peak is the most that sample() has seen: call it now and then
  // while runs live. Elsewhere it does nothing.
  bool must_sample() const;
  void sample();

 private:
  void remove_stuck();
  struct Peaks {
    std::uint64_t memory = 0;
    std::uint32_t pids = 0;
  };
  struct Tree {
    CgroupPlace place;
    // A group below the run's can count processes alone: where it counts nothing else (version 1), or in a threaded
    // group (version 2), whose memory is that of the group above.
    bool counts_anew() const { return place.pids && (!place.memory || place.version == 2); }
    std::string folder;
    Fd fd;
    Fd lock;  // held while the launcher lives
  };
  struct PeakFiles {  // kept open while a group serves one run after another; none where peaks are sampled
    Fd memory, pids, pids_events;
    bool memory_begins_anew = false;
  };
  static void open_pids(int parent, const std::string& group, PeakFiles&);
  PeakFiles open_peaks(std::uint64_t run) const;
  RunUsage peaks(std::uint64_t run) const;
  void add_limits_met(std::uint64_t run, RunUsage&) const;
  std::string text_in(const Tree&, std::uint64_t run, const std::string& file) const;
  std::uint64_t charged_from_now(std::uint64_t run, const PeakFiles&) const;  // to the next one, at least
  std::string pids_group(const Tree&, std::uint64_t run) const;               // where its processes are
  bool renew_pids(std::uint64_t run);
  std::vector<Tree> trees_;
  std::map<std::uint64_t, PeakFiles> peak_files_;
  mutable std::map<std::uint64_t, std::map<std::string, Fd>> warm_files_;  // by run, by name; no name is in two trees
  std::map<std::uint64_t, bool> renewed_;   // runs whose processes are in a group below theirs: in the other one of two
  std::map<std::uint64_t, Peaks> sampled_;  // by run, if they must be
  std::vector<std::uint64_t> stuck_;        // could not be removed yet
};

}  // namespace mycojobs::sandbox
