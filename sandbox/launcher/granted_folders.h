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
  // Called once with detached mounts (host_folders.h), read-only folders first. Errors, naming the path: invalid;
  // unavailable: no answer within ten seconds, or (host_lacks_resource) the host lacks a resource.
  using OnOpened = std::function<void(Result<std::vector<Fd>>, bool host_lacks_resource)>;

  GrantedFolders(EventLoop& loop, HostChildren& children) : loop_(loop), children_(children) {}
  void open(const RunSpec&, OnOpened);

 private:
  using Number = std::uint64_t;
  using Child = HostChildren::Child;
  struct Request {
    OpenFolders folders;
    std::vector<std::string> paths;  // in the order of their mounts
    std::vector<Fd> mounts;          // of the first paths
    Child child = 0;                 // the child that opens them; 0: the request waits for a path that hangs
    std::string hanging_path;
    bool host_lacks_resource = false;
    EventLoop::Timer timer;
    OnOpened on_opened;  // empty: already called
  };
  void start_request(Number);
  Child get_child(const OpenFolders&);  // 0: failed with errno
  void on_frame(Child, RawFrame*);
  void finish(Number, Result<std::vector<Fd>>);
  void fail_by_errno(Number, int error, const std::string& subject);
  void on_child_ended(Number);
  void on_timeout(Number);
  void report_result(Request&, Result<std::vector<Fd>>);

  EventLoop& loop_;
  HostChildren& children_;
  std::map<Number, Request> requests_;
  Child idle_ = 0;                 // reused for the next request; 0: none
  std::set<std::string> hanging_;  // a child is blocked on this path, so no second one is started
  Number next_number_ = 1;
};

}  // namespace mycojobs::sandbox
