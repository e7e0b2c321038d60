// The error for unknown commands, and the groups of the commands in --help.
#include "cli/commands/command_line.h"

#include <gtest/gtest.h>

#include "cli/commands/command_table.h"
#include "inspect/job_view.h"
#include "model/codec.h"

namespace mycojobs {
namespace {

std::string parse_error(std::vector<const char*> words) {
  words.insert(words.begin(), "mycojobs");
  return find_unknown_command(static_cast<int>(words.size()), words.data());
}

TEST(Help, EveryCommandIsInAGroup) {
  for (const Command& row : commands())
    EXPECT_FALSE(get_command_group(row.name.substr(0, row.name.find(' '))).empty()) << row.name;
}

TEST(Help, UnknownCommandSuggestsASimilarOne) {
  EXPECT_EQ(parse_error({"rum"}), "there is no command \"rum\"; did you mean \"run\"?");
  EXPECT_EQ(parse_error({"job", "lsit"}), "there is no command \"job lsit\"; did you mean \"list\"?");
  EXPECT_EQ(parse_error({"flow", "schedule", "ad"}),
            "there is no command \"flow schedule ad\"; `mycojobs flow schedule --help` lists them");
  EXPECT_EQ(parse_error({"flow", "schedule", "remve", "x"}),
            "there is no command \"flow schedule remve\"; did you mean \"remove\"?");
  EXPECT_EQ(parse_error({"xyzzy"}), "there is no command \"xyzzy\"; `mycojobs --help` lists them");
  EXPECT_EQ(parse_error({"explain"}),
            "there is no command \"explain\"; did you mean `job explain` or `flow explain` or `workflow explain`?");
  EXPECT_EQ(parse_error({"\x1b[2J"}), "there is no command \"?[2J\"; `mycojobs --help` lists them");
}

TEST(Help, KnownCommandIsNoMistake) {
  for (const std::vector<const char*>& words : std::vector<std::vector<const char*>>{
           {}, {"run", "rum"}, {"job", "list"}, {"job"}, {"--help"}, {"job", "--help"}, {"flow", "start", "flwo"}})
    EXPECT_EQ(parse_error(words), "");
}

TEST(Receipt, NamesOnlyTheMissingLayers) {
  Job job;
  job.status = JobStatus::finished;
  job.detail = "ok";
  job.usage = R"({"wall_us":6900,"user_us":2000,"system_us":1100,"memory_peak_bytes":1677722})";
  job.layers =
      "userns pidns mountns netns ipcns utsns cgroupns seccomp caps nnp landlock:4 uid cgroup:memory cgroup:pids";
  EXPECT_EQ(format_receipt(job), "finished ok · wall 6.9 ms · cpu 3.1 ms · memory 1.6 MiB · all layers");
  job.layers = "userns pidns mountns netns ipcns utsns cgroupns seccomp caps nnp uid cgroup:pids";
  job.receipt = R"({"stragglers":2})";
  EXPECT_EQ(format_receipt(job),
            "finished ok · wall 6.9 ms · cpu 3.1 ms · memory 1.6 MiB · stragglers 2 · without landlock cgroup:memory");
  job.receipt = R"({"stragglers":0,"reused":0})";
  EXPECT_EQ(format_receipt(job),
            "finished ok · wall 6.9 ms · cpu 3.1 ms · memory 1.6 MiB · reused 0 · without landlock cgroup:memory");
  Job never_ran;
  never_ran.status = JobStatus::error;
  never_ran.detail = "cancelled";
  EXPECT_EQ(format_receipt(never_ran), "error cancelled");
}

}  // namespace
}  // namespace mycojobs
