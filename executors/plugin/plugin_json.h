// Requests to plugins and their replies as JSON (mycojobs/plugin.h).
//
// Replies are untrusted: sizes, depth, types and names are checked. Error invalid: the message describes the fault of
// the reply, which is a fault of the plugin and not of the job.
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

inline constexpr std::size_t kMaxStderrTail = 64U << 10;

struct PluginRunEnd {
  Id id = 0, caller_id = 0, context_id = 0;
  std::string name, script_type;
  std::uint32_t attempt = 0;
  std::string stderr_tail;  // at most kMaxStderrTail bytes
  TextMap result;
};
PluginRunEnd make_run_end(const Job&);

// REQUIRES: outcome.status is ok, exit or signal.
std::string encode_interpret_request(const PluginRunEnd&, const Outcome&);

// The plugin reports an error of the job or the host.
struct PluginError {
  std::string error, field;
};

struct ProbeReply {
  std::string program;  // program that runs the scripts
  std::optional<PluginError> refusal;
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
  std::vector<std::string> notes;      // printable lines
  std::optional<PluginError> refusal;  // if set, the other members are empty
};
Result<PrepareReply> parse_prepare_reply(std::string_view reply);

struct InterpretReply {
  std::optional<TextMap> result;
  // At most one of `result` and `message` is set.
  std::optional<std::string> message;
  std::string type;
  std::uint32_t line = 0;
  bool retry_forbidden = false;
  std::optional<std::uint64_t> retry_after_ms;
};
Result<InterpretReply> parse_interpret_reply(std::string_view reply);

// Converts a plugin's text to one printable line of UTF-8.
std::string printable_line(std::string_view text, std::size_t max_bytes = 500);

}  // namespace mycojobs::plugin
