// The manual's table of settings equals the program's, word for word.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "cli/config/options.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

TEST(Manual, HasARowForEverySettingInTheWordsOfItsHelp) {
  std::ostringstream text;
  text << std::ifstream(mj::test::source_path("docs/manual.md")).rdbuf();
  const std::string manual = text.str();
  for (const Option& option : options()) {
    const std::string choices = option.choices.empty() ? "" : "; one of " + std::string(option.choices);
    const std::string row = "| `" + std::string(option.name) + "` | " + std::string(option.fallback) + " | " +
                            std::string(option.help) + choices + " |\n";
    EXPECT_NE(manual.find(row), std::string::npos) << "missing, or in other words: " << row;
  }
}

}  // namespace
}  // namespace mycojobs
