// The log of an instance: the output of the jobs that carry out its effects, as frames. The log is a view of the
// journal and of the logs of those jobs. Nothing is stored twice, and the log decides nothing. Source: seed 003, 2
// (executors report progress, which is not authoritative).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "service/workflow_service.h"

namespace mycojobs::service {

struct LogFrame {
  std::string effect, intent;
  std::string
      effect_ref;  // job:12:7 or flow:3; a flow has one frame that names it, since its jobs have logs of their own
  Log line;        // part of the log; line numbers grow within an effect
  std::uint64_t dropped = 0;  // number of lines that the log has lost from this number on; the text reports it
};
nlohmann::json to_json(const LogFrame&);

inline constexpr std::uint64_t kLogFrames = 500;         // frames of a page
inline constexpr std::size_t kMaxPendingEffects = 1000;  // maximum number of effects whose logs are followed
inline constexpr std::uint64_t kMaxLogFacts = 10000;     // maximum number of facts of the world read for a page
struct LogRequest {
  std::string after = {};            // cursor of the previous page; empty: start with the first effect
  std::uint64_t limit = kLogFrames;  // 1 to 1000
};
struct InstanceLog {
  std::vector<LogFrame> frames;   // effects in the order of the journal; lines of an effect in the order of its log
  std::string after;              // cursor of the next page, which can be read now or later; short, never expires
  bool more = false;              // the next page has frames already, so that the caller need not wait
  bool ended = false;             // the instance has ended, and all of its logs were read completely
  std::vector<std::string> over;  // carriers that will have no more lines
};
// Returns a page of the log of an instance. Needs the right to read the workflow. If the caller has no right to read
// the jobs of an owner, a frame reports it in place of their lines. Errors: those of show_instance(); `not_found` (the
// instance has no facts); `invalid` (after: not a cursor of this instance's journal).
Result<InstanceLog> instance_log(const RequestContext&, const WorkflowStores&, const InstanceReference&,
                                 const LogRequest& = {});
nlohmann::json to_json(const InstanceLog&);

}  // namespace mycojobs::service
