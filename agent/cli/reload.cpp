#include "cli/reload.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/log_level.h"
#include "cli/service_setup.h"

namespace mycojobs {
namespace {

// Returns whether the setting belongs to this table of a context, such as "volumes".
bool is_in_context_table(std::string_view name, std::string_view table) {
  constexpr std::string_view kPrefix = "contexts.";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(std::min(name.find('.', kPrefix.size()), name.size()));  // the id of the context
  return name.starts_with('.') && name.substr(1).starts_with(std::string(table) + '.');
}

bool is_reloadable(const std::string& name) {
  return name == "log.level" || name.starts_with("ceiling.") || is_in_context_table(name, "ceiling") ||
         is_in_context_table(name, "volumes");
}

std::string list_volumes(const std::vector<ConfigValue>& values) {
  std::string text;
  for (const ConfigValue& value : values) {
    if (is_in_context_table(value.name, "volumes")) text += value.name + " = " + value.text + '\n';
  }
  return text;
}

Result<Config> load_valid_config(const FlagValues& options) {
  MJ_TRY(config, load_config(read_system_sources(options)));
  const auto rejected = find_rejected_settings(config.settings);
  if (!rejected.empty()) return fail(rejected.front().error, rejected.front().name);
  return std::move(config);
}

// Returns the changed settings that take effect after a restart.
std::vector<std::string> find_settings_for_restart(const std::vector<ConfigValue>& old_values,
                                                   const std::vector<ConfigValue>& new_values) {
  std::vector<std::string> names;
  const auto compare = [&names](const std::vector<ConfigValue>& values, const std::vector<ConfigValue>& baseline) {
    for (const ConfigValue& value : values) {
      const auto match = std::find_if(baseline.begin(), baseline.end(), [&value](const ConfigValue& entry) {
        return entry.name == value.name && entry.text == value.text;
      });
      const bool is_listed = std::find(names.begin(), names.end(), value.name) != names.end();
      if (match == baseline.end() && !is_listed && !is_reloadable(value.name)) names.push_back(value.name);
    }
  };
  compare(new_values, old_values);
  compare(old_values, new_values);
  return names;
}

}  // namespace

Reload::Reload(const Invocation& call)
    : options_(call.options), values_(call.config_values), volumes_(list_volumes(call.config_values)) {}

void Reload::reload() {
  auto config = load_valid_config(options_);
  if (!config) {
    log(LogLevel::error, "config", "not reloaded, the settings before stay in force: {}", config.error().message);
    return;
  }
  for (const std::string& warning : config->warnings) log(LogLevel::warn, "config", "{}", warning);
  set_log_level(config->settings.log_level);
  for (const auto& callback : callbacks_) callback(config->settings);
  // The start has tested the volumes before; a test now could wait for a disk.
  const std::string volumes = list_volumes(config->values);
  if (std::exchange(volumes_, volumes) != volumes && !volumes.empty())
    log(LogLevel::warn, "config", "volumes have changed: `mycojobs doctor` tests whether jobs can use them");
  const auto settings_for_restart = find_settings_for_restart(values_, config->values);
  log(LogLevel::info, "config", "reloaded: ceilings, volumes, secrets and the log's level{}",
      settings_for_restart.empty()
          ? ""
          : fmt::format("; these settings take effect after a restart: {}", fmt::join(settings_for_restart, ", ")));
}

}  // namespace mycojobs
