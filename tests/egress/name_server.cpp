#include "name_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "fixture.h"

namespace mycojobs::test {

NameServer::NameServer() : socket_(listen_on_loopback(port_, SOCK_DGRAM)) {
  int pair[2];
  EXPECT_EQ(::pipe2(pair, O_CLOEXEC), 0);
  stopped_.reset(pair[0]);
  stop_.reset(pair[1]);
  thread_ = std::thread([this] { serve(); });
}

NameServer::~NameServer() {
  stop_.reset();
  thread_.join();
}

int NameServer::asked(const std::string& name) {
  const std::lock_guard guard(lock_);
  return asked_[name];
}

void NameServer::serve() {
  for (;;) {
    pollfd waits[] = {{socket_.get(), POLLIN, 0}, {stopped_.get(), POLLIN, 0}};
    ::poll(waits, 2, -1);
    if (waits[1].revents != 0) return;
    char query[512];
    sockaddr_in from{};
    socklen_t size = sizeof from;
    const ssize_t got = ::recvfrom(socket_.get(), query, sizeof query, 0, reinterpret_cast<sockaddr*>(&from), &size);
    if (got < 17) continue;
    const std::string reply = answer({query, static_cast<std::size_t>(got)});
    if (!reply.empty())
      ::sendto(socket_.get(), reply.data(), reply.size(), 0, reinterpret_cast<sockaddr*>(&from), size);
  }
}

// RFC 1035: a header of 12 bytes, then name, type and class of the question.
std::string NameServer::answer(const std::string& query) {
  std::string name;
  std::size_t at = 12;
  while (at < query.size() && query[at] != 0) {
    const auto length = static_cast<std::size_t>(query[at]);
    name += (name.empty() ? "" : ".") + query.substr(at + 1, length);
    at += length + 1;
  }
  const std::size_t end = at + 5;
  if (end > query.size()) return "";
  {
    const std::lock_guard guard(lock_);
    ++asked_[name];
  }
  if (name.starts_with("silent")) return "";
  const bool exists = name == "good.test" || name == "private.test";
  const bool of_ipv4 = query[at + 2] == 1;
  const bool found = exists && of_ipv4;
  std::string reply = query.substr(0, 2);
  reply += '\x81';
  reply += static_cast<char>(exists ? 0x80 : 0x83);
  reply += std::string{0, 1, 0, static_cast<char>(found ? 1 : 0), 0, 0, 0, 0};
  reply += query.substr(12, end - 12);
  if (found) {
    reply += std::string("\xc0\x0c\0\1\0\1\0\0\0\x05\0\4", 12);
    reply += name == "good.test" ? std::string("\x7f\0\0\1", 4) : std::string("\x0a\0\0\1", 4);
  }
  return reply;
}

}  // namespace mycojobs::test
