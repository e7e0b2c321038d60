#include "cli/job_submission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errno_text.h"
#include "base/parse.h"
#include "base/random.h"
#include "cli/commands/executor_commands.h"
#include "cli/config/config_file.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/explain.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "model/notify_targets.h"
#include "model/policy_json.h"
#include "model/trace_context.h"
#include "security/profiles.h"
#include "service/job_service.h"
#include "text/json.h"
#include "text/timestamp.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
    {".py", "python"}, {".v", "v"}, {".lua", "sal"}, {".sal", "sal"}, {".osis", "osis"}};

// Reads at most one byte more than max_bytes, so that the caller detects input that is too long.
template <class Read>
std::string read_all(std::size_t max_bytes, const Read& read) {
  std::string bytes, chunk(65536, '\0');
  while (bytes.size() <= max_bytes) {
    const std::size_t count = read(chunk.data(), std::min(chunk.size(), max_bytes + 1 - bytes.size()));
    if (count == 0) break;
    bytes.append(chunk.data(), count);
  }
  return bytes;
}

// Returns the position of the first byte that is not part of a valid character.
std::size_t first_not_utf8(std::string_view bytes) {
  constexpr std::size_t kMaxUtf8Bytes = 4;
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::size_t length = 1;
    while (length <= kMaxUtf8Bytes && !is_utf8(bytes.substr(at, length))) ++length;
    if (length > kMaxUtf8Bytes) break;
    at += length;
  }
  return at;
}

}  // namespace

Result<std::string> read_script(const std::string& file, std::size_t max_bytes) {
  std::string bytes;
  if (file == "-") {
    exit_on_stop_signals();
    // Ctrl-D sets end-of-file only once; a further read from a terminal would block.
    bytes = read_all(
        max_bytes, [](char* to, std::size_t max) { return std::feof(stdin) != 0 ? 0 : std::fread(to, 1, max, stdin); });
    block_stop_signals();
  } else {
    std::error_code unseen;
    const auto status = std::filesystem::status(file, unseen);
    if (status.type() == std::filesystem::file_type::not_found) return fail(Code::not_found, file + ": no such file");
    if (unseen) return fail(Code::io, file + ": cannot be seen: " + unseen.message());
    if (std::filesystem::is_directory(status)) return fail(Code::invalid, file + ": is a folder; give one script");
    std::ifstream in(file, std::ios::binary);
    bytes = read_all(max_bytes, [&in](char* to, std::size_t max) {
      in.read(to, static_cast<std::streamsize>(max));
      return static_cast<std::size_t>(in.gcount());
    });
    if (!in.is_open()) return fail(Code::io, file + ": cannot be read: " + errno_text(errno));
    if (in.bad()) return fail(Code::io, file + ": cannot be read");
  }
  if (bytes.size() > max_bytes) {
    return fail(Code::too_large, fmt::format("{}: has more than the {} bytes that are allowed", file, max_bytes));
  }
  return bytes;
}

Result<void> check_script(const std::string& file, std::string_view script) {
  const std::string name = file == "-" ? "standard input" : file;
  if (script.empty()) return fail(Code::invalid, name + ": is empty: it has no code to run");
  if (is_utf8(script)) return {};
  const std::size_t at = first_not_utf8(script);
  const auto line = 1 + std::count(script.begin(), script.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  return fail(
      Code::invalid,
      fmt::format("{}: byte {} (0x{:02x}, in line {}) is not UTF-8: save the script as UTF-8; a program is a job's "
                  "artifact or `mycojobs program add`",
                  name, at, static_cast<unsigned char>(script[at]), line));
}

std::string script_type_of(const std::string& file) {
  for (const auto& [ending, type] : kTypes) {
    if (file.ends_with(ending)) return std::string(type);
  }
  return "";
}

namespace {

void collect(const FlowPlan& plan, bool with_policy, std::set<std::string>& types) {
  for (const PlanNode& node : plan.nodes) {
    const bool is_run = (node.kind == NodeKind::job || node.kind == NodeKind::each) && !node.each;
    const bool counts = !with_policy || !node.job.policy.empty();
    if (is_run && counts && node.supervisor_url.empty()) types.insert(node.job.script_type);
    if (node.child.empty()) continue;
    const auto child = parse_json(node.child, kMaxDefinitionBytes);
    if (!child) continue;
    if (const ParsedPlan read = read_plan(*child); read.plan) collect(*read.plan, with_policy, types);
  }
}

// Error unsupported: no executor of this host can run jobs of the type; the message has the reason and the remedy of
// the executor.
Result<void> runs_here(const Invocation& call, const std::string& type) {
  MJ_TRY(executor, executor_of_type(call, type));
  if (auto works = executor->probe(); !works) return fail(Code::unsupported, works.error().message);
  return {};
}

}  // namespace

std::set<std::string> script_types_of(const FlowPlan& plan) {
  std::set<std::string> types;
  collect(plan, false, types);
  return types;
}

std::set<std::string> script_types_with_policy(const FlowPlan& plan) {
  std::set<std::string> types;
  collect(plan, true, types);
  return types;
}

namespace {

// Queries the store only for types that this build does not know.
Result<void> warn_of_unknown_types(const Invocation& call, Store& store, const std::set<std::string>& types) {
  for (const std::string& type : types) {
    const auto executor = executor_of_type(call, type);
    const auto& configured = call.settings.script_types;
    if (executor || std::find(configured.begin(), configured.end(), type) != configured.end()) continue;
    MJ_TRY(runners, store.runners(context_of(call)));
    if (std::any_of(runners.begin(), runners.end(),
                    [&](const RunnerInfo& each) { return serves(each, queue_key(type)); }))
      continue;
    const std::string why = executor.error().message;
    print_message("no runner of context " + std::to_string(context_of(call)) + " accepts jobs of type " +
                  excerpt(type, 80) + ": " + why + (why.ends_with('?') ? " " : ". ") +
                  "It is sent all the same, and waits for one");
  }
  return {};
}

}  // namespace

Result<void> check_served(const Invocation& call, Store& store, const std::set<std::string>& types) {
  if (!call.settings.redis.empty()) return warn_of_unknown_types(call, store, types);
  MJ_TRY(runners, store.runners(context_of(call)));
  std::erase_if(runners, [](const RunnerInfo& each) { return presence(each) != RunnerPresence::live; });
  for (const std::string& type : types) {
    if (std::any_of(runners.begin(), runners.end(),
                    [&](const RunnerInfo& each) { return serves(each, queue_key(type)); }))
      continue;
    MJ_CHECK(runs_here(call, type));
    if (!runners.empty())
      return fail(Code::unsupported, "the mycojobs that runs on " + call.settings.state_dir +
                                         " does not accept jobs of type " + type +
                                         ", which this host can run: stop it and start it with the same "
                                         "configuration, or give another --state-dir");
  }
  return {};
}

namespace {

constexpr std::uint64_t kUnavailableMs = 10000;  // maximum time for which an unavailable store is retried
constexpr int kTryAgainMs = 100;
// File extensions that identify a script type whose executor may not be configured.
constexpr std::pair<std::string_view, const char*> kOfPrograms[] = {
    {".sh", "bash"}, {".bash", "bash"}, {".pl", "perl"}, {".js", "node"}, {".mjs", "node"}};

Error no_script_type(const std::string& file) {
  const char* example = "python";
  for (const auto& [ending, type] : kOfPrograms) {
    if (file.ends_with(ending)) example = type;
  }
  const std::string what = file == "-" ? "standard input has no name that tells" : file + ": its name does not tell";
  return {Code::invalid, fmt::format("{} the script type: give --type, as in --type {}", what, example)};
}

Result<void> read_file(const Invocation& call, Job& job) {
  const std::string& file = call.arguments.at(0);
  // Checked before the script is read, so that users do not type a script in vain.
  if (file == "-" && call.get("type").empty()) return tl::unexpected<Error>(no_script_type(file));
  auto read = read_script(file, call.settings.job_max_script_bytes);
  if (!read && read.error().code == Code::too_large)
    return fail(Code::too_large, read.error().message + "; the setting is job.max_script_bytes");
  MJ_TRY(script, std::move(read));
  MJ_CHECK(check_script(file, script));
  job.script = std::move(script);
  job.name = call.get("name", file == "-" ? "stdin" : std::filesystem::path(file).filename().string());
  job.script_type = call.get("type");
  if (job.script_type.empty()) job.script_type = script_type_of(file);
  if (job.script_type.empty()) return tl::unexpected<Error>(no_script_type(file));
  return {};
}

const std::vector<std::string>& values(const Invocation& call, std::string_view flag) {
  static const std::vector<std::string> kNone;
  const auto found = call.flags.find(flag);
  return found == call.flags.end() ? kNone : found->second;
}

// Parses a flag as a whole number into `out`; a missing flag does not change `out`.
template <class T>
Result<void> read_number(const Invocation& call, std::string_view flag, std::uint64_t min, std::uint64_t max, T& out) {
  if (!call.has(flag)) return {};
  std::uint64_t number = 0;
  const std::string text = call.get(flag);
  if (!parse_u64(text, number) || number < min || number > max) {
    return fail(Code::invalid, fmt::format("--{}: \"{}\" is not a whole number from {} to {}", flag, text, min, max));
  }
  out = static_cast<T>(number);
  return {};
}

Result<std::optional<std::uint64_t>> read_duration(const Invocation& call, std::string_view flag) {
  if (!call.has(flag)) return std::optional<std::uint64_t>();
  auto parsed = parse_duration_ms(call.get(flag));
  if (!parsed) return fail(parsed.error(), "--" + std::string(flag));
  return std::optional(*parsed);
}

Result<void> read_identity(const Invocation& call, Job& job) {
  job.caller_id = kDefaultCaller;
  MJ_CHECK(read_number(call, "caller", 1, UINT32_MAX, job.caller_id));
  MJ_CHECK(read_number(call, "id", 1, UINT32_MAX, job.id));
  job.idempotency_key = call.get("idempotency-key");
  if (call.has("idempotency-key") && job.idempotency_key.empty()) {
    return fail(Code::invalid, "--idempotency-key: is empty");
  }
  return {};
}

Result<void> read_environment(const Invocation& call, Job& job) {
  for (const std::string& pair : values(call, "env")) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(Code::invalid, "--env: \"" + pair + "\" is not NAME=VALUE");
    job.env_vars[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return {};
}

Result<void> read_times(const Invocation& call, Submission& submission) {
  Job& job = submission.job;
  if (call.has("timeout")) {
    const auto timeout = parse_duration_s(call.get("timeout"));
    if (!timeout) return fail(timeout.error(), "--timeout");
    job.timeout = *timeout;
  }
  MJ_TRY(queue_timeout, read_duration(call, "queue-timeout"));
  if (queue_timeout == 0U) return fail(Code::invalid, "--queue-timeout: use 1ms or more, or omit it");
  job.queue_timeout_ms = queue_timeout.value_or(0);
  MJ_TRY(delay, read_duration(call, "delay"));
  submission.delay_ms = delay;
  if (!call.has("run-at")) return {};
  if (delay) return fail(Code::invalid, "--delay and --run-at: use only one of them");
  auto moment = parse_time_ms(call.get("run-at"));
  if (!moment) return fail(moment.error(), "--run-at");
  job.run_at_ms = *moment;
  return {};
}

// A job id adds the job to the dependencies. A name must be that of a dependency.
Result<void> read_inputs(const Invocation& call, Job& job) {
  job.inputs = values(call, "input");
  for (const std::string& text : job.inputs) {
    std::uint64_t id = 0;
    const bool by_id = parse_u64(std::string_view(text).substr(0, text.find('/')), id) && id > 0 && id <= UINT32_MAX;
    const auto& known = job.dependends;
    if (by_id && std::find(known.begin(), known.end(), id) == known.end()) {
      job.dependends.push_back(static_cast<Id>(id));
    } else if (text.empty() || text.starts_with('/') || (!by_id && known.empty())) {
      return fail(Code::invalid, "--input: " + excerpt(text) +
                                     " names no job that it depends on: give JOB or JOB/ARTIFACT with the job's id, or "
                                     "with its name and --depends ID");
    }
  }
  return {};
}

Result<void> read_order(const Invocation& call, Job& job) {
  MJ_CHECK(read_number(call, "retries", 0, UINT8_MAX, job.retries));
  MJ_CHECK(read_number(call, "concurrency-limit", 1, UINT32_MAX, job.concurrency_limit));
  job.concurrency_key = call.get("concurrency-key");
  job.prerequisites = values(call, "prerequisite");
  MJ_CHECK(read_notify_flag(call, job.notify));
  job.traceparent = call.get("traceparent");
  if (auto context = check_traceparent(job.traceparent); !context) return fail(context.error(), "--traceparent");
  if (call.has("priority")) {
    std::string text = call.get("priority");
    const bool below = text.starts_with('-');
    std::uint64_t size = 0;
    if (!parse_u64(std::string_view(text).substr(below ? 1 : 0), size) || size > 100) {
      return fail(Code::invalid, "--priority: \"" + text + "\" is not a whole number from -100 to 100");
    }
    job.priority = below ? -static_cast<std::int32_t>(size) : static_cast<std::int32_t>(size);
  }
  const std::string own = std::to_string(job.caller_id) + ":";
  for (std::string text : values(call, "depends")) {
    if (text.starts_with("job:")) text.erase(0, 4);
    if (text.starts_with(own)) text.erase(0, own.size());
    std::uint64_t id = 0;
    if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX) {
      return fail(Code::invalid, fmt::format("--depends: \"{}\" is not the id of a job of caller {}: give the number "
                                             "after the colon, for example --depends 2001",
                                             text, job.caller_id));
    }
    job.dependends.push_back(static_cast<Id>(id));
  }
  return read_inputs(call, job);
}

// Rejects an invalid policy before anything is stored; a runner would reject it too.
Result<void> read_policy_flag(const Invocation& call, Job& job) {
  if (!call.has("policy")) return {};
  MJ_TRY(read, read_policy_file(call.get("policy")));
  if (!read.ok()) return fail(Code::invalid, join(read.problems));
  if (read.request.named.any()) job.policy = write_policy(read.request);
  return {};
}

bool wait_and_go_on() { return next_stop_signal(kTryAgainMs) == 0; }

}  // namespace

Result<void> read_notify_flag(const Invocation& call, std::string& notify) {
  for (const std::string& typed : values(call, "notify")) {
    if (auto added = add_notify(typed, notify); !added) return fail(added.error(), "--notify");
  }
  return {};
}

std::vector<FlagRow> local_run_flags() {
  return {{"type", "NAME", "script type (default: by the file's name)"},
          {"name", "TEXT", "a name for the job (default: the file's)"},
          {"env", "NAME=VALUE", "a variable of the job's environment", true},
          {"timeout", "DURATION", "the job's wall-clock limit, as in 30s"},
          {"policy", "FILE", "requested policy for its sandbox, as .toml or .json"}};
}

std::vector<FlagRow> submission_flags() {
  std::vector<FlagRow> flags = local_run_flags();
  const std::vector<FlagRow> more = {
      {"retries", "N", "attempts after a failed one, 0 to 255 (default 0)"},
      {"delay", "DURATION", "run it no sooner than after this time"},
      {"run-at", "TIME", "run it no sooner than then, as in 2030-01-31T12:00:00Z"},
      {"priority", "N", "-100 to 100; higher is taken first (default 0)"},
      {"queue-timeout", "DURATION", "give up when no runner has taken it in this time"},
      {"depends", "ID", "run it after this job of the same caller has finished", true},
      {"input", "JOB[/ARTIFACT]", "hand it the artifacts of a job that it depends on, by id or name", true},
      {"prerequisite", "TEXT", "run it when this is true, for example file:/data/ready", true},
      {"concurrency-key", "TEXT", "of the jobs with this key only some run at a time"},
      {"concurrency-limit", "N", "maximum number of jobs with this key at the same time (default 1)"},
      {"caller", "ID", "the actor that submits it (default 1)"},
      {"id", "ID", "the job's id (default: the caller's next one)"},
      {"notify", "TARGET", "receiver of the notification of its end: URL of a webhook, or JSON (docs/notify.md)", true},
      {"traceparent", "TEXT", "the trace that it belongs to, in the format of W3C Trace Context (docs/tracing.md)"},
      {"idempotency-key", "TEXT", "a second submission of the caller with this key is the first one again"}};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

Result<Submission> read_submission(const Invocation& call) {
  Submission submission;
  Job& job = submission.job;
  MJ_CHECK(read_file(call, job));
  job.context_id = context_of(call);
  MJ_CHECK(read_identity(call, job));
  MJ_CHECK(read_environment(call, job));
  MJ_CHECK(read_times(call, submission));
  MJ_CHECK(read_order(call, job));
  MJ_CHECK(read_policy_flag(call, job));
  MJ_CHECK(service::check_new_job(requested_owner(call, job.caller_id), job, job.caller_id));
  return submission;
}

Result<void> describe_missing_agents(const Invocation& call, OpenedStore& opened, bool with_agent,
                                     const std::function<Result<void>(Store&)>& attempt) {
  std::uint64_t unavailable_since_ms = 0;
  for (;;) {
    auto done = attempt(*opened.store);
    // Only `unavailable` can be resolved by a retry, but not, for example, a conflict.
    if (done || done.error().code != Code::unavailable) return done;
    const std::uint64_t now = call.parts.clock.boot_ms();
    if (unavailable_since_ms == 0) {
      unavailable_since_ms = now;
      print_message("the store is unavailable; retrying: " + done.error().message);
    }
    if (now - unavailable_since_ms > kUnavailableMs || !wait_and_go_on()) return done;
    reopen(call, opened, with_agent);
  }
}

Result<Job> submit(const Invocation& call, OpenedStore& opened, Submission submission, bool with_agent) {
  Job& job = submission.job;
  MJ_CHECK(service::check_policy(requested_owner(call, job.caller_id), job));
  if (!job.policy.empty()) MJ_CHECK(warn_without_agents(call, *opened.store, {job.script_type}));
  if (job.id == 0 && job.idempotency_key.empty()) job.idempotency_key = random_hex(16);
  // Fails at once for a wrong address. Only a submission that may have been stored is worth a retry.
  if (!call.settings.redis.empty()) MJ_CHECK(opened.store->queue_length(job.context_id, queue_key(job.script_type)));
  if (submission.delay_ms) {
    MJ_TRY(now, store_now_ms(*opened.store, job.context_id));
    job.run_at_ms = now + *submission.delay_ms;
  }
  const service::RequestContext by = requested_owner(call, job.caller_id);
  Job submitted;
  auto done = describe_missing_agents(call, opened, with_agent, [&](Store& store) -> Result<void> {
    MJ_TRY(stored, service::submit_job(by, store, std::nullopt, job));
    submitted = std::move(stored);
    return {};
  });
  if (done) return submitted;
  if (done.error().code != Code::unavailable)
    return tl::unexpected(with_original_arguments(call, std::move(done).error()));
  return fail(Code::unavailable,
              fmt::format("{}; whether the job was submitted is not known: the same command with {} submits it once",
                          done.error().message,
                          job.id != 0 ? fmt::format("--id {}", job.id) : "--idempotency-key " + job.idempotency_key));
}

}  // namespace mycojobs
