#include "sandbox/launcher/granted_folders.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errno_text.h"
#include "base/shortage.h"
#include "sandbox/launcher/host_folders.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint64_t kTimeoutMs = 10000;

std::vector<FolderMount> list_mounts(const OpenFolders& folders) {
  std::vector<FolderMount> mounts;
  const auto map_owner = [&folders](const FileOwner& owner) -> std::optional<OwnerMapping> {
    if (owner.uid == folders.job.uid) return {};
    return OwnerMapping{owner, folders.job};
  };
  for (const auto& path : folders.grants.fs_read) mounts.push_back({path, false, folders.exec, {}});
  for (const auto& path : folders.grants.fs_write)
    mounts.push_back({path, true, folders.exec, map_owner(folders.file_owner)});
  for (const Volume& volume : folders.grants.volumes)
    mounts.push_back({volume.path, volume.writable, folders.exec, map_owner(volume.owner), volume.writable});
  // Packages contain shared libraries, which cannot be loaded from a mount with noexec.
  if (const PackagesFolder& packages = folders.grants.packages; !packages.path.empty())
    mounts.push_back({packages.path, packages.writable, true, {}, packages.writable});
  return mounts;
}

void open_folders(const OpenFolders& folders, int socket) {
  for (const FolderMount& folder : list_mounts(folders)) {
    const auto mount = open_granted(folder);
    if (!mount) {
      const Error& error = mount.error();
      return static_cast<void>(send_message(
          socket, RequestRefused{error.message, error.code == Code::unavailable, error.code == Code::unsupported}));
    }
    if (send_message(socket, FolderOpened{}, {mount->get()}) != 0) return;
  }
}

void serve(int socket) {
  RawFrame frame;
  for (OpenFolders folders; receive_raw(socket, frame) == ReceiveResult::frame && decode(frame, folders);)
    open_folders(folders, socket);
}

}  // namespace

void GrantedFolders::open(OpenFolders folders, OnOpened on_opened) {
  const Number number = next_number_++;
  Request& request = requests_[number];
  for (const FolderMount& folder : list_mounts(folders)) request.paths.push_back(folder.path);
  request.folders = std::move(folders);
  request.on_opened = std::move(on_opened);
  request.timer = loop_.add_timer(boot_ms() + kTimeoutMs, [this, number] { on_timeout(number); });
  start_request(number);
}

// A request for a path that hangs waits with the first one, so that a queue of such runs does not start one child each.
void GrantedFolders::start_request(Number number) {
  Request& request = requests_.at(number);
  for (const auto& path : request.paths) {
    if (hanging_paths_.contains(path)) return static_cast<void>(request.hanging_path = path);
  }
  request.child = get_child(request.folders);
  if (request.child != 0) return;
  const int error = errno;
  fail_by_errno(number, error, "a process that opens the granted folders cannot be started");
}

HostChildren::Child GrantedFolders::get_child(const OpenFolders& folders) {
  Child child = std::exchange(idle_child_, 0);
  if (child != 0 && children_.send_message(child, folders) == 0) return child;
  children_.kill_silently(child);  // another process has killed it
  child = children_.start(kFolderChildName, serve, [this](Child sender, RawFrame* frame) { on_frame(sender, frame); });
  if (child != 0 && children_.send_message(child, folders) != 0) children_.kill(child);
  return child;
}

void GrantedFolders::on_frame(Child child, RawFrame* frame) {
  const auto found = std::find_if(requests_.begin(), requests_.end(),
                                  [child](const auto& entry) { return entry.second.child == child; });
  if (found == requests_.end()) {
    if (frame == nullptr && idle_child_ == child) idle_child_ = 0;
    return;
  }
  auto& [number, request] = *found;
  if (frame == nullptr) return on_child_ended(number);
  RequestRefused refused;
  FolderOpened folder;
  if (!request.on_opened) return;
  if (decode(*frame, refused)) {
    request.host_lacks_resource = refused.host_lacks_resource;
    const Code code = refused.cannot_map ? Code::unsupported : Code::invalid;
    return finish(number, fail(refused.host_lacks_resource ? Code::unavailable : code, refused.reason));
  }
  if (!decode(*frame, folder)) return;
  if (frame->fds.empty()) {
    children_.kill(request.child);  // the next folders would be incomplete, too
    return fail_by_errno(number, EMFILE, "the granted " + request.paths.at(request.mounts.size()));
  }
  if (frame->fds.size() != 1) return;
  request.mounts.push_back(std::move(frame->fds[0]));
  if (request.mounts.size() == request.paths.size()) finish(number, std::move(request.mounts));
}

void GrantedFolders::fail_by_errno(Number number, int error, const std::string& subject) {
  const ResourceShortage* shortage = find_shortage(error);
  requests_.at(number).host_lacks_resource = shortage != nullptr;
  finish(number, fail(Code::unavailable, fmt::format("{}: {}{}", subject, errno_text(error),
                                                     shortage == nullptr ? "" : ": " + describe_shortage(*shortage))));
}

// Finishes the request; its child, if any, becomes idle.
void GrantedFolders::finish(Number number, Result<std::vector<Fd>> result) {
  Request request = std::move(requests_.extract(number).mapped());
  if (request.child != 0) {
    if (idle_child_ != 0) children_.kill_silently(idle_child_);
    idle_child_ = request.child;
  }
  report_result(request, std::move(result));
}

void GrantedFolders::on_child_ended(Number number) {
  Request request = std::move(requests_.extract(number).mapped());
  report_result(request, fail(Code::unavailable, "the process that opens the granted folders has ended"));
  if (hanging_paths_.erase(request.hanging_path) == 0) return;
  std::vector<Number> waiting;
  for (const auto& [other_number, other] : requests_) {
    if (other.child == 0 && other.hanging_path == request.hanging_path) waiting.push_back(other_number);
  }
  for (const Number other_number : waiting) start_request(other_number);
}

void GrantedFolders::on_timeout(Number number) {
  Request& request = requests_.at(number);
  if (request.child != 0) {
    request.hanging_path = request.paths.at(request.mounts.size());
    hanging_paths_.insert(request.hanging_path);
    children_.kill(request.child);
  }
  report_result(request,
                fail(Code::unavailable,
                     fmt::format("the granted {} has not answered for {} s: does its disk or network mount hang?",
                                 request.hanging_path, kTimeoutMs / 1000)));
  if (request.child == 0) requests_.erase(number);
}

void GrantedFolders::report_result(Request& request, Result<std::vector<Fd>> result) {
  loop_.cancel(request.timer);
  if (const OnOpened on_opened = std::exchange(request.on_opened, nullptr); on_opened)
    on_opened(std::move(result), request.host_lacks_resource);
}

}  // namespace mycojobs::sandbox
