#include "fixture.h"
#include "support/build_paths.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <csignal>

namespace mycojobs::test {
namespace {

constexpr int kTimeoutMs = 20000;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

Fd listen_on_loopback(std::uint16_t& port, int type) {
  if (type == 0) type = SOCK_STREAM;
  Fd fd(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  if (type == SOCK_STREAM) {
    EXPECT_EQ(::listen(fd.get(), 128), 0);
  }
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  port = ntohs(address.sin_port);
  return fd;
}

Fd connect_to(std::uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{kTimeoutMs / 1000, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

bool send_text(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(size));
  }
  return true;
}

std::string read_some(int fd, std::size_t size) {
  std::string out;
  char part[65536];
  while (out.size() < size) {
    const ssize_t got = ::recv(fd, part, std::min(sizeof part, size - out.size()), 0);
    if (got <= 0) break;
    out.append(part, static_cast<std::size_t>(got));
  }
  return out;
}

std::string read_to_end(int fd) { return read_some(fd, std::string::npos); }

std::string read_head(int fd) {
  std::string out;
  while (!out.ends_with("\r\n\r\n")) {
    const std::string byte = read_some(fd, 1);
    if (byte.empty()) break;
    out += byte;
  }
  return out;
}

bool wait_for_close(int fd) {
  char part[65536];
  for (;;) {
    const ssize_t got = ::recv(fd, part, sizeof part, 0);
    if (got > 0) continue;
    return got == 0 || errno == ECONNRESET;
  }
}

void close_sending(int fd) { ::shutdown(fd, SHUT_WR); }

Server::Server(std::function<void(int)> handler)
    : listener_(listen_on_loopback(port_)), handler_(std::move(handler)), acceptor_([this] {
        for (;;) {
          Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
          if (!fd) return;
          ++accepted_;
          const std::lock_guard guard(lock_);
          Fd& kept = open_.emplace_back(std::move(fd));
          threads_.emplace_back([this, &kept] {
            handler_(kept.get());
            const std::lock_guard closing(lock_);
            kept.reset();
          });
        }
      }) {}

Server::~Server() {
  ::shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  {
    const std::lock_guard guard(lock_);
    for (const Fd& fd : open_) {
      if (fd) ::shutdown(fd.get(), SHUT_RDWR);
    }
  }
  for (auto& thread : threads_) thread.join();
}

void echo(int fd) {
  char part[65536];
  for (;;) {
    const ssize_t size = ::recv(fd, part, sizeof part, 0);
    if (size <= 0 || !send_text(fd, {part, static_cast<std::size_t>(size)})) return;
  }
}

Egress::Egress(std::vector<std::string> arguments) {
  int pair[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  socket_.reset(pair[0]);
  const Fd low(pair[1]);
  const Fd theirs(::fcntl(low.get(), F_DUPFD_CLOEXEC, 16));
  SpawnSpec spec;
  spec.program = mj::test::programs_folder() + "/" + egress::kEgressProgram;
  spec.arguments = std::move(arguments);
  spec.inherited_descriptors = {{theirs.get(), egress::kLauncherSocket}};
  auto child = spawn(spec);
  if (!child) {
    ADD_FAILURE() << child.error().message;
    std::abort();
  }
  child_ = std::move(*child);
}

Egress::~Egress() {
  if (!child_.pidfd) return;
  socket_.reset();
  pollfd ended{child_.pidfd.get(), POLLIN, 0};
  if (::poll(&ended, 1, kTimeoutMs) != 1) {
    ADD_FAILURE() << "mycojobs-egress does not end with its launcher";
    ::kill(child_.pid, SIGKILL);
  }
  EXPECT_EQ(wait_child(child_), 0);
}

int Egress::close_socket() {
  socket_.reset();
  const int code = wait_child(child_);
  child_.pidfd.reset();
  return code;
}

void Egress::serve(std::uint64_t run, const std::vector<std::string>& allow, const Fd& listener) {
  EXPECT_EQ(sandbox::send_message(socket_.get(), egress::Serve{run, allow}, {listener.get()}), 0);
}

std::uint16_t Egress::serve(std::uint64_t run, const std::vector<std::string>& allow) {
  std::uint16_t port = 0;
  serve(run, allow, listen_on_loopback(port));
  return port;
}

sandbox::RawFrame Egress::next() {
  sandbox::RawFrame frame;
  pollfd readable{socket_.get(), POLLIN, 0};
  if (::poll(&readable, 1, kTimeoutMs) != 1 ||
      sandbox::receive_raw(socket_.get(), frame) != sandbox::ReceiveResult::frame) {
    ADD_FAILURE() << "mycojobs-egress sends no message";
    frame.kind = 0;
  }
  return frame;
}

void Egress::next_job(std::uint64_t run) { EXPECT_EQ(sandbox::send_message(socket_.get(), egress::NextJob{run}), 0); }

egress::ProxyRunEnded Egress::close(std::uint64_t run) {
  EXPECT_EQ(sandbox::send_message(socket_.get(), egress::Close{run}), 0);
  for (;;) {
    const auto frame = next();
    egress::ProxyRunEnded ended;
    egress::ConnectionDenied refusal;
    if (decode(frame, ended) && ended.run == run) return ended;
    if (decode(frame, refusal)) {
      denied.push_back(refusal);
      continue;
    }
    ADD_FAILURE() << "unexpected frame of kind " << int(frame.kind);
    return ended;
  }
}

std::string Egress::next_denied() {
  egress::ConnectionDenied message;
  EXPECT_TRUE(decode(next(), message));
  return message.text;
}

std::string Egress::next_problem() {
  egress::ProxyProblem message;
  EXPECT_TRUE(decode(next(), message));
  return message.text;
}

std::string connect_request(const std::string& address) {
  return "CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n";
}

std::string get_request(const std::string& url, const std::string& more) {
  return "GET " + url + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n";
}

std::string socks_request(const std::string& host, std::uint16_t port) {
  std::string out{5, 1, 0, 5, 1, 0, 3, static_cast<char>(host.size())};
  return out + host + static_cast<char>(port >> 8) + static_cast<char>(port & 0xff);
}

}  // namespace mycojobs::test
