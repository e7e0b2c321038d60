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

bool has_process_ended(const RunnerHolder& holder, const RunnerHolder& self) {
  if (holder.host != self.host || holder.boot_id != self.boot_id || holder.pid <= 0) return false;
  return (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) || is_zombie(holder.pid);
}

}  // namespace

Result<void> mark_runner(RecordStore& store, Id context, Id runner, std::string_view detail) {
  Runner key;
  key.id = runner;
  auto marked = store.change_record_if(context, redis_key(key), {{"detail", std::string(detail)}}, {});
  if (!marked && marked.error().code != Code::not_found) return tl::unexpected<Error>(std::move(marked).error());
  return {};  // a deleted record is not created again
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

Runner make_runner_record(const WorkerSettings& settings, Id context) {
  Runner runner = settings.runner;
  runner.unknown.emplace_back(kPublishedCeiling, format_published_ceiling(settings.ceilings.get(context)));
  return runner;
}

namespace {

Result<void> acquire_runner_id(RunnerStore& store, Id context, const WorkerSettings& settings, const RunnerHolder& self,
                               PreviousInstances& previous_instances) {
  const Id id = settings.runner.id;
  const Runner runner = make_runner_record(settings, context);
  RunnerHolder current_holder;
  auto hold = store.hold_runner(context, runner, self, settings.lease_ms, "", current_holder);
  const auto is_held_by_other = [&] {
    return !hold && hold.error().code == Code::conflict && !current_holder.instance.empty();
  };
  if (is_held_by_other() &&
      (has_process_ended(current_holder, self) || previous_instances.has_ended(current_holder.instance))) {
    log(LogLevel::warn, "worker", "runner {} was held by process {}, which has ended: the id is taken over", id,
        current_holder.pid);
    previous_instances.on_agent_died(current_holder.instance);
    hold = store.hold_runner(context, runner, self, settings.lease_ms, current_holder.instance, current_holder);
  }
  if (is_held_by_other()) {
    return fail(Code::conflict, "runner " + std::to_string(id) + " of context " + std::to_string(context) +
                                    " is held by process " + std::to_string(current_holder.pid) + " on " +
                                    current_holder.host +
                                    ": give this agent another --runner, or stop that one (one "
                                    "that died is forgotten after its lease)");
  }
  if (!hold) return fail(hold.error(), "registering runner " + std::to_string(id));
  return {};
}

// Logs settings that differ from the record. The record takes precedence, since clients address the runner by it.
void report_differences(Id context, const Runner& requested, const RegisteredRunner& registered) {
  const auto report = [&](const std::string& setting, const std::string& value, const std::string& remedy) {
    log(LogLevel::warn, "worker",
        "context {}: the record of runner {} says {}, which has priority; the setting {} differs. To change the "
        "record: mycojobs runner update {} {}, then restart this agent",
        context, requested.id, value, setting, requested.id, remedy);
  };
  const bool is_default = requested.topic == "runner" + std::to_string(requested.id);
  if (registered.topic != requested.topic && !is_default)
    report("topic = \"" + requested.topic + "\"", "topic \"" + registered.topic + "\"", "--topic " + requested.topic);
  if (registered.serves_queues != requested.local)
    report(requested.local ? "local = true" : "local = false",
           registered.serves_queues ? "that it claims jobs from queues" : "that it claims no jobs from queues",
           requested.local ? "--queues yes" : "--queues no");
}

}  // namespace

Result<RegisteredRunner> register_runner(Store& store, Id context, const WorkerSettings& settings,
                                         const RunnerHolder& self, PreviousInstances& previous_instances) {
  MJ_CHECK(acquire_runner_id(store, context, settings, self, previous_instances));
  constexpr std::string_view kClaimFields[] = {"topic", "local"};
  MJ_TRY(record, store.load_fields(context, redis_key(settings.runner), kClaimFields));
  RegisteredRunner registered{std::string(field_of(record, "topic")), field_of(record, "local") == "true"};
  report_differences(context, settings.runner, registered);
  return registered;
}

PreviousInstances::PreviousInstances(std::unique_ptr<InstanceRecords> records, const WorkerSettings& settings,
                                     const RunnerHolder& self)
    : self_(self.instance),
      runner_(settings.runner.id),
      contexts_(settings.contexts.begin(), settings.contexts.end()),
      helper_timeout_ms_(settings.lease_ms / 2),
      records_(std::move(records)) {}

bool PreviousInstances::has_ended(const std::string& instance) {
  const std::lock_guard lock(mutex_);
  if (ended_instances_.contains(instance)) return true;
  if (!records_->has_ended(instance)) return false;
  ended_instances_.insert(instance);
  return true;
}

void PreviousInstances::on_agent_died(const std::string& instance) {
  const std::lock_guard lock(mutex_);
  dead_agents_.insert(instance);
}

std::vector<std::string> PreviousInstances::list_recorded_instances() {
  const std::lock_guard lock(mutex_);
  return records_->list();
}

bool PreviousInstances::add_release_attempt(Id context, const std::string& instance) {
  const std::lock_guard lock(mutex_);
  return attempted_contexts_[instance].insert(context).second;
}

bool PreviousInstances::release_instance_jobs(LeaseStore& store, Id context, const std::string& instance) const {
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

void PreviousInstances::on_jobs_released(Id context, const std::string& instance) {
  const std::lock_guard lock(mutex_);
  std::set<Id>& released = released_contexts_[instance];
  released.insert(context);
  if (std::includes(released.begin(), released.end(), contexts_.begin(), contexts_.end()))
    records_->forget_if_ended(instance);
}

// All instances share one deadline, which is set at the first call.
bool PreviousInstances::should_wait_for_helpers(const std::vector<std::string>& instances, std::uint64_t now_boot_ms) {
  const std::lock_guard lock(mutex_);
  if (!helper_deadline_boot_ms_) helper_deadline_boot_ms_ = now_boot_ms + helper_timeout_ms_;
  return now_boot_ms < *helper_deadline_boot_ms_ &&
         std::any_of(instances.begin(), instances.end(),
                     [this](const std::string& instance) { return dead_agents_.contains(instance); });
}

bool PreviousInstances::release_jobs_of_previous(LeaseStore& store, const std::vector<Id>& contexts,
                                                 std::uint64_t now_boot_ms) {
  std::vector<std::string> remaining_instances;
  for (const std::string& instance : list_recorded_instances()) {
    if (instance == self_) continue;
    if (!has_ended(instance)) {
      remaining_instances.push_back(instance);
      continue;
    }
    for (const Id context : contexts) {
      if (add_release_attempt(context, instance) && release_instance_jobs(store, context, instance))
        on_jobs_released(context, instance);
    }
  }
  if (should_wait_for_helpers(remaining_instances, now_boot_ms)) return true;
  for (const std::string& instance : remaining_instances) {
    const std::lock_guard lock(mutex_);
    // Other files may belong to agents with the same id on another Redis server.
    log(dead_agents_.contains(instance) ? LogLevel::warn : LogLevel::debug, "worker",
        "processes of instance {} of runner {} are still there: its jobs, if any, wait for their leases", instance,
        runner_);
  }
  return false;
}

}  // namespace mycojobs
