#include "job_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mycojobs::test {

void redirect_descriptors(int out, int err, int channel) {
  const int empty_input = ::open("/dev/null", O_RDONLY);
  const int channel_copy = ::fcntl(channel, F_DUPFD, 200);
  ::dup2(empty_input, 0);
  ::dup2(out, 1);
  ::dup2(err, 2);
  ::dup2(channel_copy, 3);
  ::close_range(4, ~0U, 0);
}

Outcome to_outcome(int wait_status) {
  Outcome outcome;
  if (WIFSIGNALED(wait_status)) {
    outcome.status = RunStatus::signal;
    outcome.signal = WTERMSIG(wait_status);
  } else {
    outcome.exit_code = WEXITSTATUS(wait_status);
    outcome.status = outcome.exit_code == 0 ? RunStatus::ok : RunStatus::exit;
  }
  return outcome;
}

}  // namespace mycojobs::test
