// mycojobs-launcher is started by the agent, with its socket as descriptor 3.
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/uncaught_exception.h"
#include "sandbox/launcher/guardian.h"
#include "sandbox/launcher/launcher.h"
#include "sandbox/messages.h"
#include "sandbox/zygote/zygote.h"

namespace {

int run_nothing(mycojobs::JobChannel) { return 0; }

// Called before the guardian is forked, since the entry must be held while either process exists. Without root, all
// jobs have the agent's user id.
mycojobs::sandbox::IdRegistry open_registry() {
  using namespace mycojobs::sandbox;
  if (::geteuid() != 0) return {};
  IdRegistry registry = IdRegistry::open();
  if (registry.fd() < 0) return registry;
  const mycojobs::Fd high_copy(::fcntl(registry.fd(), F_DUPFD_CLOEXEC, 16));
  registry = {};
  return IdRegistry::adopt(mycojobs::Fd(::dup3(high_copy.get(), kGuardianIds, O_CLOEXEC)));
}

// Each run needs several descriptors, so the limit is raised to the maximum.
void raise_descriptor_limit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &files);
}

int read_niceness() {
  errno = 0;
  const int niceness = ::getpriority(PRIO_PROCESS, 0);
  return errno == 0 ? niceness : 0;
}

}  // namespace

int main(int argc, char** argv) try {
  using namespace mycojobs::sandbox;
  if (argc == 2 && std::string_view(argv[1]) == kCanaryArgument) {
    mycojobs::serve_zygote({"canary", nullptr, nullptr, nullptr, run_nothing});
  }
  if (::fcntl(kAgentSocket, F_GETFD) < 0) {
    std::fputs("mycojobs-launcher is started by the agent, with a socket as descriptor 3\n", stderr);
    return 64;
  }
  // Signals of a service manager are handled by the agent; the launcher ends with the agent's socket.
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  IdRegistry ids = open_registry();
  fork_launcher();
  raise_descriptor_limit();
  const int niceness = read_niceness();
  // Gives the launcher a higher priority than jobs, which have that of the agent (sandbox/zygote/confine.cpp). Fails
  // without root, which is harmless.
  (void)::setpriority(PRIO_PROCESS, 0, niceness - 10);
  ::fcntl(kAgentSocket, F_SETFD, FD_CLOEXEC);
  ::close_range(kAgentSocket + 1, kGuardianIds - 1, 0);
  ::close_range(kGuardianIds + 1, ~0U, 0);
  return Launcher(mycojobs::Fd(kAgentSocket), std::move(ids), niceness).run();
} catch (...) {
  mycojobs::exit_with_report("mycojobs-launcher");
}
