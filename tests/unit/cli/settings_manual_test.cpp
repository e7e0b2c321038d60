// The tables of docs/settings.md equal the program's table, word for word, and examples/config.toml has every setting.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "cli/config/config.h"
#include "cli/config/options.h"
#include "support/build_paths.h"
#include "support/process.h"

namespace mycojobs {
namespace {

TEST(Manual, HasARowForEverySettingWithItsHelp) {
  std::ostringstream text;
  text << std::ifstream(mj::test::source_path("docs/settings.md")).rdbuf();
  const std::string manual = text.str();
  for (const Option& option : options()) {
    const std::string choices = option.choices.empty() ? "" : "; one of " + std::string(option.choices);
    const std::string row = "| `" + std::string(option.name) + "` | " + std::string(option.fallback) + " | " +
                            std::string(option.help) + choices + " |\n";
    EXPECT_NE(manual.find(row), std::string::npos) << "missing or different: " << row;
  }
}

// Returns examples/config.toml without the comment marks of its settings and tables.
std::string read_uncommented_example() {
  static const std::regex kSetting("# (\\[[a-z_.]+\\]|[a-z_]+ = .*)");
  std::ifstream example(mj::test::source_path("examples/config.toml"));
  std::string text;
  for (std::string line; std::getline(example, line);) {
    text += (std::regex_match(line, kSetting) ? line.substr(2) : line) + "\n";
  }
  return text;
}

TEST(ExampleConfig, SetsEverySettingToItsDefault) {
  HostFacts host;
  host.cpus = 4;
  host.root = true;
  host.installed_helpers = "/usr/libexec/mycojobs";
  const test::TempDir folder;
  const auto defaults = check_config_file(folder.write("empty.toml", ""), host);
  const auto example = check_config_file(folder.write("config.toml", read_uncommented_example()), host);
  ASSERT_TRUE(defaults) << defaults.error().message;
  ASSERT_TRUE(example) << example.error().message;
  const std::size_t count = options().size();
  ASSERT_GE(defaults->values.size(), count);
  ASSERT_GE(example->values.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    const ConfigValue& value = example->values[i];
    EXPECT_NE(value.source, "default") << "examples/config.toml does not have " << value.name;
    EXPECT_EQ(value.text, defaults->values[i].text) << value.name;
  }
}

}  // namespace
}  // namespace mycojobs
