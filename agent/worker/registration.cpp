#include "worker/registration.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
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

Result<std::vector<std::string>> register_runner(RunnerStore& store, const WorkerSettings& settings,
                                                 const RunnerHold& self) {
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

// Jobs of former instances.

namespace {

using std::chrono::steady_clock;
constexpr int kAgainMs = 5;  // a lock on a file cannot be waited for within a time

std::optional<Fd> wait_for_lock(const WorkerSettings& settings, const std::string& instance,
                                steady_clock::time_point until) {
  for (;;) {
    auto lock = lock_of_the_dead(settings.state_dir, settings.runner.id, instance);
    if (lock || steady_clock::now() >= until) return lock;
    ::poll(nullptr, 0, kAgainMs);
  }
}

// True: nothing of the instance is claimed any more.
bool give_back(LeaseStore& store, const WorkerSettings& settings, const std::string& instance) {
  bool all = true;
  for (Id context : settings.contexts) {
    auto jobs = store.expire_instance(context, settings.runner.id, instance);
    if (!jobs) {
      all = false;
      log(LogLevel::warn, "worker", "context {}: jobs of the dead instance {} wait for their leases: {}", context,
          instance, jobs.error().message);
      continue;
    }
    for (const std::string& job : *jobs) {
      log(LogLevel::warn, "worker",
          "{}: its agent, instance {} of runner {}, is gone with all its processes; back to its queue", job, instance,
          settings.runner.id);
    }
  }
  return all;
}

}  // namespace

void reconcile(LeaseStore& store, const WorkerSettings& settings, const RunnerHold& self,
               const std::vector<std::string>& gone) {
  if (settings.state_dir.empty()) return;
  const auto patience = steady_clock::now() + std::chrono::milliseconds(settings.lease_ms / 2);
  for (const std::string& instance : known_instances(settings.state_dir, settings.runner.id)) {
    if (instance == self.instance) continue;
    const bool agent_is_gone = std::find(gone.begin(), gone.end(), instance) != gone.end();
    const auto lock = wait_for_lock(settings, instance, agent_is_gone ? patience : steady_clock::now());
    if (!lock) {
      // Others may be agents of another Redis with the same id.
      log(agent_is_gone ? LogLevel::warn : LogLevel::debug, "worker",
          "processes of instance {} of runner {} are still there: its jobs, if any, wait for their leases", instance,
          settings.runner.id);
    } else if (give_back(store, settings, instance)) {
      forget_instance(settings.state_dir, settings.runner.id, instance);
    }
  }
}

}  // namespace mycojobs
