#include "executors/job_end_builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/errno_text.h"
#include "model/policy_json.h"
#include "sandbox/withheld_calls.h"
#include "text/json_writer.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxErrorLine = 1000;  // bytes

// Returns a printable line of valid UTF-8, cut between characters.
std::string to_line(std::string_view text) {
  std::string out;
  for (char c : to_utf8(text)) {
    if (out.size() > kMaxErrorLine + 4) break;
    const bool is_blank = static_cast<unsigned char>(c) <= ' ' || c == '\x7f';
    if (!is_blank) out.push_back(c);
    if (is_blank && !out.empty() && out.back() != ' ') out.push_back(' ');
  }
  if (out.size() > kMaxErrorLine) {
    out.resize(whole_characters(out, kMaxErrorLine).size());
    out += "…";
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("{} (SIG{})", signal, name) : std::to_string(signal);
}

std::string format_exception(const ScriptError& error) {
  std::string line = error.type;
  if (!error.message.empty()) line += ": " + error.message;
  line = to_line(line);
  return error.line > 0 ? fmt::format("{} (line {})", line, error.line) : line;
}

std::string format_exit(int code, const std::string& message) {
  return message.empty() ? fmt::format("exit code {}", code) : fmt::format("exit code {}: {}", code, message);
}

std::string format_setup_error(const SetupError& setup) {
  std::string line = "the sandbox could not be built: " + setup.step;
  if (setup.error != 0) line += ": " + errno_text(setup.error);
  return setup.remedy.empty() ? line : line + "; " + setup.remedy;
}

struct EndTexts {
  std::string detail, error;  // error is empty after success
};

// The main process has exited by itself, with any code. The answer of the script host determines the end.
EndTexts build_exit_texts(const EndContext& context, const Outcome& outcome, const ScriptAnswer& answer) {
  if (answer.error && answer.error->exit_code)
    return {"exit", format_exit(*answer.error->exit_code, answer.error->message)};
  if (answer.error) return {"exception", format_exception(*answer.error)};
  if (outcome.status == RunStatus::exit) return {"exit", format_exit(outcome.exit_code, "")};
  if (!answer.problem.empty()) return {"exit", "the script's host sent an invalid message: " + answer.problem};
  if (!answer.is_complete) return {"exit", "the script ended without returning its result"};
  if (!answer.result_problem.empty()) {
    return {"result_too_large", fmt::format("{}: over the limit of {} bytes for keys and values together",
                                            answer.result_problem, context.max_result_bytes)};
  }
  return {"ok", ""};
}

EndTexts build_end_texts(const EndContext& context, const Outcome& outcome, const ScriptAnswer& answer) {
  const auto reason_or = [&outcome](const std::string& text) { return outcome.reason.empty() ? text : outcome.reason; };
  switch (outcome.status) {
    case RunStatus::ok:
    case RunStatus::exit:
      return build_exit_texts(context, outcome, answer);
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
      return {"violation", outcome.violation ? format_violation(*outcome.violation, context.profile)
                                             : reason_or("denied: a system call that is never allowed: job killed")};
    case RunStatus::cancelled:
      return {"cancelled", reason_or("cancelled")};
    case RunStatus::lost:
      return {"lost", reason_or("the sandbox ended before the job")};
    case RunStatus::unkillable:
      return {"unkillable", reason_or("the job does not end on SIGKILL")};
    case RunStatus::setup_error:
      return {"setup_error", outcome.setup_error ? format_setup_error(*outcome.setup_error)
                                                 : reason_or("the sandbox could not be built")};
  }
  return {"lost", "a status without a name"};
}

// Members are added in alphabetical order.

void append_violation(std::string& out, const Violation& violation) {
  JsonObject object(out);
  std::string& args = object.append_member("args");
  for (const std::uint64_t argument : violation.args) append_json(args += args.back() == ':' ? '[' : ',', argument);
  args += ']';
  object.add("comm", violation.comm);
  object.add("pid", violation.pid);
  object.add("syscall", violation.syscall);
  object.end();
}

void append_setup_error(std::string& out, const SetupError& setup) {
  JsonObject object(out);
  object.add("errno", setup.error);
  object.add("remedy", setup.remedy);
  object.add("step", setup.step);
  object.end();
}

std::string build_error_info(const Outcome& outcome, const ScriptAnswer& answer) {
  std::string out;
  JsonObject object(out);
  const ScriptError* error = answer.error ? &*answer.error : nullptr;
  if (!answer.problem.empty()) object.add("channel", answer.problem);
  if (outcome.status == RunStatus::exit) object.add("exit", outcome.exit_code);
  if (error != nullptr && error->line > 0) object.add("line", error->line);
  if (error != nullptr) object.add("message", error->message);
  if (outcome.setup_error) append_setup_error(object.append_member("setup"), *outcome.setup_error);
  if (outcome.status == RunStatus::signal) object.add("signal", outcome.signal);
  if (error != nullptr && !error->stderr_tail.empty()) object.add("stderr", error->stderr_tail);
  if (error != nullptr && !error->traceback.empty()) object.add("traceback", error->traceback);
  if (error != nullptr) object.add("type", error->type);
  if (outcome.violation) append_violation(object.append_member("violation"), *outcome.violation);
  object.end();
  return out;
}

void append_steps(std::string& out, const std::vector<StepTime>& steps) {
  std::map<std::string_view, std::uint32_t> by_name;
  for (const StepTime& step : steps) by_name[step.step] = step.us;
  JsonObject object(out);
  for (const auto& [name, us] : by_name) object.add(name, us);
  object.end();
}

std::string build_receipt(const EndContext& context, const Outcome& outcome, const EndTexts& texts) {
  std::string out;
  out.reserve(1024);
  JsonObject object(out);
  object.add("cpu_us", outcome.usage.user_us + outcome.usage.system_us);
  if (!context.intent.empty()) object.add("intent", context.intent);
  object.add("job", context.job);
  object.add("layers", outcome.layers);
  object.add("memory_peak_bytes", outcome.usage.memory_peak_bytes);
  if (outcome.reused) object.add("reused", *outcome.reused);
  append_steps(object.append_member("setup_us"), outcome.setup);
  object.add("status", texts.detail);
  object.add("stragglers", outcome.stragglers);
  if (outcome.violation) append_violation(object.append_member("violation"), *outcome.violation);
  object.add("wall_us", outcome.usage.wall_us);
  if (context.grant_json) (out += ',') += *context.grant_json;
  object.end();
  return out;
}

std::string join_words(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

}  // namespace

std::string usage_json(const Usage& usage) {
  std::string out;
  out.reserve(160);
  JsonObject object(out);
  object.add("memory_peak_bytes", usage.memory_peak_bytes);
  object.add("pids_peak", usage.pids_peak);
  object.add("stderr_bytes", usage.stderr_bytes);
  object.add("stdout_bytes", usage.stdout_bytes);
  object.add("system_us", usage.system_us);
  object.add("user_us", usage.user_us);
  object.add("wall_us", usage.wall_us);
  object.end();
  return out;
}

std::string format_violation(const Violation& violation, std::string_view profile) {
  std::string line = fmt::format("denied: {0}({1:#x}, …) by pid {2} ({3}): job killed; profile {4}", violation.syscall,
                                 violation.args[0], violation.pid, to_line(violation.comm), profile);
  // Calls outside these lists were denied because of their arguments, so a grant of their name would have no effect.
  if (is_never_granted(violation.syscall))
    line += "; never granted: it allows an escape from any sandbox";
  else if (is_forbidden_syscall(violation.syscall))
    line += fmt::format("; to allow: syscalls.add = [\"{}\"]", violation.syscall);
  return line;
}

JobEnd build_job_end(const EndContext& context, const Outcome& outcome, const ScriptAnswer& answer) {
  const EndTexts texts = build_end_texts(context, outcome, answer);
  JobEnd end;
  end.detail = texts.detail;
  end.error = to_line(texts.error);
  if (texts.error.empty()) {
    end.status = JobStatus::finished;
    end.result = answer.result;
    end.result_json = answer.result_json;
  } else {
    end.error_info = build_error_info(outcome, answer);
    // The retry instructions of a failed script apply even if another event ended the run afterwards.
    if (answer.error) {
      end.retry_forbidden = answer.error->retry_forbidden;
      end.retry_after_ms = answer.error->retry_after_ms;
    }
  }
  end.usage = usage_json(outcome.usage);
  end.layers = join_words(outcome.layers);
  end.receipt = build_receipt(context, outcome, texts);
  return end;
}

}  // namespace mycojobs
