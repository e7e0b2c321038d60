// A job's prerequisites: what must be so, outside of the dispatch, before it may run. Here: how they are written, and
// which of them an agent may look at. Pure.
//
//   wait:30s                    so long after the job was first met
//   at:2026-11-21T10:00:00Z     by the store's clock
//   redis:key                   the key exists in the job's context
//   file:/path                  exists on the host of whichever agent looks
//   tcp:host:port               accepts a connection
//   http://…, https://…         answers below 400; redirections are not followed
//   approval:name               somebody has approved it: `job approve`; the store strikes it off then
//   flow:id                     that flow of the context has finished
//
// file, tcp and http see what jobs may not see: an agent looks only where its operator's prerequisites.allow begins.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxComment = 4096;  // bytes, of who answers or steers

struct Condition {
  enum class Kind { wait, at, redis, file, tcp, http, approval, flow };
  Kind kind = Kind::approval;
  std::string text;           // as it is written
  std::string target;         // the key, the path in its normal form, host:port, the URL
  std::uint64_t time_ms = 0;  // wait: so long; at: Unix time
};

// Error invalid: it will never come true; denied: with that list nobody may look at it. The message names the condition
// and the remedy.
Result<Condition> parse_condition(std::string_view text, const std::vector<std::string>& allowed);

bool is_approval_name(std::string_view);  // 1 to 64 letters, digits, '.', '_' and '-'

// The operator's list: an entry allows what equals it, and what goes on from it at a '/' or ':' ("file:/data/",
// "tcp:db.internal:5432", "tcp:", "https://status.example.com"). Error invalid: an entry that could allow nothing.
Result<void> check_allowed(const std::vector<std::string>& allowed);

}  // namespace mycojobs
