// A program on a pseudo-terminal: its output can be read, and keys are sent to its process group.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/process.h"

namespace mycojobs::test {

inline constexpr std::string_view kCtrlC = "\x03";

class Pty {
 public:
  // Starts argv[0] from PATH. The environment is that of the test, overridden by `extra_environment` ("NAME=value").
  explicit Pty(std::vector<std::string> argv, unsigned short columns = 80,
               std::vector<std::string> extra_environment = {});
  ~Pty();  // sends SIGKILL if the program still runs
  Pty(const Pty&) = delete;
  Pty& operator=(const Pty&) = delete;

  pid_t pid() const { return pid_; }
  void send_keys(std::string_view keys) const;
  const std::string& read_screen();  // reads new output and returns all output so far
  // Waits until the output contains `text`. Returns false after a time-out.
  bool wait_for_text(std::string_view text, Seconds limit = Seconds(30));
  // Returns the exit code, 128 + signal number, or -1 if the program did not end in time and was killed.
  int wait(Seconds limit = Seconds(30));

 private:
  int terminal_fd_ = -1;
  pid_t pid_ = -1;
  std::string output_;
};

}  // namespace mycojobs::test
