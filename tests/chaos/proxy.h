// A wire between an agent and its Redis that can be cut.
#pragma once

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
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string url() const { return "unix://" + path_; }
  void be(Wire wire) { wire_ = wire; }

 private:
  struct Pair {
    Fd client, server;
    bool spoilt = false;  // lost bytes: of no use any more
  };
  void serve();
  void accept_one();
  bool pass(Pair&, bool answer);  // false: the connection has ended

  std::string path_, upstream_;
  Fd listener_;
  std::list<Pair> pairs_;
  std::atomic<Wire> wire_ = Wire::whole;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace mycojobs::test
