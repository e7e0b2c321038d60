#include "store/store_health.h"

#include <algorithm>

#include "base/log.h"

namespace mycojobs {
namespace {

std::string context_prefix(Id context) { return context == 0 ? "" : "context " + std::to_string(context) + ": "; }

}  // namespace

void StoreHealth::on_failure(Id context, std::string_view operation, const Error& error) {
  std::lock_guard lock(mutex_);
  State& state = states_[context];
  const auto now = std::chrono::steady_clock::now();
  state.is_unreachable = true;
  if (state.logged == error.message && now - state.logged_at < std::chrono::minutes(1)) return;
  if (now - state.logged_at < std::chrono::seconds(2))
    return;  // several threads report the same failure with different texts
  state.logged = error.message;
  state.logged_at = now;
  log(LogLevel::error, "store", "{}{}: {} (jobs under way go on; trying again)", context_prefix(context), operation,
      error.message);
}

void StoreHealth::on_success(Id context) {
  std::lock_guard lock(mutex_);
  State& state = states_[context];
  if (!state.is_unreachable) return;
  state = {};
  log(LogLevel::info, "store", "{}answers again", context_prefix(context));
}

std::vector<Id> StoreHealth::unavailable_contexts() {
  std::lock_guard lock(mutex_);
  std::vector<Id> contexts;
  for (const auto& [context, state] : states_) {
    if (state.is_unreachable) contexts.push_back(context);
  }
  return contexts;
}

std::string describe_unavailable_contexts(const std::vector<Id>& contexts) {
  if (contexts.empty()) return "";
  std::string text = "Redis is unavailable for context";
  for (const Id context : contexts) {
    if (context == 0) return "Redis is unavailable";
    text += ' ' + std::to_string(context);
  }
  return text;
}

std::uint64_t ContextPauses::remaining_ms(Id context) const {
  const auto match = pauses_.find(context);
  const std::uint64_t now = clock_.boot_ms();
  return match == pauses_.end() || match->second.until_boot_ms <= now ? 0 : match->second.until_boot_ms - now;
}

std::uint64_t ContextPauses::min_remaining_ms(std::uint64_t max) const {
  for (const auto& [context, pause] : pauses_) max = std::min(max, remaining_ms(context));
  return max;
}

void ContextPauses::on_failure(Id context) {
  Pause& pause = pauses_[context];
  pause.until_boot_ms = clock_.boot_ms() + static_cast<std::uint64_t>(retry_pause_ms(++pause.failures));
}

}  // namespace mycojobs
