// The proxy: one thread with one loop for the launcher's socket and the runs. The proxy ends when the launcher's socket
// is closed.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "sandbox/egress/egress_messages.h"
#include "sandbox/egress/run.h"
#include "sandbox/frames.h"

namespace mycojobs::egress {

class Proxy {
 public:
  struct Options {
    Timeouts timeouts;
    Resolver::Hosts hosts;           // tests only
    std::string name_servers;        // tests only
    std::size_t descriptors = 1024;  // limit of this process
  };
  Proxy(Fd launcher, Options);
  int run();  // returns the exit code

 private:
  bool read_launcher();  // returns false if the launcher has closed the socket
  void handle_frame(sandbox::RawFrame&);
  void serve(const Serve&, Fd listener);
  void close(const Close&);
  std::size_t max_connections() const;
  template <class Message>
  void send(const Message&);
  bool flush();

  Fd epoll_, launcher_;
  std::uint32_t launcher_events_ = 0;
  const Options options_;
  Resolver resolver_;
  std::deque<std::string> unsent_;
  std::map<std::uint64_t, std::unique_ptr<ProxiedRun>> runs_;
};

}  // namespace mycojobs::egress
