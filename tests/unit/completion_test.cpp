#include "cli/config/completion.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace mycojobs {
namespace {

const Commands kCommands = {
    {"run", "", {{"--type", true, "python v"}, {"--json", false, ""}}},
    {"job list", "", {{"--status", true, ""}}},
    {"job show", "", {}},
    {"agent", "", configuration_flags("agent")},
};

// What bash offers for a line whose last word is under the cursor.
class Bash : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mycojobs-completion-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    std::ofstream(folder_ + "/script") << bash_completion(kCommands);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string offered(const std::string& words, int at) {
    std::ofstream(folder_ + "/try") << "set -u\nsource " << folder_ << "/script\nCOMP_WORDS=(" << words
                                    << ")\nCOMP_CWORD=" << at << "\n_mycojobs\necho \"${COMPREPLY[*]-}\"\n"
                                    << "complete -p mycojobs >/dev/null || echo not registered\n";
    std::string out;
    FILE* pipe = ::popen(("bash --norc --noprofile " + folder_ + "/try 2>&1").c_str(), "r");
    if (pipe == nullptr) return "popen failed";
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out.push_back(static_cast<char>(c));
    return ::pclose(pipe) == 0 ? out : out + "bash failed";
  }

 private:
  std::string folder_;
};

TEST_F(Bash, OffersCommandsAndTheirSubcommands) {
  EXPECT_EQ(offered("mycojobs ''", 1), "agent job run\n");
  EXPECT_EQ(offered("mycojobs a", 1), "agent\n");
  EXPECT_EQ(offered("mycojobs job ''", 2), "list show\n");
  EXPECT_EQ(offered("mycojobs job sh", 2), "show\n");
  EXPECT_EQ(offered("mycojobs nonsense", 1), "\n");
}

TEST_F(Bash, OffersTheFlagsOfTheCommandOnly) {
  EXPECT_EQ(offered("mycojobs run --", 2), "--help --json --type\n");
  EXPECT_EQ(offered("mycojobs job list --s", 3), "--status\n");
  EXPECT_EQ(offered("mycojobs job show --", 3), "--help\n");
  EXPECT_EQ(offered("mycojobs agent --sl", 2), "--slots\n");
  EXPECT_EQ(offered("mycojobs agent --no-", 2), "--no-local\n");
}

TEST_F(Bash, OffersTheWordsThatAFlagTakes) {
  EXPECT_EQ(offered("mycojobs run --type ''", 3), "python v\n");
  EXPECT_EQ(offered("mycojobs agent --log-level d", 3), "debug\n");
  EXPECT_EQ(offered("mycojobs job list --status ''", 4), "\n") << "bash offers files";
}

TEST_F(Bash, AValueIsNotTakenForACommand) {
  EXPECT_EQ(offered("mycojobs agent --redis job --sl", 4), "--slots\n");
  EXPECT_EQ(offered("mycojobs agent '$(echo x)' --sl", 3), "--slots\n");
}

}  // namespace
}  // namespace mycojobs
