#include "worker/store_health.h"

#include <algorithm>

#include "base/log.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kSlowLookMs = 200;  // between looks whether a slow server has answered somebody

std::string of_context(Id context) { return context == 0 ? "" : "context " + std::to_string(context) + ": "; }

std::uint64_t ms_until(std::uint64_t until, std::uint64_t now) { return until > now ? until - now : 0; }

}  // namespace

void StoreHealth::failed(Id context, std::string_view doing, const Error& error) {
  std::lock_guard lock(mutex_);
  State& state = states_[context];
  const auto now = std::chrono::steady_clock::now();
  state.away = true;
  if (state.said == error.message && now - state.said_at < std::chrono::minutes(1)) return;
  if (now - state.said_at < std::chrono::seconds(2))
    return;  // several threads meet the same failure in words of their own
  state.said = error.message;
  state.said_at = now;
  log(LogLevel::error, "store", "{}{}: {} (jobs under way go on; trying again)", of_context(context), doing,
      error.message);
}

void StoreHealth::worked(Id context) {
  std::lock_guard lock(mutex_);
  State& state = states_[context];
  if (!state.away) return;
  state = {};
  log(LogLevel::info, "store", "{}answers again", of_context(context));
}

std::vector<Id> StoreHealth::away() {
  std::lock_guard lock(mutex_);
  std::vector<Id> contexts;
  for (const auto& [context, state] : states_) {
    if (state.away) contexts.push_back(context);
  }
  return contexts;
}

StoreServers::StoreServers(const std::vector<Id>& contexts, const std::vector<Id>& own) : own_(own.begin(), own.end()) {
  std::set<Id> all;
  for (Id context : contexts) all.insert(of(context));
  several_ = all.size() > 1;
}

void StoreServers::answered(Id server) {
  std::lock_guard lock(mutex_);
  ++answers_[server];
}

std::uint64_t StoreServers::answers(Id server) const {
  std::lock_guard lock(mutex_);
  const auto found = answers_.find(server);
  return found == answers_.end() ? 0 : found->second;
}

std::uint64_t ContextPauses::left_ms(Id context) const {
  const std::uint64_t now = clock_.boot_ms();
  const auto own = pauses_.find(context);
  std::uint64_t left = own == pauses_.end() ? 0 : ms_until(own->second.until_boot_ms, now);
  const Id server = servers_.of(context);
  const auto slow = slow_.find(server);
  if (slow != slow_.end() && slow->second.answers == servers_.answers(server))
    left = std::max(left, std::min(ms_until(slow->second.until_boot_ms, now), kSlowLookMs));
  return left;
}

std::uint64_t ContextPauses::least_left_ms(std::uint64_t most) const {
  for (const auto& [context, pause] : pauses_) most = std::min(most, left_ms(context));
  return most;
}

void ContextPauses::worked(Id context) {
  pauses_.erase(context);
  slow_.erase(servers_.of(context));
  servers_.answered(servers_.of(context));
}

void ContextPauses::failed(Id context, std::uint64_t began_boot_ms) {
  const std::uint64_t now = clock_.boot_ms();
  Pause& pause = pauses_[context];
  pause.until_boot_ms = now + static_cast<std::uint64_t>(retry_pause_ms(++pause.failures));
  if (!servers_.several()) return;
  const Id server = servers_.of(context);
  slow_[server] = {pause.until_boot_ms + now - std::min(began_boot_ms, now), servers_.answers(server)};
}

}  // namespace mycojobs
