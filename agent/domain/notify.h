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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/codec.h"
#include "domain/host.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

// Addresses that `notify` may call: the operator names how they begin. Whoever submits jobs chooses among these alone.
//
//   https://hooks.example.com           every path of that host, at its usual port
//   https://hooks.example.com/jobs/     what goes on from there
//   http://127.0.0.1:*                  every port
//
// The host of an address is read by domain/host.h, so that no two readers see two hosts in it.
struct WebAddress {
  bool encrypted = false;  // https
  HostPort place;          // port 0: any, only of an entry
  std::string path;        // from its '/', with the query; empty: none
};
// Error invalid: no http:// or https://, a user before the host, another notation of a host, a path with '.' or '..'
// as a part or with an escaped '/', '\\' or NUL, blanks, control characters, backslashes, a fragment; longer than 2048
// bytes.
Result<WebAddress> parse_web_address(std::string_view url);

class Webhooks {
 public:
  // Error invalid: names the entry.
  static Result<Webhooks> parse(const std::vector<std::string>& entries);
  // Error denied: no entry allows it; invalid: as parse_web_address().
  Result<void> check(std::string_view url) const;

 private:
  std::vector<WebAddress> allowed_;
  std::string text_ = "none";
};

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

// What a notice carries, as JSON: type (job.ended, flow.ended), timestamp, data. From the record as it is now; if it
// has ended anew since, or gone on, the notice's own facts alone.
std::string notice_body(Id context, const Notice&, const Fields& record);
// "7/job:12:2001@1732312312123456": the same at each try.
std::string notice_id(Id context, const Notice&);

}  // namespace mycojobs
