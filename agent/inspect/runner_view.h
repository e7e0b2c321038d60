// Views of the registration of a runner. No side effects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/runner_store.h"

namespace mycojobs {

enum class RunnerPresence {
  live,        // The runner holds the lease of its id.
  silent,      // The lease has expired without a sign-off: the runner is dead, stopped or disconnected.
  signed_off,  // The runner has released its id. Shown to users as "left".
};
std::string_view to_string(RunnerPresence);
RunnerPresence get_presence(const RunnerInfo&);
// Returns the reason why a live runner claims no jobs, such as "out of descriptors: ...", or an empty text.
std::string get_pause_reason(const RunnerInfo&);

// Returns whether this runner would claim jobs of the queue while it is live. A queue "...:runner<id>" is served only
// by the runner with this id. Every other queue is served by the local runners with an executor for its script type.
bool serves_queue(const RunnerInfo&, std::string_view queue);

// Formats a runner: "20 on host-a (2 of 4 slots busy)", "21 on host-b (silent for 12 s)".
std::string describe(const RunnerInfo&, std::uint64_t now_ms);
// Returns the queues that the live runners serve: "queue:python, queue:v". The text is empty if no queue is served.
std::string list_served_queues(const std::vector<RunnerInfo>&);

// Formats a duration: "800 ms", "4 s", "12 min", "3 h", "2 d".
std::string format_duration(std::uint64_t ms);
// Formats a time: "2030-01-31T12:00:00Z".
std::string format_time(std::uint64_t unix_ms);

}  // namespace mycojobs
