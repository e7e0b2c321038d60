// The log of an instance: what the jobs that carry its effects have written, as frames. A view over its journal and the
// logs of those jobs: nothing is stored twice, and nothing of it settles anything. Source: seed 003, 2 (executors
// report progress, which is not authoritative).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "service/workflows.h"

namespace mycojobs::service {

struct LogFrame {
  std::string effect, intent;
  std::string carrier;        // job:12:7. Or flow:3: one frame names it, its jobs have logs of their own
  Log line;                   // a piece of the log; its number grows within an effect
  std::uint64_t dropped = 0;  // above 0: the log has lost so many from this number on, and the text says it
};
nlohmann::json to_json(const LogFrame&);

inline constexpr std::uint64_t kLogFrames = 500;       // of a page
inline constexpr std::size_t kMostUnderWay = 1000;     // effects whose logs are followed at once
inline constexpr std::uint64_t kMostLogLooks = 10000;  // facts of the world that are looked at for a page
struct LogRequest {
  std::string after = {};            // as the page before has given it; empty: from the first effect on
  std::uint64_t limit = kLogFrames;  // 1 to 1000
};
struct InstanceLog {
  std::vector<LogFrame> frames;   // effects in the order of the journal, of each the lines in theirs
  std::string after;              // goes on behind this page, now or later; short, and holds for ever
  bool more = false;              // there is more now: nobody need wait for it
  bool ended = false;             // the instance has ended, and all of its logs were read to their end
  std::vector<std::string> over;  // carriers of which no line will follow
};
// For who may read the workflow; of a job whose owner's jobs the caller may not read a frame says so. Errors: those of
// show_instance(); not_found (nothing has ever happened to it); invalid (after: not of this instance's journal).
Result<InstanceLog> instance_log(const Caller&, const WorldStores&, const Instance&, const LogRequest& = {});
nlohmann::json to_json(const InstanceLog&);

}  // namespace mycojobs::service
