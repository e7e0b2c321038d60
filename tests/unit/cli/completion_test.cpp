#include "cli/commands/completion.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace mycojobs {
namespace {

const CommandRows kCommands = {
    {"run", "it's run", {{"--type", true, "python v"}, {"--json", false, ""}}},
    {"job list", "", {{"--status", true, ""}}},
    {"job show", "", {}, "", "jobs"},
    {"rpc", "", {{"--url", true, ""}, {"--redis", true, ""}}, "job.list job.logs flow.get", ""},
    {"agent", "", list_configuration_flags("agent")},
};

// Completions that bash offers for the word under the cursor.
class Bash : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mycojobs-completion-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    std::ofstream(folder_ + "/script") << make_bash_completion(kCommands);
    std::ofstream(folder_ + "/script.zsh") << make_zsh_completion(kCommands);
    // A fake `mycojobs` prints the candidates of `complete`, and its arguments as a further candidate.
    std::ofstream(folder_ + "/mycojobs")
        << "#!/bin/sh\nprintf '12:7\\n12:15\\n$(touch${IFS}broken)\\n`touch${IFS}broken`\\n'\n"
        << "echo \"$*\" | tr ' ' '_'\n";
    std::filesystem::permissions(folder_ + "/mycojobs", std::filesystem::perms::owner_all);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string complete(const std::string& words, int at, const std::string& setup = "") {
    std::ofstream(folder_ + "/try") << "set -u\nPATH=" << folder_ << ":$PATH\n"
                                    << setup << "\nsource " << folder_ << "/script\nCOMP_WORDS=(" << words
                                    << ")\nCOMP_CWORD=" << at << "\n_mycojobs\necho \"${COMPREPLY[*]-}\"\n"
                                    << "complete -p mycojobs >/dev/null || echo not registered\n";
    return run_shell("bash --norc --noprofile " + folder_ + "/try");
  }

 protected:
  static std::string run_shell(const std::string& command) {
    std::string out;
    FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    if (pipe == nullptr) return "popen failed";
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) out.push_back(static_cast<char>(c));
    return ::pclose(pipe) == 0 ? out : out + "the shell failed";
  }

  std::string folder_;
};

// Completions that zsh offers; its functions compadd, _describe and _files are replaced and print their arguments.
class Zsh : public Bash {
 protected:
  std::string complete(const std::string& line) {
    std::ofstream(folder_ + "/try.zsh")
        << "path=(" << folder_ << " $path)\ncd " << folder_ << "\ncompdef() { registered=$2 }\nsource ./script.zsh\n"
        << "[[ $registered == mycojobs ]] || print not registered\n"
        << "compadd() { print -rl -- ${(PM)2:#${words[CURRENT]}*} }\n"
        << "_describe() { print -rl -- ${(PM)2:#${words[CURRENT]}*} }\n_files() { print files }\n"
        << "words=(" << line << ")\nCURRENT=$#words\n_mycojobs\n";
    return run_shell("zsh -f " + folder_ + "/try.zsh");
  }
};

TEST_F(Bash, OffersCommandsAndTheirSubcommands) {
  EXPECT_EQ(complete("mycojobs ''", 1), "agent job rpc run\n");
  EXPECT_EQ(complete("mycojobs a", 1), "agent\n");
  EXPECT_EQ(complete("mycojobs job ''", 2), "list show\n");
  EXPECT_EQ(complete("mycojobs job sh", 2), "show\n");
  EXPECT_EQ(complete("mycojobs nonsense", 1), "\n");
}

TEST_F(Bash, OffersTheFlagsOfTheCommandOnly) {
  EXPECT_EQ(complete("mycojobs run --", 2), "--help --json --type\n");
  EXPECT_EQ(complete("mycojobs job list --s", 3), "--status\n");
  EXPECT_EQ(complete("mycojobs job show --", 3), "--help\n");
  EXPECT_EQ(complete("mycojobs agent --sl", 2), "--slots\n");
  EXPECT_EQ(complete("mycojobs agent --no-", 2),
            "--no-api-insecure --no-artifacts-store-path-style --no-local --no-redis-tls-insecure\n");
}

TEST_F(Bash, OffersTheValuesOfAFlag) {
  EXPECT_EQ(complete("mycojobs run --type ''", 3), "python v\n");
  EXPECT_EQ(complete("mycojobs agent --log-level d", 3), "debug\n");
  EXPECT_EQ(complete("mycojobs job list --status ''", 4), "\n") << "bash offers files";
}

TEST_F(Bash, OffersIdsFromTheGivenSettings) {
  EXPECT_EQ(complete("mycojobs job show ''", 3), "12:7 12:15 complete_jobs\n");
  EXPECT_EQ(complete("mycojobs --redis unix:r job show c", 5), "complete_jobs_--redis_unix:r\n");
  EXPECT_EQ(complete("mycojobs job show 12:7 ''", 4), "\n") << "the command has no second positional argument";
  EXPECT_EQ(complete("mycojobs job list ''", 3), "\n");
}

TEST_F(Bash, ForeignNamesAreNotExpanded) {
  complete("mycojobs job show ''", 3, "cd \"$(dirname \"${BASH_SOURCE[0]}\")\"");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/broken"));
}

TEST_F(Bash, IdMayContainAColon) {
  EXPECT_EQ(
      complete("mycojobs job show 12 : 1", 5, "COMP_LINE='mycojobs job show 12:1' COMP_POINT=22 COMP_WORDBREAKS=' :'"),
      "15\n");
}

TEST_F(Bash, OffersTheValuesOfAnArgument) {
  EXPECT_EQ(complete("mycojobs rpc job.l", 2), "job.list job.logs\n");
  EXPECT_EQ(complete("mycojobs rpc --url http://x f", 4), "flow.get\n");
}

TEST_F(Bash, ValueIsNotMistakenForACommand) {
  EXPECT_EQ(complete("mycojobs agent --redis job --sl", 4), "--slots\n");
  EXPECT_EQ(complete("mycojobs agent '$(echo x)' --sl", 3), "--slots\n");
}

TEST_F(Zsh, OffersCommandsWithDescriptions) {
  EXPECT_EQ(complete("mycojobs ''"), "agent\njob\nrpc\nrun:it's run\n");
  EXPECT_EQ(complete("mycojobs job s"), "show\n");
  EXPECT_EQ(complete("mycojobs run ''"), "files\n");
}

TEST_F(Zsh, OffersTheFlagsOfTheCommandAndTheirValues) {
  EXPECT_EQ(complete("mycojobs run --"), "--help\n--json\n--type\n");
  EXPECT_EQ(complete("mycojobs run --type ''"), "python\nv\n");
  EXPECT_EQ(complete("mycojobs agent --log-level d"), "debug\n");
  EXPECT_EQ(complete("mycojobs job list --status ''"), "files\n");
  EXPECT_EQ(complete("mycojobs rpc --url http://x f"), "flow.get\n");
  EXPECT_EQ(complete("mycojobs agent --redis job --sl"), "--slots\n") << "a value of a flag is not a command";
}

TEST_F(Zsh, OffersIdsFromTheGivenSettings) {
  EXPECT_EQ(complete("mycojobs job show 12:1"), "12:15\n");
  EXPECT_EQ(complete("mycojobs --redis unix:r job show c"), "complete_jobs_--redis_unix:r\n");
  EXPECT_EQ(complete("mycojobs job show 12:7 ''"), "files\n") << "the command has no second positional argument";
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/broken"));
}

}  // namespace
}  // namespace mycojobs
