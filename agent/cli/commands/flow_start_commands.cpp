#include "cli/commands/flow_start_commands.h"

#include <fmt/format.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/commands/flow_commands.h"
#include "cli/job_submission.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/terminal.h"
#include "flows/flow_plan.h"
#include "flows/flow_warnings.h"
#include "flows/flow_yaml.h"
#include "model/codec.h"
#include "text/base64.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMaxNesting = 16;  // limit of nested flow definitions
constexpr std::size_t kMaxInputsFileBytes = 1U << 20;

// The definition that read_flow_file() reads, with the problems of its files, types and policies.
struct FlowSource {
  const Invocation& call;
  fs::path folder;  // base of relative `file:` paths
  std::vector<DocumentProblem> problems;
  bool has_default_type = false;  // the current flow has a default script type
};

// Replaces `file` of a job by `script` with the content of the file.
void embed_script(FlowSource& source, const std::string& path, json& job) {
  const auto file = job.find("file");
  if (file == job.end()) return;
  const auto reject = [&](std::string message) { source.problems.push_back({path + ".file", std::move(message)}); };
  if (!file->is_string() || file->get<std::string>().empty()) return reject("must be a path, as in file: build.py");
  if (job.contains("script")) return reject("a job has script or file, not both: omit one");
  const fs::path script_path = source.folder / file->get<std::string>();
  auto script = read_script(script_path.string(), source.call.settings.job_max_script_bytes);
  if (!script) return reject(script.error().message);
  if (auto result = check_script(script_path.string(), *script); !result) return reject(result.error().message);
  if (!job.contains("type") && !job.contains("script_type")) {
    const std::string type = guess_script_type(script_path.filename().string());
    if (type.empty() && !source.has_default_type)
      return reject("its extension is not that of a script type: give the job a type, for example type: python");
    if (!type.empty()) job["type"] = type;
  }
  job.erase("file");
  job["script"] = *script;
}

// Replaces {file: path} by the content of the file.
void embed_content(FlowSource& source, const std::string& path, json& value) {
  if (!value.is_object() || value.size() != 1 || !value.contains("file") || !value["file"].is_string()) return;
  const auto& name = value["file"].get_ref<const std::string&>();
  if (name.empty() || name == "-") {
    source.problems.push_back({path, "must name a file, as in {file: data.csv}; the file - is written ./-"});
    return;
  }
  const fs::path file = source.folder / name;
  auto bytes = read_submitted_file(file.string());
  if (!bytes) {
    source.problems.push_back({path, bytes.error().message});
  } else if (is_utf8(*bytes)) {
    value = std::move(*bytes);
  } else {
    value = {{"base64", encode_base64(*bytes)}};
  }
}

void embed_files(FlowSource& source, const std::string& path, json& job) {
  if (const auto input = job.find("stdin"); input != job.end()) embed_content(source, path + ".stdin", *input);
  const auto files = job.find("files");
  if (files == job.end() || !files->is_object()) return;
  for (auto& [name, value] : files->items()) embed_content(source, path + ".files." + name, value);
}

// Embeds the scripts and files of all jobs of a flow definition and of its child flows.
void embed_scripts(FlowSource& source, const std::string& path, json& flow, std::size_t depth) {
  if (depth > kMaxNesting || !flow.is_object()) return;
  const auto jobs = flow.find("jobs");
  if (jobs == flow.end()) return;
  const auto defaults = flow.find("defaults");
  const bool has_default_type = defaults != flow.end() && defaults->is_object() && defaults->contains("type");
  const auto visit_job = [&](const std::string& job_path, json& job) {
    if (!job.is_object()) return;
    source.has_default_type = has_default_type;
    embed_script(source, job_path, job);
    embed_files(source, job_path, job);
    if (const auto child = job.find("flow"); child != job.end())
      embed_scripts(source, job_path + ".flow.", *child, depth + 1);
  };
  if (jobs->is_object()) {
    for (auto& [name, job] : jobs->items()) visit_job(path + "jobs." + name, job);
  } else if (jobs->is_array()) {
    for (std::size_t i = 0; i < jobs->size(); ++i) visit_job(fmt::format("{}jobs[{}]", path, i), (*jobs)[i]);
  }
}

// Decides by the extension of the file, otherwise by its first character. Other files are YAML.
bool has_json_content(const std::string& file, const std::string& text) {
  if (file.ends_with(".yaml") || file.ends_with(".yml")) return false;
  const auto begin = text.find_first_not_of(" \t\r\n");
  return file.ends_with(".json") || (begin != std::string::npos && text[begin] == '{');
}

void check_policies(FlowSource& source, const FlowPlan& plan) {
  const service::RequestContext caller = make_request_context(source.call, kDefaultCaller);
  for (const PlanNode& node : plan.nodes) {
    if (auto result = service::check_node_policy(caller, node); !result)
      source.problems.push_back({"jobs." + node.name + ".policy", result.error().message});
  }
}

// Reads the values of --input: NAME=VALUE, with the type from the definition, or @FILE, a map in JSON or YAML.
Result<json> read_input_flags(const Invocation& call, const json& definition) {
  json values = json::object();
  for (const std::string& text : call.get_all("input")) {
    if (text.starts_with('@')) {
      const std::string file = text.substr(1);
      MJ_TRY(content, read_script(file, kMaxInputsFileBytes));
      YamlText positions;
      auto parsed = has_json_content(file, content) ? parse_exact_json(content, kMaxInputsFileBytes)
                                                    : yaml_to_json(content, kMaxInputsFileBytes, positions);
      if (!parsed) return fail(Code::invalid, "--input: " + file + ": " + parsed.error().message);
      if (!parsed->is_object()) return fail(Code::invalid, "--input: " + file + ": is not a map from names to values");
      values.update(*parsed);
      continue;
    }
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(Code::invalid, "--input: " + excerpt(text) + " is not NAME=VALUE, and not @FILE");
    const std::string name = text.substr(0, equals);
    auto value = parse_input(definition, name, text.substr(equals + 1));
    if (!value) return fail(Code::invalid, "--input: " + value.error().message);
    values[name] = std::move(*value);
  }
  return values;
}

void check_script_types(FlowSource& source, const FlowPlan& plan) {
  std::vector<std::string> types = source.call.settings.script_types;
  for (const auto& executor : source.call.dependencies.make_executors(source.call.settings)) {
    const auto executor_types = executor->script_types();
    types.insert(types.end(), executor_types.begin(), executor_types.end());
  }
  const std::vector<std::string_view> known_types(types.begin(), types.end());
  for (const PlanNode& node : plan.nodes) {
    const std::string& type = node.job.script_type;
    const bool is_known = std::find(known_types.begin(), known_types.end(), type) != known_types.end();
    if ((node.kind != NodeKind::job && node.kind != NodeKind::each) || is_known ||
        find_nearest(type, known_types).empty())
      continue;
    source.problems.push_back({"jobs." + node.name + ".type",
                               "no executor here runs " + excerpt(type) + did_you_mean(type, known_types) +
                                   " If another host serves it, name it in script_types of the configuration"});
  }
}

void add_warnings(const std::string& text, const json& definition, YamlText& positions, ParsedFlowFile& flow_file) {
  if (!flow_file.plan) return;
  flow_file.warnings = find_warnings(*flow_file.plan, definition);
  if (flow_file.warnings.empty()) return;
  if (positions.positions.empty()) (void)yaml_to_json(text, kMaxDefinitionBytes, positions);
  for (DocumentProblem& warning : flow_file.warnings) set_position(positions, warning);
}

}  // namespace

Result<ParsedFlowFile> read_flow_file(const Invocation& call, const std::string& file, bool check_types) {
  MJ_TRY(text, read_script(file, kMaxDefinitionBytes));
  ParsedFlowFile flow_file;
  YamlText positions;
  auto parsed =
      has_json_content(file, text) ? parse_exact_json(text, kMaxDefinitionBytes) : flow_yaml_to_json(text, positions);
  if (!parsed) {
    flow_file.problems.push_back(parse_syntax_error(parsed.error().message));
    return flow_file;
  }
  FlowSource source{call, file == "-" ? fs::path() : fs::path(file).parent_path(), {}};
  embed_scripts(source, "", *parsed, 0);
  MJ_TRY(inputs, read_input_flags(call, *parsed));
  MJ_CHECK(apply_inputs(*parsed, inputs));
  static_cast<ParsedPlan&>(flow_file) = read_plan(*parsed);
  if (flow_file.plan) check_policies(source, *flow_file.plan);
  if (flow_file.plan && check_types) check_script_types(source, *flow_file.plan);
  if (!source.problems.empty()) {
    // A job whose file cannot be read also lacks a script; only one problem is reported.
    std::erase_if(flow_file.problems, [&](const DocumentProblem& problem) {
      return std::any_of(source.problems.begin(), source.problems.end(), [&](const DocumentProblem& source_problem) {
        return source_problem.path == problem.path || source_problem.path == problem.path + ".file";
      });
    });
    flow_file.problems.insert(flow_file.problems.begin(), source.problems.begin(), source.problems.end());
    flow_file.plan.reset();
  }
  // JSON is valid YAML, so the same reader determines the positions.
  if (!flow_file.problems.empty() && positions.positions.empty())
    (void)yaml_to_json(text, kMaxDefinitionBytes, positions);
  for (DocumentProblem& problem : flow_file.problems) set_position(positions, problem);
  std::stable_sort(flow_file.problems.begin(), flow_file.problems.end(),
                   [](const DocumentProblem& a, const DocumentProblem& b) { return a.line < b.line; });
  add_warnings(text, *parsed, positions, flow_file);
  return flow_file;
}

Result<FlowPlan> read_flow_file_argument(const Invocation& call, std::size_t index) {
  const std::string& file = call.arguments.at(index);
  MJ_TRY(flow_file, read_flow_file(call, file));
  if (!flow_file.plan) return fail(Code::invalid, format_problems(file, std::move(flow_file.problems)));
  return std::move(*flow_file.plan);
}

Result<void> check_inputs(const FlowPlan& plan) {
  if (plan.missing.empty()) return {};
  return fail(Code::invalid, describe_missing_inputs(plan));
}

std::string format_problems(const std::string& file, std::vector<DocumentProblem> problems) {
  std::string out;
  for (DocumentProblem& problem : problems) {
    out += (out.empty() ? "" : "\n") + file;
    if (problem.line != 0) out += fmt::format(":{}:{}", problem.line, problem.column);
    problem.line = 0;
    out += ": " + join({problem});
  }
  return out;
}

// mycojobs flow start | create | check

namespace {

constexpr std::uint64_t kMaxStartUnavailableMs = 10000;  // maximum time for which an unavailable store is retried
constexpr int kStartRetryIntervalMs = 100;

// Returns the caller of --caller, which owns the flow, without authentication.
Result<service::RequestContext> make_owner_context(const Invocation& call) {
  MJ_TRY(caller, parse_id_flag(call, "caller", kDefaultCaller));
  return make_request_context(call, caller);
}

Result<service::CreateFlow> read_create_request(const Invocation& call) {
  MJ_TRY(params, read_request(call, *service::find_request("flow.create"), nlohmann::json::object()));
  service::CreateFlow request;
  MJ_CHECK(read_environment_flags(call, request.env_vars));
  MJ_CHECK(add_notify_flags(call, request.notify));
  request.traceparent = params.text("traceparent");
  // A generated key permits a retry after the loss of the server without creating a second flow.
  request.idempotency_key = params.optional_text("idempotency_key").value_or("cli-" + random_hex(16));
  MJ_CHECK(to_command_line_error(call, service::check(request)));
  return request;
}

// Repeats an idempotent call while the store is unavailable, until a stop signal.
template <class Attempt>
auto retry_flow_call(const Invocation& call, FlowSession& session, bool with_agent, const Attempt& attempt)
    -> decltype(attempt()) {
  std::uint64_t unavailable_since_ms = 0;
  for (;;) {
    auto result = attempt();
    if (result || result.error().code != Code::unavailable) return result;
    const std::uint64_t now = call.dependencies.clock.boot_ms();
    if (unavailable_since_ms == 0) {
      unavailable_since_ms = now;
      print_message("the store is unavailable; retrying: " + result.error().message);
    }
    if (now - unavailable_since_ms > kMaxStartUnavailableMs) return result;
    if (next_stop_signal(kStartRetryIntervalMs) != 0) return result;
    reopen_flow_session(call, session, with_agent);
  }
}

Result<Flow> create_flow(const Invocation& call, FlowSession& session, const FlowPlan& plan,
                         const service::CreateFlow& request, bool with_agent) {
  MJ_TRY(caller, make_owner_context(call));
  MJ_CHECK(warn_if_no_agent(call, *session.store, collect_policy_script_types(plan)));
  auto result = retry_flow_call(call, session, with_agent,
                                [&] { return service::create_flow(caller, session.stores(), plan, request); });
  if (!result && result.error().code == Code::unavailable && !call.has("key")) {
    return fail(Code::unavailable, result.error().message +
                                       "; it is unknown whether the flow was created: the same command with --key " +
                                       *request.idempotency_key + " creates it once");
  }
  return to_command_line_error(call, std::move(result));
}

void print_created(const Invocation& call, const Flow& flow, std::string_view outcome) {
  print_answer(call, {{"flow", flow.id}, {"name", flow.name}, {"key", redis_key(flow)}, {"answer", outcome}},
               redis_key(flow));
}

Result<int> follow_started(const Invocation& call, FlowSession& session, Id flow) {
  MJ_TRY(follow_result, follow_flow(call, session, flow, {.with_agent = true}));
  Agent* agent = session.services.agent.get();
  if (follow_result.signal != 0) {
    const std::string hint = fmt::format("`mycojobs flow watch {}{}` shows it again", flow, format_context_flag(call));
    print_message(
        agent != nullptr
            ? fmt::format("exiting: flow {} continues with the next agent and coordinator on this state folder "
                          "(`mycojobs dev`); {}",
                          flow, hint)
            : fmt::format("flow {} continues; {}", flow, hint));
    // Without a reader the command ends at once, like by SIGPIPE, because the output of wait_for_drain() cannot be
    // seen.
    if (agent != nullptr && follow_result.signal != SIGPIPE) wait_for_drain(*agent);
    return signal_exit_code(follow_result.signal);
  }
  print_flow_end(call, follow_result.view);
  if (agent != nullptr) wait_for_drain(*agent);
  return exit_code(follow_result.view);
}

bool should_follow(const Invocation& call) {
  if (call.has("detach")) return false;
  // With the embedded Redis, it is possible that no other process runs the flow.
  return call.has("follow") || call.settings.redis.empty() || ::isatty(STDERR_FILENO) != 0;
}

// Returns the definition of an existing flow.
Result<FlowPlan> load_plan(const Invocation& call, FlowSession& session, Id flow) {
  MJ_TRY(view, inspect_flow(*session.flows, *session.store, call.context(), flow));
  MJ_TRY(text, session.flows->definition(call.context(), view.record.definition_hash));
  MJ_TRY(parsed, parse_json(text, kMaxDefinitionBytes));
  ParsedPlan parsed_plan = read_plan(parsed);
  if (!parsed_plan.plan) return fail(Code::invalid, join(parsed_plan.problems));
  return std::move(*parsed_plan.plan);
}

// Returns the flow to start: the existing flow of the argument, or a new flow of `plan`.
Result<Id> find_or_create_flow(const Invocation& call, FlowSession& session, const std::optional<FlowPlan>& plan,
                               bool with_agent) {
  if (!plan) {
    MJ_TRY(flow, parse_flow_argument(call));
    // A definition that cannot be read is reported by the start of the flow.
    if (const auto known_plan = load_plan(call, session, flow); known_plan && with_agent)
      MJ_CHECK(check_types_are_served(call, *session.store, collect_script_types(*known_plan)));
    return flow;
  }
  if (with_agent) MJ_CHECK(check_types_are_served(call, *session.store, collect_script_types(*plan)));
  MJ_TRY(request, read_create_request(call));
  MJ_TRY(flow, create_flow(call, session, *plan, request, with_agent));
  return flow.id;
}

}  // namespace

Result<int> flow_start_command(Invocation& call) {
  if (call.has("follow") && call.has("detach"))
    return fail(Code::invalid, "--follow and --detach: use only one of them");
  const std::string& argument = call.arguments.at(0);
  // "12" is the id of an existing flow, unless there is a file with this name.
  const bool is_existing_flow = parse_flow_id(argument).has_value() && ::access(argument.c_str(), F_OK) != 0;
  std::optional<FlowPlan> plan;
  if (is_existing_flow && call.has("input")) {
    return fail(Code::invalid, "--input: a flow that was created has its inputs; give them to `flow create`");
  }
  if (!is_existing_flow) {
    MJ_TRY(parsed_plan, read_flow_file_argument(call));
    MJ_CHECK(check_inputs(parsed_plan));
    plan = std::move(parsed_plan);
  }
  MJ_TRY(caller, make_owner_context(call));
  const bool follow = should_follow(call);
  MJ_TRY(session, follow ? open_flow_session(call, true) : open_flow_session_for_query(call));
  MJ_TRY(flow, find_or_create_flow(call, session, plan, follow));
  MJ_TRY(progress, retry_flow_call(call, session, follow, [&] {
           return service::start_flow(caller, session.stores(), {flow, "manual"});
         }));
  if (follow) {
    print_message(paint(OutputStyle::faint, fmt::format("flow {} is started; Ctrl-C leaves it running", flow), true));
    return follow_started(call, session, flow);
  }
  Flow record;
  record.id = flow;
  record.name = plan ? plan->name : "";
  print_created(call, record, progress.fact_count > 0 ? "is started" : "had been started before");
  warn_if_no_leader(call, session);
  return 0;
}

Result<int> flow_create_command(Invocation& call) {
  MJ_TRY(plan, read_flow_file_argument(call));
  MJ_CHECK(check_inputs(plan));
  MJ_TRY(request, read_create_request(call));
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_TRY(flow, create_flow(call, session, plan, request, false));
  print_created(call, flow, "is created; `mycojobs flow start` starts it");
  return 0;
}

Result<int> flow_check_command(Invocation& call) {
  exit_on_stop_signals();
  MJ_TRY(flow_file, read_flow_file(call, call.arguments.at(0), true));
  if (call.json) {
    nlohmann::json out{{"ok", flow_file.plan.has_value()},
                       {"problems", service::to_json(flow_file.problems)},
                       {"warnings", service::to_json(flow_file.warnings)}};
    if (flow_file.plan)
      out.update({{"name", flow_file.plan->name},
                  {"hash", flow_file.plan->hash},
                  {"nodes", flow_file.plan->static_node_count()}});
    print_json(out);
  } else if (flow_file.plan) {
    print(fmt::format("{}: {}, definition {}\n", to_printable_line(flow_file.plan->name),
                      count_with_noun(flow_file.plan->static_node_count(), "node"), flow_file.plan->hash));
    for (const DocumentProblem& warning : flow_file.warnings)
      print_warning(format_problems(call.arguments.at(0), {warning}));
  } else {
    print(to_printable(format_problems(call.arguments.at(0), flow_file.problems)) + "\n");
  }
  return flow_file.plan ? 0 : EX_DATAERR;
}

}  // namespace mycojobs
