#include "sandbox/granted_folders.h"

#include <fmt/core.h>

#include <cerrno>
#include <utility>

#include "base/errno_text.h"
#include "sandbox/host_folders.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint64_t kPatienceMs = 10000;

void open_granted_in_child(const Grants& grants, bool exec, int socket) {
  for (const auto* paths : {&grants.fs_read, &grants.fs_write}) {
    for (const auto& path : *paths) {
      const auto mount = open_granted(path, paths == &grants.fs_write, exec);
      if (!mount) return static_cast<void>(send_message(socket, Refused{mount.error().message}));
      if (send_message(socket, FolderOpened{}, {mount->get()}) != 0) return;
    }
  }
}

}  // namespace

void GrantedFolders::open(const RunSpec& spec, Opened opened) {
  const Number number = next_++;
  Request& request = requests_[number];
  request.grants = spec.grants;
  request.exec = spec.limits.exec;
  request.paths = spec.grants.fs_read;
  request.paths.insert(request.paths.end(), spec.grants.fs_write.begin(), spec.grants.fs_write.end());
  request.opened = std::move(opened);
  request.patience = loop_.at(boot_ms() + kPatienceMs, [this, number] { give_up(number); });
  begin(number);
}

// A path that hangs is waited for as long as it took to find that out: a queue of such runs would else go round.
void GrantedFolders::begin(Number number) {
  Request& request = requests_.at(number);
  for (const auto& path : request.paths) {
    if (hanging_.contains(path)) return static_cast<void>(request.hangs = path);
  }
  request.child =
      children_.start([&request](int socket) { open_granted_in_child(request.grants, request.exec, socket); },
                      [this, number](RawFrame* frame) { heard(number, frame); });
  if (request.child != 0) return;
  answer(request, fail(Code::unavailable, "a process that opens the granted folders: " + errno_text(errno)));
  requests_.erase(number);
}

void GrantedFolders::heard(Number number, RawFrame* frame) {
  if (frame == nullptr) return ended(number);
  Request& request = requests_.at(number);
  Refused refused;
  FolderOpened folder;
  if (decode(*frame, refused)) return answer(request, fail(Code::invalid, refused.why));
  if (!decode(*frame, folder) || frame->fds.size() != 1) return;
  request.mounts.push_back(std::move(frame->fds[0]));
  if (request.mounts.size() == request.paths.size()) answer(request, std::move(request.mounts));
}

void GrantedFolders::ended(Number number) {
  Request request = std::move(requests_.extract(number).mapped());
  answer(request, fail(Code::unavailable, "what opens the granted folders has ended"));
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
                                   request.hangs, kPatienceMs / 1000)));
  if (request.child == 0) requests_.erase(number);
}

void GrantedFolders::answer(Request& request, Result<std::vector<Fd>> result) {
  loop_.cancel(request.patience);
  if (const Opened opened = std::exchange(request.opened, nullptr); opened) opened(std::move(result));
}

}  // namespace mycojobs::sandbox
