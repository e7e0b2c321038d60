// Who hears of the end of a job or a flow: `notify` of its record; and that of its context, for flows and for jobs that
// stand alone. A list of at most 8, or one alone; a text is a webhook.
//
//   {"webhook": "https://hooks.example.com/x"}     is called: HTTP POST of notice_body() (docs/notify.md)
//   {"job": {"script_type": "python", "script": …}}  is submitted by the record's caller; MYCOJOBS_NOTICE holds it
//   {"topic": "operators"}                           a message of type chat to this topic is written
//   each with "on": "ended" (default), "finished" or "error"
//
// Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "domain/codec.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct NotifyTarget {
  enum class Kind { webhook, job, topic };
  enum class On { ended, finished, error };
  Kind kind = Kind::webhook;
  On on = On::ended;
  std::string where;   // the URL, the topic
  Job job;             // script, script_type, and what else it says
  std::string digest;  // 16 hex digits, by which a notice remembers that it has heard
  bool sound = true;   // nothing is wrong with it

  bool wants(bool finished) const { return on == On::ended || (on == On::finished) == finished; }
};
struct NotifyRead {
  std::vector<NotifyTarget> targets;
  std::vector<FieldProblem> problems;
};
NotifyRead read_notify(const nlohmann::json&, std::string_view field);
NotifyRead read_notify(const std::string& text, std::string_view field);  // of a record; empty: nobody
// What a person types: a URL, or JSON. Adds it to the list `notify`. Error invalid.
Result<void> add_notify(std::string_view typed, std::string& notify);

// What is told, as JSON: type (job.ended, flow.ended), timestamp, data. From the record as it is now; if it has ended
// anew since, or gone on, the notice's own facts alone.
std::string notice_body(Id context, const Notice&, const Fields& record);
// "7/job:12:2001@1732312312123456": the same at each try.
std::string notice_id(Id context, const Notice&);

}  // namespace mycojobs
