// A wire between an agent and its Redis, or between two supervisors, that can be cut.
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

enum class Wire {
  whole,
  refusing,  // connections are closed, new ones too
  silent,    // connections stay and nothing passes; what was sent meanwhile arrives when it is whole again
  dropping,  // the same, but what was sent meanwhile is gone, and the connections are reset at the end
  slow,      // everything arrives some tenths of a second later
  cutting,   // of each answer only a part arrives, then the connection is closed
};
const char* word(Wire);

class Proxy {
 public:
  Proxy(const TempDir&, const std::string& upstream_path);
  explicit Proxy(int upstream_port);  // both on 127.0.0.1
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string url() const { return url_; }
  void be(Wire wire) { wire_ = wire; }

 private:
  struct Pair {
    Fd client, server;
    bool spoilt = false;  // lost bytes: of no use any more
  };
  struct Address {
    sockaddr_storage bytes{};
    socklen_t size = 0;
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  };
  static Address on_host(int port);
  void listen_at(const Address&);
  Fd stream_socket() const;
  void serve();
  void accept_one();
  bool pass(Pair&, bool answer);  // false: the connection has ended

  Address upstream_;
  std::string url_;
  Fd listener_;
  std::list<Pair> pairs_;
  std::atomic<Wire> wire_ = Wire::whole;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace mycojobs::test
