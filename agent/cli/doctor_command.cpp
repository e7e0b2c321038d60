// mycojobs doctor: tries everything a job needs and names the remedy for what is missing.
#include <fmt/format.h>
#include <sysexits.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "domain/codec.h"

namespace mycojobs {
namespace {

enum class Verdict { ok, warning, missing };

struct Finding {
  std::string area, name;
  Verdict verdict = Verdict::ok;
  std::string detail, remedy;
};
using Findings = std::vector<Finding>;

constexpr std::string_view kWords[] = {"ok", "warning", "missing"};
constexpr Tone kTones[] = {Tone::good, Tone::warn, Tone::bad};

void add_error(Findings& findings, std::string area, std::string name, const Error& error) {
  findings.push_back({std::move(area), std::move(name), Verdict::missing, error.message, ""});
}

void examine_sandbox(const Invocation& call, Findings& findings) {
  auto layers = call.parts.probe_layers(call.settings);
  if (!layers) return add_error(findings, "sandbox", "launcher", layers.error());
  for (const LayerCheck& layer : *layers) {
    const auto& allowed = call.settings.sandbox_allow_missing;
    // An ordinary user has one id for all jobs: weaker, and every result says so, but jobs run.
    const bool may_miss = layer.name == "uid" || std::find(allowed.begin(), allowed.end(), layer.name) != allowed.end();
    findings.push_back({"sandbox", layer.name,
                        layer.ok ? Verdict::ok : (may_miss ? Verdict::warning : Verdict::missing), layer.detail,
                        layer.remedy});
  }
}

void examine_executors(const Invocation& call, Findings& findings) {
  for (const auto& executor : call.parts.executors(call.settings)) {
    auto probed = executor->probe();
    if (probed) {
      findings.push_back({"executor", std::string(executor->name()), Verdict::ok, *probed, ""});
    } else {
      add_error(findings, "executor", std::string(executor->name()), probed.error());
    }
  }
}

struct Setting {
  std::string_view name;
  std::string value;
  bool good;
  Verdict otherwise;
  std::string cost, remedy;
};

void examine_settings(const ServerFacts& facts, const std::vector<Id>& contexts, Findings& findings) {
  const Id highest = *std::max_element(contexts.begin(), contexts.end());
  const Setting settings[] = {
      {"maxmemory-policy", facts.maxmemory_policy, facts.maxmemory_policy == "noeviction", Verdict::missing,
       "Redis may throw away queues and records when its memory is full", "CONFIG SET maxmemory-policy noeviction"},
      {"appendonly", facts.appendonly, facts.appendonly == "yes", Verdict::warning,
       "jobs that were accepted may be gone after a crash of Redis", "CONFIG SET appendonly yes"},
      {"appendfsync", facts.appendfsync, facts.appendfsync != "no", Verdict::warning,
       "a power cut may lose half a minute (everysec: about a second; always: nothing)",
       "CONFIG SET appendfsync everysec"},
      {"databases", std::to_string(facts.databases), facts.databases > highest, Verdict::missing,
       fmt::format("context {} needs a database of that number", highest),
       "raise `databases` in redis.conf and restart Redis"},
      {"persistence", facts.persistence_error ? "failing" : "working", !facts.persistence_error, Verdict::missing,
       "Redis cannot write its files, and may refuse every write", "look at the disk and at Redis' log"},
      {"cluster", facts.cluster ? "on" : "off", !facts.cluster, Verdict::missing,
       "the server-side scripts use keys that they do not declare", "use a Redis without cluster mode"},
  };
  for (const Setting& setting : settings) {
    const std::string value = setting.value.empty() ? "not readable" : setting.value;
    findings.push_back({"redis", std::string(setting.name), setting.good ? Verdict::ok : setting.otherwise,
                        setting.good ? value : value + ": " + setting.cost, setting.good ? "" : setting.remedy});
  }
}

void examine_redis(const Invocation& call, Findings& findings) {
  auto session = open_session(call.parts, call.settings, false);
  if (!session) return add_error(findings, "redis", "server", session.error());
  auto store = session->stores->open();
  if (!store) return add_error(findings, "redis", "server", store.error());
  auto facts = (*store)->facts();
  if (!facts) return add_error(findings, "redis", "server", facts.error());
  findings.push_back({"redis", "server", Verdict::ok, facts->product + " " + facts->version, ""});
  examine_settings(*facts, call.settings.contexts, findings);
}

}  // namespace

int doctor_command(Invocation& call) {
  Findings findings;
  examine_sandbox(call, findings);
  examine_executors(call, findings);
  examine_redis(call, findings);

  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"AREA", "WHAT", "STATE", "DETAIL"}};
  bool good = true;
  for (const Finding& finding : findings) {
    const auto index = static_cast<std::size_t>(finding.verdict);
    good = good && finding.verdict != Verdict::missing;
    array.push_back({{"area", finding.area},
                     {"name", finding.name},
                     {"state", kWords[index]},
                     {"detail", finding.detail},
                     {"remedy", finding.remedy}});
    rows.push_back({finding.area, finding.name, paint(kTones[index], kWords[index]), finding.detail});
    if (!finding.remedy.empty()) rows.push_back({"", "", "", paint(Tone::strong, "remedy: ") + finding.remedy});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
  }
  return good ? 0 : EX_UNAVAILABLE;
}

}  // namespace mycojobs
