// Settings in [executors.<name>] that can never work are rejected with their position and the remedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/config/config.h"
#include "support/process.h"

namespace mycojobs {
namespace {

using ::testing::HasSubstr;

Result<Config> load_config(const std::string& text) {
  const test::TempDir folder;
  ConfigSources sources;
  sources.host.cpus = 2;
  sources.host.program_dir = "/opt/mycojobs/bin";
  sources.host.environment = {{"HOME", "/home/somebody"}};
  sources.flags.config_file = folder.write("config.toml", text);
  return load_config(sources);
}

TEST(ExecutorSettings, RoundTrip) {
  const auto config = load_config(
      "[executors.node]\ncommand = [\"/usr/bin/node\", \"{script}\"]\nfile = \"script.js\"\nversion = []\n"
      "environment = {A = \"b\"}\n[executors.node.policy]\nmemory = \"512 MiB\"\n");
  ASSERT_TRUE(config) << config.error().message;
  ASSERT_EQ(config->settings.executors.size(), 1U);
  const CommandSettings& node = config->settings.executors[0];
  EXPECT_EQ(node.name, "node");
  EXPECT_EQ(node.command, (std::vector<std::string>{"/usr/bin/node", "{script}"}));
  EXPECT_EQ(node.file, "script.js");
  EXPECT_TRUE(node.version.empty());
  EXPECT_EQ(node.environment, (TextMap{{"A", "b"}}));
  EXPECT_EQ(node.policy.values.memory_bytes, 512ULL << 20);
}

TEST(ExecutorSettings, ImpossibleSettingIsRejected) {
  const std::string valid_table = "[executors.x]\ncommand = [\"/bin/sh\", \"{script}\"]\n";
  const std::pair<std::string, const char*> rows[] = {
      {"[executors.x]\n", ":1:1: executors.x: has no command"},
      {"[executors.X]\ncommand = [\"/bin/sh\"]\n", "a script type is a-z"},
      {"[executors.rust]\ncommand = [\"/bin/sh\", \"{script}\"]\n", "executors.rust: is a script type of the executor"},
      {"[executors.x]\ncommand = \"/bin/sh\"\n", ":2:1: executors.x.command: is not a list of texts"},
      {"[executors.x]\ncommand = [\"sh\", \"{script}\"]\n", "executors.x.command[0]: is not the whole path"},
      {"[executors.x]\ncommand = [\"/bin/sh\", \"{scirpt}\"]\n", ":2:1: executors.x.command: has no {script}"},
      {valid_table + "file = \"a/b\"\n", ":3:1: executors.x.file: is not a file name"},
      {valid_table + "comand = []\n", ":3:1: executors.x.comand: is unknown: there are command, file"},
      {valid_table + "environment = {A = 3}\n", "executors.x.environment.A: is not text"},
      {valid_table + "environment = {MYCOJOBS_JOB_ID = \"3\"}\n", "environment.MYCOJOBS_JOB_ID: is set for each job"},
      {valid_table + "[executors.x.policy]\nexec = false\n", ":4:1: executors.x.policy.exec: is false"},
      {valid_table + "[executors.x.policy]\nmemory = \"3 bananas\"\n",
       ":4:1: executors.x.policy.memory: \"3bananas\" is not"},
  };
  for (const auto& [text, message] : rows) {
    const auto config = load_config(text);
    ASSERT_FALSE(config) << text;
    EXPECT_THAT(config.error().message, HasSubstr(message));
  }
}

}  // namespace
}  // namespace mycojobs
