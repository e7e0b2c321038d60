// The log of an instance: the output of the jobs that perform its effects, as frames. The log is computed from the
// journal and the logs of the jobs; it is not stored, and no decision depends on it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "service/workflow_service.h"

namespace mycojobs::service {

struct LogFrame {
  std::string effect, intent;
  // job:12:7 or flow:3. A flow has a single frame that refers to `flow logs`, because its jobs have logs of their own.
  std::string effect_ref;
  Log line;                   // part of the log; line numbers grow within an effect
  std::uint64_t dropped = 0;  // number of lost lines, if `line` is a system line that reports a loss
};
nlohmann::json to_json(const LogFrame&);

inline constexpr std::uint64_t kLogFrames = 500;         // frames of a page
inline constexpr std::size_t kMaxPendingEffects = 1000;  // maximum number of effects whose logs are followed
inline constexpr std::uint64_t kMaxLogFacts = 10000;     // maximum number of facts of the deployment read for a page
struct LogRequest {
  std::string after = {};            // cursor of the previous page; empty: start with the first effect
  std::uint64_t limit = kLogFrames;  // REQUIRES: 1 to 1000
};
struct InstanceLog {
  std::vector<LogFrame> frames;  // effects in the order of the journal; lines of an effect in the order of its log
  std::string after;             // cursor of the next page, which can be read now or later; short, never expires
  bool has_more = false;         // the next page has frames already, so that the caller need not wait
  bool ended = false;            // the instance has ended, and all of its logs were read completely
  std::vector<std::string> finished_effects;  // jobs and flows whose logs were read completely
};
// Returns a page of the log of an instance. Needs the right to read the workflow. If the caller has no right to read
// the jobs of an owner, a frame reports it in place of their lines. Errors: those of show_instance(); `not_found` (the
// instance has no facts); `invalid` (after: not a cursor of this instance's journal).
Result<InstanceLog> read_instance_log(const RequestContext&, const WorkflowStores&, const InstanceReference&,
                                      const LogRequest& = {});
nlohmann::json to_json(const InstanceLog&);

}  // namespace mycojobs::service
