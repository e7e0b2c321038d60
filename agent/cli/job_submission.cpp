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
#include "cli/config/config_file.h"
#include "cli/executor_lookup.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "cli/uploads/file_upload.h"
#include "inspect/explain.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "model/notify_targets.h"
#include "model/policy_json.h"
#include "model/submitted_files.h"
#include "model/trace_context.h"
#include "security/profiles.h"
#include "service/job_service.h"
#include "text/json.h"
#include "text/timestamp.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::pair<std::string_view, std::string_view> kFileExtensions[] = {
    {".py", "python"}, {".v", "v"}, {".lua", "sal"}, {".sal", "sal"}, {".osis", "osis"}};

// Reads at most one byte more than max_bytes, so that the caller detects input that is too long.
template <class ReadFunction>
std::string read_all(std::size_t max_bytes, const ReadFunction& read) {
  std::string bytes, chunk(65536, '\0');
  while (bytes.size() <= max_bytes) {
    const std::size_t count = read(chunk.data(), std::min(chunk.size(), max_bytes + 1 - bytes.size()));
    if (count == 0) break;
    bytes.append(chunk.data(), count);
  }
  return bytes;
}

// Returns the position of the first byte that is not part of a valid character.
std::size_t find_invalid_utf8(std::string_view bytes) {
  constexpr std::size_t kMaxUtf8Bytes = 4;
  std::size_t position = 0;
  while (position < bytes.size()) {
    std::size_t length = 1;
    while (length <= kMaxUtf8Bytes && !is_utf8(bytes.substr(position, length))) ++length;
    if (length > kMaxUtf8Bytes) break;
    position += length;
  }
  return position;
}

}  // namespace

Result<std::string> read_script(const std::string& path, std::size_t max_bytes) {
  std::string bytes;
  if (path == "-") {
    exit_on_stop_signals();
    // Ctrl-D sets end-of-file only once; a further read from a terminal would block.
    bytes = read_all(max_bytes, [](char* buffer, std::size_t max) {
      return std::feof(stdin) != 0 ? 0 : std::fread(buffer, 1, max, stdin);
    });
    block_stop_signals();
  } else {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) return fail(Code::not_found, path + ": no such file");
    if (error) return fail(Code::io, path + ": cannot be seen: " + error.message());
    if (std::filesystem::is_directory(status)) return fail(Code::invalid, path + ": is a folder; give one script");
    std::ifstream in(path, std::ios::binary);
    bytes = read_all(max_bytes, [&in](char* buffer, std::size_t max) {
      in.read(buffer, static_cast<std::streamsize>(max));
      return static_cast<std::size_t>(in.gcount());
    });
    if (!in.is_open()) return fail(Code::io, path + ": cannot be read: " + errno_text(errno));
    if (in.bad()) return fail(Code::io, path + ": cannot be read");
  }
  if (bytes.size() > max_bytes) {
    return fail(Code::too_large, fmt::format("{}: has more than the {} bytes that are allowed", path, max_bytes));
  }
  return bytes;
}

Result<std::string> read_submitted_file(const std::string& path) {
  auto bytes = read_script(path, kMaxJobFileBytes);
  if (bytes || bytes.error().code != Code::too_large) return bytes;
  return fail(Code::too_large, (path == "-" ? "standard input" : path) + ": has more than the " +
                                   std::to_string(kMaxJobFileBytes) +
                                   " bytes that a job brings along: let an earlier job store the file as an artifact "
                                   "and give --input JOB/ARTIFACT, or read it from a folder that the policy grants");
}

Result<void> check_script(const std::string& path, std::string_view script) {
  const std::string name = path == "-" ? "standard input" : path;
  if (script.empty()) return fail(Code::invalid, name + ": is empty: it has no code to run");
  if (is_utf8(script)) return {};
  const std::size_t position = find_invalid_utf8(script);
  const auto line = 1 + std::count(script.begin(), script.begin() + static_cast<std::ptrdiff_t>(position), '\n');
  return fail(
      Code::invalid,
      fmt::format("{}: byte {} (0x{:02x}, in line {}) is not UTF-8: save the script as UTF-8; a program is a job's "
                  "artifact or `mycojobs program add`",
                  name, position, static_cast<unsigned char>(script[position]), line));
}

std::string guess_script_type(const std::string& path) {
  for (const auto& [extension, type] : kFileExtensions) {
    if (path.ends_with(extension)) return std::string(type);
  }
  return "";
}

namespace {

void collect_types(const FlowPlan& plan, bool policies_only, std::set<std::string>& types) {
  for (const PlanNode& node : plan.nodes) {
    const bool runs_script = (node.kind == NodeKind::job || node.kind == NodeKind::each) && !node.each_node;
    const bool is_included = !policies_only || !node.job.policy.empty();
    if (runs_script && is_included && node.supervisor_url.empty()) types.insert(node.job.script_type);
    if (node.child.empty()) continue;
    const auto child = parse_json(node.child, kMaxDefinitionBytes);
    if (!child) continue;
    if (const ParsedPlan child_plan = read_plan(*child); child_plan.plan)
      collect_types(*child_plan.plan, policies_only, types);
  }
}

// Error unsupported: no executor of this host can run jobs of the type; the message has the reason and the remedy of
// the executor.
Result<void> check_executor_here(const Invocation& call, const std::string& type) {
  MJ_TRY(executor, find_executor_of_type(call, type));
  if (auto probe = executor->probe(); !probe) return fail(Code::unsupported, probe.error().message);
  return {};
}

}  // namespace

std::set<std::string> collect_script_types(const FlowPlan& plan) {
  std::set<std::string> types;
  collect_types(plan, false, types);
  return types;
}

std::set<std::string> collect_policy_script_types(const FlowPlan& plan) {
  std::set<std::string> types;
  collect_types(plan, true, types);
  return types;
}

namespace {

bool is_served_by(const std::vector<RunnerInfo>& runners, const std::string& type) {
  return std::any_of(runners.begin(), runners.end(),
                     [&](const RunnerInfo& runner) { return serves_queue(runner, queue_key(type)); });
}

// Queries the store only for types that this build does not know.
Result<void> warn_about_unknown_types(const Invocation& call, Store& store, const std::set<std::string>& types) {
  for (const std::string& type : types) {
    const auto executor = find_executor_of_type(call, type);
    const auto& configured = call.settings.script_types;
    if (executor || std::find(configured.begin(), configured.end(), type) != configured.end()) continue;
    MJ_TRY(runners, store.runners(call.context()));
    if (is_served_by(runners, type)) continue;
    const std::string reason = executor.error().message;
    print_message("no runner of context " + std::to_string(call.context()) + " accepts jobs of type " +
                  excerpt(type, 80) + ": " + reason + (reason.ends_with('?') ? " " : ". ") +
                  "It is sent all the same, and waits for one");
  }
  return {};
}

}  // namespace

Result<void> check_types_are_served(const Invocation& call, Store& store, const std::set<std::string>& types) {
  if (!call.settings.redis.empty()) return warn_about_unknown_types(call, store, types);
  MJ_TRY(runners, store.runners(call.context()));
  std::erase_if(runners, [](const RunnerInfo& runner) { return get_presence(runner) != RunnerPresence::live; });
  for (const std::string& type : types) {
    if (is_served_by(runners, type)) continue;
    MJ_CHECK(check_executor_here(call, type));
    if (!runners.empty())
      return fail(Code::unsupported, "the mycojobs that runs on " + call.settings.state_dir +
                                         " does not accept jobs of type " + type +
                                         ", which this host can run: stop it and start it with the same "
                                         "configuration, or give another --state-dir");
  }
  return {};
}

namespace {

constexpr std::uint64_t kMaxUnavailableMs = 10000;  // maximum time of retries while the store is unavailable
constexpr int kRetryIntervalMs = 100;
// File extensions that identify a script type whose executor may not be configured.
constexpr std::pair<std::string_view, const char*> kProgramExtensions[] = {
    {".sh", "bash"}, {".bash", "bash"}, {".pl", "perl"}, {".js", "node"}, {".mjs", "node"}};

Error missing_type_error(const std::string& file) {
  const char* example = "python";
  for (const auto& [extension, type] : kProgramExtensions) {
    if (file.ends_with(extension)) example = type;
  }
  const std::string subject = file == "-" ? "standard input has no name that tells" : file + ": its name does not tell";
  return {Code::invalid, fmt::format("{} the script type: give --type, as in --type {}", subject, example)};
}

Result<void> read_script_argument(const Invocation& call, Job& job) {
  const std::string& file = call.arguments.at(0);
  // Checked before the script is read, so that users do not type a script in vain.
  if (file == "-" && call.get("type").empty()) return tl::unexpected<Error>(missing_type_error(file));
  auto script_bytes = read_script(file, call.settings.job_max_script_bytes);
  if (!script_bytes && script_bytes.error().code == Code::too_large)
    return fail(Code::too_large, script_bytes.error().message + "; the setting is job.max_script_bytes");
  MJ_TRY(script, std::move(script_bytes));
  MJ_CHECK(check_script(file, script));
  job.script = std::move(script);
  job.name = call.get("name", file == "-" ? "stdin" : std::filesystem::path(file).filename().string());
  job.script_type = call.get("type");
  if (job.script_type.empty()) job.script_type = guess_script_type(file);
  if (job.script_type.empty()) return tl::unexpected<Error>(missing_type_error(file));
  return {};
}

Result<std::optional<std::uint64_t>> read_delay(const Invocation& call) {
  if (!call.has("delay")) return std::optional<std::uint64_t>();
  auto parsed = parse_duration_ms(call.get("delay"));
  if (!parsed) return fail(parsed.error(), "--delay");
  return std::optional(*parsed);
}

Result<void> read_times(const Invocation& call, Submission& submission) {
  Job& job = submission.job;
  if (call.has("queue-timeout") && job.queue_timeout_ms == 0)
    return fail(Code::invalid, "--queue-timeout: use 1ms or more, or omit it");
  MJ_TRY(delay, read_delay(call));
  submission.delay_ms = delay;
  if (!call.has("run-at")) return {};
  if (delay) return fail(Code::invalid, "--delay and --run-at: use only one of them");
  auto run_at = parse_time_ms(call.get("run-at"));
  if (!run_at) return fail(run_at.error(), "--run-at");
  job.run_at_ms = *run_at;
  return {};
}

// Reads --input. A job id is also added to the dependencies; a name must be that of a dependency.
Result<void> read_inputs(Job& job) {
  for (const std::string& text : job.inputs) {
    std::uint64_t id = 0;
    const bool is_id = parse_u64(std::string_view(text).substr(0, text.find('/')), id) && id > 0 && id <= UINT32_MAX;
    const auto& dependencies = job.dependends;
    if (is_id && std::find(dependencies.begin(), dependencies.end(), id) == dependencies.end()) {
      job.dependends.push_back(static_cast<Id>(id));
    } else if (text.empty() || text.starts_with('/') || (!is_id && dependencies.empty())) {
      return fail(Code::invalid, "--input: " + excerpt(text) +
                                     " names no job that it depends on: give JOB or JOB/ARTIFACT with the job's id, or "
                                     "with its name and --depends ID");
    }
  }
  return {};
}

Result<void> read_dependencies(const Invocation& call, Job& job) {
  const std::string caller_prefix = std::to_string(job.caller_id) + ":";
  for (std::string text : call.get_all("depends")) {
    if (text.starts_with("job:")) text.erase(0, 4);
    if (text.starts_with(caller_prefix)) text.erase(0, caller_prefix.size());
    std::uint64_t id = 0;
    if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX) {
      return fail(Code::invalid, fmt::format("--depends: \"{}\" is not the id of a job of caller {}: give the number "
                                             "after the colon, for example --depends 2001",
                                             text, job.caller_id));
    }
    job.dependends.push_back(static_cast<Id>(id));
  }
  return read_inputs(job);
}

// Rejects an invalid policy before anything is stored; a runner would reject it too.
Result<void> read_policy_flag(const Invocation& call, Job& job) {
  if (!call.has("policy")) return {};
  MJ_TRY(parsed_policy, read_policy_file(call.get("policy")));
  if (!parsed_policy.ok()) return fail(Code::invalid, join(parsed_policy.problems));
  if (parsed_policy.request.named_fields.any()) job.policy = write_policy(parsed_policy.request);
  return {};
}

// Returns NAME and PATH of a value [NAME=]PATH. Without NAME, the name is the last part of the path.
std::pair<std::string, std::string> split_file_flag(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals != std::string::npos) return {text.substr(0, equals), text.substr(equals + 1)};
  return {std::filesystem::path(text).filename().string(), text};
}

bool is_large_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && std::filesystem::file_size(path, error) > kMaxJobFileBytes;
}

// Reads --stdin and --file, and the arguments after `--`. Standard input is read only for --stdin -.
// Large files are not read, but added to the submission.
Result<void> read_submitted_files(const Invocation& call, bool allows_uploads, Submission& submission) {
  Job& job = submission.job;
  job.args.assign(call.arguments.begin() + 1, call.arguments.end());
  SubmittedFiles files;
  if (call.has("stdin")) {
    const std::string path = call.get("stdin");
    if (path == "-" && call.arguments.at(0) == "-")
      return fail(Code::invalid, "--stdin: the script itself is read from standard input: give the script as a file");
    auto bytes = read_submitted_file(path);
    if (!bytes) return fail(std::move(bytes).error(), "--stdin");
    files.stdin_bytes = std::move(*bytes);
  }
  for (const std::string& text : call.get_all("file")) {
    const auto [name, path] = split_file_flag(text);
    if (path == "-" || path.empty())
      return fail(Code::invalid, "--file: " + excerpt(text) + " is not [NAME=]PATH; for standard input give --stdin -");
    if (files.files.contains(name) || submission.large_files.contains(name))
      return fail(Code::invalid, "--file: the name " + excerpt(name) + " is given twice: give one as NAME=PATH");
    if (allows_uploads && is_large_file(path)) {
      submission.large_files.emplace(name, path);
      continue;
    }
    auto bytes = read_submitted_file(path);
    if (!bytes) return fail(std::move(bytes).error(), "--file");
    files.files.emplace(name, std::move(*bytes));
  }
  return set_submitted_files(job, std::move(files));
}

bool wait_for_retry() { return next_stop_signal(kRetryIntervalMs) == 0; }

}  // namespace

Result<void> read_environment_flags(const Invocation& call, std::map<std::string, std::string>& environment) {
  for (const std::string& pair : call.get_all("env")) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(Code::invalid, "--env: " + excerpt(pair) + " is not NAME=VALUE");
    environment[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return {};
}

Result<void> add_notify_flags(const Invocation& call, std::string& receivers) {
  for (const std::string& target : call.get_all("notify")) {
    if (auto result = add_notify_target(target, receivers); !result) return fail(result.error(), "--notify");
  }
  return {};
}

std::vector<FlagRow> script_flags() {
  std::vector<FlagRow> flags = request_flags("job.create", "script_type=type:NAME timeout");
  set_flag_help(flags, "type", "script type (default: by the file's name)");
  set_flag_help(flags, "timeout", "maximum run time, as in 30s (default: set by the operator)");
  const std::vector<FlagRow> own_flags = {{"name", "TEXT", "a name for the job (default: the file's)"},
                                          {"env", "NAME=VALUE", "a variable of the job's environment", true},
                                          {"policy", "FILE", "requested policy for its sandbox, as .toml or .json"}};
  flags.insert(flags.end(), own_flags.begin(), own_flags.end());
  return flags;
}

std::vector<FlagRow> submitted_file_flags() {
  return {{"stdin", "FILE", "standard input of the script, at most 1 MiB; `-`: the standard input of this command"},
          {"file", "[NAME=]PATH", "a file that the script finds at /job/files/NAME", true}};
}

std::vector<FlagRow> submission_flags() {
  std::vector<FlagRow> flags = script_flags();
  for (FlagRow& flag : submitted_file_flags()) flags.push_back(std::move(flag));
  const std::vector<FlagRow> queue_flags = {
      {"url", "URL", "coordinator to which files of more than 1 MiB are uploaded (default: COORDINATOR_URL)"},
      {"delay", "DURATION", "run it no sooner than after this time"},
      {"run-at", "TIME", "run it no sooner than then, as in 2030-01-31T12:00:00Z"},
      {"depends", "ID", "run it after this job of the same caller has finished", true},
      {"caller", "ID", "the actor that submits it (default 1)"},
      {"notify", "TARGET", "receiver of the notification of its end: URL of a webhook, or JSON (docs/notify.md)",
       true}};
  flags.insert(flags.end(), queue_flags.begin(), queue_flags.end());
  for (FlagRow& flag :
       request_flags("job.create",
                     "id retries priority queue_timeout_ms=queue-timeout prerequisites=prerequisite "
                     "inputs=input:JOB[/ARTIFACT] concurrency_key concurrency_limit traceparent idempotency_key"))
    flags.push_back(std::move(flag));
  set_flag_help(flags, "queue-timeout", "maximum wait in the queue, as in 10m (default: no limit)");
  return flags;
}

// Reads the flags that are fields of a job.
Result<Job> read_job_fields(const Invocation& call) {
  MJ_TRY(caller, parse_id_flag(call, "caller", kDefaultCaller));
  if (call.has("idempotency-key") && call.get("idempotency-key").empty())
    return fail(Code::invalid, "--idempotency-key: is empty");
  const service::Request& row = *service::find_request("job.create");
  MJ_TRY(request, read_request(call, row, {{"caller_id", caller}}));
  auto decoded = decode_json<Job>(request.params());
  if (!decoded.ok())
    return tl::unexpected<Error>(to_command_line_error(call, {Code::invalid, join(decoded.problems)}, &row));
  return std::move(decoded.record);
}

Result<void> upload_large_files(const Invocation& call, Store& store, Submission& submission) {
  if (submission.large_files.empty()) return {};
  Job& job = submission.job;
  SubmittedFiles files = job.submitted_files ? *job.submitted_files : SubmittedFiles();
  for (const auto& [name, path] : submission.large_files) {
    auto upload = upload_file(call, store, path, job.caller_id);
    if (!upload) return fail(std::move(upload).error(), "--file");
    files.uploads.emplace(name, std::move(*upload));
  }
  submission.large_files.clear();
  return set_submitted_files(job, std::move(files));
}

Result<Submission> read_submission(const Invocation& call, bool allows_uploads) {
  Submission submission;
  MJ_TRY(fields, read_job_fields(call));
  Job& job = submission.job = std::move(fields);
  MJ_CHECK(read_script_argument(call, job));
  job.context_id = call.context();
  MJ_CHECK(read_environment_flags(call, job.env_vars));
  MJ_CHECK(read_submitted_files(call, allows_uploads, submission));
  MJ_CHECK(read_times(call, submission));
  MJ_CHECK(add_notify_flags(call, job.notify));
  MJ_CHECK(read_dependencies(call, job));
  MJ_CHECK(read_policy_flag(call, job));
  MJ_CHECK(to_command_line_error(call,
                                 service::check_new_job(make_request_context(call, job.caller_id), job, job.caller_id),
                                 service::find_request("job.create")));
  return submission;
}

Result<void> retry_while_unavailable(const Invocation& call, StoreSession& session, bool with_agent,
                                     const std::function<Result<void>(Store&)>& attempt) {
  std::uint64_t unavailable_since_ms = 0;
  for (;;) {
    auto result = attempt(*session.store);
    // Only `unavailable` can be resolved by a retry, but not, for example, a conflict.
    if (result || result.error().code != Code::unavailable) return result;
    const std::uint64_t now = call.dependencies.clock.boot_ms();
    if (unavailable_since_ms == 0) {
      unavailable_since_ms = now;
      print_message("the store is unavailable; retrying: " + result.error().message);
    }
    if (now - unavailable_since_ms > kMaxUnavailableMs || !wait_for_retry()) return result;
    reopen_store(call, session, with_agent);
  }
}

Result<Job> submit_once(const Invocation& call, StoreSession& session, Submission submission, bool with_agent) {
  Job& job = submission.job;
  MJ_CHECK(service::check_policy(make_request_context(call, job.caller_id), job));
  if (!job.policy.empty()) MJ_CHECK(warn_if_no_agent(call, *session.store, {job.script_type}));
  if (job.id == 0 && job.idempotency_key.empty()) job.idempotency_key = random_hex(16);
  // Fails at once for a wrong address. Only a submission that may have been stored is worth a retry.
  if (!call.settings.redis.empty()) MJ_CHECK(session.store->queue_length(job.context_id, queue_key(job.script_type)));
  if (submission.delay_ms) {
    MJ_TRY(now, store_now_ms(*session.store, job.context_id));
    job.run_at_ms = now + *submission.delay_ms;
  }
  const service::RequestContext caller = make_request_context(call, job.caller_id);
  Job submitted;
  auto result = retry_while_unavailable(call, session, with_agent, [&](Store& store) -> Result<void> {
    MJ_TRY(stored, service::submit_job(caller, store, std::nullopt, job));
    submitted = std::move(stored);
    return {};
  });
  if (result) return submitted;
  if (result.error().code != Code::unavailable)
    return tl::unexpected(to_command_line_error(call, std::move(result).error()));
  return fail(Code::unavailable,
              fmt::format("{}; whether the job was submitted is not known: the same command with {} submits it once",
                          result.error().message,
                          job.id != 0 ? fmt::format("--id {}", job.id) : "--idempotency-key " + job.idempotency_key));
}

}  // namespace mycojobs
