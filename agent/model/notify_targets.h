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
  Condition on = Condition::ended;
  std::string where;   // the URL or the topic
  Job job;             // for kind job: script, script_type and other fields
  std::string digest;  // 16 hex digits; identifies the target in a notice that was delivered to it
  bool sound = true;   // false: the target has a problem

  bool matches_end(bool finished) const { return on == Condition::ended || (on == Condition::finished) == finished; }
};
struct ParsedNotify {
  std::vector<NotifyTarget> targets;
  std::vector<FieldProblem> problems;
};
ParsedNotify read_notify(const nlohmann::json&, std::string_view field);
ParsedNotify read_notify(const std::string& text,
                         std::string_view field);  // from a record; an empty text has no targets
// Adds a target as typed on a command line (a URL or JSON) to the list `notify`. Error invalid.
Result<void> add_notify(std::string_view typed, std::string& notify);

}  // namespace mycojobs
