// The agent's end of a launcher and its guardian: starts the program, speaks with it, ends it.
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
  ~LauncherLink();  // as end()

  int socket() const { return socket_.get(); }
  // The next frame that is not for the log, within the time. `closed` also when time is up.
  Received receive(RawFrame&, int timeout_ms);
  // Ends the launcher and waits until all that it had started is gone. A process that KILL does not end stays: the
  // guardian waits for it.
  void end();
  // The same without waiting, for a launcher that has failed: KILL at once.
  void give_up();
  int guardian() const { return child_.pidfd.get(); }  // readable when all that the launcher had started is gone
  pid_t guardian_pid() const { return child_.pid; }
  bool all_gone();  // whether it is
  // A guardian that was killed proves nothing: when all are taken to be gone. 0: it was not killed.
  std::uint64_t believed_at_boot_ms() const { return believed_at_boot_ms_; }

 private:
  LauncherLink(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}

  bool wait_for_guardian(int timeout_ms) const;

  Child child_;  // the guardian
  Fd socket_;
  std::uint64_t believed_at_boot_ms_ = 0;
};

}  // namespace mycojobs::sandbox
