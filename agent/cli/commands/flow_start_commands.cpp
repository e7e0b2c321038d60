#include "cli/commands/flow_start_commands.h"

#include <fmt/format.h>
#include <poll.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/commands/command_table.h"
#include "cli/commands/flow_commands.h"
#include "cli/job_submission.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "flows/flow_plan.h"
#include "flows/flow_warnings.h"
#include "flows/flow_yaml.h"
#include "model/codec.h"
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

struct Source {
  const Invocation& call;
  fs::path folder;  // base of relative `file:` paths
  std::vector<PlanProblem> problems;
  bool has_default_type = false;  // of the current flow
};

// Replaces `file` of a job by `script` with the content of the file.
void embed(Source& source, const std::string& path, json& job) {
  const auto file = job.find("file");
  if (file == job.end()) return;
  const auto refuse = [&](std::string message) { source.problems.push_back({path + ".file", std::move(message)}); };
  if (!file->is_string() || file->get<std::string>().empty()) return refuse("must be a path, as in file: build.py");
  if (job.contains("script")) return refuse("a job has script or file, not both: omit one");
  const fs::path at = source.folder / file->get<std::string>();
  auto script = read_script(at.string(), source.call.settings.job_max_script_bytes);
  if (!script) return refuse(script.error().message);
  if (auto fine = check_script(at.string(), *script); !fine) return refuse(fine.error().message);
  if (!job.contains("type") && !job.contains("script_type")) {
    const std::string type = script_type_of(at.filename().string());
    if (type.empty() && !source.has_default_type)
      return refuse("its extension is not that of a script type: give the job a type, for example type: python");
    if (!type.empty()) job["type"] = type;
  }
  job.erase("file");
  job["script"] = *script;
}

void embed_all(Source& source, const std::string& path, json& flow, std::size_t depth) {
  if (depth > kMaxNesting || !flow.is_object()) return;
  const auto jobs = flow.find("jobs");
  if (jobs == flow.end()) return;
  const auto defaults = flow.find("defaults");
  const bool has_default_type = defaults != flow.end() && defaults->is_object() && defaults->contains("type");
  const auto each = [&](const std::string& at, json& job) {
    if (!job.is_object()) return;
    source.has_default_type = has_default_type;
    embed(source, at, job);
    if (const auto child = job.find("flow"); child != job.end()) embed_all(source, at + ".flow.", *child, depth + 1);
  };
  if (jobs->is_object()) {
    for (auto& [name, job] : jobs->items()) each(path + "jobs." + name, job);
  } else if (jobs->is_array()) {
    for (std::size_t i = 0; i < jobs->size(); ++i) each(fmt::format("{}jobs[{}]", path, i), (*jobs)[i]);
  }
}

// Parses the positions "line 3, column 5: ..." of YAML and "... at line 3 column 5: ..." of JSON errors.
PlanProblem problem_of_text(std::string message) {
  PlanProblem problem;
  const auto at = message.find("line ");
  if (at != std::string::npos) {
    const char* text = message.c_str() + at;
    if (std::sscanf(text, "line %zu, column %zu", &problem.line, &problem.column) == 2 && at == 0) {
      message.erase(0, message.find(": ") + 2);
    } else if (std::sscanf(text, "line %zu column %zu", &problem.line, &problem.column) != 2) {
      problem.line = 0;
    }
  }
  problem.message = std::move(message);
  return problem;
}

bool is_json(const std::string& file, const std::string& text) {
  if (file.ends_with(".yaml") || file.ends_with(".yml")) return false;
  const auto first = text.find_first_not_of(" \t\r\n");
  return file.ends_with(".json") || (first != std::string::npos && text[first] == '{');
}

void check_policies(Source& source, const FlowPlan& plan) {
  const service::RequestContext by = requested_owner(source.call, kDefaultCaller);
  for (const PlanNode& node : plan.nodes) {
    if (auto allowed = service::check_node_policy(by, node); !allowed)
      source.problems.push_back({"jobs." + node.name + ".policy", allowed.error().message});
  }
}

// Reads the values of --input: NAME=VALUE, with the type from the definition, or @FILE, a map in JSON or YAML.
Result<json> inputs_of(const Invocation& call, const json& definition) {
  json values = json::object();
  const auto flags = call.flags.find("input");
  if (flags == call.flags.end()) return values;
  for (const std::string& text : flags->second) {
    if (text.starts_with('@')) {
      const std::string file = text.substr(1);
      MJ_TRY(content, read_script(file, kMaxInputsFileBytes));
      YamlText places;
      auto parsed = is_json(file, content) ? parse_exact_json(content, kMaxInputsFileBytes)
                                           : yaml_to_json(content, kMaxInputsFileBytes, places);
      if (!parsed) return fail(Code::invalid, "--input: " + file + ": " + parsed.error().message);
      if (!parsed->is_object()) return fail(Code::invalid, "--input: " + file + ": is not a map from names to values");
      values.update(*parsed);
      continue;
    }
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(Code::invalid, "--input: " + excerpt(text) + " is not NAME=VALUE, and not @FILE");
    const std::string name = text.substr(0, equals);
    auto value = input_of_text(definition, name, text.substr(equals + 1));
    if (!value) return fail(Code::invalid, "--input: " + value.error().message);
    values[name] = std::move(*value);
  }
  return values;
}

void check_types(Source& source, const FlowPlan& plan) {
  std::vector<std::string> types = source.call.settings.script_types;
  for (const auto& executor : source.call.parts.executors(source.call.settings)) {
    const auto its = executor->script_types();
    types.insert(types.end(), its.begin(), its.end());
  }
  const std::vector<std::string_view> known(types.begin(), types.end());
  for (const PlanNode& node : plan.nodes) {
    const std::string& type = node.job.script_type;
    const bool runs = std::find(known.begin(), known.end(), type) != known.end();
    if ((node.kind != NodeKind::job && node.kind != NodeKind::each) || runs || nearest(type, known).empty()) continue;
    source.problems.push_back({"jobs." + node.name + ".type",
                               "no executor here runs " + excerpt(type) + did_you_mean(type, known) +
                                   " If another host serves it, name it in script_types of the configuration"});
  }
}

}  // namespace

namespace {

void add_warnings(const std::string& text, const json& definition, YamlText& places, ParsedFlowFile& read) {
  if (!read.plan) return;
  read.warnings = warnings_of(*read.plan, definition);
  if (read.warnings.empty()) return;
  if (places.places.empty()) (void)yaml_to_json(text, kMaxDefinitionBytes, places);
  for (PlanProblem& warning : read.warnings) locate(places, warning);
}

}  // namespace

Result<ParsedFlowFile> read_flow_file(const Invocation& call, const std::string& file, bool types) {
  MJ_TRY(text, read_script(file, kMaxDefinitionBytes));
  ParsedFlowFile read;
  YamlText places;
  auto parsed = is_json(file, text) ? parse_exact_json(text, kMaxDefinitionBytes) : flow_yaml_to_json(text, places);
  if (!parsed) {
    read.problems.push_back(problem_of_text(parsed.error().message));
    return read;
  }
  Source source{call, file == "-" ? fs::path() : fs::path(file).parent_path(), {}};
  embed_all(source, "", *parsed, 0);
  MJ_TRY(inputs, inputs_of(call, *parsed));
  MJ_CHECK(apply_inputs(*parsed, inputs));
  static_cast<ParsedPlan&>(read) = read_plan(*parsed);
  if (read.plan) check_policies(source, *read.plan);
  if (read.plan && types) check_types(source, *read.plan);
  if (!source.problems.empty()) {
    // A job whose file cannot be read also lacks a script; only one problem is reported.
    std::erase_if(read.problems, [&](const PlanProblem& problem) {
      return std::any_of(source.problems.begin(), source.problems.end(), [&](const PlanProblem& ours) {
        return ours.path == problem.path || ours.path == problem.path + ".file";
      });
    });
    read.problems.insert(read.problems.begin(), source.problems.begin(), source.problems.end());
    read.plan.reset();
  }
  // JSON is valid YAML, so the same reader determines the positions.
  if (!read.problems.empty() && places.places.empty()) (void)yaml_to_json(text, kMaxDefinitionBytes, places);
  for (PlanProblem& problem : read.problems) locate(places, problem);
  std::stable_sort(read.problems.begin(), read.problems.end(),
                   [](const PlanProblem& a, const PlanProblem& b) { return a.line < b.line; });
  add_warnings(text, *parsed, places, read);
  return read;
}

Result<FlowPlan> flow_file_argument(const Invocation& call) {
  const std::string& file = call.arguments.at(0);
  MJ_TRY(read, read_flow_file(call, file));
  if (!read.plan) return fail(Code::invalid, join_at(file, std::move(read.problems)));
  return std::move(*read.plan);
}

Result<void> check_inputs(const FlowPlan& plan) {
  if (plan.missing.empty()) return {};
  return fail(Code::invalid, missing_inputs(plan));
}

std::string join_at(const std::string& file, std::vector<PlanProblem> problems) {
  std::string out;
  for (PlanProblem& problem : problems) {
    out += (out.empty() ? "" : "\n") + file;
    if (problem.line != 0) out += fmt::format(":{}:{}", problem.line, problem.column);
    problem.line = 0;
    out += ": " + join({problem});
  }
  return out;
}

// mycojobs flow start | create | check

namespace {

constexpr std::uint64_t kStartUnavailableMs = 10000;  // maximum time for which an unavailable store is retried
constexpr int kStartAgainMs = 100;

// Returns the caller of --caller, which owns the flow, without authentication.
Result<service::RequestContext> maker(const Invocation& call) {
  MJ_TRY(caller, id_flag(call, "caller", kDefaultCaller));
  return requested_owner(call, caller);
}

Result<service::CreateFlow> new_flow(const Invocation& call) {
  service::CreateFlow wanted;
  const auto env = call.flags.find("env");
  for (const std::string& pair : env == call.flags.end() ? std::vector<std::string>() : env->second) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(Code::invalid, "--env: " + excerpt(pair) + " is not NAME=VALUE");
    wanted.env_vars[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  MJ_CHECK(read_notify_flag(call, wanted.notify));
  wanted.traceparent = call.get("traceparent");
  // A generated key permits a retry after the loss of the server without creating a second flow.
  wanted.idempotency_key = call.has("key") ? call.get("key") : "cli-" + random_hex(16);
  MJ_CHECK(with_original_arguments(call, service::check(wanted)));
  return wanted;
}

// Repeats an idempotent call while the store is unavailable.
template <class Do>
auto persist(const Invocation& call, OpenedFlows& open, bool with_agent, const Do& act) -> decltype(act()) {
  std::uint64_t unavailable_since_ms = 0;
  for (;;) {
    auto done = act();
    if (done || done.error().code != Code::unavailable) return done;
    const std::uint64_t now = call.parts.clock.boot_ms();
    if (unavailable_since_ms == 0) {
      unavailable_since_ms = now;
      print_message("the store is unavailable; retrying: " + done.error().message);
    }
    if (now - unavailable_since_ms > kStartUnavailableMs) return done;
    ::poll(nullptr, 0, kStartAgainMs);
    reopen_flows(call, open, with_agent);
  }
}

Result<Flow> create(const Invocation& call, OpenedFlows& open, const FlowPlan& plan, const service::CreateFlow& wanted,
                    bool with_agent) {
  MJ_TRY(by, maker(call));
  MJ_CHECK(warn_without_agents(call, open.store(), script_types_with_policy(plan)));
  auto created = persist(call, open, with_agent, [&] { return service::create_flow(by, open.stores(), plan, wanted); });
  if (!created && created.error().code == Code::unavailable && !call.has("key")) {
    return fail(Code::unavailable, created.error().message +
                                       "; it is unknown whether the flow was created: the same command with --key " +
                                       *wanted.idempotency_key + " creates it once");
  }
  return with_original_arguments(call, std::move(created));
}

void print_created(const Invocation& call, const Flow& flow, std::string_view what) {
  if (call.json) {
    print(dump_json({{"flow", flow.id}, {"name", flow.name}, {"key", redis_key(flow)}, {"answer", what}}) + "\n");
  } else {
    print(redis_key(flow) + "\n");
  }
}

Result<int> follow_started(const Invocation& call, OpenedFlows& open, Id flow) {
  MJ_TRY(followed, follow_flow(call, open, flow, {.with_agent = true}));
  Agent* ours = open.opened.session.agent.get();
  if (followed.signal != 0) {
    const std::string again = fmt::format("`mycojobs flow watch {}{}` shows it again", flow, context_words(call));
    print_message(
        ours != nullptr
            ? fmt::format("exiting: flow {} continues with the next agent and coordinator on this state folder "
                          "(`mycojobs dev`); {}",
                          flow, again)
            : fmt::format("flow {} continues; {}", flow, again));
    // Without a reader the command ends at once, like by SIGPIPE, because the output of wait_for_drain() cannot be
    // seen.
    if (ours != nullptr && followed.signal != SIGPIPE) wait_for_drain(*ours);
    return exit_of_signal(followed.signal);
  }
  print_flow_end(call, followed.view);
  if (ours != nullptr) wait_for_drain(*ours);
  return exit_code(followed.view);
}

bool wants_to_follow(const Invocation& call) {
  if (call.has("detach")) return false;
  // With the embedded Redis, no other process may be running the flow.
  return call.has("follow") || call.settings.redis.empty() || ::isatty(STDERR_FILENO) != 0;
}

// Returns the definition of an existing flow.
Result<FlowPlan> plan_of(const Invocation& call, OpenedFlows& open, Id flow) {
  MJ_TRY(view, inspect_flow(*open.flows, open.store(), context_of(call), flow));
  MJ_TRY(text, open.flows->definition(context_of(call), view.record.definition_hash));
  MJ_TRY(parsed, parse_json(text, kMaxDefinitionBytes));
  ParsedPlan read = read_plan(parsed);
  if (!read.plan) return fail(Code::invalid, join(read.problems));
  return std::move(*read.plan);
}

Result<Id> flow_to_start(const Invocation& call, OpenedFlows& open, const std::optional<FlowPlan>& plan,
                         bool with_agent) {
  if (!plan) {
    MJ_TRY(flow, flow_argument(call));
    // A definition that cannot be read is reported by the start of the flow.
    if (const auto known = plan_of(call, open, flow); known && with_agent)
      MJ_CHECK(check_served(call, open.store(), script_types_of(*known)));
    return flow;
  }
  if (with_agent) MJ_CHECK(check_served(call, open.store(), script_types_of(*plan)));
  MJ_TRY(wanted, new_flow(call));
  MJ_TRY(flow, create(call, open, *plan, wanted, with_agent));
  return flow.id;
}

Result<int> start(const Invocation& call) {
  if (call.has("follow") && call.has("detach"))
    return fail(Code::invalid, "--follow and --detach: use only one of them");
  const std::string& argument = call.arguments.at(0);
  // "12" is the id of an existing flow, unless there is a file with this name.
  const bool exists_already = flow_id(argument).has_value() && ::access(argument.c_str(), F_OK) != 0;
  std::optional<FlowPlan> plan;
  if (exists_already && call.has("input")) {
    return fail(Code::invalid, "--input: a flow that was created has its inputs; give them to `flow create`");
  }
  if (!exists_already) {
    MJ_TRY(read, flow_file_argument(call));
    MJ_CHECK(check_inputs(read));
    plan = std::move(read);
  }
  MJ_TRY(by, maker(call));
  const bool follow = wants_to_follow(call);
  auto opened = follow ? open_flows(call, true) : open_flows_to_answer(call);
  MJ_TRY(open, std::move(opened));
  MJ_TRY(flow, flow_to_start(call, open, plan, follow));
  MJ_TRY(began, persist(call, open, follow, [&] { return service::start_flow(by, open.stores(), {flow, "manual"}); }));
  if (follow) {
    print_message(paint(OutputStyle::faint, fmt::format("flow {} is started; Ctrl-C leaves it running", flow), true));
    return follow_started(call, open, flow);
  }
  Flow record;
  record.id = flow;
  record.name = plan ? plan->name : "";
  print_created(call, record, began.facts > 0 ? "is started" : "had been started before");
  warn_if_no_leader(call, open);
  return 0;
}

Result<int> create_only(const Invocation& call) {
  MJ_TRY(plan, flow_file_argument(call));
  MJ_CHECK(check_inputs(plan));
  MJ_TRY(wanted, new_flow(call));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(flow, create(call, open, plan, wanted, false));
  print_created(call, flow, "is created; `mycojobs flow start` starts it");
  return 0;
}

nlohmann::json to_json(const std::vector<PlanProblem>& problems) {
  nlohmann::json out = nlohmann::json::array();
  for (const PlanProblem& problem : problems)
    out.push_back({{"path", to_utf8(problem.path)},
                   {"message", to_utf8(problem.message)},
                   {"line", problem.line},
                   {"column", problem.column}});
  return out;
}

Result<int> check_file(const Invocation& call) {
  exit_on_stop_signals();
  MJ_TRY(read, read_flow_file(call, call.arguments.at(0), true));
  if (call.json) {
    nlohmann::json out{
        {"ok", read.plan.has_value()}, {"problems", to_json(read.problems)}, {"warnings", to_json(read.warnings)}};
    if (read.plan)
      out.update({{"name", read.plan->name}, {"hash", read.plan->hash}, {"nodes", read.plan->static_node_count()}});
    print(dump_json(out, 2) + "\n");
  } else if (read.plan) {
    print(fmt::format("{}: {}, definition {}\n", one_line(read.plan->name),
                      count_with_noun(read.plan->static_node_count(), "node"), read.plan->hash));
    for (const PlanProblem& warning : read.warnings)
      print_message(paint(OutputStyle::warn, "warning: ", true) + join_at(call.arguments.at(0), {warning}));
  } else {
    print(printable(join_at(call.arguments.at(0), read.problems)) + "\n");
  }
  return read.plan ? 0 : EX_DATAERR;
}

}  // namespace

int flow_start_command(Invocation& call) { return finish(start(call)); }
int flow_create_command(Invocation& call) { return finish(create_only(call)); }
int flow_check_command(Invocation& call) { return finish(check_file(call)); }

}  // namespace mycojobs
