// mycojobs runner create | list | show | update | delete, mycojobs message delete
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/request_arguments.h"
#include "cli/service_setup.h"
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

std::string format_runner_state(const RunnerInfo& info, std::uint64_t silent_ms) {
  switch (get_presence(info)) {
    case RunnerPresence::live: {
      const std::string reason = get_pause_reason(info);
      return reason.empty() ? paint(OutputStyle::good, "live")
                            : paint(OutputStyle::bad, "live, takes no jobs: " + reason);
    }
    case RunnerPresence::silent:
      return paint(OutputStyle::bad, "silent for " + format_duration(silent_ms));
    case RunnerPresence::signed_off:
      return paint(OutputStyle::faint, "left");
  }
  return "";
}

// Returns true for a remote supervisor, which does not register here.
bool is_remote_runner(const RunnerInfo& info) { return !info.runner.address.empty() && info.runner.seen_ms == 0; }

// Returns a runner with the fields of the flags, and appends the names of these fields. The secret can be set by RPC
// only, because a flag would be visible to other users of the host.
Result<Runner> read_runner_flags(const Invocation& call, nlohmann::json arguments, std::vector<std::string>& fields) {
  if (call.has("queues")) arguments["local"] = call.get("queues") == "yes";
  MJ_TRY(request, read_request(call, std::move(arguments)));
  fields = service::list_changed_fields(request.params());
  auto decoded = decode_json<Runner>(request.params());
  if (!decoded.ok()) return tl::unexpected<Error>(to_command_line_error(call, {Code::invalid, join(decoded.problems)}));
  return std::move(decoded.record);
}

int print_runner(const Invocation& call, const Runner& runner) {
  const nlohmann::json object = service::runner_to_json(runner);
  if (call.json) return print_json(object);
  print(fmt::format("runner {}\n", runner.id));
  for (const auto& [name, value] : object.items()) {
    if (name != "id")
      print(fmt::format("  {:<11}{}\n", name,
                        to_printable_line(value.is_string() ? value.get<std::string>() : dump_json(value))));
  }
  return EXIT_SUCCESS;
}

Result<int> store_runner(Invocation& call, bool creates) {
  std::vector<std::string> fields;
  MJ_TRY(caller, request_context(call));
  nlohmann::json arguments = nlohmann::json::object();
  if (!creates) {
    MJ_TRY(id, parse_id("runner", call.arguments.at(0)));
    arguments["id"] = id;
  }
  MJ_TRY(runner, read_runner_flags(call, std::move(arguments), fields));
  if (creates && fields.empty()) {
    return fail(Code::invalid,
                "name the runner: --address URL of a remote supervisor, or --topic, --pubkey, --type, "
                "--target-context, --queues; an agent makes the record of its own runner when it starts");
  }
  MJ_TRY(networks, parse_coordinator_networks(call.settings));
  MJ_TRY(session, open_store_for_query(call));
  auto result = creates ? service::create_runner(caller, *session.store, runner, networks, fields)
                        : service::update_runner(caller, *session.store, runner, fields, networks);
  MJ_TRY(stored_runner, to_command_line_error(call, std::move(result)));
  return print_runner(call, stored_runner);
}

}  // namespace

Result<int> runner_create_command(Invocation& call) { return store_runner(call, true); }

Result<int> runner_show_command(Invocation& call) {
  MJ_TRY(id, parse_id("runner", call.arguments.at(0)));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(runner, service::read_runner(caller, *session.store, id));
  return print_runner(call, runner);
}
Result<int> runner_update_command(Invocation& call) { return store_runner(call, false); }

Result<int> runner_delete_command(Invocation& call) {
  MJ_TRY(id, parse_id("runner", call.arguments.at(0)));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_CHECK(to_command_line_error(call, service::delete_runner(caller, *session.store, id)));
  return print_deleted(call, fmt::format("runner:{}", id));
}

Result<int> message_delete_command(Invocation& call) {
  const std::string& text = call.arguments.at(0);
  const auto colon = text.find(':');
  const std::string caller_text = colon == std::string::npos ? std::to_string(kDefaultCaller) : text.substr(0, colon);
  MJ_TRY(caller_id, parse_id("message", caller_text));
  MJ_TRY(id, parse_id("message", colon == std::string::npos ? text : text.substr(colon + 1)));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_CHECK(to_command_line_error(call, service::delete_message(caller, *session.store, caller_id, id)));
  return print_deleted(call, fmt::format("message:{}:{}", caller_id, id));
}

Result<int> runner_list_command(Invocation& call) {
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(runners, session.store->runners(call.context()));
  MJ_TRY(now_ms, store_now_ms(*session.store, call.context()));
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"RUNNER", "HOST", "PID", "SLOTS", "BUSY", "EXECUTORS", "LAST SEEN", "STATE", "ADDRESS"}};
  for (const RunnerInfo& info : runners) {
    const Runner& runner = info.runner;
    const std::uint64_t silent_ms = now_ms - std::min(runner.seen_ms, now_ms);
    array.push_back({{"id", runner.id},
                     {"host", info.holder.host},
                     {"pid", info.holder.pid},
                     {"slots", runner.slots},
                     {"claims", info.live_claim_count},
                     {"executors", runner.executors},
                     {"local", runner.local},
                     {"topic", runner.topic},
                     {"address", runner.address},
                     {"version", runner.version},
                     {"seen_ms", runner.seen_ms},
                     {"held_ms", info.hold_remaining_ms},
                     {"takes_no_jobs", get_pause_reason(info)},
                     {"state", is_remote_runner(info) ? "elsewhere" : to_string(get_presence(info))}});
    rows.push_back({std::to_string(runner.id), info.holder.host.empty() ? "-" : to_printable(info.holder.host),
                    info.holder.pid > 0 ? std::to_string(info.holder.pid) : "-", std::to_string(runner.slots),
                    std::to_string(info.live_claim_count),
                    to_printable(fmt::format("{}", fmt::join(runner.executors, ","))),
                    runner.seen_ms == 0 ? "never" : format_duration(silent_ms) + " ago",
                    is_remote_runner(info) ? "elsewhere" : format_runner_state(info, silent_ms),
                    runner.address.empty() ? "-" : to_printable(runner.address)});
  }
  return print_listing(call, array, rows, TableFit::screen);
}

}  // namespace mycojobs
