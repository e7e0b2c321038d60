// mycojobs workflow apply | send | list | cells | show | timeline | logs | explain | tail | approve | reject | remove |
// export | verify-replay: commands for running workflows.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "base/random.h"
#include "cli/commands/command_table.h"
#include "cli/job_submission.h"
#include "cli/manifest_files.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/log_lines.h"
#include "model/codec.h"
#include "service/workflow_logs.h"
#include "service/workflow_service.h"
#include "text/json.h"
#include "text/timestamp.h"
#include "text/utf8.h"
#include "workflows/engine/engine_pool.h"
#include "workflows/tools/workflow_history.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr int kTailMs = 250;              // interval of reading a followed journal
constexpr std::size_t kShownBytes = 200;  // maximum bytes of a value in a table

struct OpenedDeployments {
  OpenedStore opened;
  std::unique_ptr<WorkflowStore> deployments;
  service::RequestContext by;
  service::WorkflowStores in() { return {*opened.store, *deployments}; }
};
Result<OpenedDeployments> open_deployments(const Invocation& call) {
  OpenedDeployments out;
  MJ_TRY(by, request_context(call));
  out.by = by;
  MJ_TRY(opened, open_to_answer(call));
  out.opened = std::move(opened);
  MJ_TRY(deployments, out.opened.session.stores->open_workflows());
  out.deployments = std::move(deployments);
  return out;
}

std::string typed(const Invocation& call, std::size_t index) {
  return index < call.arguments.size() ? call.arguments[index] : "";
}
service::InstanceReference instance_argument(const Invocation& call) { return {typed(call, 0), typed(call, 1)}; }

std::string cell_text(const json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "" : dump_json(value);
  return shortened(one_line(to_utf8(text)), kShownBytes);
}
std::string time_of_day(std::uint64_t unix_ms) {
  return fmt::format("{:%H:%M:%S}.{:03}", fmt::localtime(static_cast<std::time_t>(unix_ms / 1000)), unix_ms % 1000);
}

int print_json(const json& value) {
  print(dump_json(value, 2) + "\n");
  return 0;
}

OutputStyle tone_of_status(std::string_view status) {
  if (status == "failed") return OutputStyle::bad;
  return status == "running" ? OutputStyle::strong : status == "waiting" ? OutputStyle::plain : OutputStyle::good;
}

// ---- apply, send ----

Result<int> apply(const Invocation& call) {
  MJ_TRY(file, read_manifest_file(engine_options(call.settings), typed(call, 0)));
  if (!file.manifest) return fail(Code::invalid, join(file.problems));
  MJ_TRY(open, open_deployments(call));
  service::ApplyWorkflow request;
  request.code = std::move(file.code);
  if (call.has("owner")) {
    MJ_TRY(owner, id_flag(call, "owner", kDefaultCaller));
    request.owner = owner;
  }
  MJ_TRY(done, service::apply_workflow(open.by, open.in(), *file.document, request));
  if (call.json)
    return print_json({{"manifest", done.deployment},
                       {"hash", done.hash},
                       {"replaced", done.replaced},
                       {"repeated", done.repeated},
                       {"owner", done.owner}});
  const std::string how = done.repeated           ? "was in force already"
                          : done.replaced.empty() ? "is in force"
                                                  : "is in force instead of " + done.replaced.substr(0, 12);
  print(fmt::format("{} {} {}; its effects run as actor {}\n", one_line(done.deployment), done.hash.substr(0, 12), how,
                    done.owner));
  return 0;
}

// Repeats the call while the store is unavailable. The idempotency key ensures that the event is sent once.
Result<service::SentEvent> send_once(const Invocation& call, OpenedDeployments& open,
                                     const service::SendEvent& request) {
  service::SentEvent sent;
  auto done = describe_missing_agents(call, open.opened, false, [&](Store& store) -> Result<void> {
    MJ_TRY(deployments, open.opened.session.stores->open_workflows());
    MJ_TRY(posted, service::send_event(open.by, {store, *deployments}, request));
    sent = std::move(posted);
    return {};
  });
  if (done) return sent;
  if (done.error().code != Code::unavailable)
    return tl::unexpected(with_original_arguments(call, std::move(done).error()));
  return fail(Code::unavailable,
              fmt::format("{}; it is unknown whether the event was sent: the same command with --idempotency-key {} "
                          "sends it once",
                          done.error().message, *request.idempotency_key));
}

Result<int> send(const Invocation& call) {
  service::SendEvent request{typed(call, 0), typed(call, 1), call.get("workflow")};
  request.idempotency_key = call.has("idempotency-key") ? call.get("idempotency-key") : random_hex(16);
  request.traceparent = call.get("traceparent");
  if (request.value == "-") request.value.assign(std::istreambuf_iterator<char>(std::cin), {});
  MJ_TRY(open, open_deployments(call));
  MJ_TRY(sent, send_once(call, open, request));
  if (call.json)
    return print_json({{"manifest", sent.deployment},
                       {"event", sent.event},
                       {"id", sent.id},
                       {"repeated", sent.repeated},
                       {"targets", sent.targets}});
  std::string to;
  for (const std::string& target : sent.targets) to += (to.empty() ? "" : ", ") + target;
  print(one_line(sent.event + " to " + to + (sent.repeated ? ", sent before as " + sent.id : "")) + "\n");
  return 0;
}

// ---- queries ----

Result<int> list_deployments(const Invocation& call) {
  MJ_TRY(open, open_deployments(call));
  MJ_TRY(rows, service::list_workflows(open.by, open.in()));
  if (call.json) return print_json(rows);
  std::vector<std::vector<std::string>> table{
      {"WORKFLOW", "MANIFEST", "CODE", "RUNNING", "WAITING", "FAILED", "INBOX", "HEIGHT", "TAKES"}};
  for (const json& row : rows) {
    std::string takes;
    for (const json& each : row["takes"]) takes += (takes.empty() ? "" : ", ") + each.get<std::string>();
    const json& counts = row["instances"];
    table.push_back({cell_text(row["workflow"]), cell_text(row["manifest"]),
                     row["hash"].get<std::string>().substr(0, 12), counts["running"].dump(), counts["waiting"].dump(),
                     counts["failed"].dump(), row["inbox"].dump(), row["height"].dump(), cell_text(takes)});
  }
  print_list(table);
  return 0;
}

Result<int> cells(const Invocation& call) {
  MJ_TRY(limit, count_flag(call, "limit", 100));
  MJ_TRY(open, open_deployments(call));
  MJ_TRY(rows, with_original_arguments(
                   call, service::list_cells(open.by, open.in(), {typed(call, 0), call.get("status"), limit})));
  if (call.json) return print_json(rows);
  std::vector<std::vector<std::string>> table{{"KEY", "STATUS", "STEPS", "MAIL", "PENDING", "STATE", "LAST"}};
  for (const json& row : rows) {
    const std::string status = row["status"];
    table.push_back({cell_text(row["key"]), paint(tone_of_status(status), status), row["steps"].dump(),
                     row["mail"].dump(), row["pending"].dump(), row["state_bytes"].dump() + " bytes",
                     row["last"].dump()});
  }
  print_list(table);
  return 0;
}

Result<int> show_instance(const Invocation& call) {
  MJ_TRY(open, open_deployments(call));
  MJ_TRY(found, service::show_instance(open.by, open.in(), instance_argument(call)));
  if (call.json) return print_json(found);
  const std::string status = found["status"];
  print(fmt::format("{} {}  {}\n", paint(OutputStyle::strong, cell_text(found["workflow"])), cell_text(found["key"]),
                    paint(tone_of_status(status), status)));
  if (found.contains("message"))
    print("error    " + cell_text(found["failure"]) + ": " + cell_text(found["message"]) + "\n");
  print("state    " + shortened(one_line(to_utf8(dump_json(found["state"]))), 2000) + "\n");
  print(fmt::format("steps    {}, last at height {}\n", found["steps"].dump(), found["last"].dump()));
  std::vector<std::vector<std::string>> table{{"INTENT", "EFFECT", "CARRIED BY", "PARAMETERS"}};
  for (const json& intent : found["intents"])
    table.push_back({intent["intent"].get<std::string>().substr(0, 12), cell_text(intent["effect"]),
                     intent["published"] == true ? cell_text(intent["carrier"]) : "not started",
                     cell_text(intent["params"])});
  if (table.size() > 1) print_table(table);
  for (const json& mail : found["waiting_mail"])
    print(fmt::format("mail     {} of height {}\n", cell_text(mail["schema"]), mail["height"].dump()));
  return 0;
}

// Returns a fact as one line.
std::string what_of(const json& fact) {
  const std::string kind = fact["kind"];
  const auto text = [&](const char* name) { return cell_text(fact.value(name, json())); };
  const auto intent = [&] { return text("intent").substr(0, 12); };
  if (kind == "applied") return "manifest " + text("manifest").substr(0, 12) + " is in force";
  if (kind == "event") return text("schema") + ' ' + text("value");
  if (kind == "step") {
    std::string out = "state " + text("state");
    for (const json& effect : fact["effects"])
      out += "; asks " + cell_text(effect["effect"]) + ' ' + effect["intent"].get<std::string>().substr(0, 12);
    return out;
  }
  if (kind == "step_failed") return text("error") + ": " + text("message");
  if (kind == "published") return intent() + " by " + text("carrier");
  if (kind == "receipt") return intent() + ' ' + text("status") + ' ' + text("payload");
  if (kind == "receipt_refused" || kind == "receipt_fault") return intent() + ' ' + text("reason");
  if (kind == "failed") return text("failure") + ": " + text("message");
  return kind == "deleted" ? text("by") : text("hash").substr(0, 12);
}

std::vector<std::string> fact_row(const json& fact, bool with_cells) {
  std::vector<std::string> row{fact["height"].dump(), time_of_day(fact["at_ms"].get<std::uint64_t>())};
  if (with_cells) {
    std::string cells;
    for (const json& each : fact["cells"]) cells += (cells.empty() ? "" : ", ") + each.get<std::string>();
    row.push_back(shortened(one_line(cells), 60));
  }
  row.push_back(fact["kind"]);
  row.push_back(what_of(fact));
  return row;
}

Result<int> timeline(const Invocation& call) {
  service::TimelineRequest request;
  if (call.has("limit") && !parse_u64(call.get("limit"), request.limit))
    return fail(Code::invalid, "--limit: a whole number from 1 to 1000");
  if (call.has("before") && (!parse_u64(call.get("before"), request.before) || request.before == 0))
    return fail(Code::invalid, "--before: a height, a whole number above 0");
  MJ_TRY(open, open_deployments(call));
  MJ_TRY(rows, with_original_arguments(
                   call, service::instance_timeline(open.by, open.in(), instance_argument(call), request)));
  if (rows.size() == request.limit) print_message("earlier facts: --before " + rows.front()["height"].dump());
  if (call.json) return print_json(rows);
  std::vector<std::vector<std::string>> table{{"HEIGHT", "TIME", "KIND", "WHAT"}};
  for (const json& fact : rows) table.push_back(fact_row(fact, false));
  print_table(table);
  return 0;
}

// Prints the log of an instance in whole lines, with the effect and its job.
class LogFramePrinter {
 public:
  void print_page(const service::InstanceLog& page) {
    for (const service::LogFrame& frame : page.frames) {
      EffectLog& of = of_[frame.effect_ref];
      of.effect = frame.effect;
      of.lines.take(frame.line, [&](const Log& line) { print_line(frame.effect_ref, of, line); });
    }
    for (const std::string& effect_ref : page.over) end(effect_ref);
  }
  void end_all() {
    while (!of_.empty()) end(std::string(of_.begin()->first));
  }

 private:
  struct EffectLog {
    std::string effect;
    LogLines lines;
  };
  void end(const std::string& effect_ref) {
    const auto found = of_.find(effect_ref);
    if (found == of_.end()) return;
    found->second.lines.finish([&](const Log& line) { print_line(effect_ref, found->second, line); });
    of_.erase(found);
  }
  static void print_line(const std::string& effect_ref, const EffectLog& of, const Log& line) {
    const std::string whose = cell_text(of.effect) + ' ' + cell_text(effect_ref);
    const bool plain = line.stream == LogStream::out;
    print(paint(plain ? OutputStyle::faint : OutputStyle::warn, whose + " | ") + printable(line.text) + "\n");
  }
  std::map<std::string, EffectLog> of_;  // by the job or flow that performs the effect
};

Result<int> instance_logs(const Invocation& call) {
  MJ_TRY(open, open_deployments(call));
  service::ManifestCache manifests;
  const service::WorkflowStores in{*open.opened.store, *open.deployments, &manifests};
  service::LogRequest request;
  LogFramePrinter lines;
  for (;;) {
    MJ_TRY(page, with_original_arguments(call, service::instance_log(open.by, in, instance_argument(call), request)));
    if (call.json)
      for (const service::LogFrame& frame : page.frames) print(dump_json(to_json(frame)) + "\n");
    else
      lines.print_page(page);
    request.after = page.after;
    const bool over = !page.more && (page.ended || !call.has("follow"));
    if (over) lines.end_all();
    if (over) return 0;
    std::fflush(stdout);
    if (const int signal = next_follower_signal(page.more ? 0 : kTailMs); signal != 0) return exit_of_signal(signal);
  }
}

Result<int> explain_it(const Invocation& call) {
  MJ_TRY(open, open_deployments(call));
  MJ_TRY(flows, open.opened.session.stores->open_flows());
  MJ_TRY(leader, flows->leader(context_of(call)));
  const service::InstanceReference of = instance_argument(call);
  MJ_TRY(reasons, service::explain_instance(open.by, open.in(), of, leader.first));
  if (call.json) return print_json({{"workflow", of.workflow}, {"key", of.key}, {"reasons", reasons}});
  for (const json& reason : reasons) {
    print(fmt::format("{} {}  {}\n", one_line(of.workflow), one_line(of.key), cell_text(reason["cause"])));
    print(fmt::format("  {}   {}\n", paint(OutputStyle::strong, "reason"), cell_text(reason["reason"])));
    for (const json& line : reason["evidence"])
      print(fmt::format("  {} {}\n", paint(OutputStyle::faint, "evidence"), cell_text(line)));
    print(fmt::format("  {}     {}\n", paint(OutputStyle::strong, "next"), cell_text(reason["next"])));
  }
  return 0;
}

Result<int> tail(const Invocation& call) {
  std::uint64_t after = 0;
  if (call.has("after") && !parse_u64(call.get("after"), after))
    return fail(Code::invalid, "--after: a height, a whole number");
  MJ_TRY(open, open_deployments(call));
  for (;;) {
    MJ_TRY(page, service::read_facts(open.by, open.in(), typed(call, 0), after, 1000));
    for (const json& fact : page["facts"]) {
      if (call.json) {
        print(dump_json(fact) + "\n");
      } else {
        std::string line;
        for (const std::string& part : fact_row(fact, true)) line += (line.empty() ? "" : "  ") + part;
        print(line + "\n");
      }
      after = fact["height"].get<std::uint64_t>();
    }
    const bool all = after >= page["height"].get<std::uint64_t>() || page["facts"].empty();
    if (all && !call.has("follow")) return 0;
    std::fflush(stdout);
    if (const int signal = next_follower_signal(all ? kTailMs : 0); signal != 0) return exit_of_signal(signal);
  }
}

// ---- answers ----

Result<int> answer(const Invocation& call, bool approved) {
  MJ_TRY(open, open_deployments(call));
  const service::AnswerApproval request{instance_argument(call), call.get("intent"), approved, call.get("comment")};
  MJ_TRY(intent, with_original_arguments(call, service::answer_approval(open.by, open.in(), request)));
  if (call.json) return print_json({{"intent", intent}, {"approved", approved}});
  print(fmt::format("{} is {}\n", intent.substr(0, 12), approved ? "approved" : "rejected"));
  return 0;
}

std::string instance_text(const service::InstanceReference& of) {
  return of.key.empty() ? of.workflow : of.workflow + ' ' + of.key;
}

Result<int> cancel_instance(const Invocation& call) {
  MJ_TRY(open, open_deployments(call));
  const service::InstanceReference of = instance_argument(call);
  MJ_CHECK(with_original_arguments(call, service::cancel_instance(open.by, open.in(), of, call.get("reason"))));
  if (call.json) return print_json({{"workflow", of.workflow}, {"key", of.key}, {"cancelling", true}});
  print(one_line(instance_text(of)) + " is being cancelled\n");
  return 0;
}

Result<int> remove_one(const Invocation& call) {
  MJ_TRY(open, open_deployments(call));
  const service::InstanceReference of = instance_argument(call);
  MJ_CHECK(with_original_arguments(call, service::remove_instance(open.by, open.in(), of)));
  print_deleted(call, instance_text(of));
  return 0;
}

// ---- replays ----

Result<int> export_one(const Invocation& call) {
  MJ_TRY(open, open_deployments(call));
  MJ_TRY(history, service::workflow_history(open.by, open.in(), typed(call, 0)));
  MJ_TRY(text, write_history(history));
  print(text);
  return 0;
}

int print_replayed(const Invocation& call, const service::ReplayResult& done, bool fails) {
  json out{{"manifest", done.deployment}, {"entries", done.entries}, {"steps", done.steps}, {"same", !done.differs}};
  if (done.differs) out["differs"] = {{"height", done.differs->height}, {"cell", shown(done.differs->cell)}};
  if (call.json)
    print_json(out);
  else if (done.differs)
    print_message(fmt::format("{}: the step at height {} of {} gave another output{}", done.deployment,
                              done.differs->height, shown(done.differs->cell),
                              fails ? "; the instance has failed as nondeterministic" : ""));
  else
    print(fmt::format("{}: {} entries, {} steps taken again: the same outputs\n", done.deployment, done.entries,
                      done.steps));
  return done.differs ? EXIT_FAILURE : EXIT_SUCCESS;
}

// Verifies a journal from a file; writes nothing.
Result<int> verify_history(const Invocation& call) {
  const std::string file = call.get("history");
  MJ_TRY(text, read_script(file, kMaxHistoryBytes));
  auto history = read_history(text);
  if (!history) return fail(std::move(history).error(), file);
  auto catalog = catalog_of(*history);
  if (!catalog) return fail(std::move(catalog).error(), file);
  workflow::Engines engines(engine_options(call.settings), 1);
  DeploymentState deployment;
  deployment.id = history->deployment;
  const ReplayVerdict verdict = verify_replay(deployment, *catalog, history->facts, engines.as_function());
  if (const auto trouble = engines.last_problem()) return tl::unexpected(*trouble);
  if (verdict.problem)
    return fail(Code::invalid, file + ": " + std::string(verdict.problem->rule) + ": " + verdict.problem->text);
  const std::uint64_t entries = deployment.height + (verdict.differs ? 1 : 0);
  return print_replayed(call, {history->deployment, entries, verdict.steps, verdict.differs}, false);
}

Result<int> verify_replay_of(const Invocation& call) {
  if (call.has("history") == !call.arguments.empty())
    return fail(Code::invalid, "give a WORKFLOW, or --history FILE: whose journal is replayed");
  if (call.has("history")) return verify_history(call);
  MJ_TRY(open, open_deployments(call));
  workflow::Engines engines(engine_options(call.settings), context_of(call));
  const auto step = [&](const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
    return engines.step(spec, manifest, request);
  };
  MJ_TRY(done, service::verify_workflow(open.by, open.in(), typed(call, 0), step));
  return print_replayed(call, done, true);
}

}  // namespace

int workflow_apply_command(Invocation& call) { return finish(apply(call)); }
int workflow_send_command(Invocation& call) { return finish(send(call)); }
int workflow_list_command(Invocation& call) { return finish(list_deployments(call)); }
int workflow_cells_command(Invocation& call) { return finish(cells(call)); }
int workflow_show_command(Invocation& call) { return finish(show_instance(call)); }
int workflow_timeline_command(Invocation& call) { return finish(timeline(call)); }
int workflow_logs_command(Invocation& call) { return finish(instance_logs(call)); }
int workflow_explain_command(Invocation& call) { return finish(explain_it(call)); }
int workflow_tail_command(Invocation& call) { return finish(tail(call)); }
int workflow_approve_command(Invocation& call) { return finish(answer(call, true)); }
int workflow_reject_command(Invocation& call) { return finish(answer(call, false)); }
int workflow_cancel_command(Invocation& call) { return finish(cancel_instance(call)); }
int workflow_remove_command(Invocation& call) { return finish(remove_one(call)); }
int workflow_export_command(Invocation& call) { return finish(export_one(call)); }
int workflow_verify_replay_command(Invocation& call) { return finish(verify_replay_of(call)); }

}  // namespace mycojobs
