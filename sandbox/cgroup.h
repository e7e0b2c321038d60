// Limits by cgroups: one group a run, below a folder of this launcher, removed when the run has ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "mycojobs/result.h"
#include "mycojobs/sandbox.h"
#include "sandbox/cgroup_find.h"

namespace mycojobs::sandbox {

struct RunUsage {
  std::uint64_t memory_peak = 0, oom_kills = 0;
  std::uint32_t pids_peak = 0;
  std::uint64_t user_us = 0, system_us = 0;  // 0: this hierarchy does not count them
};

class Cgroups {
 public:
  Cgroups() = default;
  ~Cgroups();  // removes the launcher's folders
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  // Finds the hierarchies, removes what dead launchers left, makes the launcher's own folders.
  void open();
  bool has_memory() const;
  bool has_pids() const;

  // The run's group in every hierarchy, limits set; returns an open cgroup.procs of each. Error: errno and file.
  Result<std::vector<Fd>> make(std::uint64_t run, const Limits&);
  RunUsage usage(std::uint64_t run) const;
  void remove(std::uint64_t run);

 private:
  struct Tree {
    CgroupPlace place;
    std::string folder;
    Fd fd;
  };
  std::vector<Tree> trees_;
  std::vector<std::uint64_t> stuck_;  // could not be removed yet
};

}  // namespace mycojobs::sandbox
