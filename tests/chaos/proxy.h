// A proxy between an agent and its Redis, or between two supervisors, that can interrupt the connection.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "support/process.h"

namespace mycojobs::test {

enum class LinkState {
  whole,
  refusing,  // closes existing and new connections
  silent,    // keeps connections but delays all data until the state is `whole` again
  dropping,  // keeps connections but discards all data, and resets them at the end
  slow,      // delays all data by some tenths of a second
  cutting,   // forwards a part of each reply, then closes the connection
};
const char* to_string(LinkState);

class Proxy {
 public:
  Proxy(const TempDir&, const std::string& upstream_path);
  explicit Proxy(int upstream_port);  // both on 127.0.0.1
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string url() const { return url_; }
  void set_state(LinkState state) { state_ = state; }

 private:
  struct ProxiedConnection {
    Fd client, server;
    bool has_lost_data = false;  // lost bytes, so the connection must be closed
  };
  struct Address {
    sockaddr_storage bytes{};
    socklen_t size = 0;
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  };
  static Address make_loopback_address(int port);
  void start_listening(const Address&);
  Fd make_stream_socket() const;
  void serve();
  void accept_connection();
  bool forward(ProxiedConnection&, bool is_reply);  // returns false if the connection has ended

  Address upstream_;
  std::string url_;
  Fd listener_;
  std::list<ProxiedConnection> connections_;
  std::atomic<LinkState> state_ = LinkState::whole;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace mycojobs::test
