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
  if (fd < 0) return errno_name();
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

// A socket pair with one end as descriptor 4, the only descriptor on which the filter of init permits messages.
struct PairAtFour {
  int other = -1;
  bool is_ready = false;
  PairAtFour() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
    other = ::fcntl(pair[1], F_DUPFD, 16);
    is_ready = ::dup2(pair[0], 4) == 4;
    for (int fd : pair) {
      if (fd != 4) ::close(fd);
    }
  }
};

std::string send_rights(int socket, int fd, const sockaddr* to = nullptr, socklen_t to_size = 0) {
  char byte = '\n';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(to);
  message.msg_namelen = to_size;
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
    const PairAtFour pair;
    if (!pair.is_ready) return errno_name();
    result = send_rights(4, pair.other);
    ::close(pair.other);
    const int copy = ::fcntl(4, F_DUPFD, 16);
    if (copy < 0) return errno_name();
  }
  return result;
}

// Sends unsolicited descriptors on the channel to the agent.
std::string rights_to_channel(const Words& words) {
  if (::dup2(3, 4) != 4) return errno_name();
  std::string result = "ok";
  for (unsigned long i = 0; i < parse_number(words, 1) && result == "ok"; ++i) result = send_rights(4, 4);
  ::close(4);
  return result;
}

// Sends a message with a descriptor on each descriptor below the given number. Returns those that accepted it, or
// "none".
std::string rights_to_every(const Words& words) {
  std::string accepted;
  for (int socket = 0; socket < static_cast<int>(parse_number(words, 1)); ++socket) {
    if (send_rights(socket, 0) == "ok") accepted += (accepted.empty() ? "" : " ") + std::to_string(socket);
  }
  return accepted.empty() ? "none" : accepted;
}

std::string address_on_four(const Words&) {
  const PairAtFour pair;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "mycojobs-anybody";
  name.copy(address.sun_path + 1, name.size());
  return send_rights(4, -1, reinterpret_cast<sockaddr*>(&address),
                     static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
}

// Sends one byte with the given flags on a new socket pair.
std::string send_with(const Words& words) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return errno_name();
  const std::string result = describe_result(::send(pair[0], "x", 1, static_cast<int>(parse_number(words, 1))));
  for (const int fd : pair) ::close(fd);
  return result;
}

std::string fill_pair(const Words&) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) return errno_name();
  const std::string block(65536, 'z');
  while (::write(pair[0], block.data(), block.size()) > 0) continue;
  return errno_name();
}

}  // namespace

const Attempts& attempts_on_network() {
  static const Attempts kTable = {
      {"socket",
       [](const Words& w) {
         return describe_result(
             ::socket(static_cast<int>(parse_number(w, 1)), static_cast<int>(parse_number(w, 2)), 0));
       }},
      {"socketpair",
       [](const Words& w) {
         int pair[2];
         return describe_result(
             ::socketpair(static_cast<int>(parse_number(w, 1)), static_cast<int>(parse_number(w, 2)), 0, pair));
       }},
      {"connect_tcp", connect_tcp},
      {"connect_unix", connect_unix},
      {"connect_abstract", connect_abstract},
      {"nest_rights", nest_rights},
      {"rights_to_channel", rights_to_channel},
      {"rights_to_every", rights_to_every},
      {"address_on_four", address_on_four},
      {"fill_pair", fill_pair},
      {"send_with", send_with},
      {"credentials",
       [](const Words&) {
         const PairAtFour pair;
         return send_rights(4, -1);
       }},
  };
  return kTable;
}

}  // namespace mycojobs::test
