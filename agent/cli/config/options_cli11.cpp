// The only file of the configuration that knows CLI11.
#include <CLI/CLI.hpp>

#include "cli/config/options.h"

namespace mycojobs {
namespace {

std::string help_of(const Option& option) {
  std::string help(option.help);
  if (!option.choices.empty()) help += "; one of " + std::string(option.choices);
  if (!option.fallback.empty()) help += " [" + std::string(option.fallback) + "]";
  return help + " (" + environment_of(option) + ")";
}

}  // namespace

void add_options(CLI::App& app, std::string_view command, FlagValues& into) {
  app.add_option("--config", into.config_file, "Configuration file, TOML (MYCOJOBS_CONFIG)")->type_name("FILE");
  for (const Option& option : options()) {
    if (!takes_flag(option, command)) continue;
    const std::string flag = flag_of(option);
    const auto keep = [&into, name = std::string(option.name)](const std::string& text) { into.values[name] = text; };
    if (option.type == OptionType::flag) {
      const std::string both = flag + ",!--no-" + flag.substr(2);
      app.add_flag_function(
          both, [keep](std::int64_t count) { keep(count > 0 ? "true" : "false"); }, help_of(option));
      continue;
    }
    auto* added = app.add_option_function<std::string>(flag, keep, help_of(option));
    added->type_name(std::string(value_name(option)));
    const bool list = is_list(option.type);
    added->multi_option_policy(list ? CLI::MultiOptionPolicy::Join : CLI::MultiOptionPolicy::TakeLast);
    if (list) added->delimiter(',');
  }
  for (const RenamedOption& each : renamed_options()) {  // taken, and not in the help
    if (!takes_flag(*find_option(each.now), command)) continue;
    const auto keep = [&into, name = std::string(each.before)](const std::string& text) { into.values[name] = text; };
    app.add_option_function<std::string>(flag_of(each.before), keep)->group("");
  }
}

}  // namespace mycojobs
