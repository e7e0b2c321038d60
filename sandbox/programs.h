// The seccomp programs as bytes: the launcher compiles them once (policy.h), each zygote reads them once, children load
// them as they are. File: three programs (FilterKind's order), each: number of instructions, u32 | instructions.
#pragma once

#include <linux/filter.h>

#include <array>
#include <vector>

namespace mycojobs::sandbox {

enum class FilterKind { job, job_exec, init };  // job_exec: may fork and exec
inline constexpr std::size_t kFilterKinds = 3;

struct FilterSet {
  std::array<std::vector<sock_filter>, kFilterKinds> programs;
  const std::vector<sock_filter>& operator[](FilterKind kind) const { return programs[static_cast<std::size_t>(kind)]; }
};

int read_filters(int fd, FilterSet&);         // 0 or errno; reads from the start
int write_filters(int fd, const FilterSet&);  // 0 or errno

}  // namespace mycojobs::sandbox
