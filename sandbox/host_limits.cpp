#include "sandbox/host_limits.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "base/shortage.h"
#include "sandbox/cgroup.h"

namespace mycojobs::sandbox {
namespace {

// Maximum number of the agent's own descriptors and tasks, including connections, threads and zygotes of one context,
// and the number per slot.
constexpr std::uint64_t kAgentDescriptors = 64, kSlotDescriptors = 4;
constexpr std::uint64_t kPrewarmedDescriptors = 8 * kRunDescriptors;  // descriptors of prewarmed sandboxes
constexpr std::uint64_t kAgentTasks = 32, kSlotTasks = 2;

std::uint64_t count_fitting_slots(std::uint64_t limit, std::uint64_t fixed, std::uint64_t per_slot) {
  return limit <= fixed ? 1 : std::max<std::uint64_t>(1, (limit - fixed) / per_slot);
}

}  // namespace

HostLimits read_host_limits() {
  HostLimits limits;
  rlimit now{};
  if (::getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur != RLIM_INFINITY) limits.descriptors = now.rlim_cur;
  limits.tasks = read_task_limit();
  // RLIMIT_NPROC does not apply to root.
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &now) == 0 && now.rlim_cur != RLIM_INFINITY)
    limits.tasks = std::min<std::uint64_t>(limits.tasks, now.rlim_cur);
  return limits;
}

SlotFit fit_slots(std::uint32_t requested, const HostLimits& limits) {
  const std::uint64_t prewarmed = std::min<std::uint64_t>(limits.descriptors / 4, kPrewarmedDescriptors);
  const std::uint64_t by_descriptors =
      std::min(count_fitting_slots(limits.descriptors, kAgentDescriptors, kSlotDescriptors),
               count_fitting_slots(limits.descriptors, kLauncherDescriptors + prewarmed, kRunDescriptors));
  const std::uint64_t by_tasks = count_fitting_slots(limits.tasks, kAgentTasks, kSlotTasks);
  const std::uint64_t fit = std::min(by_descriptors, by_tasks);
  if (fit >= requested) return {requested, ""};
  const bool is_descriptor_limit = by_descriptors <= by_tasks;
  const ResourceShortage& shortage = *find_shortage(is_descriptor_limit ? EMFILE : EAGAIN);
  return {static_cast<std::uint32_t>(fit),
          fmt::format("slots: {} are set, and {} fit into the limit of {} {}: {}", requested, fit,
                      is_descriptor_limit ? limits.descriptors : limits.tasks, shortage.resource, shortage.remedy)};
}

}  // namespace mycojobs::sandbox
