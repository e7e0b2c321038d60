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

Pty::Pty(std::vector<std::string> argv, unsigned short columns, std::vector<std::string> extra) {
  std::vector<char*> arguments;
  for (auto& word : argv) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  winsize size{};
  size.ws_row = 24;
  size.ws_col = columns;
  pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("forkpty");
  if (pid_ == 0) {
    for (auto& pair : extra) ::putenv(pair.data());
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::fcntl(terminal_, F_SETFL, O_NONBLOCK);
  ::fcntl(terminal_, F_SETFD, FD_CLOEXEC);
}

Pty::~Pty() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(terminal_);
}

void Pty::type(std::string_view keys) const {
  if (::write(terminal_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    throw std::runtime_error("the terminal takes no keys");
}

const std::string& Pty::screen() {
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(terminal_, buffer.data(), buffer.size())) > 0;)
    screen_.append(buffer.data(), static_cast<std::size_t>(got));
  return screen_;
}

bool Pty::shows(std::string_view text, Seconds limit) {
  return eventually([&] { return screen().find(text) != std::string::npos; }, limit);
}

int Pty::wait(Seconds limit) {
  int status = 0;
  const bool ended = eventually(
      [&] {
        screen();  // reads the output; otherwise the program can block on a full terminal
        return ::waitpid(pid_, &status, WNOHANG) == pid_;
      },
      limit);
  if (!ended) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  screen();
  return !ended ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace mycojobs::test
