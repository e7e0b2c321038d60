// A launcher that is spoken to byte by byte.
#pragma once

#include <string>
#include <vector>

#include "base/spawn.h"

namespace mycojobs::test {

class RawLauncher {
 public:
  RawLauncher();
  // Each descriptor is a copy of this process's stderr. False: it does not listen any more.
  bool send(const std::string& frame, std::size_t descriptors = 0) const;
  void drain() const;  // what it says
  void hang_up() { socket_.reset(); }
  // Its exit code, 128 + signal, or -1 if it has not ended within 20 s; then it is killed.
  int wait();

 private:
  Fd socket_;
  Child child_;
};

}  // namespace mycojobs::test
