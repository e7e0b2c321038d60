// The agent's ends of the pipes of one run, in the epoll of the run loop. The channel of a run that makes calls is
// watched at once, all other pipes after kWatchDelayMs: most jobs end before this delay, and their output is read at
// their end without additional wake-ups.
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

// Identifies a pipe in the 64 bits of epoll data: the number of the run and the pipe. Run numbers start at 1, so values
// below 4 are free for other descriptors.
struct PipeTag {
  RunNumber run;
  JobPipe pipe;
  static PipeTag from_bits(std::uint64_t bits) { return {bits >> 2, static_cast<JobPipe>(bits & 3)}; }
  std::uint64_t to_bits() const { return run << 2 | static_cast<std::uint32_t>(pipe); }
};

// Reads the bytes that are available, up to max. Closes the descriptor at the end of the pipe. REQUIRES: max >=
// PIPE_BUF.
std::string read_available(Fd&, std::size_t max);

void watch_descriptor(int epoll, int operation, int fd, std::uint64_t tag, std::uint32_t events);

// Not thread-safe. The epoll must outlive the object.
class JobPipes {
 public:
  static constexpr std::uint64_t kWatchDelayMs = 5;

  // Takes the pipes of one stage of a run. attachment: descriptor to send with the first byte, or -1. makes_calls:
  // whether the run makes calls and waits for the answers; its channel is then watched from the beginning.
  JobPipes(int epoll, RunNumber run, const RunPipes&, int attachment, bool makes_calls, std::uint64_t now_boot_ms);

  // Sends as much as the socket accepts; call it again when the epoll reports JobPipe::requests. next_bytes: called
  // when all previous bytes were sent; returns the next bytes, or an empty text if there are none now. Bytes that the
  // job no longer accepts are dropped, since the outcome of the run reports the reason.
  void send(const std::function<std::string()>& next_bytes);
  bool is_sending() const { return is_sending_; }  // bytes wait until the socket accepts more

  // Reads available bytes into the buffer. Returns an empty view if there are none now. A short read does not mean that
  // the pipe is empty, since a job can use packet mode. Closes the descriptor at the end of the pipe.
  std::string_view read(JobPipe, std::span<char> buffer);

  // Stops waiting for a pipe, and returns its descriptor for another thread, which also closes it. Returns null if the
  // pipe is closed. REQUIRES: until end_background_read(), read() is not called for this pipe.
  std::shared_ptr<Fd> begin_background_read(JobPipe);
  void end_background_read(JobPipe);
  bool has_background_reads() const;

  // Stops or resumes reading the channel. While the channel is held, the job blocks once the channel is full.
  void set_channel_held(bool);
  bool is_paused(JobPipe pipe) const {
    return (is_channel_held_ && pipe == JobPipe::channel) || paused_until_ms_[index(pipe)] > 0;
  }
  // Stops reading the pipe until the time.
  void pause(JobPipe, std::uint64_t until_boot_ms);
  // Resumes the pipes whose pause has ended. Returns the end of the next pause, or UINT64_MAX if no pipe is paused.
  std::uint64_t resume(std::uint64_t now_boot_ms);

  // Starts to watch the output if the run was started at least kWatchDelayMs ago. Returns whether the output is
  // watched; if not, the caller tries again later.
  bool watch_output(std::uint64_t now_boot_ms);

 private:
  static std::size_t index(JobPipe pipe) { return static_cast<std::size_t>(pipe); }
  void watch(JobPipe, int operation, std::uint32_t events);
  void refresh(JobPipe);
  Fd& descriptor(JobPipe pipe) { return *fds_[index(pipe)]; }

  int epoll_;
  RunNumber run_;
  std::shared_ptr<Fd> fds_[4];                         // by pipe
  std::string outgoing_;                               // bytes that are being sent to the job
  std::size_t sent_ = 0;                               // number of bytes of outgoing_ that were sent
  int attachment_;                                     // descriptor that was not sent yet, or -1
  bool is_sending_ = false;                            // whether the object waits until the socket accepts more bytes
  bool watches_channel_ = false;                       // whether the channel may be watched
  bool is_channel_held_ = false;                       // see set_channel_held()
  bool is_watched_[4] = {false, false, false, false};  // by pipe: whether the descriptor is in the epoll set
  bool read_in_background_[4] = {false, false, false, false};  // by pipe: whether another thread reads the pipe
  std::uint64_t paused_until_ms_[4] = {0, 0, 0, 0};            // by pipe; 0 if the pipe is not paused
  std::uint64_t watch_at_ms_;  // time from which the output is watched; 0 if it is watched
};

}  // namespace mycojobs
