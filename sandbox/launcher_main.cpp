// mycojobs-launcher: started by the agent with its socket as descriptor 3. Not for people.
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "base/last_words.h"
#include "sandbox/guardian.h"
#include "sandbox/launcher.h"
#include "sandbox/zygote.h"

namespace {

int run_nothing(int) { return 0; }

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
  // A service manager's signals are the agent's to interpret; its end is the launcher's (the socket).
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  leave_guardian_behind();
  (void)::setpriority(PRIO_PROCESS, 0,
                      -10);  // above its jobs (confine.cpp); an ordinary user may not, and does without
  ::fcntl(kAgentSocket, F_SETFD, FD_CLOEXEC);
  ::close_range(kAgentSocket + 1, ~0U, 0);
  return Launcher(mycojobs::Fd(kAgentSocket)).run();
} catch (...) {
  mycojobs::leave_with_last_words("mycojobs-launcher");
}
