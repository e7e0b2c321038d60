// mycojobs runner create | list | show | update | delete, mycojobs message delete
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands/command_table.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/explain.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "net/networks.h"
#include "service/message_service.h"
#include "service/record_service.h"
#include "text/json.h"

namespace mycojobs {
namespace {

std::string state_of(const RunnerInfo& info, std::uint64_t silent_ms) {
  switch (presence(info)) {
    case RunnerPresence::live: {
      const std::string pause = pause_reason(info);
      return pause.empty() ? paint(OutputStyle::good, "live")
                           : paint(OutputStyle::bad, "live, takes no jobs: " + pause);
    }
    case RunnerPresence::silent:
      return paint(OutputStyle::bad, "silent for " + span_text(silent_ms));
    case RunnerPresence::left:
      return paint(OutputStyle::faint, "left");
  }
  return "";
}

// Returns true for a remote supervisor, which does not register here.
bool is_elsewhere(const RunnerInfo& info) { return !info.runner.address.empty() && info.runner.seen_ms == 0; }

Result<int> list_runners(Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(infos, opened.store->runners(context_of(call)));
  MJ_TRY(now, store_now_ms(*opened.store, context_of(call)));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{
      {"RUNNER", "HOST", "PID", "SLOTS", "BUSY", "EXECUTORS", "LAST SEEN", "STATE", "ADDRESS"}};
  for (const RunnerInfo& info : infos) {
    const Runner& runner = info.runner;
    const std::uint64_t silent_ms = now - std::min(runner.seen_ms, now);
    array.push_back({{"id", runner.id},
                     {"host", info.hold.host},
                     {"pid", info.hold.pid},
                     {"slots", runner.slots},
                     {"claims", info.claims},
                     {"executors", runner.executors},
                     {"local", runner.local},
                     {"topic", runner.topic},
                     {"address", runner.address},
                     {"version", runner.version},
                     {"seen_ms", runner.seen_ms},
                     {"held_ms", info.held_ms},
                     {"takes_no_jobs", pause_reason(info)},
                     {"state", is_elsewhere(info) ? "elsewhere" : to_string(presence(info))}});
    rows.push_back({std::to_string(runner.id), info.hold.host.empty() ? "-" : printable(info.hold.host),
                    info.hold.pid > 0 ? std::to_string(info.hold.pid) : "-", std::to_string(runner.slots),
                    std::to_string(info.claims), printable(fmt::format("{}", fmt::join(runner.executors, ","))),
                    runner.seen_ms == 0 ? "never" : span_text(silent_ms) + " ago",
                    is_elsewhere(info) ? "elsewhere" : state_of(info, silent_ms),
                    runner.address.empty() ? "-" : printable(runner.address)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_list(rows);
  }
  return 0;
}

// Returns a runner with the fields of the flags, and appends the names of these fields. The secret can be set by RPC
// only, because a flag would be visible to other users of the host.
Result<Runner> typed_runner(const Invocation& call, std::vector<std::string>& fields) {
  Runner runner;
  const std::pair<const char*, std::string Runner::*> texts[] = {
      {"pubkey", &Runner::pubkey}, {"address", &Runner::address}, {"topic", &Runner::topic}};
  for (const auto& [name, member] : texts) {
    if (!call.has(name)) continue;
    runner.*member = call.get(name);
    fields.emplace_back(name);
  }
  if (call.has("target-context")) {
    MJ_TRY(context, id_flag(call, "target-context", 0));
    runner.target_context = context;
    fields.emplace_back("target_context");
  }
  if (call.has("type")) {
    runner.type = parse<RunnerType>(call.get("type"));
    fields.emplace_back("type");
  }
  if (call.has("queues")) {
    runner.local = call.get("queues") == "yes";
    fields.emplace_back("local");
  }
  return runner;
}

void show_runner(const Invocation& call, const Runner& runner) {
  nlohmann::json object = to_json(runner);
  object.erase("secret");
  if (call.json) return print(dump_json(object, 2) + "\n");
  print(fmt::format("runner {}\n", runner.id));
  for (const auto& [name, value] : object.items()) {
    if (name != "id")
      print(
          fmt::format("  {:<11}{}\n", name, one_line(value.is_string() ? value.get<std::string>() : dump_json(value))));
  }
}

Result<int> put_runner(Invocation& call, bool makes) {
  std::vector<std::string> fields;
  MJ_TRY(by, request_context(call));
  MJ_TRY(runner, typed_runner(call, fields));
  if (makes && fields.empty()) {
    return fail(Code::invalid,
                "name the runner: --address URL of a remote supervisor, or --topic, --pubkey, --type, "
                "--target-context, --queues; an agent makes the record of its own runner when it starts");
  }
  auto networks = Networks::parse(call.settings.coordinator_networks);
  if (!networks) return fail(networks.error(), "coordinator.networks");
  if (makes) {
    MJ_TRY(id, id_flag(call, "id", 0));
    runner.id = id;
  } else {
    MJ_TRY(id, typed_id("runner", call.arguments.at(0)));
    runner.id = id;
  }
  MJ_TRY(opened, open_to_answer(call));
  auto stored = makes ? service::create_runner(by, *opened.store, runner, *networks, fields)
                      : service::update_runner(by, *opened.store, runner, fields, *networks);
  MJ_TRY(after, with_original_arguments(call, std::move(stored)));
  show_runner(call, after);
  return 0;
}

Result<int> show_one_runner(Invocation& call) {
  MJ_TRY(id, typed_id("runner", call.arguments.at(0)));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(runner, service::read_runner(by, *opened.store, id));
  show_runner(call, runner);
  return 0;
}

Result<int> remove_runner(Invocation& call) {
  MJ_TRY(id, typed_id("runner", call.arguments.at(0)));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_CHECK(with_original_arguments(call, service::delete_runner(by, *opened.store, id)));
  print_deleted(call, fmt::format("runner:{}", id));
  return 0;
}

Result<int> remove_message(Invocation& call) {
  const std::string& text = call.arguments.at(0);
  const auto colon = text.find(':');
  const std::string maker = colon == std::string::npos ? std::to_string(kDefaultCaller) : text.substr(0, colon);
  MJ_TRY(caller, typed_id("message", maker));
  MJ_TRY(id, typed_id("message", colon == std::string::npos ? text : text.substr(colon + 1)));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_CHECK(with_original_arguments(call, service::delete_message(by, *opened.store, caller, id)));
  print_deleted(call, fmt::format("message:{}:{}", caller, id));
  return 0;
}

}  // namespace

int runner_create_command(Invocation& call) { return finish(put_runner(call, true)); }
int runner_show_command(Invocation& call) { return finish(show_one_runner(call)); }
int runner_update_command(Invocation& call) { return finish(put_runner(call, false)); }
int runner_delete_command(Invocation& call) { return finish(remove_runner(call)); }
int message_delete_command(Invocation& call) { return finish(remove_message(call)); }
int runner_list_command(Invocation& call) { return finish(list_runners(call)); }

}  // namespace mycojobs
