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
  // Starts argv[0] from PATH. The environment is that of the test, overridden by `extra` ("NAME=value").
  explicit Pty(std::vector<std::string> argv, unsigned short columns = 80, std::vector<std::string> extra = {});
  ~Pty();  // sends SIGKILL if the program still runs
  Pty(const Pty&) = delete;
  Pty& operator=(const Pty&) = delete;

  pid_t pid() const { return pid_; }
  void type(std::string_view keys) const;
  const std::string& screen();  // all output so far
  bool shows(std::string_view text, Seconds limit = Seconds(30));
  // returns the exit code, 128 + signal, or -1 if the program did not end and was killed
  int wait(Seconds limit = Seconds(30));

 private:
  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string screen_;
};

}  // namespace mycojobs::test
