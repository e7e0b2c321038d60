#include "worker/registration.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>

#include "base/ids.h"
#include "base/log.h"

namespace mycojobs {
namespace {

bool is_gone(const RunnerHold& holder, const RunnerHold& self) {
  if (holder.host != self.host || holder.boot_id != self.boot_id || holder.pid <= 0) return false;
  return ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
}

}  // namespace

RunnerHold describe_self() {
  RunnerHold self;
  self.instance = random_hex(16);
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  self.host = name.data();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> self.boot_id;
  // A process id means something in one pid namespace only.
  struct stat info {};
  if (::stat("/proc/self/ns/pid", &info) == 0) self.boot_id += "/" + std::to_string(info.st_ino);
  self.pid = ::getpid();
  return self;
}

Result<void> register_runner(Store& store, const WorkerSettings& settings, const RunnerHold& self) {
  for (Id context : settings.contexts) {
    RunnerHold held_by;
    auto held = store.hold_runner(context, settings.runner, self, settings.lease_ms, "", held_by);
    if (!held && held.error().code == Code::conflict && is_gone(held_by, self)) {
      log(LogLevel::warn, "worker", "runner {} was held by process {}, which is gone: taking it over",
          settings.runner.id, held_by.pid);
      held = store.hold_runner(context, settings.runner, self, settings.lease_ms, held_by.instance, held_by);
    }
    if (!held && held.error().code == Code::conflict) {
      return fail(Code::conflict, "runner " + std::to_string(settings.runner.id) + " of context " +
                                      std::to_string(context) + " is held by process " + std::to_string(held_by.pid) +
                                      " on " + held_by.host +
                                      ": give this agent another --runner, or stop that one (one "
                                      "that died is forgotten after its lease)");
    }
    if (!held) return fail(held.error(), "registering runner " + std::to_string(settings.runner.id));
  }
  return {};
}

}  // namespace mycojobs
