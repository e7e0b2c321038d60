// HTTP over a plain socket, for requests that a client library would not send.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/fd.h"

namespace mycojobs::test {

inline Fd connect_to_loopback(std::uint16_t port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

struct RawReply {
  int status = 0;  // 0: the connection was closed without a reply
  std::string head, body;
  bool has(const std::string& header) const { return head.find("\r\n" + header + "\r\n") != std::string::npos; }
};

// Reads until the server closes the connection, or sends nothing for 30 s.
inline RawReply read_raw_reply(const Fd& socket) {
  std::string text;
  std::vector<char> buffer(65536);
  for (pollfd entry{socket.get(), POLLIN, 0}; ::poll(&entry, 1, 30000) > 0;) {
    const ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  const auto head_end = text.find("\r\n\r\n");
  if (head_end == std::string::npos) return {};
  return {std::stoi(text.substr(9, 3)), text.substr(0, head_end + 2), text.substr(head_end + 4)};
}

}  // namespace mycojobs::test
