// mycojobs workflow apply | send | list | cells | show | timeline | logs | explain | tail | approve | reject | cancel |
// remove | export | verify-replay: commands for applied workflows.
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/job_submission.h"
#include "cli/manifest_files.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/log_lines.h"
#include "model/codec.h"
#include "service/workflow_logs.h"
#include "service/workflow_service.h"
#include "text/json.h"
#include "text/utf8.h"
#include "workflows/engine/engine_pool.h"
#include "workflows/tools/workflow_history.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr int kFactPollMs = 250;             // interval of reading a followed journal
constexpr std::size_t kMaxShownBytes = 200;  // maximum bytes of a value in a table

// The open stores of a workflow command, and its caller.
struct WorkflowSession : StoreSession {
  std::unique_ptr<WorkflowStore> workflow_store;
  service::RequestContext caller;
  service::WorkflowStores stores() { return {*store, *workflow_store}; }
};
Result<WorkflowSession> open_workflow_session(const Invocation& call) {
  WorkflowSession session;
  MJ_TRY(caller, request_context(call));
  session.caller = caller;
  MJ_TRY(store_session, open_store_for_query(call));
  static_cast<StoreSession&>(session) = std::move(store_session);
  MJ_TRY(workflow_store, session.services.stores->open_workflows());
  session.workflow_store = std::move(workflow_store);
  return session;
}

std::string get_argument(const Invocation& call, std::size_t index) {
  return index < call.arguments.size() ? call.arguments[index] : "";
}
service::InstanceReference parse_instance_argument(const Invocation& call) {
  return {get_argument(call, 0), get_argument(call, 1)};
}

std::string format_value(const json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "" : dump_json(value);
  return shorten_text(to_printable_line(to_utf8(text)), kMaxShownBytes);
}

OutputStyle status_style(std::string_view status) {
  if (status == "failed") return OutputStyle::bad;
  return status == "running" ? OutputStyle::strong : status == "waiting" ? OutputStyle::plain : OutputStyle::good;
}

// Sends the event once, with retries while the store is unavailable: the idempotency key prevents a second event.
Result<service::SentEvent> send_once(const Invocation& call, WorkflowSession& session,
                                     const service::SendEvent& request) {
  service::SentEvent sent_event;
  auto result = retry_while_unavailable(call, session, false, [&](Store& store) -> Result<void> {
    MJ_TRY(workflow_store, session.services.stores->open_workflows());
    MJ_TRY(posted_event, service::send_event(session.caller, {store, *workflow_store}, request));
    sent_event = std::move(posted_event);
    return {};
  });
  if (result) return sent_event;
  if (result.error().code != Code::unavailable)
    return tl::unexpected(to_command_line_error(call, std::move(result).error()));
  return fail(Code::unavailable,
              fmt::format("{}; it is unknown whether the event was sent: the same command with --idempotency-key {} "
                          "sends it once",
                          result.error().message, *request.idempotency_key));
}

// Returns a fact as one line.
std::string describe_fact(const json& fact) {
  const std::string kind = fact["kind"];
  const auto field = [&](const char* name) { return format_value(fact.value(name, json())); };
  const auto intent = [&] { return field("intent").substr(0, 12); };
  if (kind == "applied") return "manifest " + field("manifest").substr(0, 12) + " is in force";
  if (kind == "event") return field("schema") + ' ' + field("value");
  if (kind == "step") {
    std::string out = "state " + field("state");
    for (const json& effect : fact["effects"])
      out += "; asks " + format_value(effect["effect"]) + ' ' + effect["intent"].get<std::string>().substr(0, 12);
    return out;
  }
  if (kind == "step_failed") return field("error") + ": " + field("message");
  if (kind == "published") return intent() + " by " + field("carrier");
  if (kind == "receipt") return intent() + ' ' + field("status") + ' ' + field("payload");
  if (kind == "receipt_refused" || kind == "receipt_fault") return intent() + ' ' + field("reason");
  if (kind == "failed") return field("failure") + ": " + field("message");
  return kind == "deleted" ? field("by") : field("hash").substr(0, 12);
}

std::vector<std::string> make_fact_row(const json& fact, bool with_cells) {
  std::vector<std::string> row{fact["height"].dump(), time_of_day(fact["at_ms"].get<std::uint64_t>())};
  if (with_cells) {
    std::string cells;
    for (const json& cell : fact["cells"]) cells += (cells.empty() ? "" : ", ") + cell.get<std::string>();
    row.push_back(shorten_text(to_printable_line(cells), 60));
  }
  row.push_back(fact["kind"]);
  row.push_back(describe_fact(fact));
  return row;
}

// Prints the log of an instance in whole lines, with the effect and its job.
class LogFramePrinter {
 public:
  void print_page(const service::InstanceLog& page) {
    for (const service::LogFrame& frame : page.frames) {
      EffectLog& log = logs_[frame.effect_ref];
      log.effect = frame.effect;
      log.splitter.add_part(frame.line, [&](const Log& line) { print_line(frame.effect_ref, log, line); });
    }
    for (const std::string& effect_ref : page.finished_effects) end_log(effect_ref);
  }
  void end_all_logs() {
    while (!logs_.empty()) end_log(std::string(logs_.begin()->first));
  }

 private:
  struct EffectLog {
    std::string effect;
    LogLineSplitter splitter;
  };
  void end_log(const std::string& effect_ref) {
    const auto entry = logs_.find(effect_ref);
    if (entry == logs_.end()) return;
    entry->second.splitter.flush([&](const Log& line) { print_line(effect_ref, entry->second, line); });
    logs_.erase(entry);
  }
  static void print_line(const std::string& effect_ref, const EffectLog& log, const Log& line) {
    const std::string prefix = format_value(log.effect) + ' ' + format_value(effect_ref);
    const bool is_stdout = line.stream == LogStream::out;
    print(paint(is_stdout ? OutputStyle::faint : OutputStyle::warn, prefix + " | ") + to_printable(line.text) + "\n");
  }
  std::map<std::string, EffectLog> logs_;  // by the job or flow that performs the effect
};

Result<int> answer_approval(const Invocation& call, bool approved) {
  MJ_TRY(params, read_request(call, {{"workflow", get_argument(call, 0)}}));
  MJ_TRY(session, open_workflow_session(call));
  const service::AnswerApproval request{parse_instance_argument(call), params.text("intent"), approved,
                                        params.text("comment")};
  MJ_TRY(intent, to_command_line_error(call, service::answer_approval(session.caller, session.stores(), request)));
  if (call.json) return print_json({{"intent", intent}, {"approved", approved}});
  print(fmt::format("{} is {}\n", intent.substr(0, 12), approved ? "approved" : "rejected"));
  return 0;
}

std::string format_instance(const service::InstanceReference& instance) {
  return instance.key.empty() ? instance.workflow : instance.workflow + ' ' + instance.key;
}

int print_replay_result(const Invocation& call, const service::ReplayResult& result, bool fails_instance) {
  json out{{"manifest", result.deployment},
           {"entries", result.entries},
           {"steps", result.steps},
           {"same", !result.mismatch}};
  if (result.mismatch)
    out["differs"] = {{"height", result.mismatch->height}, {"cell", display_name(result.mismatch->instance)}};
  if (call.json)
    print_json(out);
  else if (result.mismatch)
    print_message(fmt::format("{}: the step at height {} of {} gave another output{}", result.deployment,
                              result.mismatch->height, display_name(result.mismatch->instance),
                              fails_instance ? "; the instance has failed as nondeterministic" : ""));
  else
    print(fmt::format("{}: {} entries, {} steps taken again: the same outputs\n", result.deployment, result.entries,
                      result.steps));
  return result.mismatch ? EXIT_FAILURE : EXIT_SUCCESS;
}

// Replays a journal from a file. Writes nothing.
Result<int> verify_history(const Invocation& call) {
  const std::string file = call.get("history");
  MJ_TRY(text, read_script(file, kMaxHistoryBytes));
  auto history = read_history(text);
  if (!history) return fail(std::move(history).error(), file);
  auto catalog = build_catalog(*history);
  if (!catalog) return fail(std::move(catalog).error(), file);
  workflow::EnginePool engines(make_engine_options(call.settings), 1);
  DeploymentState deployment;
  deployment.id = history->deployment;
  const StepReplayResult result = verify_replay(deployment, *catalog, history->facts, engines.as_step_engine());
  if (const auto problem = engines.first_error()) return tl::unexpected(*problem);
  if (result.problem)
    return fail(Code::invalid, file + ": " + std::string(result.problem->rule) + ": " + result.problem->text);
  const std::uint64_t entries = deployment.height + (result.mismatch ? 1 : 0);
  return print_replay_result(call, {history->deployment, entries, result.steps, result.mismatch}, false);
}

}  // namespace

Result<int> workflow_apply_command(Invocation& call) {
  MJ_TRY(file, read_manifest_file(make_engine_options(call.settings), get_argument(call, 0)));
  if (!file.manifest) return fail(Code::invalid, join(file.problems));
  MJ_TRY(params, read_request(call, {{"manifest", *file.document}}));
  MJ_TRY(session, open_workflow_session(call));
  service::ApplyWorkflow request;
  request.code = std::move(file.code);
  request.owner = params.optional_id("caller_id");
  MJ_TRY(result, service::apply_workflow(session.caller, session.stores(), *file.document, request));
  if (call.json) return print_json(to_json(result));
  const std::string state = result.repeated           ? "was in force already"
                            : result.replaced.empty() ? "is in force"
                                                      : "is in force instead of " + result.replaced.substr(0, 12);
  print(fmt::format("{} {} {}; its effects run as actor {}\n", to_printable_line(result.deployment),
                    result.hash.substr(0, 12), state, result.owner));
  return 0;
}

Result<int> workflow_send_command(Invocation& call) {
  MJ_TRY(params, read_request(call, {{"event", get_argument(call, 0)}, {"value", get_argument(call, 1)}}));
  service::SendEvent request{params.text("event"), get_argument(call, 1), params.text("workflow")};
  request.idempotency_key = params.optional_text("idempotency_key").value_or(random_hex(16));
  request.traceparent = params.text("traceparent");
  if (request.value == "-") request.value.assign(std::istreambuf_iterator<char>(std::cin), {});
  MJ_TRY(session, open_workflow_session(call));
  MJ_TRY(sent_event, send_once(call, session, request));
  if (call.json) return print_json(to_json(sent_event));
  std::string targets;
  for (const std::string& target : sent_event.targets) targets += (targets.empty() ? "" : ", ") + target;
  print(to_printable_line(sent_event.event + " to " + targets +
                          (sent_event.repeated ? ", sent before as " + sent_event.id : "")) +
        "\n");
  return 0;
}

Result<int> workflow_list_command(Invocation& call) {
  MJ_TRY(session, open_workflow_session(call));
  MJ_TRY(rows, service::list_workflows(session.caller, session.stores()));
  if (call.json) return print_json(rows);
  TableRows table{{"WORKFLOW", "MANIFEST", "CODE", "RUNNING", "WAITING", "FAILED", "INBOX", "HEIGHT", "TAKES"}};
  for (const json& row : rows) {
    std::string events;
    for (const json& event : row["takes"]) events += (events.empty() ? "" : ", ") + event.get<std::string>();
    const json& counts = row["instances"];
    table.push_back({format_value(row["workflow"]), format_value(row["manifest"]),
                     row["hash"].get<std::string>().substr(0, 12), counts["running"].dump(), counts["waiting"].dump(),
                     counts["failed"].dump(), row["inbox"].dump(), row["height"].dump(), format_value(events)});
  }
  print_list(table);
  return 0;
}

Result<int> workflow_cells_command(Invocation& call) {
  MJ_TRY(request, read_request(call, {{"workflow", get_argument(call, 0)}}));
  MJ_TRY(session, open_workflow_session(call));
  const service::ListInstances list = service::parse_list_instances(request);
  MJ_TRY(rows, to_command_line_error(call, service::list_instances(session.caller, session.stores(), list)));
  if (call.json) return print_json(rows);
  TableRows table{{"KEY", "STATUS", "STEPS", "MAIL", "PENDING", "STATE", "LAST"}};
  for (const json& row : rows) {
    const std::string status = row["status"];
    table.push_back({format_value(row["key"]), paint(status_style(status), status), row["steps"].dump(),
                     row["mail"].dump(), row["pending"].dump(), row["state_bytes"].dump() + " bytes",
                     row["last"].dump()});
  }
  print_list(table);
  if (rows.size() == list.limit)
    print_message(
        fmt::format("there may be more: continue with --after '{}'", rows.back()["cursor"].get<std::string>()));
  return 0;
}

Result<int> workflow_show_command(Invocation& call) {
  MJ_TRY(session, open_workflow_session(call));
  MJ_TRY(instance, service::show_instance(session.caller, session.stores(), parse_instance_argument(call)));
  if (call.json) return print_json(instance);
  const std::string status = instance["status"];
  print(fmt::format("{} {}  {}\n", paint(OutputStyle::strong, format_value(instance["workflow"])),
                    format_value(instance["key"]), paint(status_style(status), status)));
  if (instance.contains("message"))
    print("error    " + format_value(instance["failure"]) + ": " + format_value(instance["message"]) + "\n");
  print("state    " + shorten_text(to_printable_line(to_utf8(dump_json(instance["state"]))), 2000) + "\n");
  print(fmt::format("steps    {}, last at height {}\n", instance["steps"].dump(), instance["last"].dump()));
  TableRows table{{"INTENT", "EFFECT", "CARRIED BY", "PARAMETERS"}};
  for (const json& intent : instance["intents"])
    table.push_back({intent["intent"].get<std::string>().substr(0, 12), format_value(intent["effect"]),
                     intent["published"] == true ? format_value(intent["carrier"]) : "not started",
                     format_value(intent["params"])});
  if (table.size() > 1) print_table(table);
  for (const json& mail : instance["waiting_mail"])
    print(fmt::format("mail     {} of height {}\n", format_value(mail["schema"]), mail["height"].dump()));
  return 0;
}

Result<int> workflow_timeline_command(Invocation& call) {
  MJ_TRY(params, read_request(call, {{"workflow", get_argument(call, 0)}}));
  const service::TimelineRequest request = service::parse_timeline_request(params);
  MJ_TRY(session, open_workflow_session(call));
  MJ_TRY(rows, to_command_line_error(call, service::read_instance_timeline(session.caller, session.stores(),
                                                                           parse_instance_argument(call), request)));
  if (rows.size() == request.limit) print_message("earlier facts: --before " + rows.front()["height"].dump());
  if (call.json) return print_json(rows);
  TableRows table{{"HEIGHT", "TIME", "KIND", "WHAT"}};
  for (const json& fact : rows) table.push_back(make_fact_row(fact, false));
  print_table(table);
  return 0;
}

Result<int> workflow_logs_command(Invocation& call) {
  MJ_TRY(session, open_workflow_session(call));
  service::ManifestCache manifests;
  const service::WorkflowStores stores{*session.store, *session.workflow_store, &manifests,
                                       session.services.logs.get()};
  service::LogRequest request;
  LogFramePrinter printer;
  for (;;) {
    MJ_TRY(page, to_command_line_error(
                     call, service::read_instance_log(session.caller, stores, parse_instance_argument(call), request)));
    if (call.json)
      for (const service::LogFrame& frame : page.frames) print_json_line(to_json(frame));
    else
      printer.print_page(page);
    request.after = page.after;
    if (!page.has_more && (page.ended || !call.has("follow"))) {
      printer.end_all_logs();
      return 0;
    }
    std::fflush(stdout);
    if (const int signal = next_follower_signal(page.has_more ? 0 : kFactPollMs); signal != 0)
      return signal_exit_code(signal);
  }
}

Result<int> workflow_explain_command(Invocation& call) {
  MJ_TRY(session, open_workflow_session(call));
  MJ_TRY(flows, session.services.stores->open_flows());
  MJ_TRY(leader, flows->leader(call.context()));
  const service::InstanceReference instance = parse_instance_argument(call);
  MJ_TRY(reasons, service::explain_instance(session.caller, session.stores(), instance, leader.first));
  if (call.json) return print_json({{"workflow", instance.workflow}, {"key", instance.key}, {"reasons", reasons}});
  for (const json& reason : reasons) {
    print(fmt::format("{} {}  {}\n", to_printable_line(instance.workflow), to_printable_line(instance.key),
                      format_value(reason["cause"])));
    std::vector<std::string> evidence;
    for (const json& line : reason["evidence"]) evidence.push_back(format_value(line));
    print_explanation(format_value(reason["reason"]), evidence, format_value(reason["next"]));
  }
  return 0;
}

Result<int> workflow_tail_command(Invocation& call) {
  MJ_TRY(request, read_request(call, {{"workflow", get_argument(call, 0)}}));
  std::uint64_t last_height = request.number("after");
  MJ_TRY(session, open_workflow_session(call));
  for (;;) {
    MJ_TRY(page, service::read_facts(session.caller, session.stores(), get_argument(call, 0), last_height, 1000));
    for (const json& fact : page["facts"]) {
      if (call.json) {
        print_json_line(fact);
      } else {
        std::string line;
        for (const std::string& part : make_fact_row(fact, true)) line += (line.empty() ? "" : "  ") + part;
        print(line + "\n");
      }
      last_height = fact["height"].get<std::uint64_t>();
    }
    const bool is_complete = last_height >= page["height"].get<std::uint64_t>() || page["facts"].empty();
    if (is_complete && !call.has("follow")) return 0;
    std::fflush(stdout);
    if (const int signal = next_follower_signal(is_complete ? kFactPollMs : 0); signal != 0)
      return signal_exit_code(signal);
  }
}
Result<int> workflow_approve_command(Invocation& call) { return answer_approval(call, true); }
Result<int> workflow_reject_command(Invocation& call) { return answer_approval(call, false); }

Result<int> workflow_cancel_command(Invocation& call) {
  MJ_TRY(params, read_request(call, {{"workflow", get_argument(call, 0)}}));
  MJ_TRY(session, open_workflow_session(call));
  const service::InstanceReference instance = parse_instance_argument(call);
  MJ_CHECK(to_command_line_error(
      call, service::cancel_instance(session.caller, session.stores(), instance, params.text("reason"))));
  if (call.json) return print_json({{"workflow", instance.workflow}, {"key", instance.key}, {"cancelling", true}});
  print(to_printable_line(format_instance(instance)) + " is being cancelled\n");
  return 0;
}

Result<int> workflow_remove_command(Invocation& call) {
  MJ_TRY(session, open_workflow_session(call));
  const service::InstanceReference instance = parse_instance_argument(call);
  MJ_CHECK(to_command_line_error(call, service::remove_instance(session.caller, session.stores(), instance)));
  return print_deleted(call, format_instance(instance));
}

Result<int> workflow_export_command(Invocation& call) {
  MJ_TRY(session, open_workflow_session(call));
  MJ_TRY(history, service::read_workflow_history(session.caller, session.stores(), get_argument(call, 0)));
  MJ_TRY(text, write_history(history));
  print(text);
  return 0;
}

Result<int> workflow_verify_replay_command(Invocation& call) {
  if (call.has("history") == !call.arguments.empty())
    return fail(Code::invalid, "give a WORKFLOW, or --history FILE: whose journal is replayed");
  if (call.has("history")) return verify_history(call);
  MJ_TRY(session, open_workflow_session(call));
  workflow::EnginePool engines(make_engine_options(call.settings), call.context());
  const auto step = [&](const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
    return engines.step(spec, manifest, request);
  };
  MJ_TRY(result, service::verify_workflow(session.caller, session.stores(), get_argument(call, 0), step));
  return print_replay_result(call, result, true);
}

}  // namespace mycojobs
