#include <fmt/format.h>
#include <sysexits.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "artifacts/artifact_usage.h"
#include "cli/commands/command_table.h"
#include "cli/executor_trial.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/doctor.h"
#include "inspect/verify/actor_verify.h"
#include "inspect/verify/context_verify.h"
#include "inspect/verify/deployment_verify.h"
#include "inspect/verify/flow_verify.h"
#include "inspect/verify/object_verify.h"
#include "inspect/verify/rebuild.h"
#include "model/codec.h"
#include "store/redis/default_user.h"
#include "text/json.h"
#include "text/plural.h"

// mycojobs doctor: checks everything that jobs need, and prints the remedy for missing parts.

namespace mycojobs {
namespace {

using Checks = std::vector<Check>;

constexpr OutputStyle kTones[] = {OutputStyle::good, OutputStyle::warn, OutputStyle::bad};

void add_error(Checks& checks, std::string area, std::string name, const Error& error) {
  checks.push_back({std::move(area), std::move(name), Verdict::missing, error.message, ""});
}

void examine_sandbox(const Invocation& call, Checks& checks) {
  auto layers = call.parts.probe_layers(call.settings);
  if (!layers) return add_error(checks, "sandbox", "launcher", layers.error());
  for (const LayerCheck& layer : *layers) {
    const auto& allowed = call.settings.sandbox_allow_missing;
    // Without several user ids all jobs share one. This is weaker and is reported with every result, but jobs can run.
    const bool may_miss = layer.name == "uid" || std::find(allowed.begin(), allowed.end(), layer.name) != allowed.end();
    checks.push_back({"sandbox", layer.name, layer.ok ? Verdict::ok : (may_miss ? Verdict::warning : Verdict::missing),
                      layer.detail, layer.remedy});
  }
}

void examine_executors(const Invocation& call, Checks& checks) {
  ExecutorTrials trials(call);
  for (const auto& executor : call.parts.executors(call.settings)) {
    auto probed = executor->probe();
    const std::string failure = probed ? trials.failure_of(*executor) : "";
    if (!failure.empty()) {
      checks.push_back({"executor", std::string(executor->name()), Verdict::missing, *probed + "; " + failure, ""});
    } else if (probed) {
      checks.push_back({"executor", std::string(executor->name()), Verdict::ok, *probed, ""});
    } else {
      add_error(checks, "executor", std::string(executor->name()), probed.error());
      // An interpreter that is not installed is an error only if its script type is configured.
      const auto& wanted = call.settings.script_types;
      const auto types = executor->script_types();
      const bool is_wanted =
          std::find_first_of(wanted.begin(), wanted.end(), types.begin(), types.end()) != wanted.end();
      if (probed.error().code == Code::not_found && !is_wanted) checks.back().verdict = Verdict::warning;
    }
  }
}

// A rejected plugin is a warning, because an agent works without it.
void examine_plugins(const Invocation& call, Checks& checks) {
  for (const auto& report : call.parts.plugins(call.settings)) {
    if (report.state == plugin::PluginState::refused)
      checks.push_back({"plugin", std::filesystem::path(report.file).filename().string(), Verdict::warning,
                        "refused: " + report.reason, "mycojobs plugin check " + report.file});
  }
}

Result<ServerFacts> facts_of(Result<std::unique_ptr<Store>> store) {
  if (!store) return tl::unexpected(store.error());
  return (*store)->facts();
}

void add_server(const Invocation& call, Checks& checks, const std::string& name, const Result<ServerFacts>& facts,
                Id highest, const std::string& url) {
  if (!facts) return add_error(checks, name, "server", facts.error());
  for (Check& check : examine_server(*facts, highest, call.settings.redis_wait_replicas)) {
    check.area = name;
    checks.push_back(std::move(check));
  }
  if (const auto user = probe_default_user(url); user && *user) {
    checks.push_back(default_user_check(**user == DefaultUser::open));
    checks.back().area = name;
  }
}

// The artifacts of a context on this host.
void examine_artifacts(const Invocation& call, Id context, Checks& checks) {
  const ArtifactTotals totals = artifact_totals(call.settings.state_dir, context);
  if (totals.bytes == 0) return;
  checks.push_back(artifact_quota_check(fmt::format("artifacts of context {} here", context), totals.bytes,
                                        call.settings.quota_context_artifact_bytes, "quota.context_artifact_bytes"));
  checks.push_back(artifact_quota_check(
      fmt::format("largest caller of artifacts of context {}: {}", context, totals.largest_caller),
      totals.largest_bytes, call.settings.quota_caller_artifact_bytes, "quota.caller_artifact_bytes"));
}

// Checks the keys of each context, on the server of the context.
void examine_formats(const Invocation& call, Checks& checks) {
  auto session = open_session(call.parts, call.settings, false);
  if (!session) return;  // reported by examine_redis()
  auto store = session->stores->open();
  if (!store) return;
  for (Id context : call.settings.contexts) {
    for (Check& check : examine_format(**store, context)) checks.push_back(std::move(check));
    for (Check& check : examine_writes(**store, context)) checks.push_back(std::move(check));
    for (Check& check : examine_quota(**store, context)) checks.push_back(std::move(check));
    examine_artifacts(call, context, checks);
  }
}

// Checks the default server and the servers of single contexts.
void examine_redis(const Invocation& call, Checks& checks) {
  const auto& own = call.settings.context_redis;
  Id highest = 0;
  for (Id context : call.settings.contexts) {
    if (!own.contains(context)) highest = std::max(highest, context);
  }
  if (highest > 0) {
    auto session = open_session(call.parts, call.settings, false);
    add_server(call, checks, "redis",
               session ? facts_of(session->stores->open()) : Result<ServerFacts>(tl::unexpected(session.error())),
               highest, call.settings.redis.empty() ? call.parts.embedded_url(call.settings) : call.settings.redis);
  }
  for (Id context : call.settings.contexts) {
    const auto found = own.find(context);
    if (found == own.end()) continue;
    // Configured as the server for keys without a context, so that facts() queries this server.
    Settings alone = call.settings;
    alone.context_redis = {{Id{0}, found->second}};
    add_server(call, checks, "redis of context " + std::to_string(context),
               facts_of(call.parts.stores(alone, found->second)->open()), 0, found->second);
  }
}

int examine(const Invocation& call) {
  Checks checks;
  examine_sandbox(call, checks);
  examine_executors(call, checks);
  examine_plugins(call, checks);
  examine_redis(call, checks);
  examine_formats(call, checks);

  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"AREA", "WHAT", "STATE", "DETAIL"}};
  bool good = true;
  for (const Check& check : checks) {
    good = good && check.verdict != Verdict::missing;
    array.push_back(to_json(check));
    const OutputStyle tone = kTones[static_cast<std::size_t>(check.verdict)];
    rows.push_back({check.area, check.name, paint(tone, to_string(check.verdict)), check.detail});
    if (!check.remedy.empty()) rows.push_back({"", "", "", paint(OutputStyle::strong, "remedy: ") + check.remedy});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
  }
  return good ? 0 : EX_UNAVAILABLE;
}

}  // namespace

int doctor_command(Invocation& call) {
  if (call.has("rebuild")) return doctor_rebuild(call);
  if (call.has("dry-run")) return print_error({Code::invalid, "--dry-run: belongs to --rebuild"});
  return examine(call);
}

// mycojobs verify, mycojobs doctor --rebuild

namespace {

ProgressCallback shown_by(ProgressLine& line) {
  return [&line](std::string_view phase, std::uint64_t done, std::uint64_t total) { line.show(phase, done, total); };
}

constexpr std::size_t kShownOfEach = 3;

std::string kind_of(const Finding& finding) {
  return finding.violation ? paint(OutputStyle::bad, "violation") : paint(OutputStyle::faint, "note");
}

// Prints the number of findings per rule, violations first, and then the first findings of each rule.
void print_findings(const std::vector<Finding>& found_ones, bool all) {
  if (found_ones.empty()) return;
  std::map<std::string, std::vector<const Finding*>> by_rule;
  for (const Finding& finding : found_ones) by_rule[finding.rule].push_back(&finding);
  std::vector<std::vector<std::string>> totals;
  std::vector<std::vector<std::string>> rows;
  std::size_t left_out = 0;
  for (const bool violations : {true, false}) {
    for (const VerifyRule& rule : verify_rules()) {
      const auto found = by_rule.find(std::string(rule.name));
      if (rule.violation != violations || found == by_rule.end()) continue;
      const auto& findings = found->second;
      totals.push_back(
          {kind_of(*findings.front()), found->first, std::to_string(findings.size()), std::string(rule.meaning)});
      const std::size_t some = all ? findings.size() : std::min(findings.size(), kShownOfEach);
      left_out += findings.size() - some;
      for (std::size_t i = 0; i < some; ++i)
        rows.push_back(
            {kind_of(*findings[i]), found->first, printable(findings[i]->subject), printable(findings[i]->text)});
    }
  }
  print_table(totals);
  print("\n");
  print_table(rows);
  if (left_out > 0) print(fmt::format("and {} more: --all lists every one\n", left_out));
}

void print_report(Id context, const VerifyReport& report, bool all) {
  print(fmt::format("context {}: {} jobs, {} facts, {} queues\n", context, report.jobs, report.facts, report.queues));
  print_findings(report.findings, all);
}

Result<int> verify_all(const Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(objects, opened.session.stores->open_objects());
  MJ_TRY(flows, opened.session.stores->open_flows());
  MJ_TRY(deployments, opened.session.stores->open_workflows());
  nlohmann::json contexts = nlohmann::json::array();
  std::size_t violations = 0;
  std::size_t notes = 0;
  const auto counted_json = [&](const std::vector<Finding>& all) {
    nlohmann::json findings = nlohmann::json::array();
    for (const Finding& finding : all) {
      ++(finding.violation ? violations : notes);
      findings.push_back(to_json(finding));
    }
    return findings;
  };
  for (Id context : call.settings.contexts) {
    Result<VerifyReport> report;
    {
      ProgressLine line(call.parts.clock);
      report = verify_context({*opened.store, *objects, *flows, *deployments}, context, shown_by(line));
    }
    if (!report) return fail(report.error(), fmt::format("context {}", context));
    contexts.push_back({{"context", context},
                        {"jobs", report->jobs},
                        {"facts", report->facts},
                        {"queues", report->queues},
                        {"findings", counted_json(report->findings)}});
    if (!call.json) print_report(context, *report, call.has("all"));
  }
  MJ_TRY(of_actors, verify_actors(*opened.store));
  nlohmann::json actors = counted_json(of_actors);
  if (call.json) {
    print(dump_json({{"clean", violations == 0},
                     {"violations", violations},
                     {"contexts", contexts},
                     {"actors", std::move(actors)}},
                    2) +
          "\n");
  } else {
    print_findings(of_actors, call.has("all"));
    print(violations == 0 ? paint(OutputStyle::good, "clean")
                          : paint(OutputStyle::bad, count_with_noun(violations, "violation")));
    print(notes == 0 ? "\n" : ", " + count_with_noun(notes, "note") + "\n");
  }
  if (violations > 0) print_message("`mycojobs doctor --rebuild --dry-run` shows possible repairs from the journals");
  return violations == 0 ? 0 : 1;
}

struct ContextStores {
  std::unique_ptr<ObjectStore> objects;
  std::unique_ptr<FlowStore> flows;
  std::unique_ptr<WorkflowStore> deployments;
};
struct ContextRebuild {
  RebuildReport report;
  std::vector<Finding> left;  // violations that remain after the rebuild; empty for a dry run
  bool is_complete = true;
};

Result<ContextRebuild> rebuild_context(Store& records, const ContextStores& in, Id context, bool dry_run,
                                       const ProgressCallback& progress) {
  ContextRebuild out;
  const auto add = [&](std::vector<std::string>& lines) {
    std::move(lines.begin(), lines.end(), std::back_inserter(out.report.differences));
  };
  MJ_TRY(report, rebuild(records, context, dry_run, progress));
  out.report = std::move(report);
  MJ_TRY(of_objects, rebuild_objects(*in.objects, context, dry_run));
  add(of_objects);
  MJ_TRY(of_flows, rebuild_flows(*in.flows, records, context, dry_run));
  add(of_flows.differences);
  out.is_complete = of_flows.is_complete;
  MJ_TRY(of_deployments, rebuild_deployments(*in.deployments, records, context, dry_run));
  add(of_deployments);
  if (dry_run) return out;
  MJ_TRY(after, verify_context({records, *in.objects, *in.flows, *in.deployments}, context, progress));
  std::copy_if(after.findings.begin(), after.findings.end(), std::back_inserter(out.left),
               [](const Finding& each) { return each.violation; });
  out.is_complete = out.is_complete && out.left.empty();
  return out;
}

void print_rebuild(Id context, const ContextRebuild& done, bool dry_run) {
  const std::size_t differences = done.report.differences.size();
  const char* word = differences == 0   ? ""
                     : dry_run          ? ", not repaired"
                     : done.is_complete ? ", repaired"
                                        : ", not all repaired";
  print(fmt::format("context {}: {}, {}{}\n", context, count_with_noun(done.report.jobs, "job"),
                    count_with_noun(differences, "difference"), word));
  for (const std::string& line : done.report.differences) print("  " + one_line(line) + "\n");
  if (!done.left.empty()) print("  left:\n");
  for (const Finding& each : done.left) print("  " + each.rule + "  " + one_line(printable(each.text)) + "\n");
}

Result<int> rebuild_all(const Invocation& call) {
  const bool dry_run = call.has("dry-run");
  MJ_TRY(opened, open_to_answer(call));
  ContextStores in;
  MJ_TRY(objects, opened.session.stores->open_objects());
  MJ_TRY(flows, opened.session.stores->open_flows());
  MJ_TRY(deployments, opened.session.stores->open_workflows());
  in = {std::move(objects), std::move(flows), std::move(deployments)};
  nlohmann::json contexts = nlohmann::json::array();
  std::size_t differences = 0;
  bool is_complete = true;
  for (Id context : call.settings.contexts) {
    Result<ContextRebuild> done;
    {
      ProgressLine line(call.parts.clock);
      done = rebuild_context(*opened.store, in, context, dry_run, shown_by(line));
    }
    if (!done) return fail(done.error(), fmt::format("context {}", context));
    const RebuildReport& report = done->report;
    differences += report.differences.size();
    is_complete = is_complete && done->is_complete;
    nlohmann::json left = nlohmann::json::array();
    for (const Finding& each : done->left) left.push_back(to_json(each));
    contexts.push_back(
        {{"context", context}, {"jobs", report.jobs}, {"differences", report.differences}, {"left", std::move(left)}});
    if (!call.json) print_rebuild(context, *done, dry_run);
  }
  MJ_TRY(of_actors, rebuild_actors(*opened.store, dry_run));
  differences += of_actors.size();
  if (call.json) {
    print(dump_json({{"dry_run", dry_run},
                     {"complete", is_complete},
                     {"differences", differences},
                     {"contexts", contexts},
                     {"actors", of_actors}},
                    2) +
          "\n");
  } else {
    for (const std::string& line : of_actors) print("actors: " + one_line(line) + "\n");
  }
  if (!is_complete && !dry_run)
    print_message("some violations cannot be repaired: docs/protocol.md explains the loss of each key");
  return (dry_run && differences > 0) || !is_complete ? 1 : 0;
}

}  // namespace

int verify_command(Invocation& call) { return finish(verify_all(call)); }
int doctor_rebuild(Invocation& call) { return finish(rebuild_all(call)); }

}  // namespace mycojobs
