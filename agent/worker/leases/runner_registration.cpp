#include "worker/leases/runner_registration.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>

#include "base/log.h"
#include "base/random.h"
#include "model/codec.h"
#include "security/agent_ceilings.h"
#include "store/record_changes.h"

namespace mycojobs {
namespace {

// Returns whether the process has ended, but its parent has not reaped it yet.
bool is_zombie(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');  // the name can contain any character
  return name_end != std::string::npos && text.size() > name_end + 2 &&
         (text[name_end + 2] == 'Z' || text[name_end + 2] == 'X');
}

bool is_gone(const RunnerHolder& holder, const RunnerHolder& self) {
  if (holder.host != self.host || holder.boot_id != self.boot_id || holder.pid <= 0) return false;
  return (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) || is_zombie(holder.pid);
}

}  // namespace

Result<void> mark_runner(RecordStore& store, Id context, Id runner, std::string_view detail) {
  Runner key;
  key.id = runner;
  auto marked = change_record_if(store, context, redis_key(key), {{"detail", std::string(detail)}}, {});
  if (!marked && marked.error().code != Code::not_found) return tl::unexpected<Error>(std::move(marked).error());
  return {};  // a record that was deleted stays deleted
}

RunnerHolder current_instance() {
  RunnerHolder self;
  self.instance = random_hex(16);
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  self.host = name.data();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> self.boot_id;
  // A process id is unique only within its pid namespace.
  struct stat info {};
  if (::stat("/proc/self/ns/pid", &info) == 0) self.boot_id += "/" + std::to_string(info.st_ino);
  self.pid = ::getpid();
  return self;
}

Runner runner_record(const WorkerSettings& settings, Id context) {
  Runner runner = settings.runner;
  runner.unknown.emplace_back(kPublishedCeiling, publish_ceiling(settings.ceilings.of(context)));
  return runner;
}

namespace {

Result<void> hold_id(RunnerStore& store, Id context, const WorkerSettings& settings, const RunnerHolder& self,
                     PreviousInstances& former) {
  const Id id = settings.runner.id;
  const Runner runner = runner_record(settings, context);
  RunnerHolder held_by;
  auto held = store.hold_runner(context, runner, self, settings.lease_ms, "", held_by);
  const auto is_held = [&] { return !held && held.error().code == Code::conflict && !held_by.instance.empty(); };
  if (is_held() && (is_gone(held_by, self) || former.is_gone(held_by.instance))) {
    log(LogLevel::warn, "worker", "runner {} was held by process {}, which has ended: the id is taken over", id,
        held_by.pid);
    former.agent_died(held_by.instance);
    held = store.hold_runner(context, runner, self, settings.lease_ms, held_by.instance, held_by);
  }
  if (is_held()) {
    return fail(Code::conflict, "runner " + std::to_string(id) + " of context " + std::to_string(context) +
                                    " is held by process " + std::to_string(held_by.pid) + " on " + held_by.host +
                                    ": give this agent another --runner, or stop that one (one "
                                    "that died is forgotten after its lease)");
  }
  if (!held) return fail(held.error(), "registering runner " + std::to_string(id));
  return {};
}

// Logs settings that differ from the record. The record takes precedence, since clients address the runner by it.
void report_differences(Id context, const Runner& asked, const RegisteredRunner& registered) {
  const auto report = [&](const std::string& setting, const std::string& is, const std::string& remedy) {
    log(LogLevel::warn, "worker",
        "context {}: the record of runner {} says {}, which has priority; the setting {} differs. To change the "
        "record: mycojobs runner update {} {}, then restart this agent",
        context, asked.id, is, setting, asked.id, remedy);
  };
  const bool is_default = asked.topic == "runner" + std::to_string(asked.id);
  if (registered.topic != asked.topic && !is_default)
    report("topic = \"" + asked.topic + "\"", "topic \"" + registered.topic + "\"", "--topic " + asked.topic);
  if (registered.takes_queues != asked.local)
    report(asked.local ? "local = true" : "local = false",
           registered.takes_queues ? "that it claims jobs from queues" : "that it claims no jobs from queues",
           asked.local ? "--queues yes" : "--queues no");
}

}  // namespace

Result<RegisteredRunner> register_runner(StoreRoles<RunnerStore, RecordStore> store, Id context,
                                         const WorkerSettings& settings, const RunnerHolder& self,
                                         PreviousInstances& former) {
  MJ_CHECK(hold_id(store, context, settings, self, former));
  constexpr std::string_view kAsked[] = {"topic", "local"};
  MJ_TRY(record, store.as<RecordStore>().load_fields(context, redis_key(settings.runner), kAsked));
  RegisteredRunner registered{std::string(field_of(record, "topic")), field_of(record, "local") == "true"};
  report_differences(context, settings.runner, registered);
  return registered;
}

// The jobs of former instances.

PreviousInstances::PreviousInstances(std::unique_ptr<InstanceRecords> records, const WorkerSettings& settings,
                                     const RunnerHolder& self)
    : self_(self.instance),
      runner_(settings.runner.id),
      contexts_(settings.contexts.begin(), settings.contexts.end()),
      patience_ms_(settings.lease_ms / 2),
      records_(std::move(records)) {}

bool PreviousInstances::is_gone(const std::string& instance) {
  const std::lock_guard lock(mutex_);
  if (ended_instances_.contains(instance)) return true;
  if (!records_->has_ended(instance)) return false;
  ended_instances_.insert(instance);
  return true;
}

void PreviousInstances::agent_died(const std::string& instance) {
  const std::lock_guard lock(mutex_);
  died_.insert(instance);
}

std::vector<std::string> PreviousInstances::known() {
  const std::lock_guard lock(mutex_);
  return records_->known();
}

bool PreviousInstances::start_query(Id context, const std::string& instance) {
  const std::lock_guard lock(mutex_);
  return asked_[instance].insert(context).second;
}

bool PreviousInstances::give_back_jobs(LeaseStore& store, Id context, const std::string& instance) const {
  auto jobs = store.expire_instance(context, runner_, instance);
  if (!jobs) {
    log(LogLevel::warn, "worker", "context {}: jobs of the dead instance {} wait for their leases: {}", context,
        instance, jobs.error().message);
    return false;
  }
  for (const std::string& job : *jobs) {
    log(LogLevel::warn, "worker",
        "{}: its agent, instance {} of runner {}, has ended with all its processes; the job is returned to its queue",
        job, instance, runner_);
  }
  return true;
}

void PreviousInstances::done(Id context, const std::string& instance) {
  const std::lock_guard lock(mutex_);
  std::set<Id>& done = done_[instance];
  done.insert(context);
  if (std::includes(done.begin(), done.end(), contexts_.begin(), contexts_.end())) records_->forget_if_ended(instance);
}

// One deadline for all instances, counted from the first call.
bool PreviousInstances::are_helpers_awaited(const std::vector<std::string>& instances, std::uint64_t now_boot_ms) {
  const std::lock_guard lock(mutex_);
  if (!patient_until_boot_ms_) patient_until_boot_ms_ = now_boot_ms + patience_ms_;
  return now_boot_ms < *patient_until_boot_ms_ &&
         std::any_of(instances.begin(), instances.end(),
                     [this](const std::string& instance) { return died_.contains(instance); });
}

bool PreviousInstances::release_jobs_of_previous(LeaseStore& store, const std::vector<Id>& contexts,
                                                 std::uint64_t now_boot_ms) {
  std::vector<std::string> still_there;
  for (const std::string& instance : known()) {
    if (instance == self_) continue;
    if (!is_gone(instance)) {
      still_there.push_back(instance);
      continue;
    }
    for (const Id context : contexts) {
      if (start_query(context, instance) && give_back_jobs(store, context, instance)) done(context, instance);
    }
  }
  if (are_helpers_awaited(still_there, now_boot_ms)) return true;
  for (const std::string& instance : still_there) {
    const std::lock_guard lock(mutex_);
    // Other files may belong to agents with the same id on another Redis server.
    log(died_.contains(instance) ? LogLevel::warn : LogLevel::debug, "worker",
        "processes of instance {} of runner {} are still there: its jobs, if any, wait for their leases", instance,
        runner_);
  }
  return false;
}

}  // namespace mycojobs
