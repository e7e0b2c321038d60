#include "chaos/leftovers.h"

#include <sys/stat.h>

#include <filesystem>

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

// Returns the cgroups of these launchers in all hierarchies of this host. Their names are mycojobs-<pid
// namespace>-<pid>-<start>.
std::vector<std::string> find_cgroups(const std::vector<pid_t>& launchers) {
  struct stat space {};
  ::stat("/proc/self/ns/pid", &space);
  std::set<std::string> prefixes;
  for (const pid_t pid : launchers) {
    prefixes.insert("mycojobs-" + std::to_string(space.st_ino) + "-" + std::to_string(pid) + "-");
  }
  std::vector<std::string> found;
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator at("/sys/fs/cgroup", options, error), end; at != end; at.increment(error)) {
    if (error) continue;
    const std::string name = at->path().filename();
    const std::string prefix = name.substr(0, name.rfind('-') + 1);
    if (at->is_directory(error) && prefixes.contains(prefix)) found.push_back(at->path());
  }
  return found;
}

std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) found.push_back(entry.path());
  return found;
}

}  // namespace

Leftovers::Leftovers(const TempDir& folder) : folder_(folder), mounts_(host_mounts()) {}

std::vector<std::string> Leftovers::look(ProcessTree& tree, const std::vector<pid_t>& launchers) const {
  std::vector<std::string> left;
  eventually(
      [&] {
        left = check_once(tree, launchers);
        return left.empty();
      },
      Seconds(10));
  return left;
}

std::vector<std::string> Leftovers::check_once(ProcessTree& tree, const std::vector<pid_t>& launchers) const {
  std::vector<std::string> left;
  for (const auto& process : tree.walk()) {
    if (process.what == Component::redis) continue;
    left.push_back("process " + process.to_text());
  }
  for (const auto& line : host_mounts()) {
    if (!mounts_.contains(line)) left.push_back("mount " + line);
  }
  for (const auto& path : find_cgroups(launchers)) left.push_back("cgroup " + path);
  for (const auto& path : files_below(folder_ / "tmp")) left.push_back("temporary file " + path);
  return left;
}

}  // namespace mycojobs::test
