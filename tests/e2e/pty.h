// A program on a terminal of its own, as a person sits at it: what it writes is seen, keys reach its process group.
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
  // argv[0] is looked for in PATH. The environment is the test's own, with `extra` ("NAME=value") over it.
  explicit Pty(std::vector<std::string> argv, unsigned short columns = 80, std::vector<std::string> extra = {});
  ~Pty();  // KILL, if it still runs
  Pty(const Pty&) = delete;
  Pty& operator=(const Pty&) = delete;

  pid_t pid() const { return pid_; }
  void type(std::string_view keys) const;
  const std::string& screen();  // all that it has shown until now
  bool shows(std::string_view text, Seconds limit = Seconds(30));
  int wait(Seconds limit = Seconds(30));  // exit code, 128 + signal; -1: it did not end and was killed

 private:
  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string screen_;
};

}  // namespace mycojobs::test
