// Bytes on a stream socket, and a descriptor along with the first of them.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstring>
#include <string_view>

namespace mycojobs {

// As send(2) with MSG_NOSIGNAL; -1 and errno as there. descriptor: -1, none; else it has gone along if any byte has,
// and the receiver has one of its own. bytes: not empty.
inline ssize_t send_bytes(int socket, std::string_view bytes, int descriptor = -1) {
  if (descriptor < 0) return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

}  // namespace mycojobs
