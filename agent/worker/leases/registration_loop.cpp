#include "worker/leases/registration_loop.h"

#include <utility>

#include "base/log.h"

namespace mycojobs {

Registrar::Registrar(Stores store, const Clock& clock, StoreHealth& health, const WorkerSettings& settings,
                     RunnerHolder self, PreviousInstances& former, Id server_of, Callbacks callbacks)
    : store_(store),
      clock_(clock),
      health_(health),
      settings_(settings),
      self_(std::move(self)),
      former_(former),
      server_of_(server_of),
      callbacks_(std::move(callbacks)) {}

Result<void> Registrar::enter() {
  for (const Id context : settings_.contexts) {
    MJ_TRY(runner, register_runner(store_, context, settings_, self_, former_));
    runners_[context] = std::move(runner);
    entered_.insert(context);
  }
  registered_ = true;
  return {};
}

std::uint64_t Registrar::give_back() {
  constexpr std::uint64_t kAgainMs = 5;
  return former_.release_jobs_of_previous(store_, settings_.contexts, clock_.boot_ms()) ? kAgainMs : 0;
}

std::uint64_t Registrar::run_once() {
  const auto entered = registered_ ? Result<void>() : enter();
  if (!entered && entered.error().code != Code::conflict) {
    health_.failed(server_of_, "registering the runner", entered.error());
    return static_cast<std::uint64_t>(retry_pause_ms(++failures_));
  }
  health_.on_success(server_of_);
  if (entered) {
    if (const std::uint64_t again = give_back(); again > 0 || stopped()) return again;
    for (const Id context : settings_.contexts)
      log(LogLevel::info, "worker", "context {}: runner {} is registered and claims jobs", context,
          settings_.runner.id);
    if (const auto start_result = callbacks_.registered(); !start_result) {
      log(LogLevel::error, "worker", "runner {}: {} (trying again)", settings_.runner.id, start_result.error().message);
      return static_cast<std::uint64_t>(retry_pause_ms(++failures_));
    }
  } else {
    callbacks_.runner_lost(entered.error().message);
  }
  stop();
  return 0;
}

void Registrar::sign_off(bool runner_lost) {
  const Id id = settings_.runner.id;
  for (const Id context : entered_) {
    Result<void> done;
    if (registered_ && !runner_lost) done = mark_runner(store_, context, id, kRunnerStopped);
    // No effect if another instance holds the id.
    if (done) done = store_.as<RunnerStore>().release_runner(context, id, self_);
    if (!done) log(LogLevel::info, "worker", "runner {} not signed off: {}", id, done.error().message);
  }
}

}  // namespace mycojobs
