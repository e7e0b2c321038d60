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

void open_folders(const OpenFolders& wanted, int socket) {
  for (const auto* paths : {&wanted.grants.fs_read, &wanted.grants.fs_write}) {
    for (const auto& path : *paths) {
      const auto mount = open_granted(path, paths == &wanted.grants.fs_write, wanted.exec);
      if (!mount) {
        const bool host_short = mount.error().code == Code::unavailable;
        return static_cast<void>(send_message(socket, RequestRefused{mount.error().message, host_short}));
      }
      if (send_message(socket, FolderOpened{}, {mount->get()}) != 0) return;
    }
  }
}

void serve(int socket) {
  RawFrame frame;
  for (OpenFolders wanted; receive_raw(socket, frame) == ReceiveResult::frame && decode(frame, wanted);)
    open_folders(wanted, socket);
}

}  // namespace

void GrantedFolders::open(const RunSpec& spec, OnOpened opened) {
  const Number number = next_++;
  Request& request = requests_[number];
  request.wanted = {spec.grants, spec.limits.exec};
  request.paths = spec.grants.fs_read;
  request.paths.insert(request.paths.end(), spec.grants.fs_write.begin(), spec.grants.fs_write.end());
  request.opened = std::move(opened);
  request.patience = loop_.at(boot_ms() + kTimeoutMs, [this, number] { give_up(number); });
  begin(number);
}

// A request for a path that hangs waits with the first one, so that a queue of such runs does not start one child each.
void GrantedFolders::begin(Number number) {
  Request& request = requests_.at(number);
  for (const auto& path : request.paths) {
    if (hanging_.contains(path)) return static_cast<void>(request.hangs = path);
  }
  request.child = child_for(request.wanted);
  if (request.child != 0) return;
  const int error = errno;
  fail_short(number, error, "a process that opens the granted folders cannot be started");
}

HostChildren::Child GrantedFolders::child_for(const OpenFolders& wanted) {
  Child child = std::exchange(idle_, 0);
  if (child != 0 && children_.send_message_to(child, wanted) == 0) return child;
  children_.forget(child);  // another process has killed it
  child = children_.start(kFolderChildName, serve, [this](Child its, RawFrame* frame) { heard(its, frame); });
  if (child != 0 && children_.send_message_to(child, wanted) != 0) children_.kill(child);
  return child;
}

void GrantedFolders::heard(Child child, RawFrame* frame) {
  const auto served = std::find_if(requests_.begin(), requests_.end(),
                                   [child](const auto& each) { return each.second.child == child; });
  if (served == requests_.end()) {
    if (frame == nullptr && idle_ == child) idle_ = 0;
    return;
  }
  auto& [number, request] = *served;
  if (frame == nullptr) return ended(number);
  RequestRefused refused;
  FolderOpened folder;
  if (!request.opened) return;
  if (decode(*frame, refused)) {
    request.host_short = refused.host_short;
    return finish(number, fail(refused.host_short ? Code::unavailable : Code::invalid, refused.why));
  }
  if (!decode(*frame, folder)) return;
  if (frame->fds.empty()) {
    children_.kill(request.child);  // the next folders would be incomplete, too
    return fail_short(number, EMFILE, "the granted " + request.paths.at(request.mounts.size()));
  }
  if (frame->fds.size() != 1) return;
  request.mounts.push_back(std::move(frame->fds[0]));
  if (request.mounts.size() == request.paths.size()) finish(number, std::move(request.mounts));
}

void GrantedFolders::fail_short(Number number, int error, const std::string& what) {
  const ResourceShortage* shortage = find_shortage(error);
  requests_.at(number).host_short = shortage != nullptr;
  finish(number, fail(Code::unavailable, fmt::format("{}: {}{}", what, errno_text(error),
                                                     shortage == nullptr ? "" : ": " + describe_shortage(*shortage))));
}

// Finishes the request; its child, if any, becomes idle.
void GrantedFolders::finish(Number number, Result<std::vector<Fd>> result) {
  Request request = std::move(requests_.extract(number).mapped());
  if (request.child != 0) {
    if (idle_ != 0) children_.forget(idle_);
    idle_ = request.child;
  }
  answer(request, std::move(result));
}

void GrantedFolders::ended(Number number) {
  Request request = std::move(requests_.extract(number).mapped());
  answer(request, fail(Code::unavailable, "the process that opens the granted folders has ended"));
  if (hanging_.erase(request.hangs) == 0) return;
  std::vector<Number> waiting;
  for (const auto& [other, its] : requests_) {
    if (its.child == 0 && its.hangs == request.hangs) waiting.push_back(other);
  }
  for (const Number other : waiting) begin(other);
}

void GrantedFolders::give_up(Number number) {
  Request& request = requests_.at(number);
  if (request.child != 0) {
    request.hangs = request.paths.at(request.mounts.size());
    hanging_.insert(request.hangs);
    children_.kill(request.child);
  }
  answer(request, fail(Code::unavailable,
                       fmt::format("the granted {} has not answered for {} s: does its disk or network mount hang?",
                                   request.hangs, kTimeoutMs / 1000)));
  if (request.child == 0) requests_.erase(number);
}

void GrantedFolders::answer(Request& request, Result<std::vector<Fd>> result) {
  loop_.cancel(request.patience);
  if (const OnOpened opened = std::exchange(request.opened, nullptr); opened)
    opened(std::move(result), request.host_short);
}

}  // namespace mycojobs::sandbox
