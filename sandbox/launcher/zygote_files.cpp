#include "sandbox/launcher/zygote_files.h"

#include <unistd.h>

#include <tuple>
#include <utility>

#include "sandbox/launcher/host_folders.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {
namespace {

auto to_tuple(const timespec& time) { return std::tuple(time.tv_sec, time.tv_nsec); }

// The coarse clock, which is also used for file times.
timespec read_coarse_clock() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
  return time;
}

auto file_identity(const struct stat& info) {
  return std::tuple(info.st_dev, info.st_ino, info.st_size, to_tuple(info.st_mtim), to_tuple(info.st_ctim));
}

// Returns the host path of a path in the zygote's root, or an empty text if the path is not on the host or not
// normalized.
std::string to_host_path(const std::string& path, const ScriptHost& host) {
  if (path.empty() || path[0] != '/' || path.find('\0') != std::string::npos ||
      (path + "/").find("/../") != std::string::npos)
    return {};
  for (const auto& folder : host.folders) {
    if (path.starts_with(folder.mount_point + "/")) return folder.path + path.substr(folder.mount_point.size());
  }
  const bool is_system_path = path.starts_with("/usr/") || path.starts_with("/lib");
  return is_system_path ? path : std::string();
}

}  // namespace

LoadedFileSet::LoadedFileSet() : created_at_(read_coarse_clock()) {}

void LoadedFileSet::add(const std::vector<std::string>& files, const ScriptHost& host) {
  for (const auto& file : files) {
    File loaded{to_host_path(file, host)};
    if (loaded.path.empty()) continue;
    const bool exists = ::stat(loaded.path.c_str(), &loaded.initial_state) == 0;
    // A time in the future is from a wrong clock and must not stay in doubt.
    const auto change_time = to_tuple(loaded.initial_state.st_ctim);
    loaded.is_uncertain =
        !exists || (change_time >= to_tuple(created_at_) && change_time <= to_tuple(read_coarse_clock()));
    files_.push_back(std::move(loaded));
  }
}

std::string LoadedFileSet::find_changed_file() const {
  for (const File& file : files_) {
    struct stat current {};
    const bool exists = ::stat(file.path.c_str(), &current) == 0;
    if (file.is_uncertain || !exists || file_identity(current) != file_identity(file.initial_state)) return file.path;
  }
  return {};
}

std::string LoadedFileSet::find_trust_problem() const {
  for (const File& file : files_) {
    if (std::string problem = check_path_ownership(file.path); !problem.empty()) return problem;
  }
  return {};
}

namespace {

constexpr unsigned kCheckSeconds = 5;

// Sends each folder. Returns the problem, or an empty text.
std::string open_folders(const ScriptHost& host, int socket) {
  for (const auto& folder : host.folders) {
    if (std::string problem = check_tree_ownership(folder.path); !problem.empty()) return problem;
  }
  for (const auto& folder : host.folders) {
    const auto mount = open_trusted(folder.path);
    if (!mount) return mount.error().message;
    if (send_message(socket, FolderOpened{}, {mount->get()}) != 0) return "the launcher has exited";
  }
  return {};
}

}  // namespace

void watch_folders(const ScriptHost& host, int socket) {
  const auto send_refusal = [&](const std::string& reason) { send_message(socket, RequestRefused{reason}); };
  LoadedFileSet loaded;
  if (const std::string problem = open_folders(host, socket); !problem.empty()) return send_refusal(problem);
  RawFrame frame;
  for (LoadedFiles files; receive_raw(socket, frame) == ReceiveResult::frame && decode(frame, files);)
    loaded.add(files.files, host);
  if (Ready ready; !decode(frame, ready)) return;
  if (const std::string problem = host.context == 0 ? std::string() : loaded.find_trust_problem(); !problem.empty())
    return send_refusal("loaded files: " + problem);
  send_message(socket, Ready{});
  std::string changed_file;
  while ((changed_file = loaded.find_changed_file()).empty()) ::sleep(kCheckSeconds);
  send_message(socket, LoadedFiles{{changed_file}});
}

}  // namespace mycojobs::sandbox
