#include "worker/leases/registration_loop.h"

#include <utility>

#include "base/log.h"

namespace mycojobs {

Registrar::Registrar(Store& store, const Clock& clock, StoreHealth& health, const WorkerSettings& settings,
                     RunnerHolder self, PreviousInstances& previous_instances, Id server_context, Callbacks callbacks)
    : store_(store),
      clock_(clock),
      health_(health),
      settings_(settings),
      self_(std::move(self)),
      previous_instances_(previous_instances),
      server_context_(server_context),
      callbacks_(std::move(callbacks)) {}

Result<void> Registrar::register_all() {
  for (const Id context : settings_.contexts) {
    MJ_TRY(runner, register_runner(store_, context, settings_, self_, previous_instances_));
    runners_[context] = std::move(runner);
    registered_contexts_.insert(context);
  }
  registered_ = true;
  return {};
}

std::uint64_t Registrar::release_previous_jobs() {
  constexpr std::uint64_t kRetryMs = 5;
  return previous_instances_.release_jobs_of_previous(store_, settings_.contexts, clock_.boot_ms()) ? kRetryMs : 0;
}

std::uint64_t Registrar::run_once() {
  const auto registration = registered_ ? Result<void>() : register_all();
  if (!registration && registration.error().code != Code::conflict) {
    health_.on_failure(server_context_, "registering the runner", registration.error());
    return static_cast<std::uint64_t>(retry_pause_ms(++failures_));
  }
  health_.on_success(server_context_);
  if (registration) {
    if (const std::uint64_t retry_ms = release_previous_jobs(); retry_ms > 0 || stopped()) return retry_ms;
    for (const Id context : settings_.contexts)
      log(LogLevel::info, "worker", "context {}: runner {} is registered and claims jobs", context,
          settings_.runner.id);
    if (const auto start_result = callbacks_.on_registered(); !start_result) {
      log(LogLevel::error, "worker", "runner {}: {} (trying again)", settings_.runner.id, start_result.error().message);
      return static_cast<std::uint64_t>(retry_pause_ms(++failures_));
    }
  } else {
    callbacks_.on_runner_lost(registration.error().message);
  }
  stop();
  return 0;
}

void Registrar::release_runner_ids(bool runner_lost) {
  const Id id = settings_.runner.id;
  for (const Id context : registered_contexts_) {
    Result<void> result;
    if (registered_ && !runner_lost) result = mark_runner(store_, context, id, kRunnerStopped);
    // No effect if another instance holds the id.
    if (result) result = store_.release_runner(context, id, self_);
    if (!result) log(LogLevel::info, "worker", "runner {} not signed off: {}", id, result.error().message);
  }
}

}  // namespace mycojobs
