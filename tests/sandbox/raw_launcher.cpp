#include "raw_launcher.h"
#include "support/build_paths.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>

namespace mycojobs::test {

RawLauncher::RawLauncher() {
  int pair[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  socket_.reset(pair[0]);
  const Fd launcher_end(pair[1]);
  SpawnSpec spec;
  spec.program = mj::test::program_path("mycojobs-launcher");
  spec.inherited_descriptors = {{launcher_end.get(), 3}};
  auto child = spawn(spec);
  EXPECT_TRUE(child);
  if (child) child_ = std::move(*child);
}

bool RawLauncher::send(const std::string& frame, std::size_t descriptors) const {
  iovec part{const_cast<char*>(frame.data()), frame.size()};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors);
    const std::vector<int> fds(descriptors, 2);
    std::copy(fds.begin(), fds.end(), reinterpret_cast<int*>(CMSG_DATA(header)));
  }
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0;
}

void RawLauncher::drain() const {
  char part[16384];
  while (::recv(socket_.get(), part, sizeof part, MSG_DONTWAIT) > 0) continue;
}

int RawLauncher::wait() {
  pollfd ended{child_.pidfd.get(), POLLIN, 0};
  const bool has_ended = ::poll(&ended, 1, 20000) == 1;
  if (!has_ended) ::kill(child_.pid, SIGKILL);
  const int code = wait_child(child_);
  return has_ended ? code : -1;
}

}  // namespace mycojobs::test
