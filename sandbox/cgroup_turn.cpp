// A group that serves one run after another: what each of them has used at most.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <string_view>

#include "sandbox/cgroup.h"
#include "sandbox/cgroup_files.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint64_t kMostLeft = 6U << 20;

// The processes of one group into another. What they fork meanwhile is there at the next look.
bool move_processes(int parent, const std::string& from, const std::string& into) {
  constexpr int kMostLooks = 8;
  for (int look = 0; look < kMostLooks; ++look) {
    std::istringstream pids(read_at(parent, from + "/cgroup.procs"));
    bool any = false;
    for (pid_t pid = 0; pids >> pid; any = true) {
      const int error = write_at(parent, into + "/cgroup.procs", std::to_string(pid));
      if (error != 0 && error != ESRCH) return false;
    }
    if (!any) return true;
  }
  return false;
}

}  // namespace

std::string Cgroups::group_in(const Tree& tree, std::uint64_t run) const {
  const auto below = tree.counts_anew() ? renewed_.find(run) : renewed_.end();
  return std::to_string(run) + (below == renewed_.end() ? "" : kBelow[below->second ? 1 : 0]);
}

// A group below the run's, whose limit stays in force, counts from the processes that it is given. False: this kernel
// has none, or it could not be made; then what is told is still the old group's.
bool Cgroups::renew_pids(std::uint64_t run) {
  const auto tree = std::find_if(trees_.begin(), trees_.end(), [](const Tree& each) { return each.counts_anew(); });
  if (tree == trees_.end()) return false;
  const int fd = tree->fd.get();
  const auto before = renewed_.find(run);
  const bool first = before == renewed_.end(), second_name = !first && !before->second;
  const std::string from = group_in(*tree, run), into = std::to_string(run) + kBelow[second_name ? 1 : 0];
  if (::mkdirat(fd, into.c_str(), 0755) != 0) return false;
  if (!move_processes(fd, from, into) || (!first && ::unlinkat(fd, from.c_str(), AT_REMOVEDIR) != 0)) return false;
  renewed_[run] = second_name;
  peak_files_.at(run).pids.reset(::openat(fd, (into + "/pids.peak").c_str(), O_RDONLY | O_CLOEXEC));
  return true;
}

Cgroups::PeakFiles Cgroups::open_peaks(std::uint64_t run) const {
  PeakFiles files;
  for (const auto& tree : trees_) {
    const std::string group = group_in(tree, run);
    const std::string peak = group + (tree.place.version == 1 ? "/memory.max_usage_in_bytes" : "/memory.peak");
    if (tree.place.memory) files.memory.reset(::openat(tree.fd.get(), peak.c_str(), O_RDWR | O_CLOEXEC));
    const std::string pids = group + "/pids.peak";
    if (tree.place.pids) files.pids.reset(::openat(tree.fd.get(), pids.c_str(), O_RDONLY | O_CLOEXEC));
  }
  return files;
}

std::uint64_t Cgroups::cpu_us(std::uint64_t run) const {
  for (const auto& tree : trees_) {
    if (tree.place.version != 2) continue;
    const std::string text = read_at(tree.fd.get(), std::to_string(run) + "/cpu.stat");
    const std::string_view name = "usage_usec ";
    if (text.rfind(name, 0) == 0) return number_in(text.substr(name.size()));
  }
  return 0;
}

std::optional<RunUsage> Cgroups::turn_over(std::uint64_t run, const Limits& limits, std::uint32_t processes) {
  auto files = peak_files_.find(run);
  if (files == peak_files_.end()) files = peak_files_.emplace(run, open_peaks(run)).first;
  const auto number_of = [](const Fd& file) {
    char text[32];
    const ssize_t size = ::pread(file.get(), text, sizeof text - 1, 0);
    return size > 0 ? number_in(std::string(text, static_cast<std::size_t>(size))) : 0;
  };
  RunUsage usage;
  bool renew = false;
  if (has_pids()) {
    const std::uint64_t peak = files->second.pids ? number_of(files->second.pids) : 0;
    if (peak == 0) return {};
    usage.pids_peak = static_cast<std::uint32_t>(peak) - 1;  // init
    renew = usage.pids_peak > processes;
    if (usage.pids_peak >= limits.pids) return {};  // it may have been refused some
  }
  const Fd& memory = files->second.memory;
  if (has_memory()) {
    usage.memory_peak = memory ? number_of(memory) : 0;
    // Near its limit: some process may have been killed for it, though the run ended well.
    if (usage.memory_peak == 0 || usage.memory_peak > limits.memory_bytes / 10 * 9) return {};
  }
  if (renew && !renew_pids(run)) return {};
  if (!has_memory()) return usage;
  if (::pwrite(memory.get(), "0", 1, 0) != 1) return {};  // last, since it forgets
  // The count begins with what is charged still (pages of files that the run has read first, names that it has looked
  // up): little, or the next run would be told to have used it.
  return number_of(memory) <= kMostLeft ? std::optional(usage) : std::nullopt;
}

}  // namespace mycojobs::sandbox
