// Opens the granted folders of runs in children of the launcher, so that a disk that hangs delays only the runs that
// need it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "sandbox/launcher/event_loop.h"
#include "sandbox/launcher/host_children.h"
#include "sandbox/messages.h"
#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

inline constexpr const char* kFolderChildName = "mycojobs-folder";

class GrantedFolders {
 public:
  // Called once with detached mounts (host_folders.h) in the order of OpenFolders. The error names the path:
  // `unsupported` if the owner cannot be mapped; `unavailable` if there is no answer within ten seconds or the host
  // lacks a resource (host_lacks_resource); otherwise `invalid`.
  using OnOpened = std::function<void(Result<std::vector<Fd>>, bool host_lacks_resource)>;

  GrantedFolders(EventLoop& loop, HostChildren& children) : loop_(loop), children_(children) {}
  void open(OpenFolders, OnOpened);

 private:
  using Number = std::uint64_t;
  using Child = HostChildren::Child;
  struct Request {
    OpenFolders folders;
    std::vector<std::string> paths;  // in the order of their mounts
    std::vector<Fd> mounts;          // mounts of the first paths
    Child child = 0;  // the child that opens the folders, or 0 while the request waits for a path that hangs
    std::string hanging_path;
    bool host_lacks_resource = false;
    EventLoop::Timer timer;
    OnOpened on_opened;  // empty after the call
  };
  void start_request(Number);
  Child get_child(const OpenFolders&);  // returns 0 and sets errno after a failure
  void on_frame(Child, RawFrame*);
  void finish(Number, Result<std::vector<Fd>>);
  void fail_by_errno(Number, int error, const std::string& subject);
  void on_child_ended(Number);
  void on_timeout(Number);
  void report_result(Request&, Result<std::vector<Fd>>);

  EventLoop& loop_;
  HostChildren& children_;
  std::map<Number, Request> requests_;
  Child idle_child_ = 0;                 // reused for the next request, or 0
  std::set<std::string> hanging_paths_;  // paths on which a child is blocked, so no second child is started
  Number next_number_ = 1;
};

}  // namespace mycojobs::sandbox
