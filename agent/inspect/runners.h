// What a registration says of a runner. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/store.h"

namespace mycojobs {

// live: it holds its id. silent: its time is over and it has not signed off (dead, stopped, or cut off). left: it has.
enum class Presence { live, silent, left };
std::string_view word(Presence);
Presence presence(const RunnerInfo&);
// Why a live runner takes no jobs ("out of descriptors: ..."). Empty: it takes some.
std::string pause_reason(const RunnerInfo&);

// Whether this runner would take from the queue if it were alive. Its own queue ends in runner<id>.
bool serves(const RunnerInfo&, std::string_view queue);

// "20 on host-a (2 of 4 slots busy)", "21 on host-b (silent for 12 s)"
std::string describe(const RunnerInfo&, std::uint64_t now_ms);
// "queue:python, queue:v": what the live ones of these take from; empty: nothing.
std::string served_by_live(const std::vector<RunnerInfo>&);

// A length of time for people: "800 ms", "4 s", "12 min", "3 h", "2 d".
std::string span_text(std::uint64_t ms);
// "2030-01-31T12:00:00Z"
std::string moment_text(std::uint64_t unix_ms);

}  // namespace mycojobs
