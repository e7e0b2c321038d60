// The agent's end of a launcher: starts the program, speaks with it, ends it.
#pragma once

#include "base/fd.h"
#include "base/spawn.h"
#include "sandbox/client.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {

class LauncherLink {
 public:
  static Result<LauncherLink> start(const SandboxConfig&, bool probe);
  LauncherLink(LauncherLink&&) = default;
  LauncherLink& operator=(LauncherLink&& other) noexcept;
  ~LauncherLink();  // closes the socket, waits for the launcher's end; kills it if that takes too long

  int socket() const { return socket_.get(); }
  // The next frame that is not for the log, within the time. `closed` also when time is up.
  Received receive(RawFrame&, int timeout_ms);
  void end();

 private:
  LauncherLink(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}

  Child child_;
  Fd socket_;
};

}  // namespace mycojobs::sandbox
