// Where this process may make cgroups: found in /proc, for version 1, version 2 and both at once.
#pragma once

#include <string>
#include <vector>

namespace mycojobs::sandbox {

struct CgroupPlace {
  int version = 2;
  bool memory = false, pids = false;
  std::string path;   // our own group's folder
  bool peaks = true;  // the kernel keeps them
  bool cpu = false;   // of version 1: it counts CPU, as version 2 always does
};

// One place a hierarchy that has memory, pids or both. That of version 2 is one with neither too, since it counts CPU;
// without it version 1's cpuacct is one.
// Its controllers are made available to children first, which needs a group without processes: the launcher and the
// agent move to the leaf `mycojobs-self`.
std::vector<CgroupPlace> find_cgroups();

// mycojobs-<pid namespace>-<pid>-<start time>: names a process for good, so that what a dead one left can be told.
std::string own_group_name();
bool left_by_dead_launcher(const std::string& name);

}  // namespace mycojobs::sandbox
