// Prerequisites of a job: conditions outside of the dispatch that must hold before the job may run. This file defines
// their syntax and the prerequisites that an agent may check. Pure and thread-safe.
//
//   wait:30s                    30 s have passed since the job began to wait
//   at:2026-11-21T10:00:00Z     the store's clock has reached this time
//   redis:key                   the key exists in the job's context
//   file:/path                  the path exists on the host of the agent that checks it
//   tcp:host:port               the server accepts a connection
//   http://…, https://…         the server answers with a status below 400; redirections are not followed
//   approval:name               an actor has approved it with `job approve`; the store then removes it from the list
//   flow:id                     this flow of the context has finished
//
// file, tcp and http can reach resources that jobs cannot: an agent checks only those that prerequisites.allow permits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxComment = 4096;  // bytes of the comment of an approval or control

struct Condition {
  enum class Kind { wait, at, redis, file, tcp, http, approval, flow };
  Kind kind = Kind::approval;
  std::string text;           // as in the record
  std::string target;         // the key, the normalized path, host:port or the URL
  std::uint64_t time_ms = 0;  // duration for `wait`, Unix time for `at`
};

// Error invalid: the condition can never be met. Error denied: the list does not permit the check. The message names
// the condition and the remedy.
Result<Condition> parse_condition(std::string_view text, const std::vector<std::string>& allowed);

bool is_approval_name(std::string_view);  // 1 to 64 letters, digits, '.', '_' and '-'

// Checks the operator's list. An entry permits an equal condition, and a condition that continues the entry at a '/' or
// ':' ("file:/data/", "tcp:db.internal:5432", "tcp:", "https://status.example.com"). Error invalid: the entry cannot
// permit anything.
Result<void> check_allow_list(const std::vector<std::string>& allowed);

}  // namespace mycojobs
