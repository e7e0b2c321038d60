// Notifications of the end of a job or flow: `notify` of its record; and `notify` of the context, for flows and for
// jobs outside of flows. A list of at most 8 targets, or one target; a text is a webhook.
//
//   {"webhook": "https://hooks.example.com/x"}       HTTP POST of make_notice_body() to this URL (docs/notify.md)
//   {"job": {"script_type": "python", "script": …}}  job submitted by the record's caller, with MYCOJOBS_NOTICE
//   {"topic": "operators"}                           message of type chat to this topic
//   each with "on": "ended" (default), "finished" or "error"
//
// Pure and thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/field_problem.h"
#include "model/records.h"

namespace mycojobs {

struct NotifyTarget {
  enum class Kind { webhook, job, topic };
  enum class Condition { ended, finished, error };
  Kind kind = Kind::webhook;
  Condition condition = Condition::ended;  // the member `on`
  std::string url_or_topic;                // empty for a job
  Job job;                                 // script, script_type and other fields; empty for the other kinds
  // 16 hex digits of a hash of the target. The digests of the targets that were reached are stored with a notice, so
  // that no target is notified twice.
  std::string digest;
  bool is_valid = true;  // false if the target has one of ParsedNotify::problems; it is then not notified

  // Returns whether the condition includes this end. `finished` is false for an end as error.
  bool matches_end(bool finished) const {
    return condition == Condition::ended || (condition == Condition::finished) == finished;
  }
};
struct ParsedNotify {
  std::vector<NotifyTarget> targets;
  std::vector<FieldProblem> problems;
};
// Parses a list of targets. `field` is the name of the field in the texts of the problems.
ParsedNotify parse_notify(const nlohmann::json&, std::string_view field);
// Parses the field of a record. An empty text has no targets.
ParsedNotify parse_notify(const std::string& text, std::string_view field);
// Adds a target (a URL or JSON, as typed on a command line) to the list `notify`. Error invalid.
Result<void> add_notify_target(std::string_view target_text, std::string& notify);

}  // namespace mycojobs
