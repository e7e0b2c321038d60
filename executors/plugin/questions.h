// What a plugin is told, as JSON (mycojobs/plugin.h): of a job before it runs, of a program when it has ended.
#pragma once

#include <string>
#include <string_view>

#include "mycojobs/executor.h"

namespace mycojobs::plugin {

std::string job_question(const JobFacts&);

inline constexpr std::size_t kStderrTail = 64U << 10;

struct Ended {
  Id id = 0, caller_id = 0, context_id = 0;
  std::string name, script_type;
  std::uint32_t attempt = 0;
  std::string stderr_tail;  // kStderrTail bytes at most
  TextMap result;
};
Ended ended_of(const Job&);

// outcome.status: ok, exit or signal.
std::string outcome_question(const Ended&, const Outcome&);

}  // namespace mycojobs::plugin
