// Resources of the host that a process can run out of, as errno reports them.
//
//   if (const ResourceShortage* shortage = find_shortage(errno)) log(..., describe_shortage(*shortage));
//
// A shortage does not depend on the work that failed: the same work can succeed later or on another host.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

namespace mycojobs {

struct ResourceShortage {
  int error;
  const char* resource;
  const char* remedy;
};

inline constexpr std::array<ResourceShortage, 5> kShortages{{
    {EMFILE, "descriptors", "raise the limit of open files (ulimit -n, LimitNOFILE= of the unit), or use fewer slots"},
    {ETOOMANYREFS, "descriptors in sockets",
     "raise the limit of open files (ulimit -n, LimitNOFILE= of the unit), or use fewer slots"},
    {ENFILE, "open files of the whole host", "raise the sysctl fs.file-max, or use fewer slots"},
    {EAGAIN, "processes or threads",
     "raise the limit of processes (ulimit -u, TasksMax= of the unit, pids.max of a container), or use fewer slots"},
    {ENOMEM, "memory",
     "raise the limit of memory (MemoryMax= of the unit) or of address space (ulimit -v), or use fewer slots"},
}};

// Returns null if the error is not a shortage.
inline const ResourceShortage* find_shortage(int error) {
  const auto* found = std::find_if(kShortages.begin(), kShortages.end(),
                                   [error](const ResourceShortage& row) { return row.error == error; });
  return found == kShortages.end() ? nullptr : found;
}

// Formats "out of descriptors: raise the limit of open files ...".
inline std::string describe_shortage(const ResourceShortage& shortage) {
  return std::string("out of ") + shortage.resource + ": " + shortage.remedy;
}

}  // namespace mycojobs
