#include "cli/reload.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/log_level.h"
#include "cli/service_setup.h"

namespace mycojobs {
namespace {

bool is_reloadable(const std::string& name) {
  if (!name.starts_with("contexts.")) return name == "log.level" || name.starts_with("ceiling.");
  const std::size_t table = name.find('.', std::string_view("contexts.").size());  // behind the id of the context
  if (table == std::string::npos) return false;
  const std::string_view rest = std::string_view(name).substr(table);
  return rest.starts_with(".ceiling.") || rest.starts_with(".volumes.");
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

void Reload::reload() {
  auto config = load_valid_config(options_);
  if (!config) {
    log(LogLevel::error, "config", "not reloaded, the settings before stay in force: {}", config.error().message);
    return;
  }
  for (const std::string& warning : config->warnings) log(LogLevel::warn, "config", "{}", warning);
  set_log_level(config->settings.log_level);
  for (const auto& callback : callbacks_) callback(config->settings);
  const auto settings_for_restart = find_settings_for_restart(values_, config->values);
  log(LogLevel::info, "config", "reloaded: ceilings, volumes, secrets and the log's level{}",
      settings_for_restart.empty()
          ? ""
          : fmt::format("; these settings take effect after a restart: {}", fmt::join(settings_for_restart, ", ")));
}

}  // namespace mycojobs
