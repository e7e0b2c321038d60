// Child processes of the launcher for calls that may block: on folders of the host, whose disk may hang, and on sockets
// of jobs. The launcher itself has one thread and must not block.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>

#include "base/fd.h"
#include "sandbox/frames.h"
#include "sandbox/loop.h"

namespace mycojobs::sandbox {

class HostChildren {
 public:
  using Child = std::uint64_t;                   // never used twice. 0: none
  using Work = std::function<void(int socket)>;  // in the child, which ends behind it. It sees the host's own ids
  // Receives each frame of a child. Null, once: the child has ended and sends no more. A frame lacks its descriptors
  // while the launcher has none free.
  using Heard = std::function<void(Child, RawFrame*)>;

  explicit HostChildren(Loop& loop) : loop_(loop) {}
  ~HostChildren();  // kills them. Waits for none: whose disk hangs ends when the disk goes on
  HostChildren(const HostChildren&) = delete;
  HostChildren& operator=(const HostChildren&) = delete;

  // name: as ps shows it. 0 and errno: it cannot be forked.
  Child start(const char* name, const Work&, Heard);
  template <class Message>
  int say(Child child, const Message& message) {  // 0 or errno
    return send(child, encode(message));
  }
  int send(Child, const std::string& frame, std::initializer_list<int> fds = {});  // 0 or errno
  void kill(Child);                                                                // its end is heard of as any other
  void forget(Child);  // and kills it: nothing is heard of it any more

 private:
  struct Entry {
    pid_t pid = -1;
    Fd pidfd, socket;
    Loop::Watch end_watch = 0, socket_watch = 0;
    Heard heard;
  };
  void read(Child);
  void reap(Child);

  Loop& loop_;
  std::map<Child, Entry> entries_;
  Child next_ = 1;
};

}  // namespace mycojobs::sandbox
