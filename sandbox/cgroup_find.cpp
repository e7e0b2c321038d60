#include "sandbox/cgroup_find.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

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

constexpr const char* kLeaf = "/mycojobs-self";

// Told by systemd, or plain from an ordinary user's right to write here: then all processes of the group are ours to
// move.
bool is_delegated(const std::string& folder) {
  char value[4] = {};
  return ::geteuid() != 0 || ::getxattr(folder.c_str(), "trusted.delegate", value, sizeof value) > 0 ||
         ::getxattr(folder.c_str(), "user.delegate", value, sizeof value) > 0;
}

// The leaf is systemd's to remove, with the unit. Processes are born while we move others, hence the rounds.
void move_to_leaf(const std::string& folder) {
  const std::string leaf = folder + kLeaf;
  if (::mkdir(leaf.c_str(), 0755) != 0 && errno != EEXIST) return;
  std::vector<std::string> movers{std::to_string(::getpid()), std::to_string(::getppid())};
  const bool all = is_delegated(folder);
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

CgroupPlace prepare_version_2(std::string folder) {
  if (folder.ends_with(kLeaf)) folder.resize(folder.size() - std::string(kLeaf).size());  // an earlier launcher's doing
  const std::string available = read_line(folder + "/cgroup.controllers");
  const std::string control = folder + "/cgroup.subtree_control";
  if (available.empty()) return {2, false, false, folder};
  for (const char* name : {"memory", "pids"}) {
    if (!has_word(available, name, ' ') || has_word(read_line(control), name, ' ')) continue;
    const std::string enable = fmt::format("+{}", name);
    if (write_text(control, enable)) continue;
    move_to_leaf(folder);
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

}  // namespace

std::vector<CgroupPlace> find_cgroups() {
  std::vector<CgroupPlace> places;
  CgroupPlace unified, accounts;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      unified = prepare_version_2(folder_of(find_mount("cgroup2", ""), group));
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
  // Without a controller too: it counts CPU all the same, also that of children which nobody has waited for.
  if (!unified.path.empty()) {
    places.push_back(unified);
  } else if (!accounts.path.empty() && !accounts.memory && !accounts.pids) {
    places.push_back(accounts);
  }
  return places;
}

std::string own_group_name() {
  const std::string pid = std::to_string(::getpid());
  return fmt::format("mycojobs-{}-{}-{}", pid_namespace(), pid, start_time(pid));
}

bool left_by_dead_launcher(const std::string& name) {
  unsigned long long space = 0, pid = 0, start = 0;
  if (std::sscanf(name.c_str(), "mycojobs-%llu-%llu-%llu", &space, &pid, &start) != 3) return false;
  if (std::to_string(space) != pid_namespace()) return false;  // its pids mean nothing here
  return start_time(std::to_string(pid)) != std::to_string(start);
}

}  // namespace mycojobs::sandbox
