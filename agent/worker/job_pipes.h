// Our ends of one run's descriptors in the run loop's epoll: the channel at once, its output a moment later. Most jobs
// end before, and what they wrote is read then: nobody is woken for it.
//
// Reading or closing a pipe waits for the lock of the pipe, also with O_NONBLOCK. The kernel holds the lock while it
// serves a page fault of the job in a read or a write. Where such a fault can wait for a disk, the run loop must not
// read the pipe: begin_background_read() hands it to another thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "mycojobs/sandbox.h"
#include "worker/types.h"

namespace mycojobs {

// epoll's 64 bits for a pipe: the run's number above, the pipe below. Numbers of runs start at 1, so that what lies
// below 4 stands for descriptors of others.
struct PipeTag {
  RunNumber run;
  JobPipe pipe;
  static PipeTag of(std::uint64_t bits) { return {bits >> 2, static_cast<JobPipe>(bits & 3)}; }
  std::uint64_t bits() const { return run << 2 | static_cast<std::uint32_t>(pipe); }
};

// Reads what is there now, up to max bytes. Closes the descriptor at the end of the pipe. REQUIRES: max >= PIPE_BUF.
std::string read_available(Fd&, std::size_t max);

void watch_descriptor(int epoll, int operation, int fd, std::uint64_t tag, std::uint32_t events);

// Of one thread. The epoll outlives it.
class JobPipes {
 public:
  static constexpr std::uint64_t kListenMs = 5;

  // Of a run, or of its next stage. attachment: a descriptor that goes along with the first byte; -1: none. converses:
  // it may ask for something and wait for the answer, so that its channel is waited for from the beginning.
  JobPipes(int epoll, RunNumber run, const RunPipes&, int attachment, bool converses, std::uint64_t now_boot_ms);

  // Sends, as far as the socket takes it; the rest when it takes more: call again then. next: what follows, asked for
  // when all before it has gone; empty: nothing now. What a job does not take any more is passed over: its outcome will
  // tell why.
  void send(const std::function<std::string()>& next);
  bool is_sending() const { return writing_; }  // the epoll says when JobPipe::requests takes more

  // What the pipe has, as far as the buffer takes it; less than that: there is no more now. A pipe that has come to its
  // end is closed.
  std::string_view read(JobPipe, std::span<char> buffer);

  // Stops waiting for a pipe, and returns its descriptor for another thread, which also closes it. Null if the pipe is
  // closed. REQUIRES: until end_background_read(), read() is not called for this pipe.
  std::shared_ptr<Fd> begin_background_read(JobPipe);
  void end_background_read(JobPipe);
  bool has_background_reads() const;

  // Stops or resumes waiting for the channel. While it is held, the job blocks once the channel is full.
  void hold(bool);
  bool is_held(JobPipe pipe) const { return (held_ && pipe == JobPipe::channel) || pause_of(pipe) > 0; }
  // Stops waiting for this pipe until the given time.
  void pause(JobPipe, std::uint64_t until_boot_ms);
  // Resumes the pipes whose pause is over. Returns the end of the next pause, or UINT64_MAX if no pipe is paused.
  std::uint64_t resume(std::uint64_t now_boot_ms);

  // True: what it says is waited for now. Most runs are over before: then that is read with their end. Until then ask
  // again, kListenMs after its start.
  bool listen(std::uint64_t now_boot_ms);

 private:
  static std::size_t index(JobPipe pipe) { return static_cast<std::size_t>(pipe); }
  void watch(JobPipe, int operation, std::uint32_t events);
  void refresh(JobPipe);
  std::uint64_t pause_of(JobPipe pipe) const { return paused_until_ms_[index(pipe)]; }
  Fd& of(JobPipe pipe) { return *fds_[index(pipe)]; }

  int epoll_;
  RunNumber run_;
  std::shared_ptr<Fd> fds_[4];                        // by pipe
  std::string outgoing_;                              // on its way to the job
  std::size_t sent_ = 0;                              // of it
  int attachment_;                                    // not gone along yet
  bool writing_ = false;                              // waits until the socket takes more
  bool heard_ = false;                                // the channel is waited for
  bool held_ = false;                                 // hold() has stopped waiting for the channel
  bool watched_[4] = {false, false, false, false};    // by pipe: the descriptor is in the epoll set
  bool elsewhere_[4] = {false, false, false, false};  // by pipe: another thread reads it
  std::uint64_t paused_until_ms_[4] = {0, 0, 0, 0};   // by pipe; 0: not paused
  std::uint64_t listen_at_ms_;                        // when its output will be waited for; 0: it is
};

}  // namespace mycojobs
