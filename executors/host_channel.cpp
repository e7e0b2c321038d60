#include "executors/host_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "base/errno_text.h"
#include "executors/host_files.h"

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

bool write_waiting(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && !try_again(fd, POLLOUT)) return false;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// read(2), and the descriptor that may have come along.
ssize_t receive(int channel, char* buffer, std::size_t size, Fd& attached) {
  iovec part{buffer, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    attached.reset(fd);
  }
  return got;
}

}  // namespace

Result<HostRequest> read_request(int channel, const std::string& folder) {
  HostRequest request;
  request.inputs = "{}";
  bool started = false;
  std::uint8_t last = 0;  // kinds come in the order of their numbers; only files come more than once
  std::string problem;
  IncomingFiles files(folder);
  const auto take = [&](Frame&& frame) {
    const auto kind = static_cast<FrameKind>(frame.kind);
    const bool in_order = frame.kind > last || (kind == FrameKind::file && frame.kind == last);
    if (!problem.empty()) return;
    const bool too_early = kind > FrameKind::environment && request.environment.empty();
    if (frame.fate != Frame::Fate::whole || !in_order || too_early || (frame.kind == 2 && request.facts.empty())) {
      problem = "frame of kind " + std::to_string(frame.kind) + " with " + std::to_string(frame.size) +
                " bytes after kind " + std::to_string(last);
      return;
    }
    last = frame.kind;
    if (kind == FrameKind::file) {
      if (auto written = files.take(frame.payload); !written) problem = written.error().message;
      return;
    }
    std::string* const parts[] = {&request.facts, &request.environment, &request.inputs, nullptr, &request.script};
    *parts[frame.kind - 1] = std::move(frame.payload);
  };
  FrameReader reader({{FrameKind::facts, kMaxFactsBytes},
                      {FrameKind::environment, kMaxEnvironmentBytes},
                      {FrameKind::inputs, kMaxInputsBytes},
                      {FrameKind::file, kMaxFileFrameBytes},
                      {FrameKind::script, kMaxScriptBytes}});
  // The first is most requests, in as little memory as need be.
  std::array<char, 4096> first;  // NOLINT(*-member-init): filled by read
  std::vector<char> more;
  std::span<char> buffer = first;
  while (last != static_cast<std::uint8_t>(FrameKind::script)) {
    const ssize_t got = receive(channel, buffer.data(), buffer.size(), request.attached);
    if (got < 0 && try_again(channel, POLLIN)) continue;
    if (got < 0) return fail(Code::io, "channel: cannot read the request: " + errno_text(errno));
    if (got == 0 && !started) return fail(Code::unavailable, "channel: closed before a job came");
    if (got == 0) return fail(Code::invalid, "channel: the request ends in the middle");
    started = true;
    reader.feed({buffer.data(), static_cast<std::size_t>(got)}, take);
    if (!problem.empty()) return fail(Code::invalid, "channel: " + problem);
    if (more.empty() && static_cast<std::size_t>(got) == buffer.size()) {
      more.resize(65536);
      buffer = more;
    }
  }
  // Where it cannot be made there is no sandbox around us, and a script that wants it meets the error itself.
  const std::string artifacts = folder + std::string(kArtifactsFolder).substr(4);
  struct stat there {};  // as a rule, and cheaper to look for than to make
  if (::lstat(artifacts.c_str(), &there) != 0) static_cast<void>(::mkdir(artifacts.c_str(), 0755));
  return request;
}

Result<std::string> ask(int channel, std::string_view call) {
  if (!send_frame(channel, FrameKind::call, call)) return fail(Code::unavailable, "channel: the agent has gone");
  // One question at a time: the next frame is its answer.
  std::string reply;
  bool whole = false;
  FrameReader reader({{FrameKind::reply, kMaxReplyBytes}});
  std::array<char, 65536> buffer;  // NOLINT(*-member-init): filled by read
  std::uint32_t wanted = 5;        // never more than this frame: what follows belongs to the next question
  std::string header;
  while (!whole) {
    const ssize_t got = ::read(channel, buffer.data(), std::min<std::size_t>(buffer.size(), wanted));
    if (got < 0 && try_again(channel, POLLIN)) continue;
    if (got <= 0) return fail(Code::unavailable, "channel: the agent has gone");
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
    wanted -= static_cast<std::uint32_t>(got);
    if (header.size() < 5) {
      header += bytes;
      if (header.size() == 5) {
        for (unsigned i = 0; i < 4; ++i) wanted |= std::uint32_t{static_cast<unsigned char>(header[i])} << (8 * i);
      }
    }
    reader.feed(bytes, [&](Frame&& frame) {
      whole = frame.fate == Frame::Fate::whole;
      reply = std::move(frame.payload);
    });
    if (wanted == 0 && !whole && header.size() == 5) return fail(Code::invalid, "channel: not a reply");
  }
  return reply;
}

bool send_frame(int channel, FrameKind kind, std::string_view payload) {
  std::string bytes;
  bytes.reserve(payload.size() + 8);
  append_frame(bytes, kind, payload);
  return write_waiting(channel, bytes);
}

bool send_frames(int channel, std::string_view frames) { return write_waiting(channel, frames); }

}  // namespace mycojobs
