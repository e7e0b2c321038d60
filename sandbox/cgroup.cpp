#include "sandbox/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"

namespace mycojobs::sandbox {
namespace {

bool has_word(const std::string& list, const std::string& word, char separator) {
  std::istringstream words(list);
  for (std::string each; std::getline(words, each, separator);) {
    if (each == word) return true;
  }
  return false;
}

bool write_text(const std::string& path, const std::string& text) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct Mount {
  std::string root, point, options;
};

// Source: proc(5), mountinfo: id parent device root point options [tags] - type source superblock-options
Mount find_mount(const std::string& type, const std::string& controller) {
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string skip, kind, source;
    Mount mount;
    left >> skip >> skip >> skip >> mount.root >> mount.point;
    right >> kind >> source >> mount.options;
    if (kind == type && (controller.empty() || has_word(mount.options, controller, ','))) return mount;
  }
  return {};
}

std::string folder_of(const Mount& mount, const std::string& group) {
  if (mount.point.empty()) return {};
  std::string below = group;
  if (mount.root != "/" && below.compare(0, mount.root.size(), mount.root) == 0) below.erase(0, mount.root.size());
  return mount.point + (below == "/" ? "" : below);
}

// Returns true if all processes of the group may be moved: systemd has marked the group as delegated, this process is
// not root (an ordinary user can write only to a delegated group), or a cgroup namespace ends here, as in a container.
bool is_delegated(const std::string& folder, const std::string& group) {
  char value[4] = {};
  return ::geteuid() != 0 || group == "/" || ::getxattr(folder.c_str(), "trusted.delegate", value, sizeof value) > 0 ||
         ::getxattr(folder.c_str(), "user.delegate", value, sizeof value) > 0;
}

// systemd removes the leaf together with the unit. Processes may be forked while others are moved, so the move is
// repeated.
void move_to_leaf(const std::string& folder, const std::string& group) {
  const std::string leaf = folder + std::string(kLauncherGroup);
  if (::mkdir(leaf.c_str(), 0755) != 0 && errno != EEXIST) return;
  std::vector<std::string> movers{std::to_string(::getpid()), std::to_string(::getppid())};
  const bool all = is_delegated(folder, group);
  for (int round = 0; round < 10; ++round) {
    if (all) {
      std::ifstream processes(folder + "/cgroup.procs");
      for (std::string pid; processes >> pid;) movers.push_back(pid);
    }
    if (movers.empty()) return;
    for (const auto& pid : movers) write_text(leaf + "/cgroup.procs", pid);
    movers.clear();
  }
}

CgroupHierarchy prepare_version_2(std::string folder, const std::string& group) {
  if (folder.ends_with(kLauncherGroup)) folder.resize(folder.size() - kLauncherGroup.size());  // an earlier launcher's
  const std::string available = read_line(folder + "/cgroup.controllers");
  const std::string control = folder + "/cgroup.subtree_control";
  if (available.empty()) return {2, false, false, folder};
  for (const char* name : {"memory", "pids"}) {
    if (!has_word(available, name, ' ') || has_word(read_line(control), name, ' ')) continue;
    const std::string enable = fmt::format("+{}", name);
    if (write_text(control, enable)) continue;
    move_to_leaf(folder, group);
    write_text(control, enable);
  }
  const std::string enabled = read_line(control);
  return {2, has_word(enabled, "memory", ' '), has_word(enabled, "pids", ' '), folder};
}

std::string start_time(const std::string& pid) {
  const std::string line = read_line("/proc/" + pid + "/stat");
  const std::size_t name_end = line.rfind(')');  // the name may hold anything, blanks and brackets too
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return field;
}

std::string pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? std::to_string(info.st_ino) : "0";
}

// Files of control groups, by the descriptor of a folder above.

// Subgroups of a run that restart its count of processes; the two names alternate. The names carry no information,
// because a job can read them.
constexpr const char* kBelow[] = {"/a", "/b"};

// errno, or 0.
int write_at(int folder, const std::string& name, const std::string& text) {
  const Fd file(::openat(folder, name.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return errno;
  return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
}

std::string read_at(int folder, const std::string& name) {
  const Fd file(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t size = file ? ::read(file.get(), text, sizeof text) : -1;
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}

std::uint64_t number_in(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

// "oom_kill 3" among other lines.
std::uint64_t counter_in(const std::string& text, const std::string& name) {
  const std::size_t at = ("\n" + text).find("\n" + name + " ");
  return at == std::string::npos ? 0 : number_in(text.substr(at + name.size() + 1));
}

bool has_file(int folder, const std::string& name) { return ::faccessat(folder, name.c_str(), F_OK, 0) == 0; }

// Returns the groups directly below the folder, without deeper levels.
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
// are being forked, and those in threaded groups below, which version 2 lists and kills only from above.
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

constexpr int kTries = 50;

void remove_folder_with_groups(const std::string& folder, int tries) {
  const Fd open_folder(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!open_folder) return;
  for (const auto& name : groups_in(folder)) remove_groups_of(open_folder.get(), name, tries);
  ::rmdir(folder.c_str());
}

void remove_leftovers_in(const std::string& parent, int tries) {
  for (const auto& name : groups_in(parent)) {
    if (left_by_dead_launcher(parent, name)) remove_folder_with_groups(parent + "/" + name, tries);
  }
}

struct Setting {
  const char* file;
  std::string value;
  bool required = true;  // else a kernel without it is as good
};

// Version 1 has a limit of memory and a limit of memory and swap together. The second limit may never be smaller than
// the first, so it is set last, except when the limits rise.
std::vector<Setting> limits_of(const CgroupHierarchy& place, std::uint64_t memory_bytes, std::uint32_t pids,
                               bool rises) {
  std::vector<Setting> settings;
  const std::string memory = std::to_string(memory_bytes);
  if (place.memory && place.version == 1) {
    settings = {{"memory.limit_in_bytes", memory}, {"memory.memsw.limit_in_bytes", memory, false}};
    if (rises) std::swap(settings[0], settings[1]);
    // Version 1 accounts TCP buffers separately, and only if they have a limit.
    settings.push_back({"memory.kmem.tcp.limit_in_bytes", std::to_string(memory_bytes / 4), false});
  } else if (place.memory) {
    settings = {{"memory.max", memory}};
  }
  if (place.pids) settings.push_back({"pids.max", std::to_string(pids + std::uint64_t{1})});  // and init
  return settings;
}

// Settings that are written once for each group: swap is disabled (without the file there is no swap), and an
// out-of-memory kill ends the whole group.
std::vector<Setting> manners_of(const CgroupHierarchy& place) {
  if (!place.memory || place.version == 1) return {};
  return {{"memory.swap.max", "0", false}, {"memory.oom.group", "1", false}};
}

// The first setting that failed; error is 0 if all succeeded.
struct FirstFailure {
  int error = 0;
  const char* file = "";
};
FirstFailure write_all(int folder, const std::string& group, const std::vector<Setting>& settings) {
  for (const auto& setting : settings) {
    const int error = write_at(folder, group + "/" + setting.file, setting.value);
    if (error != 0 && (setting.required || error != ENOENT)) return {error, setting.file};
  }
  return {};
}

std::string text_of(const Fd& file) {
  char text[1024];
  const ssize_t size = ::pread(file.get(), text, sizeof text, 0);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}
std::uint64_t number_of(const Fd& file) { return number_in(text_of(file)); }

// Moves the processes or threads in the file `list` to the group `into`. The file is read again until it is empty,
// because processes may fork during the move.
bool move_processes(int parent, const std::string& list, const std::string& into) {
  constexpr int kMaxChecks = 8;
  for (int look = 0; look < kMaxChecks; ++look) {
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

// Makes `into` a threaded group of version 2 below the run's group, which counts only processes. Returns false if the
// kernel does not support it or a privilege is missing.
bool make_threaded(int parent, const std::string& run, const std::string& into) {
  return write_at(parent, into + "/cgroup.type", "threaded") == 0 &&
         write_at(parent, run + "/cgroup.subtree_control", "+pids") == 0;
}

}  // namespace

std::vector<CgroupHierarchy> find_cgroups() {
  std::vector<CgroupHierarchy> places;
  CgroupHierarchy unified, accounts;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      unified = prepare_version_2(folder_of(find_mount("cgroup2", ""), group), group);
      continue;
    }
    const bool memory = has_word(controllers, "memory", ',');
    const bool pids = has_word(controllers, "pids", ',');
    if (has_word(controllers, "cpuacct", ',')) {
      accounts = {1, memory, pids, folder_of(find_mount("cgroup", "cpuacct"), group), true, true};
      if (memory || pids) places.push_back(accounts);
      continue;
    }
    if (!memory && !pids) continue;
    const std::string folder = folder_of(find_mount("cgroup", memory ? "memory" : "pids"), group);
    if (!folder.empty()) places.push_back({1, memory, pids, folder});
  }
  // Version 2 is listed even without controllers, because it accounts CPU time, including that of children that have
  // not been waited for.
  if (!unified.path.empty()) {
    places.push_back(unified);
  } else if (!accounts.path.empty() && !accounts.memory && !accounts.pids) {
    places.push_back(accounts);
  }
  return places;
}

std::uint64_t task_limit() {
  std::uint64_t min = UINT64_MAX;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !has_word(controllers, "pids", ',')) continue;
    const Mount mount = controllers.empty() ? find_mount("cgroup2", "") : find_mount("cgroup", "pids");
    std::string folder = folder_of(mount, line.substr(second + 1));
    for (; folder.size() >= mount.point.size() && !folder.empty(); folder.resize(folder.rfind('/'))) {
      const std::string text = read_line(folder + "/pids.max");
      if (!text.empty() && text != "max") min = std::min(min, number_in(text));
    }
  }
  return min;
}

std::string own_group_name() {
  const std::string pid = std::to_string(::getpid());
  return fmt::format("mycojobs-{}-{}-{}", pid_namespace(), pid, start_time(pid));
}

namespace {

// Locks the folder of a group. The kernel releases the lock when the launcher ends, in any pid namespace. Returns an
// empty descriptor if another launcher holds the lock or locking fails.
Fd lock_group(const std::string& folder) {
  Fd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) lock.reset();
  return lock;
}

bool is_same_folder(const Fd& opened, const std::string& folder) {
  struct stat by_descriptor {
  }, by_name{};
  return ::fstat(opened.get(), &by_descriptor) == 0 && ::stat(folder.c_str(), &by_name) == 0 &&
         by_descriptor.st_ino == by_name.st_ino;
}

// Creates and locks the folder of a launcher's groups. A launcher in another pid namespace that scans before the lock
// is taken removes the folder as a leftover; the folder is then created again. Returns false if the folder cannot be
// created.
bool make_locked_folder(const std::string& folder, Fd& lock) {
  constexpr int kMaxAttempts = 100;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return false;
    lock = lock_group(folder);
    if (lock && is_same_folder(lock, folder)) return true;
    struct stat info {};
    if (!lock && ::stat(folder.c_str(), &info) == 0) return true;  // this kernel has no locks here
  }
  return false;
}

}  // namespace

bool left_by_dead_launcher(const std::string& parent, const std::string& name) {
  unsigned long long space = 0, pid = 0, start = 0;
  if (std::sscanf(name.c_str(), "mycojobs-%llu-%llu-%llu", &space, &pid, &start) != 3) return false;
  // The process ids of another namespace mean nothing here.
  if (std::to_string(space) != pid_namespace()) return static_cast<bool>(lock_group(parent + "/" + name));
  return start_time(std::to_string(pid)) != std::to_string(start);
}

Cgroups::~Cgroups() {
  for (const auto& tree : trees_) remove_folder_with_groups(tree.folder, kTries);
}

void Cgroups::open(const std::vector<CgroupHierarchy>& places) {
  for (const auto& place : places) {
    remove_leftovers_in(place.path, kTries);
    Tree tree{place, place.path + "/" + own_group_name(), {}, {}};
    if (!make_locked_folder(tree.folder, tree.lock)) continue;
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

void Cgroups::remove_leftovers() {
  for (const auto& tree : trees_) remove_leftovers_in(tree.place.path, 0);
}

bool Cgroups::has_memory() const {
  return std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return tree.place.memory; });
}
bool Cgroups::has_pids() const {
  return std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return tree.place.pids; });
}

Result<std::vector<Fd>> Cgroups::make(std::uint64_t run, const Limits& limits, int* why) {
  const std::string name = std::to_string(run);
  remove_stuck();
  std::vector<Fd> joins;
  const auto failed = [&](const Tree& tree, const std::string& file, int error) {
    if (why != nullptr) *why = error;
    remove(run);
    return fail(Code::io, fmt::format("{}/{}/{}: {}", tree.folder, name, file, errno_text(error)));
  };
  for (const auto& tree : trees_) {
    if (::mkdirat(tree.fd.get(), name.c_str(), 0755) != 0) return failed(tree, "", errno);
    auto settings = limits_of(tree.place, limits.memory_bytes, limits.pids, false);
    for (auto& each : manners_of(tree.place)) settings.push_back(std::move(each));
    if (const FirstFailure bad = write_all(tree.fd.get(), name, settings); bad.error != 0)
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
    const FirstFailure bad = write_all(tree.fd.get(), name, limits_of(tree.place, memory_bytes, pids, rises));
    if (bad.error != 0)
      return fail(Code::io, fmt::format("{}/{}/{}: {}", tree.folder, name, bad.file, errno_text(bad.error)));
  }
  return {};
}

RunUsage Cgroups::usage(std::uint64_t run) const {
  RunUsage usage = peaks(run);
  add_limits_met(run, usage);
  for (const auto& tree : trees_) {
    if (tree.place.version == 2) {
      const std::string cpu = text_in(tree, run, "cpu.stat");
      usage.user_us = counter_in(cpu, "user_usec");
      usage.system_us = counter_in(cpu, "system_usec");
    } else if (tree.place.cpu) {  // nanoseconds
      usage.user_us = number_in(text_in(tree, run, "cpuacct.usage_user")) / 1000;
      usage.system_us = number_in(text_in(tree, run, "cpuacct.usage_sys")) / 1000;
    }
  }
  return usage;
}

void Cgroups::add_limits_met(std::uint64_t run, RunUsage& usage) const {
  for (const auto& tree : trees_) {
    if (tree.place.memory && tree.place.version == 1) {
      usage.oom_kills = counter_in(text_in(tree, run, "memory.oom_control"), "oom_kill");
      usage.memory_max_hits =  // whichever of the two limits was met
          number_in(text_in(tree, run, "memory.failcnt")) + number_in(text_in(tree, run, "memory.memsw.failcnt"));
    } else if (tree.place.memory) {
      const std::string events = text_in(tree, run, "memory.events");
      usage.oom_kills = counter_in(events, "oom_kill");
      usage.memory_max_hits = counter_in(events, "max");
    }
    if (!tree.place.pids) continue;
    // The kernel counts a refused fork in the group of the caller (version 1, and before Linux 6.11) or in the group
    // with the limit.
    usage.pids_max_hits = counter_in(text_in(tree, run, "pids.events"), "max");
    const std::string asked = pids_group(tree, run);
    if (asked == std::to_string(run)) continue;
    usage.pids_max_hits += counter_in(read_at(tree.fd.get(), asked + "/pids.events"), "max");
    // The peak of a subgroup includes forks that the limit of the run's group then refused.
    if (usage.pids_max_hits > 0)
      usage.pids_peak =
          std::min(usage.pids_peak, static_cast<std::uint32_t>(number_in(text_in(tree, run, "pids.max")) - 1));
  }
}

// The files of a warm process stay open, because they are read after each run of the process.
std::string Cgroups::text_in(const Tree& tree, std::uint64_t run, const std::string& file) const {
  const std::string path = std::to_string(run) + '/' + file;
  const auto kept = warm_files_.find(run);
  if (kept == warm_files_.end()) return read_at(tree.fd.get(), path);
  const auto [place, missing] = kept->second.try_emplace(file);
  if (missing) place->second.reset(::openat(tree.fd.get(), path.c_str(), O_RDONLY | O_CLOEXEC));
  return text_of(place->second);
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

// A group is busy for a moment while the kernel reaps the last process; the removal is then retried with the next run.
void Cgroups::remove(std::uint64_t run) {
  peak_files_.erase(run);
  warm_files_.erase(run);
  stuck_.push_back(run);
  remove_stuck();
}

void Cgroups::remove_stuck() {
  std::erase_if(stuck_, [&](std::uint64_t run) {
    const std::string name = std::to_string(run);
    bool gone = true;
    for (const auto& tree : trees_) {
      gone = (tree.can_restart_counting() ? remove_groups_of(tree.fd.get(), name, 0)
                                          : remove_group(tree.fd.get(), name, "", 0)) &&
             gone;
    }
    if (gone) sampled_.erase(run), renewed_.erase(run);
    return gone;
  });
}

std::string Cgroups::pids_group(const Tree& tree, std::uint64_t run) const {
  const auto below = tree.can_restart_counting() ? renewed_.find(run) : renewed_.end();
  return std::to_string(run) + (below == renewed_.end() ? "" : kBelow[below->second ? 1 : 0]);
}

// Moves the run's processes to a new subgroup, which restarts the count; the limit of the run's group stays in force.
// Returns false if the kernel does not support it or the subgroup could not be created; the reported values are then
// those of the old group.
// Source: Linux, Documentation/admin-guide/cgroup-v2.rst, "Threads".
bool Cgroups::renew_pids(std::uint64_t run) {
  const auto tree =
      std::find_if(trees_.begin(), trees_.end(), [](const Tree& each) { return each.can_restart_counting(); });
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
      // Before Linux 6.12 the file of version 2 is not writable, although root can open it for writing.
      struct stat info {};
      files.memory_peak_restarts = ::fstatat(fd, peak.c_str(), &info, 0) == 0 && (info.st_mode & S_IWUSR) != 0;
      files.memory.reset(::openat(fd, peak.c_str(), (files.memory_peak_restarts ? O_RDWR : O_RDONLY) | O_CLOEXEC));
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

// Uses the files that are kept open, if any: in version 2 a peak is reset only for the open file that was written to.
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

std::optional<RunUsage> Cgroups::reset_for_next_run(std::uint64_t run, const Limits& limits, std::uint32_t processes) {
  auto kept = peak_files_.find(run);
  if (kept == peak_files_.end()) kept = peak_files_.emplace(run, open_peaks(run)).first;
  const PeakFiles& files = kept->second;
  // A sampled peak may be too low, so the kernel's counters of refusals are read as well.
  const RunUsage used = must_sample() ? usage(run) : peaks(run);
  if (used.oom_kills > 0 || used.memory_max_hits > 0 || used.pids_max_hits > 0) return {};
  // A limit of a parent group has refused a fork, which no peak shows. A later run that fails would seem to have met
  // its own limit.
  if (files.pids_events && counter_in(text_of(files.pids_events), "max") > 0) return {};
  // Init and the waiting job are in the group, so a peak of 0 is not a measurement.
  if (has_pids() && (used.pids_peak == 0 || used.pids_peak >= limits.pids)) return {};
  if (has_memory()) {
    // Near the limit a process may have been killed although the run succeeded.
    if (used.memory_peak == 0 || used.memory_peak > limits.memory_bytes / 10 * 9) return {};
    if (files.memory && !files.memory_peak_restarts && used.memory_peak > kMaxLeftoverBytes) return {};
  }
  if (files.pids && used.pids_peak > processes && !renew_pids(run)) return {};
  if (files.memory_peak_restarts && ::pwrite(files.memory.get(), "0", 1, 0) != 1) return {};  // last: resets the peak
  sampled_.erase(run);
  // Memory that is still charged (pages of files that this run was the first to read, cached names) counts as used by
  // the next run, so the group is reused only if the amount is small.
  return charged_from_now(run, files) <= kMaxLeftoverBytes ? std::optional(used) : std::nullopt;
}

Result<RunUsage> Cgroups::reset_for_warm_run(std::uint64_t run, const Limits& limits) {
  constexpr std::uint64_t kInitAndItself = 2;
  if (!has_memory() || !has_pids()) return fail(Code::unsupported, "this host has no cgroups for memory and processes");
  warm_files_.try_emplace(run);
  const auto count = [&](bool CgroupHierarchy::*counts, const char* old, const char* now) {
    const auto tree = std::find_if(trees_.begin(), trees_.end(), [&](const Tree& each) { return each.place.*counts; });
    return number_in(text_in(*tree, run, tree->place.version == 1 ? old : now));
  };
  const std::uint64_t tasks = count(&CgroupHierarchy::pids, "pids.current", "pids.current");
  if (tasks != kInitAndItself)
    return fail(Code::conflict, fmt::format("{} threads and processes are left, 1 is expected",
                                            tasks - std::min<std::uint64_t>(tasks, 1)));
  RunUsage used = peaks(run);
  add_limits_met(run, used);
  if (used.oom_kills > 0 || used.memory_max_hits > 0 || used.pids_max_hits > 0)
    return fail(Code::conflict, "it has reached a limit of memory or of processes");
  const std::uint64_t held = count(&CgroupHierarchy::memory, "memory.usage_in_bytes", "memory.current");
  if (held > limits.memory_bytes / 2)
    return fail(Code::conflict,
                fmt::format("it uses {} of its {} MiB of memory", held >> 20, limits.memory_bytes >> 20));
  auto kept = peak_files_.find(run);
  if (kept == peak_files_.end()) kept = peak_files_.emplace(run, open_peaks(run)).first;
  if (used.pids_peak > 1) static_cast<void>(renew_pids(run));
  if (kept->second.memory_peak_restarts && ::pwrite(kept->second.memory.get(), "0", 1, 0) != 1)
    return fail(Code::io, "its peak of memory cannot be reset");
  sampled_.erase(run);
  return used;
}

}  // namespace mycojobs::sandbox
