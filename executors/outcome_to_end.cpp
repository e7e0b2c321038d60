#include "executors/outcome_to_end.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/errno_text.h"
#include "domain/codec.h"
#include "domain/policy.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxErrorLine = 1000;  // bytes

// One printable line of valid UTF-8, cut between characters.
std::string line_of(std::string_view text) {
  std::string out;
  for (char c : to_utf8(text)) {
    if (out.size() > kMaxErrorLine + 4) break;
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == '\x7f';
    if (!blank) out.push_back(c);
    if (blank && !out.empty() && out.back() != ' ') out.push_back(' ');
  }
  if (out.size() > kMaxErrorLine) {
    std::size_t end = kMaxErrorLine;
    while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) --end;
    out.resize(end);
    out += "…";
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("{} (SIG{})", signal, name) : std::to_string(signal);
}

std::string exception_line(const ScriptError& error) {
  std::string line = error.type;
  if (!error.message.empty()) line += ": " + error.message;
  line = line_of(line);
  return error.line > 0 ? fmt::format("{} (line {})", line, error.line) : line;
}

std::string exit_line(int code, const std::string& message) {
  return message.empty() ? fmt::format("exit code {}", code) : fmt::format("exit code {}: {}", code, message);
}

std::string setup_line(const SetupError& setup) {
  std::string line = "the sandbox could not be built: " + setup.step;
  if (setup.error != 0) line += ": " + errno_text(setup.error);
  return setup.remedy.empty() ? line : line + "; " + setup.remedy;
}

struct Words {
  std::string detail, error;  // empty error: success
};

// The main process left by itself, with 0 or another code: what did the host say?
Words words_of_exit(const EndContext& context, const Outcome& outcome, const Answer& answer) {
  if (answer.error && answer.error->exit) return {"exit", exit_line(*answer.error->exit, answer.error->message)};
  if (answer.error) return {"exception", exception_line(*answer.error)};
  if (outcome.status == RunStatus::exit) return {"exit", exit_line(outcome.exit_code, "")};
  if (!answer.problem.empty()) return {"exit", "the script's host was not understood: it sent " + answer.problem};
  if (!answer.done) return {"exit", "the script ended without handing back its result"};
  if (!answer.too_large.empty()) {
    return {"result_too_large", fmt::format("{}: over the limit of {} bytes for keys and values together",
                                            answer.too_large, context.max_result_bytes)};
  }
  return {"ok", ""};
}

Words words_of(const EndContext& context, const Outcome& outcome, const Answer& answer) {
  const auto reason_or = [&outcome](const std::string& text) { return outcome.reason.empty() ? text : outcome.reason; };
  switch (outcome.status) {
    case RunStatus::ok:
    case RunStatus::exit:
      return words_of_exit(context, outcome, answer);
    case RunStatus::signal:
      return {"signal", "ended by signal " + signal_name(outcome.signal)};
    case RunStatus::timeout_wall:
      return {"timeout", context.timeout_s ? fmt::format("over its time limit of {} s: killed", *context.timeout_s)
                                           : reason_or("over its time limit: killed")};
    case RunStatus::timeout_cpu:
      return {"timeout_cpu", reason_or("over its limit of CPU time: killed")};
    case RunStatus::oom:
      return {"oom", reason_or("over its memory limit: killed")};
    case RunStatus::output_limit:
      return {"output_limit", reason_or("over its output limit: killed")};
    case RunStatus::file_limit:
      return {"file_limit", reason_or("over its file size limit: killed")};
    case RunStatus::pids_limit:
      return {"pids_limit", reason_or("over its limit of processes and threads: killed")};
    case RunStatus::violation:
      return {"violation", outcome.violation ? violation_line(*outcome.violation, context.profile)
                                             : reason_or("denied: a system call that is never innocent: job killed")};
    case RunStatus::cancelled:
      return {"cancelled", reason_or("cancelled")};
    case RunStatus::lost:
      return {"lost", reason_or("the sandbox went away before the job ended")};
    case RunStatus::unkillable:
      return {"unkillable", reason_or("the job does not end on SIGKILL")};
    case RunStatus::setup_error:
      return {"setup_error",
              outcome.setup_error ? setup_line(*outcome.setup_error) : reason_or("the sandbox could not be built")};
  }
  return {"lost", "a status without a name"};
}

json violation_json(const Violation& violation) {
  return {{"syscall", violation.syscall}, {"args", violation.args}, {"pid", violation.pid}, {"comm", violation.comm}};
}

json error_info(const Outcome& outcome, const Answer& answer) {
  json info = json::object();
  if (answer.error) {
    info["type"] = answer.error->type;
    info["message"] = answer.error->message;
    if (!answer.error->traceback.empty()) info["traceback"] = answer.error->traceback;
    if (answer.error->line > 0) info["line"] = answer.error->line;
    if (!answer.error->stderr_tail.empty()) info["stderr"] = answer.error->stderr_tail;
  }
  if (outcome.status == RunStatus::exit) info["exit"] = outcome.exit_code;
  if (outcome.status == RunStatus::signal) info["signal"] = outcome.signal;
  if (outcome.violation) info["violation"] = violation_json(*outcome.violation);
  if (outcome.setup_error) {
    const SetupError& setup = *outcome.setup_error;
    info["setup"] = {{"step", setup.step}, {"errno", setup.error}, {"remedy", setup.remedy}};
  }
  if (!answer.problem.empty()) info["channel"] = answer.problem;
  return info;
}

json usage_object(const Usage& usage) {
  return {{"wall_us", usage.wall_us},          {"user_us", usage.user_us},
          {"system_us", usage.system_us},      {"memory_peak_bytes", usage.memory_peak_bytes},
          {"pids_peak", usage.pids_peak},      {"stdout_bytes", usage.stdout_bytes},
          {"stderr_bytes", usage.stderr_bytes}};
}

json receipt(const EndContext& context, const Outcome& outcome, const Words& words) {
  json out = {{"job", context.job},
              {"status", words.detail},
              {"wall_us", outcome.usage.wall_us},
              {"cpu_us", outcome.usage.user_us + outcome.usage.system_us},
              {"memory_peak_bytes", outcome.usage.memory_peak_bytes},
              {"layers", outcome.layers},
              {"stragglers", outcome.stragglers}};
  if (outcome.reused) out["reused"] = *outcome.reused;
  if (!context.intent.empty()) out["intent"] = context.intent;
  if (outcome.violation) out["violation"] = violation_json(*outcome.violation);
  json steps = json::object();
  for (const StepTime& step : outcome.setup) steps[step.step] = step.us;
  out["setup_us"] = std::move(steps);
  return out;
}

std::string join_blanks(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

}  // namespace

std::string usage_json(const Usage& usage) { return dump_json(usage_object(usage)); }

std::string violation_line(const Violation& violation, std::string_view profile) {
  std::string line = fmt::format("denied: {0}({1:#x}, …) by pid {2} ({3}): job killed; profile {4}", violation.syscall,
                                 violation.args[0], violation.pid, line_of(violation.comm), profile);
  // Others were refused for their arguments; to name them in a policy would not help.
  if (is_never_innocent(violation.syscall))
    line += fmt::format("; to allow: syscalls.add = [\"{}\"]", violation.syscall);
  return line;
}

JobEnd outcome_to_end(const EndContext& context, const Outcome& outcome, const Answer& answer) {
  const Words words = words_of(context, outcome, answer);
  JobEnd end;
  end.detail = words.detail;
  end.error = line_of(words.error);
  if (words.error.empty()) {
    end.status = JobStatus::finished;
    end.result = answer.result;
    end.result_json = answer.result_json;
  } else {
    end.error_info = dump_json(error_info(outcome, answer));
    // Also if something else ended the run after the script had failed: what it said still holds.
    if (answer.error) {
      end.retry_forbidden = answer.error->retry_forbidden;
      end.retry_after_ms = answer.error->retry_after_ms;
    }
  }
  end.usage = usage_json(outcome.usage);
  end.layers = join_blanks(outcome.layers);
  end.receipt = dump_json(receipt(context, outcome, words));
  if (context.grant) end.receipt.replace(end.receipt.size() - 1, 1, ',' + *context.grant + '}');
  return end;
}

}  // namespace mycojobs
