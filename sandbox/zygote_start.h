// Starts a zygote: namespaces, id maps, read-only root, then the host program. The launcher's half returns at once; the
// rest happens in the child, which says Ready, Refused or StepFailed on its control socket.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/fd.h"
#include "mycojobs/result.h"
#include "mycojobs/sandbox.h"
#include "sandbox/idmap.h"

namespace mycojobs::sandbox {

struct ZygoteStart {
  const ScriptHost& host;
  const std::vector<Fd>& folders;  // of the host, opened (open_trusted()), in its order
  IdRange ids;
  int filters = -1;  // memfd of write_filters()
  int alive = -1;    // SandboxConfig::alive_fd
  std::string fail_step;
  std::vector<std::string> leave_out;
  int rank = 0;  // niceness of its jobs
};

struct StartedZygote {
  pid_t pid = -1;
  Fd pidfd, control, err;  // control and err are non-blocking
};

// The launcher's own failure, with the step that failed.
struct StartFailure {
  std::string step;
  int error = 0;
};
tl::expected<StartedZygote, StartFailure> start_zygote(const ZygoteStart&);

}  // namespace mycojobs::sandbox
