// The server's answer to a plain HTTP request on its way to the job: its head says "Connection: close" whatever the
// server thinks of it, because a second request on the same connection would be one that nobody has judged. Pure.
#pragma once

#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs::egress {

class ResponseHead {
 public:
  // What goes on to the job of these bytes: nothing until the head is whole, all after it.
  // Errors: invalid, no HTTP/1 answer, or a head over 16 KiB.
  Result<std::string> feed(std::string_view bytes);
  bool complete() const { return complete_; }  // the final head, not that of a 1xx answer

 private:
  std::string waiting_;
  bool complete_ = false;
};

}  // namespace mycojobs::egress
