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

// The names of the namespaces that a zygote is started in: as in Outcome::layers.
inline constexpr const char* kNamespaceLayers[] = {"userns", "pidns", "mountns", "netns", "ipcns", "utsns"};

// The launcher's own failure, with the step that failed.
struct StartFailure {
  std::string step;
  int error = 0;
  std::string detail = {};  // what to do about it, where the step alone does not say
};
tl::expected<StartedZygote, StartFailure> start_zygote(const ZygoteStart&);
// A process that looks through the host's folders (mistrust_tree()) and leaves: with 0, or 1 and the reason on err. The
// launcher waits for no disk, and in the zygote's own namespaces the owners could not be told.
tl::expected<StartedZygote, StartFailure> start_check(const ScriptHost&);

// root.cpp, in the child: what a job sees as its file system. Each a step: 0 or errno.
inline constexpr const char* kProgram = "/host";  // the script host's program, in the new root
struct Program {
  std::string path;
  int fd =
      -1;  // a detached mount of it, made where its path can be walked; -1: we may not, and the path is ours to walk
};
struct HostFolder {
  std::string place;
  int fd = -1;  // a detached mount
};
int build_root(const Program&, const std::vector<HostFolder>&);
int enter_root();
int seal_root();

}  // namespace mycojobs::sandbox
