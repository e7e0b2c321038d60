// Addresses that `notify` may call: the operator names how they begin. Whoever submits jobs chooses among these alone.
//
//   https://hooks.example.com           every path of that host, at its usual port
//   https://hooks.example.com/jobs/     what goes on from there
//   http://127.0.0.1:*                  every port
//
// The host of an address is read by domain/host.h, so that no two readers see two hosts in it. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/host.h"
#include "mycojobs/result.h"

namespace mycojobs {

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

}  // namespace mycojobs
