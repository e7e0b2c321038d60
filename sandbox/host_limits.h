// The limits of the host for an agent, and the number of slots that fit into them. Runs beyond these limits would be
// claimed and returned repeatedly.
#pragma once

#include <cstdint>
#include <string>

namespace mycojobs::sandbox {

// Maximum number of the launcher's own descriptors, including its zygotes, and the number per run.
inline constexpr std::uint64_t kLauncherDescriptors = 48, kRunDescriptors = 8;

struct HostLimits {
  std::uint64_t descriptors = UINT64_MAX;  // per process: RLIMIT_NOFILE
  std::uint64_t tasks = UINT64_MAX;        // processes and threads of the agent and its jobs: cgroups, RLIMIT_NPROC
};
// Returns the limits of this process. An unreadable limit counts as unlimited.
HostLimits read_host_limits();

struct SlotFit {
  std::uint32_t slots = 0;  // at least 1
  std::string reason;       // the limit and the remedy if there are fewer slots than requested; otherwise empty
};
SlotFit fit_slots(std::uint32_t requested, const HostLimits&);

}  // namespace mycojobs::sandbox
