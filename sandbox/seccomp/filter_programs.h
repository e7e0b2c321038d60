// Seccomp programs as bytes: the launcher compiles them once (filter.h), each zygote reads them once, and children load
// them unchanged. File format: the programs in the order of FilterKind; each is the number of instructions, u32 |
// instructions.
#pragma once

#include <linux/filter.h>

#include <array>
#include <cstdint>
#include <vector>

namespace mycojobs::sandbox {

// `job` is the filter of an init and all its jobs, and `last` the filter that each job loads on top of it. Variants
// with `exec` are for jobs that may fork and exec. Variants with `sockets` are for jobs with sockets, or with
// additional system calls in their policy.
enum class FilterKind { job, job_exec, last, last_exec, last_sockets, last_exec_sockets };
inline constexpr std::size_t kFilterKinds = 6;
constexpr FilterKind last_filter_kind(bool exec, bool sockets) {
  if (sockets) return exec ? FilterKind::last_exec_sockets : FilterKind::last_sockets;
  return exec ? FilterKind::last_exec : FilterKind::last;
}

struct FilterSet {
  std::array<std::vector<sock_filter>, kFilterKinds> programs;
  const std::vector<sock_filter>& operator[](FilterKind kind) const { return programs[static_cast<std::size_t>(kind)]; }
};

// Placeholder for a job's uid in the comparisons of a compiled program. Programs are compiled once, but each sandbox
// has a uid of its own. The gid of all jobs is the same.
inline constexpr std::uint32_t kOwnIdPlaceholder = 0xfffe1d1dU;
// Replaces the placeholder. A program with the placeholder refuses the job's own id like any other id.
void set_own_id(std::vector<sock_filter>& program, std::uint32_t id);

// These functions return 0 or an errno, and read from the start of the file.
int read_filters(int fd, FilterSet&);
int read_filter(int fd, std::vector<sock_filter>&);  // a file with one program
int write_filters(int fd, const FilterSet&);
int write_filter(int fd, const std::vector<sock_filter>&);

}  // namespace mycojobs::sandbox
