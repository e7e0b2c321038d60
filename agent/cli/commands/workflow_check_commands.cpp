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
#include "base/parse.h"
#include "cli/commands/command_table.h"
#include "cli/commands/workflow_check_commands.h"
#include "cli/job_submission.h"
#include "cli/manifest_files.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
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

constexpr std::size_t kShownInstances = 20;

void print_problems(const Invocation& call, const std::vector<FileProblem>& problems) {
  if (call.json)
    print(dump_json({{"ok", false}, {"problems", to_json(problems)}}, 2) + "\n");
  else
    print(printable(join(problems)) + "\n");
}

std::string indented(std::string_view text, std::string_view by) {
  std::string out;
  while (!text.empty()) {
    const auto end = text.find('\n');
    out += std::string(by) + printable(text.substr(0, end)) + '\n';
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return out;
}

// Returns the difference with coloured lines.
std::string painted(const std::string& diff, std::string_view by) {
  std::string out;
  std::string_view left = diff;
  while (!left.empty()) {
    const auto end = left.find('\n');
    const auto line = left.substr(0, end);
    const OutputStyle tone = line.starts_with('-')   ? OutputStyle::bad
                             : line.starts_with('+') ? OutputStyle::good
                                                     : OutputStyle::plain;
    out += std::string(by) + paint(tone, printable(line)) + '\n';
    left.remove_prefix(end == left.npos ? left.size() : end + 1);
  }
  return out;
}

// --- check

Result<int> check_manifest(const Invocation& call) {
  exit_on_stop_signals();
  MJ_TRY(read, read_manifest_file(engine_options(call.settings), call.arguments.at(0)));
  if (!read.manifest) {
    print_problems(call, read.problems);
    return EX_DATAERR;
  }
  const WorkflowManifest& manifest = *read.manifest;
  std::size_t own = 0;
  for (const auto& effect : manifest.effects) own += effect.system ? 0 : 1;
  if (call.json) {
    json workflows = json::array();
    for (const auto& each : manifest.workflows)
      workflows.push_back({{"name", each.name},
                           {"hash", each.hash},
                           {"keyed", each.keyed()},
                           {"effects_emitted", each.effects_emitted}});
    print(dump_json({{"ok", true},
                     {"problems", json::array()},
                     {"name", manifest.name},
                     {"hash", manifest.hash},
                     {"workflows", std::move(workflows)},
                     {"effects", own},
                     {"subscriptions", manifest.subscriptions.size()}},
                    2) +
          "\n");
    return 0;
  }
  print(fmt::format("{}: {}, {}, {}, manifest {}\n", one_line(manifest.name),
                    count_with_noun(manifest.workflows.size(), "workflow"), count_with_noun(own, "effect"),
                    count_with_noun(manifest.subscriptions.size(), "subscription"), manifest.hash));
  return 0;
}

// --- test

struct LoadedManifest {
  ScenarioFile scenarios;
  YamlText places;
  ManifestCatalog catalog;
  std::map<std::string, HistoryManifest> manifests;  // by hash
  ScenarioDeployment deployment{catalog, "", {}};
};

// Adds the manifest of this file to the catalog and returns its hash; empty: the manifest has problems.
Result<std::string> load_manifest(const Invocation& call, const std::string& file, LoadedManifest& out,
                                  std::vector<FileProblem>& problems) {
  MJ_TRY(read, read_manifest_file(engine_options(call.settings), file));
  problems.insert(problems.end(), read.problems.begin(), read.problems.end());
  if (!read.manifest) return std::string();
  out.manifests[read.manifest->hash] = {dump_json(*read.document), read.code};
  out.catalog.add(read.manifest);
  return read.manifest->hash;
}

// Returns the scenarios with their manifests; nullptr: there are problems.
Result<std::unique_ptr<LoadedManifest>> load_scenarios(const Invocation& call, const std::string& file,
                                                       const std::string& other_manifest,
                                                       std::vector<FileProblem>& problems) {
  MJ_TRY(document, read_json_file(file));
  problems = std::move(document.problems);
  if (!document.document) return nullptr;
  auto read = read_scenarios(*document.document);
  problems = located(file, document.places, std::move(read.problems));
  if (!read.file) return nullptr;
  auto out = std::make_unique<LoadedManifest>();
  out->scenarios = std::move(*read.file), out->places = std::move(document.places);
  const fs::path folder = fs::path(file).parent_path();
  const std::string own = other_manifest.empty() ? (folder / out->scenarios.manifest).string() : other_manifest;
  MJ_TRY(hash, load_manifest(call, own, *out, problems));
  out->deployment.manifest = hash;
  for (const auto& name : manifests_of(out->scenarios)) {
    MJ_TRY(applied, load_manifest(call, (folder / name).string(), *out, problems));
    out->deployment.files[name] = applied;
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

WorkflowHistory history_of(const LoadedManifest& loaded, const ScenarioResult& played) {
  WorkflowHistory history;
  history.deployment = played.deployment.id, history.facts = played.history;
  for (const auto& [hash, manifest] : loaded.manifests) history.manifests.push_back(manifest);
  return history;
}

struct ScenarioTestSummary {
  std::size_t played = 0, failed = 0;
  json files = json::array();
  std::optional<std::string> history;
};

std::string mismatch_text(const FileProblem& at, const Mismatch& mismatch) {
  std::string out = indented(join({at}), "        ");
  if (mismatch.expected.empty() && mismatch.got.empty()) return out;
  const bool values = mismatch.expected.find('\n') != std::string::npos || mismatch.got.find('\n') != std::string::npos;
  if (values) return out + painted(show_diff(line_diff(mismatch.expected, mismatch.got), 3), "          ");
  if (!mismatch.expected.empty()) out += indented("- " + mismatch.expected, "          ");
  if (!mismatch.got.empty()) out += indented("+ " + mismatch.got, "          ");
  return out;
}

// Reports a scenario: a row for --json, and lines for users.
void print_scenario_result(const Invocation& call, const std::string& file, const LoadedManifest& loaded,
                           const Scenario& scenario, const ScenarioResult& played, ScenarioTestSummary& tested) {
  ++tested.played;
  const bool good = played.mismatches.empty();
  tested.failed += good ? 0 : 1;
  json problems = json::array();
  std::string text = paint(good ? OutputStyle::good : OutputStyle::bad, good ? "  ok    " : "  FAIL  ") +
                     one_line(scenario.name) + '\n';
  for (const auto& mismatch : played.mismatches) {
    const FileProblem at = located(file, loaded.places, {{mismatch.path, mismatch.what}}).front();
    text += mismatch_text(at, mismatch);
    json row = to_json({at}).front();
    row.update({{"expected", to_utf8(mismatch.expected)}, {"got", to_utf8(mismatch.got)}});
    problems.push_back(std::move(row));
  }
  tested.files.back()["scenarios"].push_back(
      {{"name", to_utf8(scenario.name)}, {"ok", good}, {"steps", played.steps}, {"problems", std::move(problems)}});
  if (!call.json) print(text);
}

Result<void> test_file(const Invocation& call, const std::string& file, ScenarioTestSummary& tested) {
  std::vector<FileProblem> problems;
  MJ_TRY(loaded, load_scenarios(call, file, call.get("manifest"), problems));
  tested.files.push_back({{"file", to_utf8(file)}, {"problems", to_json(problems)}, {"scenarios", json::array()}});
  if (!call.json) print(one_line(file) + "\n");
  if (!loaded) {
    ++tested.failed;
    if (!call.json) print(indented(join(problems), "  "));
    return {};
  }
  workflow::Engines engines(engine_options(call.settings), 1);
  const StepEngine engine = engines.as_function();
  const std::string wanted = call.get("name");
  for (const auto& scenario : loaded->scenarios.scenarios) {
    if (scenario.name.find(wanted) == std::string::npos) continue;
    const ScenarioResult played = run_scenario(loaded->scenarios, scenario, loaded->deployment, engine);
    if (const auto trouble = engines.last_problem()) return tl::unexpected(*trouble);
    print_scenario_result(call, file, *loaded, scenario, played, tested);
    if (!call.has("history")) continue;
    MJ_TRY(history, write_history(history_of(*loaded, played)));
    tested.history = std::move(history);
  }
  return {};
}

Result<int> test_scenarios(const Invocation& call) {
  exit_on_stop_signals();
  ScenarioTestSummary tested;
  const std::uint64_t begun = call.parts.clock.boot_ms();
  for (const auto& file : call.arguments) MJ_CHECK(test_file(call, file, tested));
  const std::uint64_t took = call.parts.clock.boot_ms() - begun;
  if (tested.history) MJ_CHECK(write_file(call.get("history"), *tested.history));
  if (tested.played == 0 && tested.failed == 0)
    return fail(Code::not_found, "no scenario has " + excerpt(call.get("name"), 200) + " in its name");
  const bool good = tested.failed == 0;
  if (call.json)
    print(dump_json({{"ok", good},
                     {"played", tested.played},
                     {"failed", tested.failed},
                     {"ms", took},
                     {"files", std::move(tested.files)}},
                    2) +
          "\n");
  else
    print(fmt::format("{}, {} ms: {}\n", count_with_noun(tested.played, "scenario"), took,
                      good ? paint(OutputStyle::good, "all as expected")
                           : paint(OutputStyle::bad, fmt::format("{} failed", tested.failed))));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

// --- copies of worlds for simulation

struct DeploymentCopy {
  DeploymentState deployment;
  ManifestCatalog catalog;
};

Result<DeploymentCopy> copy_of_history(const std::string& file) {
  MJ_TRY(text, read_script(file, kMaxHistoryBytes));
  auto history = read_history(text);
  if (!history) return fail(std::move(history).error(), file);
  MJ_TRY(catalog, catalog_of(*history));
  MJ_TRY(deployment, deployment_of(*history));
  return DeploymentCopy{std::move(deployment), std::move(catalog)};
}

Result<DeploymentCopy> copy_of_scenario(const Invocation& call, const std::string& file) {
  std::vector<FileProblem> problems;
  MJ_TRY(loaded, load_scenarios(call, file, "", problems));
  if (!loaded) return fail(Code::invalid, join(problems));
  const Scenario* wanted = nullptr;
  for (const auto& scenario : loaded->scenarios.scenarios) {
    if (scenario.name.find(call.get("name")) == std::string::npos) continue;
    if (wanted != nullptr)
      return fail(Code::invalid, "several scenarios are meant: " + excerpt(wanted->name, 100) + ", " +
                                     excerpt(scenario.name, 100) + "; --name says which");
    wanted = &scenario;
  }
  if (wanted == nullptr)
    return fail(Code::not_found, "no scenario has " + excerpt(call.get("name"), 200) + " in its name");
  workflow::Engines engines(engine_options(call.settings), 1);
  ScenarioResult played = run_scenario(loaded->scenarios, *wanted, loaded->deployment, engines.as_function());
  if (const auto trouble = engines.last_problem()) return tl::unexpected(*trouble);
  if (!played.mismatches.empty())
    return fail(Code::invalid, file + ": the scenario is not as it expects: " + played.mismatches.front().what);
  return DeploymentCopy{std::move(played.deployment), std::move(loaded->catalog)};
}

// Parses the value "NAME=JSON" of a flag.
Result<std::pair<std::string, std::string>> named_json(const std::string& text, std::string_view flag) {
  const auto end = text.find('=');
  const std::string value = end == text.npos ? "" : text.substr(end + 1);
  if (!parse_exact_json(value))
    return fail(Code::invalid, fmt::format("--{}: {}: NAME=JSON", flag, excerpt(text, 200)));
  return std::pair(text.substr(0, end), value);
}
const std::vector<std::string>& all_of(const Invocation& call, std::string_view flag) {
  static const std::vector<std::string> kNone;
  const auto found = call.flags.find(flag);
  return found == call.flags.end() ? kNone : found->second;
}

}  // namespace

Result<ShadowSettings> shadow_settings(const Invocation& call, const WorkflowManifest& manifest) {
  ShadowSettings settings;
  settings.manifest = manifest.hash;
  settings.placeholders = !call.has("pending");
  settings.sample = {call.parts.clock.unix_ms(), std::string(32, '\0')};
  MJ_TRY(steps, count_flag(call, "steps", 1000));
  settings.max_steps = steps;
  for (const auto& text : all_of(call, "send")) {
    MJ_TRY(given, named_json(text, "send"));
    MJ_TRY(event, find_event(manifest, given.first));
    settings.events.push_back({event, given.second, ValueForm::from_json, "simulation"});
  }
  for (const auto& text : all_of(call, "receipt")) {
    MJ_TRY(given, named_json(text, "receipt"));
    MJ_TRY(effect, find_effect(manifest, given.first));
    settings.receipts[effect->name] = given.second;
  }
  return settings;
}

void print_shadow(const Invocation& call, const ShadowReport& report) {
  if (call.json) return print(dump_json(to_json(report), 2) + "\n");
  const auto effects = [](const char* heading, const std::vector<EffectToPublish>& all) {
    print(fmt::format("{}: {}\n", heading, all.empty() ? "none" : std::to_string(all.size())));
    for (const auto& each : all)
      print(fmt::format("  {}  {}  {}\n", one_line(each.pending.intent.effect), one_line(shown(each.cell)),
                        one_line(dump_json(readable_cbor(each.pending.intent.params)))));
  };
  print(fmt::format("an apply now: {}\n", report.obstacles.empty() ? "is possible" : "is refused"));
  if (!report.obstacles.empty()) print("  " + one_line(join(report.obstacles)) + "\n");
  effects("effects asked for", report.effects);
  effects("effects without a receipt", report.pending);
  if (!report.made_up.empty())
    print(
        fmt::format("generated receipts: {}\n  their payloads are the smallest valid ones; --receipt EFFECT=JSON "
                    "gives one, --pending none\n",
                    one_line(fmt::format("{}", fmt::join(report.made_up, ", ")))));
  print(fmt::format("instances that differ: {}\n",
                    report.changed.empty() ? "none" : std::to_string(report.changed.size())));
  for (const auto& each : report.changed) {
    print(fmt::format("  {}  {}{}\n", one_line(shown(each.cell)), to_string(each.status),
                      each.failure.empty() ? "" : ": " + one_line(each.message)));
    const auto text = [](const std::optional<std::string>& cbor) {
      return dump_json(cbor ? readable_cbor(*cbor) : json(nullptr), 2);
    };
    print(painted(show_diff(line_diff(text(each.was), text(each.is)), 3), "    "));
  }
  for (const auto& each : report.refused) print("refused: " + one_line(each) + "\n");
  print(fmt::format("{} of code{}; what other inputs would bring is not known\n", count_with_noun(report.steps, "step"),
                    report.cut ? ", and more to do: --steps" : ""));
}

namespace {

// --- simulate

Result<int> simulate_manifest(const Invocation& call) {
  exit_on_stop_signals();
  MJ_TRY(read, read_manifest_file(engine_options(call.settings), call.arguments.at(0)));
  if (!read.manifest) {
    print_problems(call, read.problems);
    return EX_DATAERR;
  }
  if (call.has("history") && call.has("scenario"))
    return fail(Code::invalid, "--history and --scenario: the world is the one or the other");
  DeploymentCopy copy;
  copy.deployment.id = "simulation/" + read.manifest->name;
  if (call.has("history")) {
    MJ_TRY(given, copy_of_history(call.get("history")));
    copy = std::move(given);
  }
  if (call.has("scenario")) {
    MJ_TRY(given, copy_of_scenario(call, call.get("scenario")));
    copy = std::move(given);
  }
  copy.catalog.add(read.manifest);
  MJ_TRY(settings, shadow_settings(call, *read.manifest));
  workflow::Engines engines(engine_options(call.settings), 1);
  const ShadowReport report = simulate(std::move(copy.deployment), copy.catalog, settings, engines.as_function());
  if (const auto trouble = engines.last_problem()) return tl::unexpected(*trouble);
  print_shadow(call, report);
  return report.refused.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

// --- diff

void print_differences(const std::vector<ManifestDifference>& all, const std::optional<UpgradeImpact>& live) {
  if (all.empty()) print("no differences\n");
  for (const auto& each : all) {
    print(paint(OutputStyle::strong, fmt::format("{} {}: {}", each.part, one_line(each.name), to_string(each.change))) +
          "\n");
    for (const auto& follows : each.effects) print("  " + one_line(follows) + "\n");
    print(painted(each.text, "    "));
  }
  if (!live) return;
  print(live->obstacles.empty() ? "an apply now is possible\n"
                                : "an apply now is refused: " + one_line(join(live->obstacles)) + "\n");
  const auto some = [](const std::vector<std::string>& rows, const char* what) {
    for (std::size_t i = 0; i < std::min(rows.size(), kShownInstances); ++i) print(one_line(rows[i]) + what + '\n');
    if (rows.size() > kShownInstances)
      print(fmt::format("and {} more{}; --json has all\n", rows.size() - kShownInstances, what));
  };
  some(live->keeps, " keeps its code");
  some(live->misses, "");
}

Result<int> diff_manifests(const Invocation& call) {
  exit_on_stop_signals();
  MJ_TRY(before, read_manifest_file(engine_options(call.settings), call.arguments.at(0)));
  MJ_TRY(after, read_manifest_file(engine_options(call.settings), call.arguments.at(1)));
  if (!before.manifest || !after.manifest) {
    auto problems = before.problems;
    problems.insert(problems.end(), after.problems.begin(), after.problems.end());
    print_problems(call, problems);
    return EX_DATAERR;
  }
  const auto all = differences(*before.document, *before.manifest, *after.document, *after.manifest);
  std::optional<UpgradeImpact> live;
  if (call.has("history")) {
    MJ_TRY(copy, copy_of_history(call.get("history")));
    live = upgrade_impact(copy.deployment, copy.catalog, *after.manifest);
  }
  if (call.json) {
    json out{{"before", before.manifest->hash}, {"after", after.manifest->hash}, {"differences", to_json(all)}};
    if (live) out["apply"] = to_json(*live);
    print(dump_json(out, 2) + "\n");
  } else {
    print_differences(all, live);
  }
  return all.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int workflow_check_command(Invocation& call) { return finish(check_manifest(call)); }
int workflow_test_command(Invocation& call) { return finish(test_scenarios(call)); }
int workflow_simulate_command(Invocation& call) { return finish(simulate_manifest(call)); }
int workflow_diff_command(Invocation& call) { return finish(diff_manifests(call)); }

}  // namespace mycojobs
