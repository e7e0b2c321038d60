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
  for (std::string item; std::getline(words, item, separator);) {
    if (item == word) return true;
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
    std::istringstream mount_fields(line.substr(0, dash)), source_fields(line.substr(dash + 3));
    std::string skip, kind, source;
    Mount mount;
    mount_fields >> skip >> skip >> skip >> mount.root >> mount.point;
    source_fields >> kind >> source >> mount.options;
    if (kind == type && (controller.empty() || has_word(mount.options, controller, ','))) return mount;
  }
  return {};
}

std::string group_folder(const Mount& mount, const std::string& group) {
  if (mount.point.empty()) return {};
  std::string group_path = group;
  if (mount.root != "/" && group_path.compare(0, mount.root.size(), mount.root) == 0)
    group_path.erase(0, mount.root.size());
  return mount.point + (group_path == "/" ? "" : group_path);
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
  std::vector<std::string> pids{std::to_string(::getpid()), std::to_string(::getppid())};
  const bool moves_all = is_delegated(folder, group);
  for (int round = 0; round < 10; ++round) {
    if (moves_all) {
      std::ifstream processes(folder + "/cgroup.procs");
      for (std::string pid; processes >> pid;) pids.push_back(pid);
    }
    if (pids.empty()) return;
    for (const auto& pid : pids) write_text(leaf + "/cgroup.procs", pid);
    pids.clear();
  }
}

CgroupHierarchy prepare_version_2(std::string folder, const std::string& group) {
  if (folder.ends_with(kLauncherGroup))
    folder.resize(folder.size() - kLauncherGroup.size());  // moved by an earlier launcher
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

std::string read_start_time(const std::string& pid) {
  const std::string line = read_line("/proc/" + pid + "/stat");
  const std::size_t name_end = line.rfind(')');  // the name may contain blanks and brackets
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return field;
}

std::string read_pid_namespace_id() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? std::to_string(info.st_ino) : "0";
}

// Subgroups of a run that restart its count of processes; the two names alternate. The names carry no information,
// because a job can read them.
constexpr const char* kSubgroups[] = {"/a", "/b"};

// Returns 0 or an errno.
int write_file_at(int folder, const std::string& name, const std::string& text) {
  const Fd file(::openat(folder, name.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return errno;
  return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
}

std::string read_file_at(int folder, const std::string& name) {
  const Fd file(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t size = file ? ::read(file.get(), text, sizeof text) : -1;
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}

std::uint64_t parse_number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

// Returns the number after a name at the start of a line: 3 for "oom_kill 3".
std::uint64_t parse_counter(const std::string& text, const std::string& name) {
  const std::size_t position = ("\n" + text).find("\n" + name + " ");
  return position == std::string::npos ? 0 : parse_number(text.substr(position + name.size() + 1));
}

bool has_file(int folder, const std::string& name) { return ::faccessat(folder, name.c_str(), F_OK, 0) == 0; }

// Returns the groups directly below the folder, without deeper levels.
std::vector<std::string> list_groups(const std::string& folder) {
  std::vector<std::string> names;
  DIR* open_folder = ::opendir(folder.c_str());
  if (open_folder == nullptr) return names;
  while (const dirent* entry = ::readdir(open_folder)) {
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(open_folder);
  return names;
}

// Kills every process of the run: in its group, and in `subgroup` in version 1. cgroup.kill (Linux 5.14) also kills
// processes that are being forked, and processes of threaded subgroups, which version 2 lists only in the run's group.
void kill_run(int parent, const std::string& run, const std::string& subgroup) {
  if (write_file_at(parent, run + "/cgroup.kill", "1") == 0) return;
  std::istringstream pids(read_file_at(parent, run + "/cgroup.procs") +
                          read_file_at(parent, run + subgroup + "/cgroup.procs"));
  for (pid_t pid = 0; pids >> pid;) {
    if (pid > 1) ::kill(pid, SIGKILL);
  }
}

// A killed process leaves its group a moment later.
bool remove_group(int parent, const std::string& run, const std::string& subgroup, int max_attempts) {
  for (;;) {
    if (::unlinkat(parent, (run + subgroup).c_str(), AT_REMOVEDIR) == 0 || errno != EBUSY) return true;
    kill_run(parent, run, subgroup);
    if (--max_attempts < 0) return false;
    ::usleep(2000);
  }
}

bool remove_all_groups(int parent, const std::string& run, int max_attempts) {
  bool is_removed = true;
  for (const char* subgroup : {kSubgroups[0], kSubgroups[1], ""})
    is_removed = remove_group(parent, run, subgroup, max_attempts) && is_removed;
  return is_removed;
}

constexpr int kMaxRemovalAttempts = 50;

void remove_folder_with_groups(const std::string& folder, int max_attempts) {
  const Fd open_folder(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!open_folder) return;
  for (const auto& name : list_groups(folder)) remove_all_groups(open_folder.get(), name, max_attempts);
  ::rmdir(folder.c_str());
}

void remove_dead_launchers_groups(const std::string& parent, int max_attempts) {
  for (const auto& name : list_groups(parent)) {
    if (belongs_to_dead_launcher(parent, name)) remove_folder_with_groups(parent + "/" + name, max_attempts);
  }
}

struct Setting {
  const char* file;
  std::string value;
  bool required = true;  // false if a kernel without this file is supported
};

// Version 1 has a limit of memory and a limit of memory and swap together. The second limit may never be smaller than
// the first, so it is set last, except when the limits rise.
std::vector<Setting> limit_settings(const CgroupHierarchy& hierarchy, std::uint64_t memory_bytes, std::uint32_t pids,
                                    bool raises_limit) {
  std::vector<Setting> settings;
  const std::string memory = std::to_string(memory_bytes);
  if (hierarchy.has_memory && hierarchy.version == 1) {
    settings = {{"memory.limit_in_bytes", memory}, {"memory.memsw.limit_in_bytes", memory, false}};
    if (raises_limit) std::swap(settings[0], settings[1]);
    // Version 1 accounts TCP buffers separately, and only if they have a limit.
    settings.push_back({"memory.kmem.tcp.limit_in_bytes", std::to_string(memory_bytes / 4), false});
  } else if (hierarchy.has_memory) {
    settings = {{"memory.max", memory}};
  }
  if (hierarchy.has_pids) settings.push_back({"pids.max", std::to_string(pids + std::uint64_t{1})});  // and init
  return settings;
}

// Settings that are written once for each group: swap is disabled (without the file there is no swap), and an
// out-of-memory kill ends the whole group.
std::vector<Setting> fixed_settings(const CgroupHierarchy& hierarchy) {
  if (!hierarchy.has_memory || hierarchy.version == 1) return {};
  return {{"memory.swap.max", "0", false}, {"memory.oom.group", "1", false}};
}

// The first setting that failed; error is 0 if all succeeded.
struct FirstFailure {
  int error = 0;
  const char* file = "";
};
FirstFailure write_all(int folder, const std::string& group, const std::vector<Setting>& settings) {
  for (const auto& setting : settings) {
    const int error = write_file_at(folder, group + "/" + setting.file, setting.value);
    if (error != 0 && (setting.required || error != ENOENT)) return {error, setting.file};
  }
  return {};
}

std::string read_open_file(const Fd& file) {
  char text[1024];
  const ssize_t size = ::pread(file.get(), text, sizeof text, 0);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}
std::uint64_t read_number(const Fd& file) { return parse_number(read_open_file(file)); }

// Moves the processes or threads in the file `list` to the group `target`. The file is read again until it is empty,
// because processes may fork during the move.
bool move_processes(int parent, const std::string& list, const std::string& target) {
  constexpr int kMaxChecks = 8;
  for (int attempt = 0; attempt < kMaxChecks; ++attempt) {
    std::istringstream pids(read_file_at(parent, list));
    bool has_processes = false;
    for (pid_t pid = 0; pids >> pid; has_processes = true) {
      const int error = write_file_at(parent, target + "/cgroup.procs", std::to_string(pid));
      if (error != 0 && error != ESRCH) return false;
    }
    if (!has_processes) return true;
  }
  return false;
}

// Makes `target` a threaded group of version 2 below the run's group, which counts only processes. Returns false if the
// kernel does not support it or a privilege is missing.
bool make_threaded(int parent, const std::string& run, const std::string& target) {
  return write_file_at(parent, target + "/cgroup.type", "threaded") == 0 &&
         write_file_at(parent, run + "/cgroup.subtree_control", "+pids") == 0;
}

}  // namespace

std::vector<CgroupHierarchy> find_cgroups() {
  std::vector<CgroupHierarchy> hierarchies;
  CgroupHierarchy unified, cpu_accounting;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first_colon = line.find(':');
    const std::size_t second_colon = line.find(':', first_colon + 1);
    if (first_colon == std::string::npos || second_colon == std::string::npos) continue;
    const std::string controllers = line.substr(first_colon + 1, second_colon - first_colon - 1);
    const std::string group = line.substr(second_colon + 1);
    if (controllers.empty()) {
      unified = prepare_version_2(group_folder(find_mount("cgroup2", ""), group), group);
      continue;
    }
    const bool memory = has_word(controllers, "memory", ',');
    const bool pids = has_word(controllers, "pids", ',');
    if (has_word(controllers, "cpuacct", ',')) {
      cpu_accounting = {1, memory, pids, group_folder(find_mount("cgroup", "cpuacct"), group), true, true};
      if (memory || pids) hierarchies.push_back(cpu_accounting);
      continue;
    }
    if (!memory && !pids) continue;
    const std::string folder = group_folder(find_mount("cgroup", memory ? "memory" : "pids"), group);
    if (!folder.empty()) hierarchies.push_back({1, memory, pids, folder});
  }
  // Version 2 is listed even without controllers, because it accounts CPU time, including that of children that have
  // not been waited for.
  if (!unified.path.empty()) {
    hierarchies.push_back(unified);
  } else if (!cpu_accounting.path.empty() && !cpu_accounting.has_memory && !cpu_accounting.has_pids) {
    hierarchies.push_back(cpu_accounting);
  }
  return hierarchies;
}

std::uint64_t read_task_limit() {
  std::uint64_t min = UINT64_MAX;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first_colon = line.find(':'), second_colon = line.find(':', first_colon + 1);
    if (first_colon == std::string::npos || second_colon == std::string::npos) continue;
    const std::string controllers = line.substr(first_colon + 1, second_colon - first_colon - 1);
    if (!controllers.empty() && !has_word(controllers, "pids", ',')) continue;
    const Mount mount = controllers.empty() ? find_mount("cgroup2", "") : find_mount("cgroup", "pids");
    std::string folder = group_folder(mount, line.substr(second_colon + 1));
    for (; folder.size() >= mount.point.size() && !folder.empty(); folder.resize(folder.rfind('/'))) {
      const std::string text = read_line(folder + "/pids.max");
      if (!text.empty() && text != "max") min = std::min(min, parse_number(text));
    }
  }
  return min;
}

std::string launcher_group_name() {
  const std::string pid = std::to_string(::getpid());
  return fmt::format("mycojobs-{}-{}-{}", read_pid_namespace_id(), pid, read_start_time(pid));
}

namespace {

// Locks the folder of a group. The kernel releases the lock when the launcher ends, in any pid namespace. Returns an
// empty descriptor if another launcher holds the lock or locking fails.
Fd lock_group(const std::string& folder) {
  Fd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) lock.reset();
  return lock;
}

bool is_same_folder(const Fd& open_folder, const std::string& folder) {
  struct stat by_descriptor {
  }, by_name{};
  return ::fstat(open_folder.get(), &by_descriptor) == 0 && ::stat(folder.c_str(), &by_name) == 0 &&
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

bool belongs_to_dead_launcher(const std::string& parent, const std::string& name) {
  unsigned long long pid_ns = 0, pid = 0, start = 0;
  if (std::sscanf(name.c_str(), "mycojobs-%llu-%llu-%llu", &pid_ns, &pid, &start) != 3) return false;
  // Process ids of another namespace cannot be compared.
  if (std::to_string(pid_ns) != read_pid_namespace_id()) return static_cast<bool>(lock_group(parent + "/" + name));
  return read_start_time(std::to_string(pid)) != std::to_string(start);
}

Cgroups::~Cgroups() {
  for (const auto& tree : trees_) remove_folder_with_groups(tree.folder, kMaxRemovalAttempts);
}

void Cgroups::open(const std::vector<CgroupHierarchy>& hierarchies) {
  for (const auto& hierarchy : hierarchies) {
    remove_dead_launchers_groups(hierarchy.path, kMaxRemovalAttempts);
    Tree tree{hierarchy, hierarchy.path + "/" + launcher_group_name(), {}, {}};
    if (!make_locked_folder(tree.folder, tree.lock)) continue;
    tree.fd.reset(::open(tree.folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (hierarchy.version == 2) {
      if (hierarchy.has_memory)
        tree.hierarchy.has_memory = write_file_at(tree.fd.get(), "cgroup.subtree_control", "+memory") == 0;
      if (hierarchy.has_pids)
        tree.hierarchy.has_pids = write_file_at(tree.fd.get(), "cgroup.subtree_control", "+pids") == 0;
    }
    if (hierarchy.has_memory && hierarchy.version == 2)
      tree.hierarchy.records_peaks = hierarchy.records_peaks && has_file(tree.fd.get(), "memory.peak");
    if (hierarchy.has_pids)
      tree.hierarchy.records_peaks = tree.hierarchy.records_peaks && has_file(tree.fd.get(), "pids.peak");
    trees_.push_back(std::move(tree));
  }
}

void Cgroups::remove_leftovers() {
  for (const auto& tree : trees_) remove_dead_launchers_groups(tree.hierarchy.path, 0);
}

bool Cgroups::has_memory() const {
  return std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return tree.hierarchy.has_memory; });
}
bool Cgroups::has_pids() const {
  return std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return tree.hierarchy.has_pids; });
}

Result<std::vector<Fd>> Cgroups::create_run_group(std::uint64_t run, const Limits& limits, int* error_number) {
  const std::string name = std::to_string(run);
  remove_busy_groups();
  std::vector<Fd> procs_files;
  const auto undo_and_fail = [&](const Tree& tree, const std::string& file, int error) {
    if (error_number != nullptr) *error_number = error;
    remove_run_group(run);
    return fail(Code::io, fmt::format("{}/{}/{}: {}", tree.folder, name, file, errno_text(error)));
  };
  for (const auto& tree : trees_) {
    if (::mkdirat(tree.fd.get(), name.c_str(), 0755) != 0) return undo_and_fail(tree, "", errno);
    auto settings = limit_settings(tree.hierarchy, limits.memory_bytes, limits.pids, false);
    for (auto& setting : fixed_settings(tree.hierarchy)) settings.push_back(std::move(setting));
    if (const FirstFailure failure = write_all(tree.fd.get(), name, settings); failure.error != 0)
      return undo_and_fail(tree, failure.file, failure.error);
    procs_files.emplace_back(::openat(tree.fd.get(), (name + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (!procs_files.back()) return undo_and_fail(tree, "cgroup.procs", errno);
  }
  return procs_files;
}

Result<void> Cgroups::set_limits(std::uint64_t run, std::uint64_t memory_bytes, std::uint32_t pids) {
  const std::string name = std::to_string(run);
  for (const auto& tree : trees_) {
    const bool raises_limit = tree.hierarchy.version == 1 && tree.hierarchy.has_memory &&
                              parse_number(read_file_at(tree.fd.get(), name + "/memory.limit_in_bytes")) < memory_bytes;
    const FirstFailure failure =
        write_all(tree.fd.get(), name, limit_settings(tree.hierarchy, memory_bytes, pids, raises_limit));
    if (failure.error != 0)
      return fail(Code::io, fmt::format("{}/{}/{}: {}", tree.folder, name, failure.file, errno_text(failure.error)));
  }
  return {};
}

RunUsage Cgroups::read_usage(std::uint64_t run) const {
  RunUsage usage = read_peaks(run);
  add_limit_hits(run, usage);
  for (const auto& tree : trees_) {
    if (tree.hierarchy.version == 2) {
      const std::string cpu = read_run_file(tree, run, "cpu.stat");
      usage.user_us = parse_counter(cpu, "user_usec");
      usage.system_us = parse_counter(cpu, "system_usec");
    } else if (tree.hierarchy.accounts_cpu) {  // nanoseconds
      usage.user_us = parse_number(read_run_file(tree, run, "cpuacct.usage_user")) / 1000;
      usage.system_us = parse_number(read_run_file(tree, run, "cpuacct.usage_sys")) / 1000;
    }
  }
  return usage;
}

void Cgroups::add_limit_hits(std::uint64_t run, RunUsage& usage) const {
  for (const auto& tree : trees_) {
    if (tree.hierarchy.has_memory && tree.hierarchy.version == 1) {
      usage.oom_kills = parse_counter(read_run_file(tree, run, "memory.oom_control"), "oom_kill");
      usage.memory_max_hits =  // whichever of the two limits was met
          parse_number(read_run_file(tree, run, "memory.failcnt")) +
          parse_number(read_run_file(tree, run, "memory.memsw.failcnt"));
    } else if (tree.hierarchy.has_memory) {
      const std::string events = read_run_file(tree, run, "memory.events");
      usage.oom_kills = parse_counter(events, "oom_kill");
      usage.memory_max_hits = parse_counter(events, "max");
    }
    if (!tree.hierarchy.has_pids) continue;
    // The kernel counts a refused fork in the group of the caller (version 1, and before Linux 6.11) or in the group
    // with the limit.
    usage.pids_max_hits = parse_counter(read_run_file(tree, run, "pids.events"), "max");
    const std::string group = get_pids_group(tree, run);
    if (group == std::to_string(run)) continue;
    usage.pids_max_hits += parse_counter(read_file_at(tree.fd.get(), group + "/pids.events"), "max");
    // The peak of a subgroup includes forks that the limit of the run's group then refused.
    if (usage.pids_max_hits > 0)
      usage.pids_peak =
          std::min(usage.pids_peak, static_cast<std::uint32_t>(parse_number(read_run_file(tree, run, "pids.max")) - 1));
  }
}

// The files of a warm process stay open, because they are read after each run of the process.
std::string Cgroups::read_run_file(const Tree& tree, std::uint64_t run, const std::string& file) const {
  const std::string path = std::to_string(run) + '/' + file;
  const auto cached = warm_files_.find(run);
  if (cached == warm_files_.end()) return read_file_at(tree.fd.get(), path);
  const auto [file_entry, inserted] = cached->second.try_emplace(file);
  if (inserted) file_entry->second.reset(::openat(tree.fd.get(), path.c_str(), O_RDONLY | O_CLOEXEC));
  return read_open_file(file_entry->second);
}

bool Cgroups::must_sample() const {
  return std::any_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return !tree.hierarchy.records_peaks; });
}

void Cgroups::sample() {
  for (const auto& tree : trees_) {
    if (tree.hierarchy.records_peaks) continue;
    for (const auto& name : list_groups(tree.folder)) {
      Peaks& peaks = sampled_[std::strtoull(name.c_str(), nullptr, 10)];
      const int fd = tree.fd.get();
      peaks.memory_bytes = std::max(peaks.memory_bytes, parse_number(read_file_at(fd, name + "/memory.current")));
      peaks.pids =
          std::max(peaks.pids, static_cast<std::uint32_t>(parse_number(read_file_at(fd, name + "/pids.current"))));
    }
  }
}

// A group is busy for a moment while the kernel reaps the last process; the removal is then retried with the next run.
void Cgroups::remove_run_group(std::uint64_t run) {
  peak_files_.erase(run);
  warm_files_.erase(run);
  busy_groups_.push_back(run);
  remove_busy_groups();
}

void Cgroups::remove_busy_groups() {
  std::erase_if(busy_groups_, [&](std::uint64_t run) {
    const std::string name = std::to_string(run);
    bool is_removed = true;
    for (const auto& tree : trees_) {
      is_removed = (tree.can_restart_counting() ? remove_all_groups(tree.fd.get(), name, 0)
                                                : remove_group(tree.fd.get(), name, "", 0)) &&
                   is_removed;
    }
    if (is_removed) sampled_.erase(run), subgroups_.erase(run);
    return is_removed;
  });
}

std::string Cgroups::get_pids_group(const Tree& tree, std::uint64_t run) const {
  const auto subgroup = tree.can_restart_counting() ? subgroups_.find(run) : subgroups_.end();
  return std::to_string(run) + (subgroup == subgroups_.end() ? "" : kSubgroups[subgroup->second ? 1 : 0]);
}

// Moves the run's processes to a new subgroup, which restarts the count; the limit of the run's group stays in force.
// Returns false if the kernel does not support it or the subgroup could not be created; the reported values are then
// those of the old group.
// Source: Linux, Documentation/admin-guide/cgroup-v2.rst, "Threads".
bool Cgroups::move_to_new_subgroup(std::uint64_t run) {
  const auto tree = std::find_if(trees_.begin(), trees_.end(),
                                 [](const Tree& candidate) { return candidate.can_restart_counting(); });
  if (tree == trees_.end()) return false;
  const int fd = tree->fd.get();
  const bool is_threaded = tree->hierarchy.version == 2;
  const auto current = subgroups_.find(run);
  const bool is_first = current == subgroups_.end(), uses_second_name = !is_first && !current->second;
  const std::string name = std::to_string(run);
  const std::string source = get_pids_group(*tree, run), target = name + kSubgroups[uses_second_name ? 1 : 0];
  if (::mkdirat(fd, target.c_str(), 0755) != 0) return false;
  if (is_threaded && !make_threaded(fd, name, target)) return false;
  if (!move_processes(fd, source + (is_threaded ? "/cgroup.threads" : "/cgroup.procs"), target)) return false;
  if (!is_first && ::unlinkat(fd, source.c_str(), AT_REMOVEDIR) != 0) return false;
  subgroups_[run] = uses_second_name;
  open_pids(fd, target, peak_files_.at(run));
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
    const bool is_version_1 = tree.hierarchy.version == 1;
    if (tree.hierarchy.has_memory && (is_version_1 || tree.hierarchy.records_peaks)) {
      const std::string peak = std::to_string(run) + (is_version_1 ? "/memory.max_usage_in_bytes" : "/memory.peak");
      // Before Linux 6.12 the file of version 2 is not writable, although root can open it for writing.
      struct stat info {};
      files.can_reset_memory_peak = ::fstatat(fd, peak.c_str(), &info, 0) == 0 && (info.st_mode & S_IWUSR) != 0;
      files.memory.reset(::openat(fd, peak.c_str(), (files.can_reset_memory_peak ? O_RDWR : O_RDONLY) | O_CLOEXEC));
    }
    if (tree.hierarchy.has_pids && tree.hierarchy.records_peaks) open_pids(fd, get_pids_group(tree, run), files);
  }
  return files;
}

std::uint64_t Cgroups::read_cpu_us(std::uint64_t run) const {
  for (const auto& tree : trees_) {
    const std::string name = std::to_string(run);
    if (tree.hierarchy.accounts_cpu) return parse_number(read_file_at(tree.fd.get(), name + "/cpuacct.usage")) / 1000;
    if (tree.hierarchy.version != 2) continue;
    const std::string cpu = read_file_at(tree.fd.get(), name + "/cpu.stat");
    if (const std::uint64_t used = parse_counter(cpu, "usage_usec"); used > 0) return used;
  }
  return 0;
}

// Uses the open files of the run, if any: in version 2 a peak is reset only for the open file that was written to.
RunUsage Cgroups::read_peaks(std::uint64_t run) const {
  const auto cached = peak_files_.find(run);
  const PeakFiles temporary = cached == peak_files_.end() ? open_peaks(run) : PeakFiles{};
  const PeakFiles& files = cached == peak_files_.end() ? temporary : cached->second;
  const auto sampled = sampled_.find(run);
  const Peaks sampled_peaks = sampled != sampled_.end() ? sampled->second : Peaks{};
  RunUsage usage;
  usage.memory_peak_bytes = files.memory ? read_number(files.memory) : sampled_peaks.memory_bytes;
  usage.pids_peak = files.pids ? static_cast<std::uint32_t>(read_number(files.pids)) : sampled_peaks.pids;
  if (usage.pids_peak > 0) --usage.pids_peak;  // init
  return usage;
}

std::uint64_t Cgroups::read_initial_memory_charge(std::uint64_t run, const PeakFiles& files) const {
  if (files.memory) return read_number(files.memory);
  const auto tree =
      std::find_if(trees_.begin(), trees_.end(), [](const Tree& candidate) { return candidate.hierarchy.has_memory; });
  return tree == trees_.end() ? 0 : parse_number(read_file_at(tree->fd.get(), std::to_string(run) + "/memory.current"));
}

std::optional<RunUsage> Cgroups::reset_for_next_run(std::uint64_t run, const Limits& limits, std::uint32_t processes) {
  auto cached = peak_files_.find(run);
  if (cached == peak_files_.end()) cached = peak_files_.emplace(run, open_peaks(run)).first;
  const PeakFiles& files = cached->second;
  // A sampled peak may be too low, so the kernel's counters of refusals are read as well.
  const RunUsage used = must_sample() ? read_usage(run) : read_peaks(run);
  if (used.oom_kills > 0 || used.memory_max_hits > 0 || used.pids_max_hits > 0) return {};
  // A limit of a parent group has refused a fork, which no peak shows. A later run that fails would seem to have met
  // its own limit.
  if (files.pids_events && parse_counter(read_open_file(files.pids_events), "max") > 0) return {};
  // Init and the waiting job are in the group, so a peak of 0 is not a measurement.
  if (has_pids() && (used.pids_peak == 0 || used.pids_peak >= limits.pids)) return {};
  if (has_memory()) {
    // Near the limit a process may have been killed although the run succeeded.
    if (used.memory_peak_bytes == 0 || used.memory_peak_bytes > limits.memory_bytes / 10 * 9) return {};
    if (files.memory && !files.can_reset_memory_peak && used.memory_peak_bytes > kMaxLeftoverBytes) return {};
  }
  if (files.pids && used.pids_peak > processes && !move_to_new_subgroup(run)) return {};
  if (files.can_reset_memory_peak && ::pwrite(files.memory.get(), "0", 1, 0) != 1) return {};  // resets the peak
  sampled_.erase(run);
  // Memory that is still charged (pages of files that this run was the first to read, cached names) counts as used by
  // the next run, so the group is reused only if the amount is small.
  return read_initial_memory_charge(run, files) <= kMaxLeftoverBytes ? std::optional(used) : std::nullopt;
}

Result<RunUsage> Cgroups::reset_for_warm_run(std::uint64_t run, const Limits& limits) {
  constexpr std::uint64_t kInitAndJob = 2;
  if (!has_memory() || !has_pids()) return fail(Code::unsupported, "this host has no cgroups for memory and processes");
  warm_files_.try_emplace(run);
  const auto read_count = [&](bool CgroupHierarchy::*controller, const char* version_1_file,
                              const char* version_2_file) {
    const auto tree = std::find_if(trees_.begin(), trees_.end(),
                                   [&](const Tree& candidate) { return candidate.hierarchy.*controller; });
    return parse_number(read_run_file(*tree, run, tree->hierarchy.version == 1 ? version_1_file : version_2_file));
  };
  const std::uint64_t tasks = read_count(&CgroupHierarchy::has_pids, "pids.current", "pids.current");
  if (tasks != kInitAndJob)
    return fail(Code::conflict, fmt::format("{} threads and processes are left, 1 is expected",
                                            tasks - std::min<std::uint64_t>(tasks, 1)));
  RunUsage used = read_peaks(run);
  add_limit_hits(run, used);
  if (used.oom_kills > 0 || used.memory_max_hits > 0 || used.pids_max_hits > 0)
    return fail(Code::conflict, "it has reached a limit of memory or of processes");
  const std::uint64_t used_bytes = read_count(&CgroupHierarchy::has_memory, "memory.usage_in_bytes", "memory.current");
  if (used_bytes > limits.memory_bytes / 2)
    return fail(Code::conflict,
                fmt::format("it uses {} of its {} MiB of memory", used_bytes >> 20, limits.memory_bytes >> 20));
  auto cached = peak_files_.find(run);
  if (cached == peak_files_.end()) cached = peak_files_.emplace(run, open_peaks(run)).first;
  if (used.pids_peak > 1) static_cast<void>(move_to_new_subgroup(run));
  if (cached->second.can_reset_memory_peak && ::pwrite(cached->second.memory.get(), "0", 1, 0) != 1)
    return fail(Code::io, "its peak of memory cannot be reset");
  sampled_.erase(run);
  return used;
}

}  // namespace mycojobs::sandbox
