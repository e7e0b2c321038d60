#include "sandbox/launcher/zygote_files.h"

#include <unistd.h>

#include <tuple>
#include <utility>

#include "sandbox/launcher/host_folders.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {
namespace {

auto moment(const timespec& time) { return std::tuple(time.tv_sec, time.tv_nsec); }

// The coarse clock, which is also used for file times.
timespec now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
  return time;
}

auto identity(const struct stat& info) {
  return std::tuple(info.st_dev, info.st_ino, info.st_size, moment(info.st_mtim), moment(info.st_ctim));
}

// Returns the host path of a path in the zygote's root; empty: not on the host, or not normalized.
std::string on_host(const std::string& path, const ScriptHost& host) {
  if (path.empty() || path[0] != '/' || path.find('\0') != std::string::npos ||
      (path + "/").find("/../") != std::string::npos)
    return {};
  for (const auto& folder : host.folders) {
    if (path.starts_with(folder.place + "/")) return folder.path + path.substr(folder.place.size());
  }
  const bool of_system = path.starts_with("/usr/") || path.starts_with("/lib");
  return of_system ? path : std::string();
}

}  // namespace

LoadedFileSet::LoadedFileSet() : since_(now()) {}

void LoadedFileSet::add(const std::vector<std::string>& files, const ScriptHost& host) {
  for (const auto& file : files) {
    File loaded{on_host(file, host)};
    if (loaded.path.empty()) continue;
    const bool there = ::stat(loaded.path.c_str(), &loaded.was) == 0;
    // A time in the future is from a wrong clock and must not stay in doubt.
    const auto changed = moment(loaded.was.st_ctim);
    loaded.in_doubt = !there || (changed >= moment(since_) && changed <= moment(now()));
    files_.push_back(std::move(loaded));
  }
}

std::string LoadedFileSet::changed() const {
  for (const File& file : files_) {
    struct stat is {};
    const bool there = ::stat(file.path.c_str(), &is) == 0;
    if (file.in_doubt || !there || identity(is) != identity(file.was)) return file.path;
  }
  return {};
}

std::string LoadedFileSet::trust_problem() const {
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
  const auto refuse = [&](const std::string& why) { send_message(socket, RequestRefused{why}); };
  LoadedFileSet loaded;
  if (const std::string problem = open_folders(host, socket); !problem.empty()) return refuse(problem);
  RawFrame frame;
  for (LoadedFiles files; receive_raw(socket, frame) == ReceiveResult::frame && decode(frame, files);)
    loaded.add(files.files, host);
  if (Ready all; !decode(frame, all)) return;
  if (const std::string problem = host.context == 0 ? std::string() : loaded.trust_problem(); !problem.empty())
    return refuse("loaded files: " + problem);
  send_message(socket, Ready{});
  std::string changed;
  while ((changed = loaded.changed()).empty()) ::sleep(kCheckSeconds);
  send_message(socket, LoadedFiles{{changed}});
}

}  // namespace mycojobs::sandbox
