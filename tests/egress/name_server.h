// A name server on loopback that knows a few names below .test: good is 127.0.0.1, private is 10.0.0.1. Names that
// start with silent get no response. Other names do not exist.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "base/fd.h"

namespace mycojobs::test {

class NameServer {
 public:
  NameServer();
  ~NameServer();
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int asked(const std::string& name);

 private:
  void serve();
  std::string answer(const std::string& query);

  std::uint16_t port_ = 0;
  Fd socket_, stop_, stopped_;
  std::mutex lock_;
  std::map<std::string, int> asked_;
  std::thread thread_;
};

}  // namespace mycojobs::test
