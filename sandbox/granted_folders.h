// The folders of the host that runs are granted, opened by children of the launcher: one whose disk hangs keeps nobody
// waiting but the runs that need it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"
#include "mycojobs/result.h"
#include "mycojobs/sandbox.h"
#include "sandbox/host_children.h"
#include "sandbox/loop.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {

inline constexpr const char* kFolderChildName = "mycojobs-folder";

class GrantedFolders {
 public:
  // Once: detached mounts (host_folders.h), those to read first. Errors, naming the path: invalid; unavailable: nothing
  // has answered for ten seconds, or (host_short) this host is out of a resource.
  using Opened = std::function<void(Result<std::vector<Fd>>, bool host_short)>;

  GrantedFolders(Loop& loop, HostChildren& children) : loop_(loop), children_(children) {}
  void open(const RunSpec&, Opened);

 private:
  using Number = std::uint64_t;
  using Child = HostChildren::Child;
  struct Request {
    OpenFolders wanted;
    std::vector<std::string> paths;  // as their mounts come
    std::vector<Fd> mounts;          // of the first of them
    Child child = 0;                 // that opens them; 0: it waits for a path that hangs
    std::string hangs;
    bool host_short = false;
    Loop::Timer patience;
    Opened opened;  // none: the answer has been given
  };
  void begin(Number);
  Child child_for(const OpenFolders&);  // 0 and errno
  void heard(Child, RawFrame*);
  void finish(Number, Result<std::vector<Fd>>);
  void fail_short(Number, int error, const std::string& what);
  void ended(Number);
  void give_up(Number);
  void answer(Request&, Result<std::vector<Fd>>);

  Loop& loop_;
  HostChildren& children_;
  std::map<Number, Request> requests_;
  Child idle_ = 0;                 // kept for the next request; 0: none
  std::set<std::string> hanging_;  // a child is in the kernel for it: no second one follows
  Number next_ = 1;
};

}  // namespace mycojobs::sandbox
