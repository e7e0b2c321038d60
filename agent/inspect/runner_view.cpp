#include "inspect/runner_view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "model/runner_words.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {

std::string_view to_string(RunnerPresence value) {
  static constexpr std::string_view kNames[] = {"live", "silent", "left"};
  return kNames[static_cast<std::size_t>(value)];
}

RunnerPresence get_presence(const RunnerInfo& info) {
  if (info.holder.instance.empty()) return RunnerPresence::signed_off;
  return info.hold_remaining_ms > 0 ? RunnerPresence::live : RunnerPresence::silent;
}

std::string get_pause_reason(const RunnerInfo& info) {
  const std::string& detail = info.runner.detail;
  if (get_presence(info) != RunnerPresence::live || !detail.starts_with(kRunnerPaused)) return {};
  return to_printable_line(to_utf8(detail.substr(kRunnerPaused.size())));
}

bool serves_queue(const RunnerInfo& info, std::string_view queue) {
  if (queue.ends_with(":runner" + std::to_string(info.runner.id))) return true;
  const auto& types = info.runner.executors;
  return info.runner.local &&
         std::any_of(types.begin(), types.end(), [queue](const std::string& type) { return queue_key(type) == queue; });
}

std::string describe(const RunnerInfo& info, std::uint64_t now_ms) {
  const Runner& runner = info.runner;
  std::string text = std::to_string(runner.id);
  if (!info.holder.host.empty()) text += " on " + info.holder.host;
  switch (get_presence(info)) {
    case RunnerPresence::live: {
      const std::uint32_t busy_slots = std::min(info.live_claim_count, runner.slots);
      const std::string claimed_ahead_text = info.live_claim_count > busy_slots
                                                 ? fmt::format(", {} claimed ahead", info.live_claim_count - busy_slots)
                                                 : "";
      const std::string reason = get_pause_reason(info);
      return text + fmt::format(" ({} of {} slots busy{}{})", busy_slots, runner.slots, claimed_ahead_text,
                                reason.empty() ? "" : "; it claims no jobs: " + reason);
    }
    case RunnerPresence::silent:
      return text + fmt::format(" (silent for {})", format_duration(now_ms - std::min(runner.seen_ms, now_ms)));
    case RunnerPresence::signed_off:
      return text + " (has left)";
  }
  return text;
}

std::string list_served_queues(const std::vector<RunnerInfo>& runners) {
  std::set<std::string> queues;
  for (const RunnerInfo& info : runners) {
    if (get_presence(info) != RunnerPresence::live || !info.runner.local) continue;
    for (const std::string& type : info.runner.executors) queues.insert(queue_key(type));
  }
  return fmt::format("{}", fmt::join(queues, ", "));
}

std::string format_duration(std::uint64_t ms) {
  static constexpr std::uint64_t kSecond = 1000, kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (ms < kSecond) return fmt::format("{} ms", ms);
  if (ms < 2 * kMinute) return fmt::format("{} s", ms / kSecond);
  if (ms < 2 * kHour) return fmt::format("{} min", ms / kMinute);
  if (ms < 2 * kDay) return fmt::format("{} h", ms / kHour);
  return fmt::format("{} d", ms / kDay);
}

std::string format_time(std::uint64_t unix_ms) {
  static constexpr std::uint64_t kMaxUnixSeconds = 253402300799;  // 9999-12-31T23:59:59Z
  const auto seconds = static_cast<std::time_t>(std::min(unix_ms / 1000, kMaxUnixSeconds));
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

}  // namespace mycojobs
