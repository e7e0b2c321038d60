// Child processes of the launcher for calls that may block: on folders of the host, whose disk may hang, and on sockets
// of jobs. The launcher itself is single-threaded and must not block.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>

#include "base/fd.h"
#include "sandbox/frames.h"
#include "sandbox/launcher/event_loop.h"

namespace mycojobs::sandbox {

class HostChildren {
 public:
  using Child = std::uint64_t;                   // never reused; 0 is not a child
  using Work = std::function<void(int socket)>;  // runs in the child, which then exits; uses the host's user ids
  // Called for each frame of a child, and once with null after the child has ended. A frame lacks its descriptors if
  // the launcher has no free descriptor numbers.
  using OnFrame = std::function<void(Child, RawFrame*)>;

  explicit HostChildren(EventLoop& loop) : loop_(loop) {}
  ~HostChildren();  // kills the children but does not wait: a child blocked by a disk ends when the disk responds
  HostChildren(const HostChildren&) = delete;
  HostChildren& operator=(const HostChildren&) = delete;

  // `name` is the process name in ps. Returns 0 and sets errno if fork fails.
  Child start(const char* name, const Work&, OnFrame);
  template <class Message>
  int send_message(Child child, const Message& message) {  // returns 0 or an errno
    return send(child, encode(message));
  }
  int send(Child, const std::string& frame, std::initializer_list<int> fds = {});  // returns 0 or an errno
  void kill(Child);                                                                // its end is reported as usual
  void kill_silently(Child);  // kills the child; nothing more is reported

 private:
  struct Entry {
    pid_t pid = -1;
    Fd pidfd, socket;
    EventLoop::Watch end_watch = 0, socket_watch = 0;
    OnFrame on_frame;
  };
  void read(Child);
  void reap(Child);

  EventLoop& loop_;
  std::map<Child, Entry> entries_;
  Child next_child_ = 1;
};

}  // namespace mycojobs::sandbox
