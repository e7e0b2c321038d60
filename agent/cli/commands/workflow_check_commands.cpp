// mycojobs workflow check FILE, test FILE..., simulate FILE, diff OLD NEW: commands that need no Redis.
#include <fmt/format.h>
#include <sysexits.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errno_text.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/commands/workflow_check_commands.h"
#include "cli/job_submission.h"
#include "cli/manifest_files.h"
#include "cli/request_arguments.h"
#include "cli/run_service.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "text/json.h"
#include "text/line_diff.h"
#include "text/plural.h"
#include "text/utf8.h"
#include "workflows/engine/engine_pool.h"
#include "workflows/tools/manifest_diff.h"
#include "workflows/tools/readable_values.h"
#include "workflows/tools/scenario.h"
#include "workflows/tools/shadow.h"
#include "workflows/tools/workflow_history.h"
#include "workflows/tools/workflow_names.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMaxShownInstances = 20;

void print_problems(const Invocation& call, const std::vector<FileProblem>& problems) {
  if (call.json)
    print_json({{"ok", false}, {"problems", to_json(problems)}});
  else
    print(to_printable(join(problems)) + "\n");
}

// Indents the lines of a text. is_diff: lines that begin with - or + are coloured.
std::string indent_lines(std::string_view text, std::string_view indentation, bool is_diff = false) {
  std::string out;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    const OutputStyle style = is_diff && line.starts_with('-')   ? OutputStyle::bad
                              : is_diff && line.starts_with('+') ? OutputStyle::good
                                                                 : OutputStyle::plain;
    out += std::string(indentation) + paint(style, to_printable(line)) + '\n';
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return out;
}

// The scenarios of a file, with the manifests that they use.
struct LoadedScenarios {
  ScenarioFile scenarios;
  YamlText positions;
  ManifestCatalog catalog;
  std::map<std::string, HistoryManifest> manifests;  // by hash
  ScenarioManifests scenario_manifests{catalog, "", {}};
};

// Adds the manifest of this file to the catalog and returns its hash, or an empty text if the manifest has problems.
Result<std::string> add_manifest(const Invocation& call, const std::string& file, LoadedScenarios& out,
                                 std::vector<FileProblem>& problems) {
  MJ_TRY(manifest_file, read_manifest_file(make_engine_options(call.settings), file));
  problems.insert(problems.end(), manifest_file.problems.begin(), manifest_file.problems.end());
  if (!manifest_file.manifest) return std::string();
  out.manifests[manifest_file.manifest->hash] = {dump_json(*manifest_file.document), manifest_file.code};
  out.catalog.add(manifest_file.manifest);
  return manifest_file.manifest->hash;
}

// Returns the scenarios of a file with their manifests, or null if there are problems. manifest_override: path of the
// manifest to use; empty: the manifest that the file names.
Result<std::unique_ptr<LoadedScenarios>> load_scenarios(const Invocation& call, const std::string& file,
                                                        const std::string& manifest_override,
                                                        std::vector<FileProblem>& problems) {
  MJ_TRY(document, read_json_file(file));
  problems = std::move(document.problems);
  if (!document.document) return nullptr;
  auto parsed = read_scenarios(*document.document);
  problems = locate_problems(file, document.positions, std::move(parsed.problems));
  if (!parsed.file) return nullptr;
  auto out = std::make_unique<LoadedScenarios>();
  out->scenarios = std::move(*parsed.file), out->positions = std::move(document.positions);
  const fs::path folder = fs::path(file).parent_path();
  const std::string manifest_path =
      manifest_override.empty() ? (folder / out->scenarios.manifest).string() : manifest_override;
  MJ_TRY(hash, add_manifest(call, manifest_path, *out, problems));
  out->scenario_manifests.manifest = hash;
  for (const auto& name : list_applied_manifests(out->scenarios)) {
    MJ_TRY(applied_hash, add_manifest(call, (folder / name).string(), *out, problems));
    out->scenario_manifests.files[name] = applied_hash;
  }
  if (!problems.empty()) return nullptr;
  return out;
}

Result<void> write_file(const std::string& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text << std::flush;
  if (out) return {};
  return fail(Code::io, file + ": cannot be written: " + errno_text(errno));
}

WorkflowHistory make_history(const LoadedScenarios& loaded, const ScenarioResult& scenario_result) {
  WorkflowHistory history;
  history.deployment = scenario_result.deployment.id, history.facts = scenario_result.facts;
  for (const auto& [hash, manifest] : loaded.manifests) history.manifests.push_back(manifest);
  return history;
}

// Results of `workflow test` over all files.
struct ScenarioTestSummary {
  std::size_t played = 0, failed = 0;
  json files = json::array();
  std::optional<std::string> history;
};

std::string format_mismatch(const FileProblem& located_problem, const Mismatch& mismatch) {
  std::string out = indent_lines(join({located_problem}), "        ");
  if (mismatch.expected.empty() && mismatch.actual.empty()) return out;
  const bool is_multiline =
      mismatch.expected.find('\n') != std::string::npos || mismatch.actual.find('\n') != std::string::npos;
  if (is_multiline)
    return out + indent_lines(format_diff(diff_lines(mismatch.expected, mismatch.actual), 3), "          ", true);
  if (!mismatch.expected.empty()) out += indent_lines("- " + mismatch.expected, "          ");
  if (!mismatch.actual.empty()) out += indent_lines("+ " + mismatch.actual, "          ");
  return out;
}

// Reports a scenario: a row for --json, and lines for users.
void print_scenario_result(const Invocation& call, const std::string& file, const LoadedScenarios& loaded,
                           const Scenario& scenario, const ScenarioResult& scenario_result,
                           ScenarioTestSummary& summary) {
  ++summary.played;
  const bool is_successful = scenario_result.mismatches.empty();
  summary.failed += is_successful ? 0 : 1;
  json problems = json::array();
  std::string text =
      paint(is_successful ? OutputStyle::good : OutputStyle::bad, is_successful ? "  ok    " : "  FAIL  ") +
      to_printable_line(scenario.name) + '\n';
  for (const auto& mismatch : scenario_result.mismatches) {
    const FileProblem located_problem =
        locate_problems(file, loaded.positions, {{mismatch.path, mismatch.message}}).front();
    text += format_mismatch(located_problem, mismatch);
    json row = to_json(std::vector<FileProblem>{located_problem}).front();
    row.update({{"expected", to_utf8(mismatch.expected)}, {"got", to_utf8(mismatch.actual)}});
    problems.push_back(std::move(row));
  }
  summary.files.back()["scenarios"].push_back({{"name", to_utf8(scenario.name)},
                                               {"ok", is_successful},
                                               {"steps", scenario_result.steps},
                                               {"problems", std::move(problems)}});
  if (!call.json) print(text);
}

Result<void> test_scenario_file(const Invocation& call, const std::string& file, ScenarioTestSummary& summary) {
  std::vector<FileProblem> problems;
  MJ_TRY(loaded, load_scenarios(call, file, call.get("manifest"), problems));
  summary.files.push_back({{"file", to_utf8(file)}, {"problems", to_json(problems)}, {"scenarios", json::array()}});
  if (!call.json) print(to_printable_line(file) + "\n");
  if (!loaded) {
    ++summary.failed;
    if (!call.json) print(indent_lines(join(problems), "  "));
    return {};
  }
  workflow::EnginePool engines(make_engine_options(call.settings), 1);
  const StepEngine engine = engines.as_step_engine();
  const std::string selected_name = call.get("name");
  for (const auto& scenario : loaded->scenarios.scenarios) {
    if (scenario.name.find(selected_name) == std::string::npos) continue;
    const ScenarioResult scenario_result =
        run_scenario(loaded->scenarios, scenario, loaded->scenario_manifests, engine);
    if (const auto problem = engines.first_error()) return tl::unexpected(*problem);
    print_scenario_result(call, file, *loaded, scenario, scenario_result, summary);
    if (!call.has("history")) continue;
    MJ_TRY(history, write_history(make_history(*loaded, scenario_result)));
    summary.history = std::move(history);
  }
  return {};
}

// A deployment with its manifests, on which a new manifest is simulated.
struct DeploymentCopy {
  DeploymentState deployment;
  ManifestCatalog catalog;
};

Result<DeploymentCopy> load_history_copy(const std::string& file) {
  MJ_TRY(text, read_script(file, kMaxHistoryBytes));
  auto history = read_history(text);
  if (!history) return fail(std::move(history).error(), file);
  MJ_TRY(catalog, build_catalog(*history));
  MJ_TRY(deployment, fold_history(*history));
  return DeploymentCopy{std::move(deployment), std::move(catalog)};
}

Result<DeploymentCopy> load_scenario_copy(const Invocation& call, const std::string& file) {
  std::vector<FileProblem> problems;
  MJ_TRY(loaded, load_scenarios(call, file, "", problems));
  if (!loaded) return fail(Code::invalid, join(problems));
  const Scenario* selected_scenario = nullptr;
  for (const auto& scenario : loaded->scenarios.scenarios) {
    if (scenario.name.find(call.get("name")) == std::string::npos) continue;
    if (selected_scenario != nullptr)
      return fail(Code::invalid, "several scenarios are meant: " + excerpt(selected_scenario->name, 100) + ", " +
                                     excerpt(scenario.name, 100) + "; --name says which");
    selected_scenario = &scenario;
  }
  if (selected_scenario == nullptr)
    return fail(Code::not_found, "no scenario has " + excerpt(call.get("name"), 200) + " in its name");
  workflow::EnginePool engines(make_engine_options(call.settings), 1);
  ScenarioResult scenario_result =
      run_scenario(loaded->scenarios, *selected_scenario, loaded->scenario_manifests, engines.as_step_engine());
  if (const auto problem = engines.first_error()) return tl::unexpected(*problem);
  if (!scenario_result.mismatches.empty())
    return fail(Code::invalid,
                file + ": the scenario is not as it expects: " + scenario_result.mismatches.front().message);
  return DeploymentCopy{std::move(scenario_result.deployment), std::move(loaded->catalog)};
}

// Parses the value "NAME=JSON" of a flag.
Result<std::pair<std::string, std::string>> parse_named_json(const std::string& text, std::string_view flag) {
  const auto end = text.find('=');
  const std::string value = end == text.npos ? "" : text.substr(end + 1);
  if (!parse_exact_json(value))
    return fail(Code::invalid, fmt::format("--{}: {}: NAME=JSON", flag, excerpt(text, 200)));
  return std::pair(text.substr(0, end), value);
}

}  // namespace

Result<ShadowSettings> parse_shadow_flags(const Invocation& call, const WorkflowManifest& manifest) {
  ShadowSettings settings;
  settings.manifest = manifest.hash;
  settings.placeholders = !call.has("pending");
  settings.sample = {call.dependencies.clock.unix_ms(), std::string(32, '\0')};
  MJ_TRY(steps, parse_count_flag(call, "steps", 1000));
  settings.max_steps = steps;
  for (const auto& text : call.get_all("send")) {
    MJ_TRY(value, parse_named_json(text, "send"));
    MJ_TRY(event, find_event(manifest, value.first));
    settings.events.push_back({event, value.second, ValueForm::from_json, "simulation"});
  }
  for (const auto& text : call.get_all("receipt")) {
    MJ_TRY(value, parse_named_json(text, "receipt"));
    MJ_TRY(effect, find_effect(manifest, value.first));
    settings.receipts[effect->name] = value.second;
  }
  return settings;
}

void print_shadow_report(const Invocation& call, const ShadowReport& report) {
  if (call.json) {
    print_json(to_json(report));
    return;
  }
  const auto print_effects = [](const char* heading, const std::vector<EffectToPublish>& effect_list) {
    print(fmt::format("{}: {}\n", heading, effect_list.empty() ? "none" : std::to_string(effect_list.size())));
    for (const auto& entry : effect_list)
      print(fmt::format("  {}  {}  {}\n", to_printable_line(entry.pending_intent.intent.effect),
                        to_printable_line(display_name(entry.instance)),
                        to_printable_line(dump_json(cbor_to_readable_json(entry.pending_intent.intent.params)))));
  };
  print(fmt::format("an apply now: {}\n", report.obstacles.empty() ? "is possible" : "is refused"));
  if (!report.obstacles.empty()) print("  " + to_printable_line(join(report.obstacles)) + "\n");
  print_effects("effects asked for", report.effects);
  print_effects("effects without a receipt", report.pending_effects);
  if (!report.placeholder_effects.empty())
    print(
        fmt::format("generated receipts: {}\n  their payloads are the smallest valid ones; --receipt EFFECT=JSON "
                    "gives one, --pending none\n",
                    to_printable_line(fmt::format("{}", fmt::join(report.placeholder_effects, ", ")))));
  print(fmt::format("instances that differ: {}\n",
                    report.changed_instances.empty() ? "none" : std::to_string(report.changed_instances.size())));
  for (const auto& entry : report.changed_instances) {
    print(fmt::format("  {}  {}{}\n", to_printable_line(display_name(entry.instance)), to_string(entry.status),
                      entry.failure.empty() ? "" : ": " + to_printable_line(entry.message)));
    const auto format_state = [](const std::optional<std::string>& cbor) {
      return dump_json(cbor ? cbor_to_readable_json(*cbor) : json(nullptr), 2);
    };
    print(indent_lines(format_diff(diff_lines(format_state(entry.old_state), format_state(entry.new_state)), 3), "    ",
                       true));
  }
  for (const auto& entry : report.refused_inputs) print("refused: " + to_printable_line(entry) + "\n");
  print(fmt::format("{} of code{}; what other inputs would bring is not known\n", count_with_noun(report.steps, "step"),
                    report.is_truncated ? ", and more to do: --steps" : ""));
}

namespace {

void print_differences(const std::vector<ManifestDifference>& differences, const std::optional<UpgradeImpact>& impact) {
  if (differences.empty()) print("no differences\n");
  for (const auto& entry : differences) {
    print(paint(OutputStyle::strong,
                fmt::format("{} {}: {}", entry.part, to_printable_line(entry.name), to_string(entry.change))) +
          "\n");
    for (const auto& consequence : entry.consequences) print("  " + to_printable_line(consequence) + "\n");
    print(indent_lines(entry.text, "    ", true));
  }
  if (!impact) return;
  print(impact->obstacles.empty() ? "an apply now is possible\n"
                                  : "an apply now is refused: " + to_printable_line(join(impact->obstacles)) + "\n");
  const auto print_some = [](const std::vector<std::string>& rows, const char* suffix) {
    for (std::size_t i = 0; i < std::min(rows.size(), kMaxShownInstances); ++i)
      print(to_printable_line(rows[i]) + suffix + '\n');
    if (rows.size() > kMaxShownInstances)
      print(fmt::format("and {} more{}; --json has all\n", rows.size() - kMaxShownInstances, suffix));
  };
  print_some(impact->instances_with_old_code, " keeps its code");
  print_some(impact->lost_events, "");
}

}  // namespace

Result<int> workflow_check_command(Invocation& call) {
  exit_on_stop_signals();
  MJ_TRY(manifest_file, read_manifest_file(make_engine_options(call.settings), call.arguments.at(0)));
  if (!manifest_file.manifest) {
    print_problems(call, manifest_file.problems);
    return EX_DATAERR;
  }
  const WorkflowManifest& manifest = *manifest_file.manifest;
  std::size_t effect_count = 0;
  for (const auto& effect : manifest.effects) effect_count += effect.system ? 0 : 1;
  if (call.json) {
    json workflows = json::array();
    for (const auto& entry : manifest.workflows)
      workflows.push_back({{"name", entry.name},
                           {"hash", entry.hash},
                           {"keyed", entry.is_keyed()},
                           {"effects_emitted", entry.effects_emitted}});
    return print_json({{"ok", true},
                       {"problems", json::array()},
                       {"name", manifest.name},
                       {"hash", manifest.hash},
                       {"workflows", std::move(workflows)},
                       {"effects", effect_count},
                       {"subscriptions", manifest.subscriptions.size()}});
  }
  print(fmt::format("{}: {}, {}, {}, manifest {}\n", to_printable_line(manifest.name),
                    count_with_noun(manifest.workflows.size(), "workflow"), count_with_noun(effect_count, "effect"),
                    count_with_noun(manifest.subscriptions.size(), "subscription"), manifest.hash));
  return 0;
}

Result<int> workflow_test_command(Invocation& call) {
  exit_on_stop_signals();
  ScenarioTestSummary summary;
  const std::uint64_t begin_ms = call.dependencies.clock.boot_ms();
  for (const auto& file : call.arguments) MJ_CHECK(test_scenario_file(call, file, summary));
  const std::uint64_t elapsed_ms = call.dependencies.clock.boot_ms() - begin_ms;
  if (summary.history) MJ_CHECK(write_file(call.get("history"), *summary.history));
  if (summary.played == 0 && summary.failed == 0)
    return fail(Code::not_found, "no scenario has " + excerpt(call.get("name"), 200) + " in its name");
  const bool is_successful = summary.failed == 0;
  if (call.json)
    print_json({{"ok", is_successful},
                {"played", summary.played},
                {"failed", summary.failed},
                {"ms", elapsed_ms},
                {"files", std::move(summary.files)}});
  else
    print(fmt::format("{}, {} ms: {}\n", count_with_noun(summary.played, "scenario"), elapsed_ms,
                      is_successful ? paint(OutputStyle::good, "all as expected")
                                    : paint(OutputStyle::bad, fmt::format("{} failed", summary.failed))));
  return is_successful ? EXIT_SUCCESS : EXIT_FAILURE;
}

Result<int> workflow_simulate_command(Invocation& call) {
  exit_on_stop_signals();
  MJ_TRY(manifest_file, read_manifest_file(make_engine_options(call.settings), call.arguments.at(0)));
  if (!manifest_file.manifest) {
    print_problems(call, manifest_file.problems);
    return EX_DATAERR;
  }
  if (call.has("history") && call.has("scenario"))
    return fail(Code::invalid, "--history and --scenario exclude each other: give one of them");
  DeploymentCopy deployment_copy;
  deployment_copy.deployment.id = "simulation/" + manifest_file.manifest->name;
  if (call.has("history")) {
    MJ_TRY(value, load_history_copy(call.get("history")));
    deployment_copy = std::move(value);
  }
  if (call.has("scenario")) {
    MJ_TRY(value, load_scenario_copy(call, call.get("scenario")));
    deployment_copy = std::move(value);
  }
  deployment_copy.catalog.add(manifest_file.manifest);
  MJ_TRY(settings, parse_shadow_flags(call, *manifest_file.manifest));
  workflow::EnginePool engines(make_engine_options(call.settings), 1);
  const ShadowReport report =
      simulate(std::move(deployment_copy.deployment), deployment_copy.catalog, settings, engines.as_step_engine());
  if (const auto problem = engines.first_error()) return tl::unexpected(*problem);
  print_shadow_report(call, report);
  return report.refused_inputs.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

Result<int> workflow_diff_command(Invocation& call) {
  exit_on_stop_signals();
  MJ_TRY(old_manifest, read_manifest_file(make_engine_options(call.settings), call.arguments.at(0)));
  MJ_TRY(new_manifest, read_manifest_file(make_engine_options(call.settings), call.arguments.at(1)));
  if (!old_manifest.manifest || !new_manifest.manifest) {
    auto problems = old_manifest.problems;
    problems.insert(problems.end(), new_manifest.problems.begin(), new_manifest.problems.end());
    print_problems(call, problems);
    return EX_DATAERR;
  }
  const auto differences =
      compare_manifests(*old_manifest.document, *old_manifest.manifest, *new_manifest.document, *new_manifest.manifest);
  std::optional<UpgradeImpact> impact;
  if (call.has("history")) {
    MJ_TRY(deployment_copy, load_history_copy(call.get("history")));
    impact = assess_upgrade(deployment_copy.deployment, deployment_copy.catalog, *new_manifest.manifest);
  }
  if (call.json) {
    json out{{"before", old_manifest.manifest->hash},
             {"after", new_manifest.manifest->hash},
             {"differences", to_json(differences)}};
    if (impact) out["apply"] = to_json(*impact);
    print_json(out);
  } else {
    print_differences(differences, impact);
  }
  return differences.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace mycojobs
