// Views of the registration of a runner. No side effects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/store.h"

namespace mycojobs {

// live: holds its id. silent: its lease has expired without a sign-off (dead, stopped, or disconnected). left: has
// signed off.
enum class RunnerPresence { live, silent, left };
std::string_view to_string(RunnerPresence);
RunnerPresence presence(const RunnerInfo&);
// Returns why a live runner claims no jobs ("out of descriptors: ..."). Empty: the runner claims jobs.
std::string pause_reason(const RunnerInfo&);

// Returns whether this runner, if alive, would claim jobs of the queue. The name of its own queue ends in runner<id>.
bool serves(const RunnerInfo&, std::string_view queue);

// Formats a runner: "20 on host-a (2 of 4 slots busy)", "21 on host-b (silent for 12 s)".
std::string describe(const RunnerInfo&, std::uint64_t now_ms);
// Returns the queues that the live runners serve: "queue:python, queue:v". Empty: no queue is served.
std::string served_by_live(const std::vector<RunnerInfo>&);

// Formats a duration: "800 ms", "4 s", "12 min", "3 h", "2 d".
std::string span_text(std::uint64_t ms);
// Formats a time: "2030-01-31T12:00:00Z".
std::string moment_text(std::uint64_t unix_ms);

}  // namespace mycojobs
