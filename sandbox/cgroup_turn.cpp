// A group that serves one run after another: what each of them has used at most.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "sandbox/cgroup.h"
#include "sandbox/cgroup_files.h"

namespace mycojobs::sandbox {
namespace {

std::string text_of(const Fd& file) {
  char text[64];
  const ssize_t size = ::pread(file.get(), text, sizeof text, 0);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}
std::uint64_t number_of(const Fd& file) { return number_in(text_of(file)); }

// The processes of one group into another. What they fork meanwhile is there at the next look. `list` has those of the
// group itself.
bool move_processes(int parent, const std::string& list, const std::string& into) {
  constexpr int kMostLooks = 8;
  for (int look = 0; look < kMostLooks; ++look) {
    std::istringstream pids(read_at(parent, list));
    bool any = false;
    for (pid_t pid = 0; pids >> pid; any = true) {
      const int error = write_at(parent, into + "/cgroup.procs", std::to_string(pid));
      if (error != 0 && error != ESRCH) return false;
    }
    if (!any) return true;
  }
  return false;
}

// A group of version 2 in a run's, which counts processes there and nothing else. False: not on this kernel, or with
// these rights.
bool make_threaded(int parent, const std::string& run, const std::string& into) {
  return write_at(parent, into + "/cgroup.type", "threaded") == 0 &&
         write_at(parent, run + "/cgroup.subtree_control", "+pids") == 0;
}

}  // namespace

std::string Cgroups::pids_group(const Tree& tree, std::uint64_t run) const {
  const auto below = tree.counts_anew() ? renewed_.find(run) : renewed_.end();
  return std::to_string(run) + (below == renewed_.end() ? "" : kBelow[below->second ? 1 : 0]);
}

// A group below the run's, whose limit stays in force, counts from the processes that it is given. False: this kernel
// has none, or it could not be made; then what is told is still the old group's.
// Source: Linux, Documentation/admin-guide/cgroup-v2.rst, "Threads".
bool Cgroups::renew_pids(std::uint64_t run) {
  const auto tree = std::find_if(trees_.begin(), trees_.end(), [](const Tree& each) { return each.counts_anew(); });
  if (tree == trees_.end()) return false;
  const int fd = tree->fd.get();
  const bool threaded = tree->place.version == 2;
  const auto before = renewed_.find(run);
  const bool first = before == renewed_.end(), second_name = !first && !before->second;
  const std::string name = std::to_string(run);
  const std::string from = pids_group(*tree, run), into = name + kBelow[second_name ? 1 : 0];
  if (::mkdirat(fd, into.c_str(), 0755) != 0) return false;
  if (threaded && !make_threaded(fd, name, into)) return false;
  if (!move_processes(fd, from + (threaded ? "/cgroup.threads" : "/cgroup.procs"), into)) return false;
  if (!first && ::unlinkat(fd, from.c_str(), AT_REMOVEDIR) != 0) return false;
  renewed_[run] = second_name;
  open_pids(fd, into, peak_files_.at(run));
  return true;
}

void Cgroups::open_pids(int parent, const std::string& group, PeakFiles& files) {
  files.pids.reset(::openat(parent, (group + "/pids.peak").c_str(), O_RDONLY | O_CLOEXEC));
  files.pids_events.reset(::openat(parent, (group + "/pids.events").c_str(), O_RDONLY | O_CLOEXEC));
}

Cgroups::PeakFiles Cgroups::open_peaks(std::uint64_t run) const {
  PeakFiles files;
  for (const auto& tree : trees_) {
    const int fd = tree.fd.get();
    const bool old = tree.place.version == 1;
    if (tree.place.memory && (old || tree.place.peaks)) {
      const std::string peak = std::to_string(run) + (old ? "/memory.max_usage_in_bytes" : "/memory.peak");
      // In version 2 before Linux 6.12 nobody may write to it, though root may open it so.
      struct stat info {};
      files.memory_begins_anew = ::fstatat(fd, peak.c_str(), &info, 0) == 0 && (info.st_mode & S_IWUSR) != 0;
      files.memory.reset(::openat(fd, peak.c_str(), (files.memory_begins_anew ? O_RDWR : O_RDONLY) | O_CLOEXEC));
    }
    if (tree.place.pids && tree.place.peaks) open_pids(fd, pids_group(tree, run), files);
  }
  return files;
}

std::uint64_t Cgroups::cpu_us(std::uint64_t run) const {
  for (const auto& tree : trees_) {
    const std::string name = std::to_string(run);
    if (tree.place.cpu) return number_in(read_at(tree.fd.get(), name + "/cpuacct.usage")) / 1000;
    if (tree.place.version != 2) continue;
    const std::string cpu = read_at(tree.fd.get(), name + "/cpu.stat");
    if (const std::uint64_t used = counter_in(cpu, "usage_usec"); used > 0) return used;
  }
  return 0;
}

// Through the files that are kept, if any: in version 2 a peak begins anew for the one file that it was written to.
RunUsage Cgroups::peaks(std::uint64_t run) const {
  const auto kept = peak_files_.find(run);
  const PeakFiles opened = kept == peak_files_.end() ? open_peaks(run) : PeakFiles{};
  const PeakFiles& files = kept == peak_files_.end() ? opened : kept->second;
  const auto sampled = sampled_.find(run);
  const Peaks seen = sampled != sampled_.end() ? sampled->second : Peaks{};
  RunUsage usage;
  usage.memory_peak = files.memory ? number_of(files.memory) : seen.memory;
  usage.pids_peak = files.pids ? static_cast<std::uint32_t>(number_of(files.pids)) : seen.pids;
  if (usage.pids_peak > 0) --usage.pids_peak;  // init
  return usage;
}

std::uint64_t Cgroups::charged_from_now(std::uint64_t run, const PeakFiles& files) const {
  if (files.memory) return number_of(files.memory);
  const auto tree = std::find_if(trees_.begin(), trees_.end(), [](const Tree& each) { return each.place.memory; });
  return tree == trees_.end() ? 0 : number_in(read_at(tree->fd.get(), std::to_string(run) + "/memory.current"));
}

std::optional<RunUsage> Cgroups::turn_over(std::uint64_t run, const Limits& limits, std::uint32_t processes) {
  auto kept = peak_files_.find(run);
  if (kept == peak_files_.end()) kept = peak_files_.emplace(run, open_peaks(run)).first;
  const PeakFiles& files = kept->second;
  // What was only sampled may have been more: there the kernel's own word is asked for, whether it has refused any.
  const RunUsage told = must_sample() ? usage(run) : peaks(run);
  if (told.oom_kills > 0 || told.memory_max_hits > 0 || told.pids_max_hits > 0) return {};
  // Refused by a limit above ours, which no peak shows: a later run that ends badly would be said to have met its own.
  if (files.pids_events && counter_in(text_of(files.pids_events), "max") > 0) return {};
  // Init and the job that waits are there.
  if (has_pids() && (told.pids_peak == 0 || told.pids_peak >= limits.pids)) return {};
  if (has_memory()) {
    // Near its limit: some process may have been killed for it, though the run ended well.
    if (told.memory_peak == 0 || told.memory_peak > limits.memory_bytes / 10 * 9) return {};
    if (files.memory && !files.memory_begins_anew && told.memory_peak > kMostLeft) return {};
  }
  if (files.pids && told.pids_peak > processes && !renew_pids(run)) return {};
  if (files.memory_begins_anew && ::pwrite(files.memory.get(), "0", 1, 0) != 1) return {};  // last, since it forgets
  sampled_.erase(run);
  // The count begins with what is charged still (pages of files that the run has read first, names that it has looked
  // up): little, or the next run would be told to have used it.
  return charged_from_now(run, files) <= kMostLeft ? std::optional(told) : std::nullopt;
}

}  // namespace mycojobs::sandbox
