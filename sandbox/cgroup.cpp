#include "sandbox/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/errno_text.h"

namespace mycojobs::sandbox {
namespace {

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

// A run's group holds no groups, a launcher's folder holds runs' groups.
void remove_folder_with_groups(const std::string& folder) {
  if (DIR* open_folder = ::opendir(folder.c_str()); open_folder != nullptr) {
    while (const dirent* entry = ::readdir(open_folder)) {
      if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
        ::unlinkat(::dirfd(open_folder), entry->d_name, AT_REMOVEDIR);
    }
    ::closedir(open_folder);
  }
  ::rmdir(folder.c_str());
}

void remove_leftovers(const std::string& parent) {
  std::vector<std::string> names;
  if (DIR* folder = ::opendir(parent.c_str()); folder != nullptr) {
    while (const dirent* entry = ::readdir(folder)) names.emplace_back(entry->d_name);
    ::closedir(folder);
  }
  for (const auto& name : names) {
    if (left_by_dead_launcher(name)) remove_folder_with_groups(parent + "/" + name);
  }
}

struct Setting {
  const char* file;
  std::string value;
  bool required = true;  // else a kernel without it is as good
};

// Version 1: memory before memory and swap together, since the second may not be smaller than the first.
std::vector<Setting> settings_of(const CgroupPlace& place, const Limits& limits) {
  std::vector<Setting> settings;
  const std::string memory = std::to_string(limits.memory_bytes);
  if (place.memory && place.version == 1) {
    settings = {{"memory.limit_in_bytes", memory}, {"memory.memsw.limit_in_bytes", memory, false}};
  } else if (place.memory) {
    settings = {{"memory.max", memory}, {"memory.swap.max", "0", false}, {"memory.oom.group", "1", false}};
  }
  if (place.pids) settings.push_back({"pids.max", std::to_string(limits.pids + 1)});  // and init
  return settings;
}

}  // namespace

Cgroups::~Cgroups() {
  for (const auto& tree : trees_) remove_folder_with_groups(tree.folder);
}

void Cgroups::open() {
  for (auto& place : find_cgroups()) {
    remove_leftovers(place.path);
    Tree tree{place, place.path + "/" + own_group_name(), {}};
    if (::mkdir(tree.folder.c_str(), 0755) != 0) continue;
    tree.fd.reset(::open(tree.folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (place.version == 2) {
      for (const char* enable : {"+memory", "+pids"}) write_at(tree.fd.get(), "cgroup.subtree_control", enable);
    }
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
  std::vector<Fd> joins;
  const auto failed = [&](const Tree& tree, const std::string& file, int error) {
    remove(run);
    return fail(Code::io, fmt::format("{}/{}/{}: {}", tree.folder, name, file, errno_text(error)));
  };
  for (const auto& tree : trees_) {
    if (::mkdirat(tree.fd.get(), name.c_str(), 0755) != 0) return failed(tree, "", errno);
    for (const auto& setting : settings_of(tree.place, limits)) {
      const int error = write_at(tree.fd.get(), name + "/" + setting.file, setting.value);
      if (error != 0 && (setting.required || error != ENOENT)) return failed(tree, setting.file, error);
    }
    joins.emplace_back(::openat(tree.fd.get(), (name + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (!joins.back()) return failed(tree, "cgroup.procs", errno);
  }
  return joins;
}

RunUsage Cgroups::usage(std::uint64_t run) const {
  const std::string name = std::to_string(run) + "/";
  RunUsage usage;
  for (const auto& tree : trees_) {
    const int fd = tree.fd.get();
    if (tree.place.memory) {
      const bool first = tree.place.version == 1;
      usage.memory_peak = number_in(read_at(fd, name + (first ? "memory.max_usage_in_bytes" : "memory.peak")));
      usage.oom_kills = counter_in(read_at(fd, name + (first ? "memory.oom_control" : "memory.events")), "oom_kill");
    }
    if (tree.place.version == 2) {
      const std::string cpu = read_at(fd, name + "cpu.stat");
      usage.user_us = counter_in(cpu, "user_usec");
      usage.system_us = counter_in(cpu, "system_usec");
    }
    if (tree.place.pids) {
      const auto peak = static_cast<std::uint32_t>(number_in(read_at(fd, name + "pids.peak")));
      usage.pids_peak = peak > 0 ? peak - 1 : 0;  // without init
    }
  }
  return usage;
}

// A group is busy for a moment while the kernel buries the last process: then it is tried again with the next.
void Cgroups::remove(std::uint64_t run) {
  stuck_.push_back(run);
  std::erase_if(stuck_, [&](std::uint64_t each) {
    bool gone = true;
    for (const auto& tree : trees_) {
      if (::unlinkat(tree.fd.get(), std::to_string(each).c_str(), AT_REMOVEDIR) != 0 && errno == EBUSY) gone = false;
    }
    return gone;
  });
}

}  // namespace mycojobs::sandbox
