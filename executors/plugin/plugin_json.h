// Encodes requests to plugins and parses their replies. Both are JSON (mycojobs/plugin.h). A plugin answers three
// requests: probe (which program runs its script types?), prepare (which command runs this job?) and interpret (what is
// the result of a run that has ended?).
//
// Replies are untrusted: their sizes, depth, types and names are checked. The error of all parse functions is
// `invalid`. Its message describes the fault of the reply, which is a fault of the plugin and not of the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "executors/executor.h"
#include "model/records.h"

namespace mycojobs::plugin {

std::string encode_prepare_request(const JobFacts&);

inline constexpr std::size_t kMaxStderrTailBytes = 64U << 10;

// The job in an interpret request, with the values of its run that the outcome does not contain.
struct InterpretRequestJob {
  Id id = 0, caller_id = 0, context_id = 0;
  std::string name, script_type;
  std::uint32_t attempt = 0;
  std::string stderr_tail;  // at most kMaxStderrTailBytes bytes
  TextMap result;           // result of the job if the plugin does not interpret the run
};
// Returns the values that are known before the run. stderr_tail and result are empty.
InterpretRequestJob make_interpret_request_job(const Job&);

// REQUIRES: outcome.status is `ok`, `exit` or `signal`.
std::string encode_interpret_request(const InterpretRequestJob&, const Outcome&);

// Reason why a plugin refuses a request.
struct PluginRefusal {
  std::string reason;
  std::string field;  // field of the job that causes the error; may be empty
};

struct ProbeReply {
  std::string program;  // program that runs the scripts
  std::optional<PluginRefusal> refusal;
};
Result<ProbeReply> parse_probe_reply(std::string_view reply);

struct PluginFile {
  std::string path;  // normalized path relative to /job, outside of the agent's folders
  std::string bytes;
  unsigned mode = 0644;  // at most 0777
};
struct PrepareReply {
  std::vector<std::string> command;  // the first word is an absolute path; {script} is not replaced yet
  std::string script_file;           // file name below /job; the default if empty
  TextMap environment;
  std::vector<PluginFile> files;
  std::vector<std::string> notes;        // printable lines
  std::optional<PluginRefusal> refusal;  // if set, the other members are empty
};
Result<PrepareReply> parse_prepare_reply(std::string_view reply);

struct InterpretReply {
  // At most one of `result` and `error_message` is set. If neither is set, the default end of the job is used.
  std::optional<TextMap> result;
  std::optional<std::string> error_message;  // the following members belong to this error
  std::string error_type;
  std::uint32_t error_line = 0;  // line of the script; 0 if unknown
  bool retry_forbidden = false;
  std::optional<std::uint64_t> retry_after_ms;
};
Result<InterpretReply> parse_interpret_reply(std::string_view reply);

// Converts a plugin's text to one printable line of UTF-8.
std::string printable_line(std::string_view text, std::size_t max_bytes = 500);

}  // namespace mycojobs::plugin
