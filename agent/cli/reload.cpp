#include "cli/reload.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log_level.h"
#include "cli/store_session.h"

namespace mycojobs {
namespace {

bool is_reloadable(const std::string& name) {
  return name == "log.level" || name.starts_with("ceiling.") || name.find(".ceiling.") != std::string::npos;
}

Result<Config> read_again(const FlagValues& options) {
  MJ_TRY(config, load_config(system_sources(options)));
  const auto refused = refused_settings(config.settings);
  if (!refused.empty()) return fail(refused.front().error, refused.front().name);
  return std::move(config);
}

// Returns the changed settings that take effect after a restart.
std::vector<std::string> names_for_restart(const std::vector<ConfigValue>& before,
                                           const std::vector<ConfigValue>& after) {
  std::vector<std::string> names;
  const auto compare = [&names](const std::vector<ConfigValue>& one, const std::vector<ConfigValue>& other) {
    for (const ConfigValue& value : one) {
      const auto same = std::find_if(other.begin(), other.end(), [&value](const ConfigValue& each) {
        return each.name == value.name && each.text == value.text;
      });
      const bool known = std::find(names.begin(), names.end(), value.name) != names.end();
      if (same == other.end() && !known && !is_reloadable(value.name)) names.push_back(value.name);
    }
  };
  compare(after, before);
  compare(before, after);
  return names;
}

}  // namespace

void Reload::reload() {
  auto config = read_again(options_);
  if (!config) {
    log(LogLevel::error, "config", "not reloaded, the settings before stay in force: {}", config.error().message);
    return;
  }
  for (const std::string& warning : config->warnings) log(LogLevel::warn, "config", "{}", warning);
  set_log_level(config->settings.log_level);
  for (const auto& apply : apply_) apply(config->settings);
  const auto restart = names_for_restart(values_, config->values);
  log(LogLevel::info, "config", "reloaded: ceilings, secrets and the log's level{}",
      restart.empty() ? "" : fmt::format("; these settings take effect after a restart: {}", fmt::join(restart, ", ")));
}

}  // namespace mycojobs
