// Starts a zygote: namespaces, id maps, read-only root, then the host program. start_zygote() returns immediately; the
// child continues and sends Ready, RequestRefused or SetupStepFailed on its control socket.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "sandbox/launcher/id_map.h"
#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

struct ZygoteStart {
  const ScriptHost& host;
  const std::vector<Fd>& folders;  // the host's folders, opened with open_trusted(), in the same order
  IdRange ids;
  std::optional<FileOwner> fixed_owner;  // additional user of the namespace (ContextFiles::has_fixed_uid)
  int filters = -1;                      // memfd from write_filters()
  int alive_fd = -1;                     // SandboxConfig::alive_fd
  std::string fail_step;
  std::vector<std::string> disabled_steps;
  int job_niceness = 0;
};

struct StartedZygote {
  pid_t pid = -1;
  Fd pidfd, control, err;  // control and err are non-blocking
};

// A failure in the launcher, with the failed step.
struct StartFailure {
  std::string step;
  int error = 0;
};
tl::expected<StartedZygote, StartFailure> start_zygote(const ZygoteStart&);

}  // namespace mycojobs::sandbox
