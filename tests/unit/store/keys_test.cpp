// The sources of agent/ name internal keys and channels by the constants of store/keys.toml.
#include "store/keys.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include "support/build_paths.h"

namespace mycojobs {
namespace {

// A text for users may name a key, but no text may begin with one.
TEST(KeyTable, HasTheOnlyLiteralsOfInternalKeys) {
  const std::regex literal(R"(["'&~]mj:[a-z])"), comment(R"((//|--) .*)");
  for (const auto& file : std::filesystem::recursive_directory_iterator(mj::test::source_path("agent"))) {
    const auto extension = file.path().extension();
    if (extension != ".lua" && extension != ".cpp" && extension != ".h") continue;
    std::ifstream text(file.path());
    for (std::string line; std::getline(text, line);) {
      const std::string code = std::regex_replace(line, comment, "");
      EXPECT_FALSE(std::regex_search(code, literal)) << file.path() << ": " << line;
    }
  }
}

}  // namespace
}  // namespace mycojobs
