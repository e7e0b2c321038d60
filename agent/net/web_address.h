// Web addresses that a setting or a record names, and the list of webhooks that the coordinator may call. Pure and
// thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/host.h"

namespace mycojobs {

// An http or https address, or an entry of WebhookAllowList. net/host.h parses the host, so that all readers of an
// address agree on its host.
struct WebAddress {
  bool uses_https = false;
  HostPort host_port;  // port 0 means any port; only in entries of WebhookAllowList
  std::string path;    // begins with '/' and contains the query; may be empty
};
// Error invalid: no http:// or https://, a user before the host, a non-canonical host, a path with a part '.' or '..'
// or with an escaped '/', '\\' or NUL, blanks, control characters, backslashes, a fragment, or more than 2048 bytes.
Result<WebAddress> parse_web_address(std::string_view url);

// Webhooks that `notify` may call. The operator lists the beginnings of their addresses; submitters of jobs choose
// addresses that begin like an entry:
//
//   https://hooks.example.com           every path of that host, at the default port
//   https://hooks.example.com/jobs/     every path that begins with /jobs/
//   http://127.0.0.1:*                  every port
class WebhookAllowList {
 public:
  // Error invalid: names the entry.
  static Result<WebhookAllowList> parse(const std::vector<std::string>& entries);
  // Returns success if an entry allows the URL. Error denied: no entry does. Error invalid: as parse_web_address().
  Result<void> check_allowed(std::string_view url) const;

 private:
  std::vector<WebAddress> entries_;
  std::string entries_text_ = "none";  // the entries, separated by commas, for messages
};

}  // namespace mycojobs
