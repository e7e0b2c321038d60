#include "chaos/leftovers.h"

#include <sys/stat.h>

#include <filesystem>

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

// Returns the cgroups of these launchers in all hierarchies of this host. Their names are mycojobs-<pid
// namespace>-<pid>-<start>.
std::vector<std::string> find_cgroups(const std::vector<pid_t>& launchers) {
  struct stat pid_namespace {};
  ::stat("/proc/self/ns/pid", &pid_namespace);
  std::set<std::string> prefixes;
  for (const pid_t pid : launchers) {
    prefixes.insert("mycojobs-" + std::to_string(pid_namespace.st_ino) + "-" + std::to_string(pid) + "-");
  }
  std::vector<std::string> paths;
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator entry("/sys/fs/cgroup", options, error), end; entry != end;
       entry.increment(error)) {
    if (error) continue;
    const std::string name = entry->path().filename();
    const std::string prefix = name.substr(0, name.rfind('-') + 1);
    if (entry->is_directory(error) && prefixes.contains(prefix)) paths.push_back(entry->path());
  }
  return paths;
}

std::vector<std::string> list_entries(const fs::path& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) paths.push_back(entry.path());
  return paths;
}

}  // namespace

Leftovers::Leftovers(const TempDir& folder) : folder_(folder), mounts_(host_mounts()) {}

std::vector<std::string> Leftovers::find(ProcessTree& tree, const std::vector<pid_t>& launchers) const {
  std::vector<std::string> leftovers;
  eventually(
      [&] {
        leftovers = check_once(tree, launchers);
        return leftovers.empty();
      },
      Seconds(10));
  return leftovers;
}

std::vector<std::string> Leftovers::check_once(ProcessTree& tree, const std::vector<pid_t>& launchers) const {
  std::vector<std::string> leftovers;
  for (const auto& process : tree.list_processes()) {
    if (process.component == Component::redis) continue;
    leftovers.push_back("process " + process.to_text());
  }
  for (const auto& line : host_mounts()) {
    if (!mounts_.contains(line)) leftovers.push_back("mount " + line);
  }
  for (const auto& path : find_cgroups(launchers)) leftovers.push_back("cgroup " + path);
  for (const auto& path : list_entries(folder_ / "tmp")) leftovers.push_back("temporary file " + path);
  return leftovers;
}

}  // namespace mycojobs::test
