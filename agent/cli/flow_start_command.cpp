// mycojobs flow start | create | check
#include <fmt/format.h>
#include <poll.h>
#include <sysexits.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/ids.h"
#include "cli/commands.h"
#include "cli/flow_file.h"
#include "cli/flow_live.h"
#include "cli/flow_opened.h"
#include "cli/serve.h"
#include "cli/served.h"
#include "cli/submission.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kStartAwayMs = 10000;  // how long a store may be away before we give up
constexpr int kStartAgainMs = 100;

// Of --caller, whose flow it is: taken at its word.
Result<service::Caller> maker(const Invocation& call) {
  MJ_TRY(caller, id_flag(call, "caller", kDefaultCaller));
  return service::Caller{context_of(call), caller, WayIn::command, true};
}

Result<service::CreateFlow> new_flow(const Invocation& call) {
  service::CreateFlow wanted;
  const auto env = call.flags.find("env");
  for (const std::string& pair : env == call.flags.end() ? std::vector<std::string>() : env->second) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail(Code::invalid, "--env: " + shown(pair) + " is not NAME=VALUE");
    wanted.env_vars[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  MJ_CHECK(read_notify_flag(call, wanted.notify));
  // One of our own: what was broken off by a server that goes away is gone on with when it is back.
  wanted.idempotency_key = call.has("key") ? call.get("key") : "cli-" + random_hex(16);
  MJ_CHECK(as_typed(call, service::check(wanted)));
  return wanted;
}

// Again, if the store goes away in the middle.
template <class Do>
auto persist(const Invocation& call, OpenedFlows& open, bool with_agent, const Do& act) -> decltype(act()) {
  std::uint64_t away_since_ms = 0;
  for (;;) {
    auto done = act();
    if (done || done.error().code != Code::unavailable) return done;
    const std::uint64_t now = call.parts.clock.boot_ms();
    if (away_since_ms == 0) {
      away_since_ms = now;
      say("the store is away; trying again: " + done.error().message);
    }
    if (now - away_since_ms > kStartAwayMs) return done;
    ::poll(nullptr, 0, kStartAgainMs);
    reopen_flows(call, open, with_agent);
  }
}

Result<Flow> create(const Invocation& call, OpenedFlows& open, const FlowPlan& plan, const service::CreateFlow& wanted,
                    bool with_agent) {
  MJ_TRY(by, maker(call));
  auto created = persist(call, open, with_agent, [&] { return service::create_flow(by, open.stores(), plan, wanted); });
  if (!created && created.error().code == Code::unavailable && !call.has("key")) {
    return fail(Code::unavailable, created.error().message +
                                       "; whether the flow was created is not known: the same "
                                       "command with --key " +
                                       *wanted.idempotency_key + " creates it once");
  }
  return as_typed(call, std::move(created));
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
    say(ours != nullptr
            ? fmt::format("leaving: flow {} goes on with the next agent and coordinator on this state folder "
                          "(`mycojobs dev`); {}",
                          flow, again)
            : fmt::format("flow {} goes on; {}", flow, again));
    if (ours != nullptr) let_finish(*ours);
    return exit_of_signal(followed.signal);
  }
  print_flow_end(call, followed.view);
  if (ours != nullptr) let_finish(*ours);
  return exit_code(followed.view);
}

bool wants_to_follow(const Invocation& call) {
  if (call.has("detach")) return false;
  // On the embedded default nobody else may be there to run it.
  return call.has("follow") || call.settings.redis.empty() || ::isatty(STDERR_FILENO) != 0;
}

// The definition of a flow that was created before.
Result<FlowPlan> plan_of(const Invocation& call, OpenedFlows& open, Id flow) {
  MJ_TRY(view, look_at_flow(*open.flows, open.store(), context_of(call), flow));
  MJ_TRY(text, open.flows->definition(context_of(call), view.record.definition_hash));
  MJ_TRY(parsed, parse_json(text, kMaxDefinitionBytes));
  PlanRead read = read_plan(parsed);
  if (!read.plan) return fail(Code::invalid, join(read.problems));
  return std::move(*read.plan);
}

Result<Id> flow_to_start(const Invocation& call, OpenedFlows& open, const std::optional<FlowPlan>& plan,
                         bool with_agent) {
  if (!plan) {
    MJ_TRY(flow, flow_argument(call));
    // What cannot be read is for whoever starts it to tell.
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
  if (call.has("follow") && call.has("detach")) return fail(Code::invalid, "--follow and --detach: give one of them");
  const std::string& argument = call.arguments.at(0);
  // "12" is a flow that was created, unless there is such a file.
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
    say(paint(Tone::faint, fmt::format("flow {} is started; Ctrl-C leaves it running", flow), true));
    return follow_started(call, open, flow);
  }
  Flow record;
  record.id = flow;
  record.name = plan ? plan->name : "";
  print_created(call, record, began.facts > 0 ? "is started" : "had been started before");
  warn_if_nobody_leads(call, open);
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

Result<int> check_file(const Invocation& call) {
  leave_at_stop_signals();
  MJ_TRY(read, read_flow_file(call, call.arguments.at(0), true));
  if (call.json) {
    nlohmann::json out{{"ok", read.plan.has_value()}, {"problems", nlohmann::json::array()}};
    for (const PlanProblem& problem : read.problems)
      out["problems"].push_back({{"path", to_utf8(problem.path)},
                                 {"message", to_utf8(problem.message)},
                                 {"line", problem.line},
                                 {"column", problem.column}});
    if (read.plan) out.update({{"name", read.plan->name}, {"hash", read.plan->hash}, {"nodes", read.plan->written()}});
    print(dump_json(out, 2) + "\n");
  } else if (read.plan) {
    print(fmt::format("{}: {}, definition {}\n", one_line(read.plan->name), counted(read.plan->written(), "node"),
                      read.plan->hash));
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
