// Notifications of the end of a job or flow: `notify` of its record; and `notify` of the context, for flows and for
// jobs outside of flows. A list of at most 8 targets, or one target; a text is a webhook.
//
//   {"webhook": "https://hooks.example.com/x"}       HTTP POST of notice_body() to this URL (docs/notify.md)
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
#include "model/codec.h"
#include "net/host.h"
#include "store/store.h"

namespace mycojobs {

// Addresses that `notify` may call. The operator lists their beginnings, and submitters of jobs choose among these.
//
//   https://hooks.example.com           every path of that host, at the default port
//   https://hooks.example.com/jobs/     every path that begins with /jobs/
//   http://127.0.0.1:*                  every port
//
// net/host.h parses the host of an address, so that all readers agree on the host.
struct WebAddress {
  bool encrypted = false;  // true: https
  HostPort place;          // port 0: any port, only in an entry
  std::string path;        // from its '/', with the query; may be empty
};
// Error invalid: no http:// or https://, a user before the host, a non-canonical host, a path with a part '.' or '..'
// or with an escaped '/', '\\' or NUL, blanks, control characters, backslashes, a fragment, or more than 2048 bytes.
Result<WebAddress> parse_web_address(std::string_view url);

class Webhooks {
 public:
  // Error invalid: names the entry.
  static Result<Webhooks> parse(const std::vector<std::string>& entries);
  // Error denied: no entry allows the URL. Error invalid: as parse_web_address().
  Result<void> check(std::string_view url) const;

 private:
  std::vector<WebAddress> allowed_;
  std::string text_ = "none";
};

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

// Returns the body of a notice as JSON: type (job.ended, flow.ended), timestamp, data. The data is taken from the
// record. If the job or flow has ended again or has been resumed since, only the facts of the notice are included.
std::string notice_body(Id context, const Notice&, const Fields& record);
// Returns an id that is the same at each attempt: "7/job:12:2001@1732312312123456".
std::string notice_id(Id context, const Notice&);

}  // namespace mycojobs
