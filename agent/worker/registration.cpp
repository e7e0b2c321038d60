#include "worker/registration.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

Result<void> register_runner(RunnerStore& store, Id context, const WorkerSettings& settings, const RunnerHold& self,
                             FormerInstances& former) {
  const Id id = settings.runner.id;
  RunnerHold held_by;
  auto held = store.hold_runner(context, settings.runner, self, settings.lease_ms, "", held_by);
  if (!held && held.error().code == Code::conflict && (is_gone(held_by, self) || former.is_gone(held_by.instance))) {
    log(LogLevel::warn, "worker", "runner {} was held by process {}, which is gone: taking it over", id, held_by.pid);
    former.agent_died(held_by.instance);
    held = store.hold_runner(context, settings.runner, self, settings.lease_ms, held_by.instance, held_by);
  }
  if (!held && held.error().code == Code::conflict) {
    return fail(Code::conflict, "runner " + std::to_string(id) + " of context " + std::to_string(context) +
                                    " is held by process " + std::to_string(held_by.pid) + " on " + held_by.host +
                                    ": give this agent another --runner, or stop that one (one "
                                    "that died is forgotten after its lease)");
  }
  if (!held) return fail(held.error(), "registering runner " + std::to_string(id));
  return {};
}

// Jobs of former instances.

FormerInstances::FormerInstances(const WorkerSettings& settings, const RunnerHold& self)
    : state_dir_(settings.state_dir),
      self_(self.instance),
      runner_(settings.runner.id),
      contexts_(settings.contexts.begin(), settings.contexts.end()),
      patience_(settings.lease_ms / 2) {}

bool FormerInstances::is_gone(const std::string& instance) {
  if (state_dir_.empty()) return false;
  const std::lock_guard lock(mutex_);
  if (gone_.contains(instance)) return true;
  if (!lock_of_the_dead(state_dir_, runner_, instance)) return false;
  gone_.insert(instance);
  return true;
}

void FormerInstances::agent_died(const std::string& instance) {
  const std::lock_guard lock(mutex_);
  died_.insert(instance);
}

bool FormerInstances::wait_until_gone(const std::string& instance, std::chrono::milliseconds patience,
                                      const std::function<bool()>& stopped) {
  constexpr int kAgainMs = 5;  // a lock on a file cannot be waited for within a time
  const auto until = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const bool gone = is_gone(instance);
    if (gone || stopped() || std::chrono::steady_clock::now() >= until) return gone;
    ::poll(nullptr, 0, kAgainMs);
  }
}

bool FormerInstances::give_back(LeaseStore& store, Id context, const std::string& instance) const {
  auto jobs = store.expire_instance(context, runner_, instance);
  if (!jobs) {
    log(LogLevel::warn, "worker", "context {}: jobs of the dead instance {} wait for their leases: {}", context,
        instance, jobs.error().message);
    return false;
  }
  for (const std::string& job : *jobs) {
    log(LogLevel::warn, "worker",
        "{}: its agent, instance {} of runner {}, is gone with all its processes; back to its queue", job, instance,
        runner_);
  }
  return true;
}

void FormerInstances::done(Id context, const std::string& instance) {
  const std::lock_guard lock(mutex_);
  std::set<Id>& done = done_[instance];
  done.insert(context);
  if (!std::includes(done.begin(), done.end(), contexts_.begin(), contexts_.end())) return;
  const auto held = lock_of_the_dead(state_dir_, runner_, instance);
  if (held) forget_instance(state_dir_, runner_, instance);
}

void FormerInstances::give_back(LeaseStore& store, const std::vector<Id>& contexts,
                                const std::function<bool()>& stopped) {
  using std::chrono::milliseconds, std::chrono::steady_clock;
  if (state_dir_.empty()) return;
  const auto patient_until = steady_clock::now() + patience_;  // with all of them together
  for (const std::string& instance : known_instances(state_dir_, runner_)) {
    if (instance == self_) continue;
    const bool agent_died = [&] {
      const std::lock_guard lock(mutex_);
      return died_.contains(instance);
    }();
    const auto patience = std::chrono::duration_cast<milliseconds>(patient_until - steady_clock::now());
    if (!wait_until_gone(instance, agent_died ? patience : milliseconds(0), stopped)) {
      // Others may be agents of another Redis with the same id.
      log(agent_died ? LogLevel::warn : LogLevel::debug, "worker",
          "processes of instance {} of runner {} are still there: its jobs, if any, wait for their leases", instance,
          runner_);
      continue;
    }
    for (const Id context : contexts) {
      if (give_back(store, context, instance)) done(context, instance);
    }
  }
}

}  // namespace mycojobs
