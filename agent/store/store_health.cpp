#include "store/store_health.h"

#include <algorithm>

#include "base/log.h"

namespace mycojobs {
namespace {

std::string of_context(Id context) { return context == 0 ? "" : "context " + std::to_string(context) + ": "; }

}  // namespace

void StoreHealth::failed(Id context, std::string_view doing, const Error& error) {
  std::lock_guard lock(mutex_);
  State& state = states_[context];
  const auto now = std::chrono::steady_clock::now();
  state.away = true;
  if (state.logged == error.message && now - state.logged_at < std::chrono::minutes(1)) return;
  if (now - state.logged_at < std::chrono::seconds(2))
    return;  // several threads report the same failure with different texts
  state.logged = error.message;
  state.logged_at = now;
  log(LogLevel::error, "store", "{}{}: {} (jobs under way go on; trying again)", of_context(context), doing,
      error.message);
}

void StoreHealth::on_success(Id context) {
  std::lock_guard lock(mutex_);
  State& state = states_[context];
  if (!state.away) return;
  state = {};
  log(LogLevel::info, "store", "{}answers again", of_context(context));
}

std::vector<Id> StoreHealth::unavailable_contexts() {
  std::lock_guard lock(mutex_);
  std::vector<Id> contexts;
  for (const auto& [context, state] : states_) {
    if (state.away) contexts.push_back(context);
  }
  return contexts;
}

std::uint64_t ContextPauses::left_ms(Id context) const {
  const auto found = pauses_.find(context);
  const std::uint64_t now = clock_.boot_ms();
  return found == pauses_.end() || found->second.until_boot_ms <= now ? 0 : found->second.until_boot_ms - now;
}

std::uint64_t ContextPauses::least_left_ms(std::uint64_t max) const {
  for (const auto& [context, pause] : pauses_) max = std::min(max, left_ms(context));
  return max;
}

void ContextPauses::failed(Id context) {
  Pause& pause = pauses_[context];
  pause.until_boot_ms = clock_.boot_ms() + static_cast<std::uint64_t>(retry_pause_ms(++pause.failures));
}

}  // namespace mycojobs
