// Attempts to open sockets, to connect to servers, and to send descriptors.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

std::string connect_to(int domain, const sockaddr* address, socklen_t size) {
  const int fd = ::socket(domain, SOCK_STREAM, 0);
  if (fd < 0) return get_errno_name();
  const std::string result = describe_result(::connect(fd, address, size));
  ::close(fd);
  return result;
}

std::string connect_tcp(const Words& words) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(parse_number(words, 2)));
  ::inet_pton(AF_INET, words[1].c_str(), &address.sin_addr);
  return connect_to(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof address);
}

std::string connect_unix(const Words& words) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  words[1].copy(address.sun_path, sizeof address.sun_path - 1);
  return connect_to(AF_UNIX, reinterpret_cast<sockaddr*>(&address), sizeof address);
}

std::string connect_abstract(const Words& words) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  words[1].copy(address.sun_path + 1, sizeof address.sun_path - 2);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + words[1].size());
  return connect_to(AF_UNIX, reinterpret_cast<sockaddr*>(&address), size);
}

// A socket pair with one end as descriptor 4. The filter of init permits messages only on this descriptor.
struct SocketPairAtFour {
  int peer = -1;
  bool is_ready = false;
  SocketPairAtFour() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
    peer = ::fcntl(pair[1], F_DUPFD, 16);
    is_ready = ::dup2(pair[0], 4) == 4;
    for (int fd : pair) {
      if (fd != 4) ::close(fd);
    }
  }
};

std::string send_rights(int socket, int fd, const sockaddr* address = nullptr, socklen_t address_size = 0) {
  char byte = '\n';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(address);
  message.msg_namelen = address_size;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return describe_result(::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

// Nests sockets within messages on sockets until the kernel or a limit refuses.
std::string nest_rights(const Words& words) {
  std::string result = "ok";
  for (unsigned long depth = 0; depth < parse_number(words, 1) && result == "ok"; ++depth) {
    const SocketPairAtFour pair;
    if (!pair.is_ready) return get_errno_name();
    result = send_rights(4, pair.peer);
    ::close(pair.peer);
    const int copy = ::fcntl(4, F_DUPFD, 16);
    if (copy < 0) return get_errno_name();
  }
  return result;
}

// Sends unsolicited descriptors on the channel to the agent.
std::string send_rights_to_channel(const Words& words) {
  if (::dup2(3, 4) != 4) return get_errno_name();
  std::string result = "ok";
  for (unsigned long i = 0; i < parse_number(words, 1) && result == "ok"; ++i) result = send_rights(4, 4);
  ::close(4);
  return result;
}

// Sends a message with a descriptor on each descriptor below the given number. Returns those that accepted it, or
// "none".
std::string send_rights_to_every_descriptor(const Words& words) {
  std::string accepting_sockets;
  for (int socket = 0; socket < static_cast<int>(parse_number(words, 1)); ++socket) {
    if (send_rights(socket, 0) == "ok")
      accepting_sockets += (accepting_sockets.empty() ? "" : " ") + std::to_string(socket);
  }
  return accepting_sockets.empty() ? "none" : accepting_sockets;
}

std::string send_to_address(const Words&) {
  const SocketPairAtFour pair;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "mycojobs-anybody";
  name.copy(address.sun_path + 1, name.size());
  return send_rights(4, -1, reinterpret_cast<sockaddr*>(&address),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
}

// Sends one byte with the given flags on a new socket pair.
std::string send_with_flags(const Words& words) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return get_errno_name();
  const std::string result = describe_result(::send(pair[0], "x", 1, static_cast<int>(parse_number(words, 1))));
  for (const int fd : pair) ::close(fd);
  return result;
}

std::string fill_socket_pair(const Words&) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) return get_errno_name();
  const std::string block(65536, 'z');
  while (::write(pair[0], block.data(), block.size()) > 0) continue;
  return get_errno_name();
}

}  // namespace

const Attempts& network_attempts() {
  static const Attempts kTable = {
      {"socket",
       [](const Words& words) {
         return describe_result(
             ::socket(static_cast<int>(parse_number(words, 1)), static_cast<int>(parse_number(words, 2)), 0));
       }},
      {"socketpair",
       [](const Words& words) {
         int pair[2];
         return describe_result(
             ::socketpair(static_cast<int>(parse_number(words, 1)), static_cast<int>(parse_number(words, 2)), 0, pair));
       }},
      {"connect_tcp", connect_tcp},
      {"connect_unix", connect_unix},
      {"connect_abstract", connect_abstract},
      {"nest_rights", nest_rights},
      {"rights_to_channel", send_rights_to_channel},
      {"rights_to_every", send_rights_to_every_descriptor},
      {"address_on_four", send_to_address},
      {"fill_pair", fill_socket_pair},
      {"send_with", send_with_flags},
      {"credentials",
       [](const Words&) {
         const SocketPairAtFour pair;
         return send_rights(4, -1);
       }},
  };
  return kTable;
}

}  // namespace mycojobs::test
