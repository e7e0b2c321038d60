// What the host lets an agent have, and how many slots fit into that. Runs that do not fit would be claimed and given
// back again and again.
#pragma once

#include <cstdint>
#include <string>

namespace mycojobs::sandbox {

// The launcher's own descriptors at most, those of its zygotes included, and what a run adds to them.
inline constexpr std::uint64_t kLauncherDescriptors = 48, kRunDescriptors = 8;

struct HostLimits {
  std::uint64_t descriptors = UINT64_MAX;  // of each process: RLIMIT_NOFILE
  std::uint64_t tasks = UINT64_MAX;        // processes and threads of the agent and its jobs: cgroups, RLIMIT_NPROC
};
// Of this process. A limit that cannot be read counts as none.
HostLimits read_host_limits();

struct SlotFit {
  std::uint32_t slots = 0;  // 1 at least
  std::string why;          // of fewer slots than wanted: the limit and the remedy; else empty
};
SlotFit fit_slots(std::uint32_t wanted, const HostLimits&);

}  // namespace mycojobs::sandbox
