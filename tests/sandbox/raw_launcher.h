// Starts a launcher and sends raw frames to it, to test its handling of invalid frames.
#pragma once

#include <string>
#include <vector>

#include "base/spawn.h"

namespace mycojobs::test {

class RawLauncher {
 public:
  RawLauncher();
  // Sends a frame; each descriptor is a copy of stderr. Returns false if the launcher has closed the connection.
  bool send(const std::string& frame, std::size_t descriptors = 0) const;
  void drain() const;  // Reads and discards the messages of the launcher.
  void close_connection() { socket_.reset(); }
  // Returns the exit code, or 128 + signal. If the launcher has not ended within 20 s, kills it and returns -1.
  int wait();

 private:
  Fd socket_;
  Child child_;
};

}  // namespace mycojobs::test
