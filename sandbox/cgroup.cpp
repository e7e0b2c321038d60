#include "sandbox/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/errno_text.h"
#include "sandbox/cgroup_files.h"

namespace mycojobs::sandbox {
namespace {

bool has_file(int folder, const std::string& name) { return ::faccessat(folder, name.c_str(), F_OK, 0) == 0; }

// One level: a run's group holds no groups, a launcher's folder holds runs' groups.
std::vector<std::string> groups_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* open_folder = ::opendir(folder.c_str());
  if (open_folder == nullptr) return names;
  while (const dirent* entry = ::readdir(open_folder)) {
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(open_folder);
  return names;
}

// Every process of the run: in its group, or in `below` in version 1. cgroup.kill (Linux 5.14) also catches those that
// are being forked, and those in threaded groups below, of which version 2 tells and kills only from above.
void kill_run(int parent, const std::string& run, const std::string& below) {
  if (write_at(parent, run + "/cgroup.kill", "1") == 0) return;
  std::istringstream pids(read_at(parent, run + "/cgroup.procs") + read_at(parent, run + below + "/cgroup.procs"));
  for (pid_t pid = 0; pids >> pid;) {
    if (pid > 1) ::kill(pid, SIGKILL);
  }
}

// A killed process leaves its group a moment later.
bool remove_group(int parent, const std::string& run, const std::string& below, int tries) {
  for (;;) {
    if (::unlinkat(parent, (run + below).c_str(), AT_REMOVEDIR) == 0 || errno != EBUSY) return true;
    kill_run(parent, run, below);
    if (--tries < 0) return false;
    ::usleep(2000);
  }
}

bool remove_groups_of(int parent, const std::string& run, int tries) {
  bool gone = true;
  for (const char* below : {kBelow[0], kBelow[1], ""}) gone = remove_group(parent, run, below, tries) && gone;
  return gone;
}

void remove_folder_with_groups(const std::string& folder) {
  constexpr int kTries = 50;
  const Fd open_folder(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!open_folder) return;
  for (const auto& name : groups_in(folder)) remove_groups_of(open_folder.get(), name, kTries);
  ::rmdir(folder.c_str());
}

void remove_leftovers(const std::string& parent) {
  for (const auto& name : groups_in(parent)) {
    if (left_by_dead_launcher(name)) remove_folder_with_groups(parent + "/" + name);
  }
}

struct Setting {
  const char* file;
  std::string value;
  bool required = true;  // else a kernel without it is as good
};

// Version 1 has two limits, of memory and of memory and swap together, and the second may never be the smaller one: so
// it is set last, but first when it rises.
std::vector<Setting> limits_of(const CgroupPlace& place, std::uint64_t memory_bytes, std::uint32_t pids, bool rises) {
  std::vector<Setting> settings;
  const std::string memory = std::to_string(memory_bytes);
  if (place.memory && place.version == 1) {
    settings = {{"memory.limit_in_bytes", memory}, {"memory.memsw.limit_in_bytes", memory, false}};
    if (rises) std::swap(settings[0], settings[1]);
    // What waits in connections is counted apart here, and by no one unless it is bounded.
    settings.push_back({"memory.kmem.tcp.limit_in_bytes", std::to_string(memory_bytes / 4), false});
  } else if (place.memory) {
    settings = {{"memory.max", memory}};
  }
  if (place.pids) settings.push_back({"pids.max", std::to_string(pids + std::uint64_t{1})});  // and init
  return settings;
}

// Once for each group: no swap (without the file there is none), and one victim is the whole group's end.
std::vector<Setting> manners_of(const CgroupPlace& place) {
  if (!place.memory || place.version == 1) return {};
  return {{"memory.swap.max", "0", false}, {"memory.oom.group", "1", false}};
}

// The first that failed, or nothing.
struct Failed {
  int error = 0;
  const char* file = "";
};
Failed write_all(int folder, const std::string& group, const std::vector<Setting>& settings) {
  for (const auto& setting : settings) {
    const int error = write_at(folder, group + "/" + setting.file, setting.value);
    if (error != 0 && (setting.required || error != ENOENT)) return {error, setting.file};
  }
  return {};
}

}  // namespace

Cgroups::~Cgroups() {
  for (const auto& tree : trees_) remove_folder_with_groups(tree.folder);
}

void Cgroups::open(const std::vector<CgroupPlace>& places) {
  for (const auto& place : places) {
    remove_leftovers(place.path);
    Tree tree{place, place.path + "/" + own_group_name(), {}};
    if (::mkdir(tree.folder.c_str(), 0755) != 0) continue;
    tree.fd.reset(::open(tree.folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (place.version == 2) {
      if (place.memory) tree.place.memory = write_at(tree.fd.get(), "cgroup.subtree_control", "+memory") == 0;
      if (place.pids) tree.place.pids = write_at(tree.fd.get(), "cgroup.subtree_control", "+pids") == 0;
    }
    if (place.memory && place.version == 2) tree.place.peaks = place.peaks && has_file(tree.fd.get(), "memory.peak");
    if (place.pids) tree.place.peaks = tree.place.peaks && has_file(tree.fd.get(), "pids.peak");
    trees_.push_back(std::move(tree));
  }
}

bool Cgroups::has_memory() const {
  return std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return tree.place.memory; });
}
bool Cgroups::has_pids() const {
  return std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return tree.place.pids; });
}

Result<std::vector<Fd>> Cgroups::make(std::uint64_t run, const Limits& limits) {
  const std::string name = std::to_string(run);
  bury();
  std::vector<Fd> joins;
  const auto failed = [&](const Tree& tree, const std::string& file, int error) {
    remove(run);
    return fail(Code::io, fmt::format("{}/{}/{}: {}", tree.folder, name, file, errno_text(error)));
  };
  for (const auto& tree : trees_) {
    if (::mkdirat(tree.fd.get(), name.c_str(), 0755) != 0) return failed(tree, "", errno);
    auto settings = limits_of(tree.place, limits.memory_bytes, limits.pids, false);
    for (auto& each : manners_of(tree.place)) settings.push_back(std::move(each));
    if (const Failed bad = write_all(tree.fd.get(), name, settings); bad.error != 0)
      return failed(tree, bad.file, bad.error);
    joins.emplace_back(::openat(tree.fd.get(), (name + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (!joins.back()) return failed(tree, "cgroup.procs", errno);
  }
  return joins;
}

Result<void> Cgroups::set_limits(std::uint64_t run, std::uint64_t memory_bytes, std::uint32_t pids) {
  const std::string name = std::to_string(run);
  for (const auto& tree : trees_) {
    const bool rises = tree.place.version == 1 && tree.place.memory &&
                       number_in(read_at(tree.fd.get(), name + "/memory.limit_in_bytes")) < memory_bytes;
    const Failed bad = write_all(tree.fd.get(), name, limits_of(tree.place, memory_bytes, pids, rises));
    if (bad.error != 0)
      return fail(Code::io, fmt::format("{}/{}/{}: {}", tree.folder, name, bad.file, errno_text(bad.error)));
  }
  return {};
}

RunUsage Cgroups::usage(std::uint64_t run) const {
  RunUsage usage = peaks(run);
  for (const auto& tree : trees_) {
    const int fd = tree.fd.get();
    const std::string name = std::to_string(run) + "/";
    if (tree.place.memory && tree.place.version == 1) {
      usage.oom_kills = counter_in(read_at(fd, name + "memory.oom_control"), "oom_kill");
      usage.memory_max_hits =  // whichever of the two limits was met
          number_in(read_at(fd, name + "memory.failcnt")) + number_in(read_at(fd, name + "memory.memsw.failcnt"));
    } else if (tree.place.memory) {
      const std::string events = read_at(fd, name + "memory.events");
      usage.oom_kills = counter_in(events, "oom_kill");
      usage.memory_max_hits = counter_in(events, "max");
    }
    if (tree.place.version == 2) {
      const std::string cpu = read_at(fd, name + "cpu.stat");
      usage.user_us = counter_in(cpu, "user_usec");
      usage.system_us = counter_in(cpu, "system_usec");
    } else if (tree.place.cpu) {  // nanoseconds
      usage.user_us = number_in(read_at(fd, name + "cpuacct.usage_user")) / 1000;
      usage.system_us = number_in(read_at(fd, name + "cpuacct.usage_sys")) / 1000;
    }
    if (tree.place.pids) {
      // Counted where it was asked for (version 1, and before Linux 6.11), or where the limit stands.
      const std::string asked = pids_group(tree, run) + "/";
      usage.pids_max_hits = counter_in(read_at(fd, name + "pids.events"), "max");
      if (asked != name) usage.pids_max_hits += counter_in(read_at(fd, asked + "pids.events"), "max");
      // A group below the one with the limit has counted what was then refused, too.
      if (usage.pids_max_hits > 0 && asked != name)
        usage.pids_peak =
            std::min(usage.pids_peak, static_cast<std::uint32_t>(number_in(read_at(fd, name + "pids.max")) - 1));
    }
  }
  return usage;
}

bool Cgroups::must_sample() const {
  return std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return !tree.place.peaks; });
}

void Cgroups::sample() {
  for (const auto& tree : trees_) {
    if (tree.place.peaks) continue;
    for (const auto& name : groups_in(tree.folder)) {
      Peaks& peaks = sampled_[std::strtoull(name.c_str(), nullptr, 10)];
      const int fd = tree.fd.get();
      peaks.memory = std::max(peaks.memory, number_in(read_at(fd, name + "/memory.current")));
      peaks.pids = std::max(peaks.pids, static_cast<std::uint32_t>(number_in(read_at(fd, name + "/pids.current"))));
    }
  }
}

// A group is busy for a moment while the kernel buries the last process: then it is tried again with the next run.
void Cgroups::remove(std::uint64_t run) {
  peak_files_.erase(run);
  stuck_.push_back(run);
  bury();
}

void Cgroups::bury() {
  std::erase_if(stuck_, [&](std::uint64_t run) {
    const std::string name = std::to_string(run);
    bool gone = true;
    for (const auto& tree : trees_) {
      gone =
          (tree.counts_anew() ? remove_groups_of(tree.fd.get(), name, 0) : remove_group(tree.fd.get(), name, "", 0)) &&
          gone;
    }
    if (gone) sampled_.erase(run), renewed_.erase(run);
    return gone;
  });
}

}  // namespace mycojobs::sandbox
