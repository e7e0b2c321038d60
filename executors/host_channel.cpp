#include "executors/host_channel.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/errno_text.h"

namespace mycojobs {
namespace {

// After EINTR, or EAGAIN if somebody made the descriptor non-blocking; false for any other error.
bool try_again(int fd, short events) {
  if (errno == EINTR) return true;
  if (errno != EAGAIN) return false;
  pollfd waiting{fd, events, 0};
  ::poll(&waiting, 1, -1);
  return true;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && !try_again(fd, POLLOUT)) return false;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

Result<HostRequest> read_request(int channel) {
  HostRequest request;
  bool started = false;
  std::uint8_t last = 0;  // kinds come in the order of their numbers
  std::string problem;
  FrameReader reader({{FrameKind::facts, kMaxFactsBytes},
                      {FrameKind::environment, kMaxEnvironmentBytes},
                      {FrameKind::script, kMaxScriptBytes}});
  const auto take = [&](Frame&& frame) {
    if (frame.fate != Frame::Fate::whole || frame.kind != last + 1) {
      problem = "frame of kind " + std::to_string(frame.kind) + " with " + std::to_string(frame.size) +
                " bytes after kind " + std::to_string(last);
      return;
    }
    last = frame.kind;
    std::string* const parts[] = {&request.facts, &request.environment, &request.script};
    *parts[frame.kind - 1] = std::move(frame.payload);
  };
  std::array<char, 16384> buffer;
  while (last != static_cast<std::uint8_t>(FrameKind::script)) {
    const ssize_t got = ::read(channel, buffer.data(), buffer.size());
    if (got < 0 && try_again(channel, POLLIN)) continue;
    if (got < 0) return fail(Code::io, "channel: cannot read the request: " + errno_text(errno));
    if (got == 0 && !started) return fail(Code::unavailable, "channel: closed before a job came");
    if (got == 0) return fail(Code::invalid, "channel: the request ends in the middle");
    started = true;
    reader.feed({buffer.data(), static_cast<std::size_t>(got)}, take);
    if (!problem.empty()) return fail(Code::invalid, "channel: " + problem);
  }
  return request;
}

bool send_frame(int channel, FrameKind kind, std::string_view payload) {
  std::string bytes;
  bytes.reserve(payload.size() + 8);
  append_frame(bytes, kind, payload);
  return write_all(channel, bytes);
}

}  // namespace mycojobs
