// Web addresses that a setting or a record names, and the list of webhooks that the coordinator may call. Pure and
// thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/host.h"

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
  HostPort host_port;          // port 0: any port, only in an entry
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

}  // namespace mycojobs
