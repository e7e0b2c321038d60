#include "e2e/pty.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <stdexcept>

namespace mycojobs::test {

Pty::Pty(std::vector<std::string> argv, unsigned short columns, std::vector<std::string> extra_environment) {
  std::vector<char*> arguments;
  for (auto& word : argv) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  winsize size{};
  size.ws_row = 24;
  size.ws_col = columns;
  pid_ = ::forkpty(&terminal_fd_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("forkpty");
  if (pid_ == 0) {
    for (auto& pair : extra_environment) ::putenv(pair.data());
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::fcntl(terminal_fd_, F_SETFL, O_NONBLOCK);
  ::fcntl(terminal_fd_, F_SETFD, FD_CLOEXEC);
}

Pty::~Pty() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(terminal_fd_);
}

void Pty::send_keys(std::string_view keys) const {
  if (::write(terminal_fd_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    throw std::runtime_error("cannot write keys to the terminal");
}

const std::string& Pty::read_screen() {
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(terminal_fd_, buffer.data(), buffer.size())) > 0;)
    output_.append(buffer.data(), static_cast<std::size_t>(count));
  return output_;
}

bool Pty::wait_for_text(std::string_view text, Seconds limit) {
  return eventually([&] { return read_screen().find(text) != std::string::npos; }, limit);
}

int Pty::wait(Seconds limit) {
  int status = 0;
  const bool ended = eventually(
      [&] {
        read_screen();  // reads the output; otherwise the program can block on a full terminal
        return ::waitpid(pid_, &status, WNOHANG) == pid_;
      },
      limit);
  if (!ended) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  read_screen();
  return !ended ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace mycojobs::test
