// The agent's ends of the pipes of one run, in the epoll of the run loop. The channel of a run that makes calls is
// watched at once, all other pipes after kListenMs: most jobs end before, and their output is read at their end without
// additional wake-ups.
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
#include "sandbox/sandbox.h"
#include "worker/worker_types.h"

namespace mycojobs {

// The 64 bits of epoll data for a pipe: the number of the run and the pipe. Run numbers start at 1, so values below 4
// are free for other descriptors.
struct PipeTag {
  RunNumber run;
  JobPipe pipe;
  static PipeTag of(std::uint64_t bits) { return {bits >> 2, static_cast<JobPipe>(bits & 3)}; }
  std::uint64_t bits() const { return run << 2 | static_cast<std::uint32_t>(pipe); }
};

// Reads the bytes that are available, up to max. Closes the descriptor at the end of the pipe. REQUIRES: max >=
// PIPE_BUF.
std::string read_available(Fd&, std::size_t max);

void watch_descriptor(int epoll, int operation, int fd, std::uint64_t tag, std::uint32_t events);

// Not thread-safe. The epoll must outlive the object.
class JobPipes {
 public:
  static constexpr std::uint64_t kListenMs = 5;

  // For a run, or for its next stage. attachment: descriptor that is sent with the first byte; -1: none. converses: the
  // run makes calls and waits for the answers, so its channel is watched from the beginning.
  JobPipes(int epoll, RunNumber run, const RunPipes&, int attachment, bool converses, std::uint64_t now_boot_ms);

  // Sends as much as the socket accepts; call it again when the epoll reports JobPipe::requests. next: called when all
  // previous bytes were sent; returns the next bytes, or an empty text if there are none now. Bytes that the job no
  // longer accepts are dropped, since the outcome of the run reports the reason.
  void send(const std::function<std::string()>& next);
  bool is_sending() const { return writing_; }  // the epoll reports JobPipe::requests when more is accepted

  // Reads available bytes into the buffer. Returns an empty view if there are none now. A short read does not mean that
  // the pipe is empty, since a job can use packet mode. Closes the descriptor at the end of the pipe.
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
  // Resumes the pipes at the end of their pause. Returns the end of the next pause, or UINT64_MAX if no pipe is paused.
  std::uint64_t resume(std::uint64_t now_boot_ms);

  // Starts to watch the output if the run was started kListenMs ago. Returns whether the output is watched; if not,
  // call it again later. Most runs end before, and their output is read at their end.
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
  std::string outgoing_;                              // bytes that are being sent to the job
  std::size_t sent_ = 0;                              // number of bytes of outgoing_ that were sent
  int attachment_;                                    // descriptor that was not sent yet, or -1
  bool writing_ = false;                              // waiting until the socket accepts more
  bool received_ = false;                             // the channel may be watched
  bool held_ = false;                                 // hold() has stopped waiting for the channel
  bool watched_[4] = {false, false, false, false};    // by pipe: the descriptor is in the epoll set
  bool elsewhere_[4] = {false, false, false, false};  // by pipe: another thread reads it
  std::uint64_t paused_until_ms_[4] = {0, 0, 0, 0};   // by pipe; 0: not paused
  std::uint64_t listen_at_ms_;                        // time at which the output will be watched; 0: it is watched
};

}  // namespace mycojobs
