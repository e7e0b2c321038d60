#include "sandbox/frames.h"

#include <cerrno>
#include <span>

namespace mycojobs::sandbox {
namespace {

int send_all(int socket, std::string_view bytes, const int* fds, std::size_t count, int flags) {
  if (bytes.size() > kMaxFrameBytes || count > kMaxFrameFds) return EMSGSIZE;
  iovec buffer_vector{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
  msghdr message{};
  message.msg_iov = &buffer_vector;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(header), fds, sizeof(int) * count);
  }
  while (::sendmsg(socket, &message, flags | MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

void receive_fds(msghdr& message, std::vector<Fd>& out) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      out.emplace_back(fd);
    }
  }
}

}  // namespace

int send_raw(int socket, std::string_view bytes, std::initializer_list<int> fds, int flags) {
  return send_all(socket, bytes, fds.begin(), fds.size(), flags);
}

int send_raw(int socket, std::string_view bytes, const std::vector<int>& fds, int flags) {
  return send_all(socket, bytes, fds.data(), fds.size(), flags);
}

namespace {

ReceiveResult receive_into(std::span<char> buffer, int socket, RawFrame& frame, int flags) {
  iovec buffer_vector{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
  msghdr message{};
  message.msg_iov = &buffer_vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    // ECONNRESET is reported once if the peer closed with unread data; frames that it sent are still delivered.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? ReceiveResult::would_block : ReceiveResult::closed;
  frame.fds.clear();
  receive_fds(message, frame.fds);
  if (size == 0) return ReceiveResult::closed;
  const bool has_too_many_fds = frame.fds.size() >= kMaxFrameFds;
  const bool is_control_truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  if (is_control_truncated) frame.fds.clear();
  if ((message.msg_flags & MSG_TRUNC) != 0 || (is_control_truncated && has_too_many_fds)) {
    frame.fds.clear();
    return ReceiveResult::malformed;
  }
  frame.kind = static_cast<std::uint8_t>(buffer[0]);
  frame.payload.assign(buffer.data() + 1, static_cast<std::size_t>(size) - 1);
  ::explicit_bzero(buffer.data(), static_cast<std::size_t>(size));  // processes forked later inherit this stack
  return is_control_truncated ? ReceiveResult::descriptors_lost : ReceiveResult::frame;
}

}  // namespace

ReceiveResult receive_raw(int socket, RawFrame& frame, int flags) {
  char buffer[kMaxFrameBytes];
  return receive_into(buffer, socket, frame, flags);
}

ReceiveResult receive_short(int socket, RawFrame& frame, int flags) {
  char buffer[kShortFrameBytes];
  return receive_into(buffer, socket, frame, flags);
}

}  // namespace mycojobs::sandbox
