// mycojobs doctor: tries everything a job needs and names the remedy for what is missing.
#include <sysexits.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/doctor.h"
#include "cli/opened.h"
#include "cli/terminal.h"
#include "domain/codec.h"

namespace mycojobs {
namespace {

using Checks = std::vector<Check>;

constexpr std::string_view kWords[] = {"ok", "warning", "missing"};
constexpr Tone kTones[] = {Tone::good, Tone::warn, Tone::bad};

void add_error(Checks& checks, std::string area, std::string name, const Error& error) {
  checks.push_back({std::move(area), std::move(name), Verdict::missing, error.message, ""});
}

void examine_sandbox(const Invocation& call, Checks& checks) {
  auto layers = call.parts.probe_layers(call.settings);
  if (!layers) return add_error(checks, "sandbox", "launcher", layers.error());
  for (const LayerCheck& layer : *layers) {
    const auto& allowed = call.settings.sandbox_allow_missing;
    // An ordinary user has one id for all jobs: weaker, and every result says so, but jobs run.
    const bool may_miss = layer.name == "uid" || std::find(allowed.begin(), allowed.end(), layer.name) != allowed.end();
    checks.push_back({"sandbox", layer.name, layer.ok ? Verdict::ok : (may_miss ? Verdict::warning : Verdict::missing),
                      layer.detail, layer.remedy});
  }
}

void examine_executors(const Invocation& call, Checks& checks) {
  for (const auto& executor : call.parts.executors(call.settings)) {
    auto probed = executor->probe();
    if (probed) {
      checks.push_back({"executor", std::string(executor->name()), Verdict::ok, *probed, ""});
    } else {
      add_error(checks, "executor", std::string(executor->name()), probed.error());
      // What nobody has installed is no fault of the host, unless it is to be served.
      const auto& wanted = call.settings.script_types;
      const auto types = executor->script_types();
      const bool is_wanted =
          std::find_first_of(wanted.begin(), wanted.end(), types.begin(), types.end()) != wanted.end();
      if (probed.error().code == Code::not_found && !is_wanted) checks.back().verdict = Verdict::warning;
    }
  }
}

// The agent goes on without it, so it is a warning.
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
                Id highest) {
  if (!facts) return add_error(checks, name, "server", facts.error());
  for (Check& check : examine_server(*facts, highest, call.settings.redis_wait_replicas)) {
    check.area = name;
    checks.push_back(std::move(check));
  }
}

// Each context's keys, on whichever server they are.
void examine_formats(const Invocation& call, Checks& checks) {
  auto session = open_session(call.parts, call.settings, false);
  if (!session) return;  // which examine_redis() has told
  auto store = session->stores->open();
  if (!store) return;
  for (Id context : call.settings.contexts) {
    const auto format = (*store)->load(context, "mj:format");
    const std::string name = "format of context " + std::to_string(context);
    if (format) {
      const auto field = [&](std::string_view wanted) {
        const auto found =
            std::find_if(format->begin(), format->end(), [&](const auto& f) { return f.first == wanted; });
        return found == format->end() ? std::string("?") : printable(found->second);
      };
      checks.push_back({"redis", name, Verdict::ok, field("version") + ", of mycojobs " + field("program"), ""});
    } else if (format.error().code == Code::denied) {
      checks.push_back({"redis", name, Verdict::missing, format.error().message, "docs/install.md, \"Downgrade\""});
    }
  }
}

// The server of the contexts without one of their own, and each of the others.
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
               highest);
  }
  for (Id context : call.settings.contexts) {
    const auto found = own.find(context);
    if (found == own.end()) continue;
    // As the server of what belongs to no context, so that the store asks it about itself.
    Settings alone = call.settings;
    alone.context_redis = {{Id{0}, found->second}};
    add_server(call, checks, "redis of context " + std::to_string(context),
               facts_of(call.parts.stores(alone, found->second)->open()), 0);
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
    const auto index = static_cast<std::size_t>(check.verdict);
    good = good && check.verdict != Verdict::missing;
    array.push_back({{"area", check.area},
                     {"name", check.name},
                     {"state", kWords[index]},
                     {"detail", check.detail},
                     {"remedy", check.remedy}});
    rows.push_back({check.area, check.name, paint(kTones[index], kWords[index]), check.detail});
    if (!check.remedy.empty()) rows.push_back({"", "", "", paint(Tone::strong, "remedy: ") + check.remedy});
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
  if (call.has("dry-run")) return complain({Code::invalid, "--dry-run: belongs to --rebuild"});
  return examine(call);
}

}  // namespace mycojobs
