#include "worker/registration.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>

#include "base/ids.h"
#include "base/log.h"
#include "worker/instance_lock.h"

namespace mycojobs {
namespace {

// Dead, but not yet waited for by whoever started it.
bool is_zombie(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');  // the name may hold anything
  return name_end != std::string::npos && text.size() > name_end + 2 &&
         (text[name_end + 2] == 'Z' || text[name_end + 2] == 'X');
}

bool is_gone(const RunnerHold& holder, const RunnerHold& self) {
  if (holder.host != self.host || holder.boot_id != self.boot_id || holder.pid <= 0) return false;
  return (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) || is_zombie(holder.pid);
}

}  // namespace

Result<void> mark_runner(RecordStore& store, Id context, Id runner, std::string_view detail) {
  Runner key;
  key.id = runner;
  return store.save(context, redis_key(key), {{"detail", std::string(detail)}});
}

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

Result<std::vector<std::string>> register_runner(Store& store, const WorkerSettings& settings, const RunnerHold& self) {
  const Id id = settings.runner.id;
  std::vector<std::string> gone;
  for (Id context : settings.contexts) {
    RunnerHold held_by;
    auto held = store.hold_runner(context, settings.runner, self, settings.lease_ms, "", held_by);
    if (!held && held.error().code == Code::conflict &&
        (is_gone(held_by, self) ||
         (!settings.state_dir.empty() && lock_of_the_dead(settings.state_dir, id, held_by.instance)))) {
      log(LogLevel::warn, "worker", "runner {} was held by process {}, which is gone: taking it over", id, held_by.pid);
      gone.push_back(held_by.instance);
      held = store.hold_runner(context, settings.runner, self, settings.lease_ms, held_by.instance, held_by);
    }
    if (!held && held.error().code == Code::conflict) {
      return fail(Code::conflict, "runner " + std::to_string(id) + " of context " + std::to_string(context) +
                                      " is held by process " + std::to_string(held_by.pid) + " on " + held_by.host +
                                      ": give this agent another --runner, or stop that one (one "
                                      "that died is forgotten after its lease)");
    }
    if (!held) return fail(held.error(), "registering runner " + std::to_string(id));
  }
  return gone;
}

}  // namespace mycojobs
