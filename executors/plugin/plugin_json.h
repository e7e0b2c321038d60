// What a plugin is asked and what it answers, as JSON (mycojobs/plugin.h).
//
//   asked     of a job before it runs, of a program when it has ended
//   answers   read as if a stranger had written them: sizes, depth, types and names are checked. Error invalid: what is
//             wrong with the answer, which is the plugin's fault and not the job's
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

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

// The job or the host is at fault, and the plugin says so.
struct Refusal {
  std::string error, field;
};

struct Probed {
  std::string runs;
  std::optional<Refusal> refusal;
};
Result<Probed> read_probe(std::string_view reply);

struct PreparedFile {
  std::string path;  // relative to /job, in normal form, not in a folder that is the agent's
  std::string bytes;
  unsigned mode = 0644;  // 0777 at most
};
struct Prepared {
  std::vector<std::string> command;  // an absolute path first; {script} not yet replaced
  std::string script_file;           // its name below /job; empty: the usual one
  TextMap environment;
  std::vector<PreparedFile> files;
  std::vector<std::string> notes;  // printable lines
  std::optional<Refusal> refusal;  // then the rest is empty
};
Result<Prepared> read_prepare(std::string_view reply);

struct Interpreted {
  std::optional<TextMap> result;
  // At most one of result and message.
  std::optional<std::string> message;
  std::string type;
  std::uint32_t line = 0;
  bool retry_forbidden = false;
  std::optional<std::uint64_t> retry_after_ms;
};
Result<Interpreted> read_interpret(std::string_view reply);

// A text of a plugin for people: one printable line of UTF-8.
std::string printable_line(std::string_view text, std::size_t max = 500);

}  // namespace mycojobs::plugin
