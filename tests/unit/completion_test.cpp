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
    {"job show", "", {}, "", "job list --limit 100"},
    {"rpc", "", {{"--url", true, ""}, {"--redis", true, ""}}, "job.list job.logs flow.get", ""},
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
    // What a list prints; and the words that it was called with, as one more.
    std::ofstream(folder_ + "/mycojobs")
        << "#!/bin/sh\nprintf 'JOB  NAME\\n12:7 a\\n12:15 b\\n$(touch${IFS}broken) c\\n`touch${IFS}broken` d\\n'\n"
        << "echo \"$*\" | tr ' ' '_'\n";
    std::filesystem::permissions(folder_ + "/mycojobs", std::filesystem::perms::owner_all);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string offered(const std::string& words, int at, const std::string& more = "") {
    std::ofstream(folder_ + "/try") << "set -u\nPATH=" << folder_ << ":$PATH\n"
                                    << more << "\nsource " << folder_ << "/script\nCOMP_WORDS=(" << words
                                    << ")\nCOMP_CWORD=" << at << "\n_mycojobs\necho \"${COMPREPLY[*]-}\"\n"
                                    << "complete -p mycojobs >/dev/null || echo not registered\n";
    std::string out;
    FILE* pipe = ::popen(("bash --norc --noprofile " + folder_ + "/try 2>&1").c_str(), "r");
    if (pipe == nullptr) return "popen failed";
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out.push_back(static_cast<char>(c));
    return ::pclose(pipe) == 0 ? out : out + "bash failed";
  }

 protected:
  std::string folder_;
};

TEST_F(Bash, OffersCommandsAndTheirSubcommands) {
  EXPECT_EQ(offered("mycojobs ''", 1), "agent job rpc run\n");
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

TEST_F(Bash, OffersTheIdsThatThereAreAndAsksWhereTheLineSays) {
  EXPECT_EQ(offered("mycojobs job show ''", 3), "12:7 12:15 job_list_--limit_100\n");
  EXPECT_EQ(offered("mycojobs --redis unix:r job show j", 5), "job_list_--limit_100_--redis_unix:r\n");
  EXPECT_EQ(offered("mycojobs job show 12:7 ''", 4), "\n") << "there is no second one";
  EXPECT_EQ(offered("mycojobs job list ''", 3), "\n");
}

TEST_F(Bash, WhatAStrangerHasNamedIsNotExpanded) {
  offered("mycojobs job show ''", 3, "cd \"$(dirname \"${BASH_SOURCE[0]}\")\"");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/broken"));
}

TEST_F(Bash, AnIdMayHaveAColonWhichBashTakesForABreak) {
  EXPECT_EQ(
      offered("mycojobs job show 12 : 1", 5, "COMP_LINE='mycojobs job show 12:1' COMP_POINT=22 COMP_WORDBREAKS=' :'"),
      "15\n");
}

TEST_F(Bash, OffersTheWordsThatAnArgumentMayBe) {
  EXPECT_EQ(offered("mycojobs rpc job.l", 2), "job.list job.logs\n");
  EXPECT_EQ(offered("mycojobs rpc --url http://x f", 4), "flow.get\n");
}

TEST_F(Bash, AValueIsNotTakenForACommand) {
  EXPECT_EQ(offered("mycojobs agent --redis job --sl", 4), "--slots\n");
  EXPECT_EQ(offered("mycojobs agent '$(echo x)' --sl", 3), "--slots\n");
}

}  // namespace
}  // namespace mycojobs
