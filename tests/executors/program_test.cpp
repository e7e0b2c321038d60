// Programs as jobs in the real sandbox: behaviour beyond the contract of executors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "cli/local_run.h"
#include "executors/command/command_executor.h"
#include "executors/executor_settings.h"
#include "executors/native/native_executor.h"
#include "executors/python/python_sandbox.h"
#include "executors/run_specs.h"
#include "model/submitted_files.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct ProgramResult {
  JobEnd end;
  Outcome outcome;
  std::string out, err;
};

// The job that run_program() runs: arguments and files of the job.
struct ProgramInput {
  std::vector<std::string> args;
  SubmittedFiles files;
};

ProgramResult run_program(const Executor& executor, std::string script, LocalRunHooks hooks = {},
                          std::uint64_t timeout_ms = 30000, const ProgramInput& input = {}) {
  static std::uint64_t next = std::uint64_t{1} << 41;
  auto staged = stage_runs(executor, {}, {}, nullptr, timeout_ms).value();
  for (RunSpec& spec : staged.specs) spec.context = 7;
  JobFacts facts = make_facts(std::move(script));
  facts.granted_policy = staged.policy;
  facts.job.args = input.args;
  EXPECT_TRUE(set_submitted_files(facts.job, input.files));
  ProgramResult result;
  auto conversation = executor.begin(facts, nullptr);
  if (!conversation) {
    result.end.error = conversation.error().message;
    return result;
  }
  hooks.on_output = [&result](bool is_err, std::string_view bytes) { (is_err ? result.err : result.out) += bytes; };
  auto local_result = run_locally(shared_sandbox(), std::move(staged.specs), **conversation, hooks, next++);
  EXPECT_TRUE(local_result) << local_result.error().message;
  if (local_result) result.end = std::move(local_result->end), result.outcome = std::move(local_result->outcome);
  return result;
}

CommandExecutor make_bash_executor() {
  return CommandExecutor({.name = "bash", .command = {"/bin/bash", "{script}", "first", "{script}"}});
}

TEST(Programs, SignalThatEndsThemIsTheJobsEnd) {
  const ProgramResult result = run_program(make_bash_executor(), "kill -SEGV $$\n");
  EXPECT_EQ(result.end.detail, "signal");
  EXPECT_THAT(result.end.error, HasSubstr("SIGSEGV"));
}

TEST(Programs, ReceiveArgumentsInputAndFiles) {
  const ProgramInput input{{"-x", "two words", "{script}"}, {"one\ntwo\n", {{"lib/data", "text"}}}};
  const ProgramResult result =
      run_program(make_bash_executor(),
                  "printf '<%s>' \"${@:3}\"; cat; cat /job/files/lib/data; ls -A /job | grep -c std\n"
                  "echo x > /job/files/lib/data || true\n",
                  {}, 30000, input);
  EXPECT_EQ(result.end.error, "") << result.err;
  EXPECT_EQ(result.out, "<-x><two words><{script}>one\ntwo\ntext0\n");
  EXPECT_THAT(result.err, HasSubstr("denied"));
  EXPECT_EQ(run_program(make_bash_executor(), "cat; echo $#\n").out, "2\n");
}

TEST(Programs, ExitCodeAndLastStderrLinesAreTheError) {
  const ProgramResult result =
      run_program(make_bash_executor(), "echo first >&2; printf 'the reason \\xff \\n\\n' >&2; exit 42\n");
  EXPECT_EQ(result.end.detail, "exit");
  EXPECT_EQ(result.end.error, "exit code 42: the reason \xef\xbf\xbd");
  EXPECT_THAT(nlohmann::json::parse(result.end.error_info)["stderr"].get<std::string>(), HasSubstr("first\n"));
}

TEST(Programs, ArgumentsAndTheirScriptAreAsConfigured) {
  EXPECT_EQ(run_program(make_bash_executor(), "echo $0 $1 $2; pwd").out, "/job/script first /job/script\n/job\n");
}

TEST(Programs, StandardStreamsCanBeOpenedByTheirPaths) {
  const ProgramResult result = run_program(make_bash_executor(), R"(
echo a > /dev/stdout && echo b > /dev/stderr && echo c > /dev/fd/1 && echo d > /proc/self/fd/2 &&
  echo e | tee /dev/stderr > /dev/null && cat < /dev/stdin && echo f >> /proc/$$/fd/1
)");
  EXPECT_EQ(result.end.detail, "ok") << result.end.error;
  EXPECT_EQ(result.out, "a\nc\nf\n");
  EXPECT_EQ(result.err, "b\nd\ne\n");
}

TEST(Programs, StderrOfTheErrorStartsWithACharacter) {
  for (const int offset : {0, 1, 2}) {
    const ProgramResult result = run_program(
        make_bash_executor(), "printf '%0" + std::to_string(offset) + "d' 0 | head -c " + std::to_string(offset) +
                                  " >&2; for i in $(seq 5000); do printf '\u20ac' >&2; done; exit 1\n");
    const auto stderr_text = nlohmann::json::parse(result.end.error_info)["stderr"].get<std::string>();
    EXPECT_THAT(stderr_text, StartsWith("\u20ac"));
    EXPECT_GT(stderr_text.size(), 4090U);
    EXPECT_LE(stderr_text.size(), 4096U);
  }
}

TEST(Programs, UnreadableResultIsNotRetried) {
  const ProgramResult result = run_program(make_bash_executor(), "echo nonsense > $MYCOJOBS_RESULT\n");
  EXPECT_THAT(result.end.error, HasSubstr("ResultError"));
  EXPECT_TRUE(result.end.retry_forbidden);
}

TEST(Programs, ReceiveTermAndMayCleanUp) {
  LocalRunHooks hooks;
  hooks.cancel_text = "ready";
  // Bash runs a trap between two commands. A single long command that starts after the signal would delay the trap.
  const ProgramResult result = run_program(
      make_bash_executor(), "trap 'echo tidied; exit 7' TERM\necho ready\nwhile :; do sleep 0.1; done\n", hooks);
  EXPECT_EQ(result.end.detail, "cancelled");
  EXPECT_EQ(result.out, "ready\ntidied\n");
}

TEST(Programs, EndlessProgramIsKilledWithItsProcesses) {
  const ProgramResult result =
      run_program(make_bash_executor(), "trap '' TERM\n(setsid sleep 1000 &)\nwhile :; do sleep 1; done\n", {}, 1000);
  EXPECT_EQ(result.end.detail, "timeout");
}

TEST(Programs, MissingInterpreterIsNamedWithTheRemedy) {
  const CommandExecutor missing({.name = "zsh", .command = {"/usr/bin/no-such-shell", "{script}"}});
  const auto probed = missing.probe();
  ASSERT_FALSE(probed);
  EXPECT_THAT(probed.error().message, HasSubstr("[executors.zsh] command"));
  const ProgramResult result = run_program(missing, "x");
  EXPECT_EQ(result.end.detail, "exception");
  EXPECT_THAT(result.end.error, HasSubstr("cannot start /usr/bin/no-such-shell: ENOENT"));
}

TEST(Programs, ShellWithoutAVersionWorksIfItRunsTrue) {
  const CommandExecutor dash({.name = "sh", .command = {"/bin/dash", "{script}"}});
  ASSERT_TRUE(dash.probe()) << dash.probe().error().message;
  EXPECT_EQ(*dash.probe(), "/bin/dash");
  EXPECT_FALSE(CommandExecutor({.name = "sh", .command = {"/bin/false", "{script}"}}).probe());
  const CommandExecutor with_version({.name = "sh", .command = {"/bin/dash", "{script}"}, .version = {"--which"}});
  EXPECT_FALSE(with_version.probe()) << "the configured version arguments must work";
}

TEST(Programs, ReplacedResultFileIsAnError) {
  for (const char* script : {"rm $MYCOJOBS_RESULT; mkfifo $MYCOJOBS_RESULT", "ln -sf /etc/passwd $MYCOJOBS_RESULT",
                             "rm $MYCOJOBS_RESULT; mkdir $MYCOJOBS_RESULT"}) {
    const ProgramResult result = run_program(make_bash_executor(), script);
    EXPECT_EQ(result.end.detail, "exception") << script;
    EXPECT_THAT(result.end.error, HasSubstr("result file: it is not a regular file")) << script;
  }
  EXPECT_EQ(run_program(make_bash_executor(), "rm $MYCOJOBS_RESULT").end.detail, "ok");
}

TEST(Programs, FullFolderIsReported) {
  const ProgramResult result = run_program(make_bash_executor(), "head -c 100000000 /dev/zero > /job/big; exit 9");
  EXPECT_NE(result.end.detail, "ok");
}

TEST(Programs, MachineCodeInMemoryNeedsTheOperatorsPermission) {
  const std::string script =
      "const f = (a) => a * 2; let s = 0; for (let i = 0; i < 1e6; i++) s += f(i); console.log(s);";
  CommandSettings settings{.name = "node", .command = {"/usr/bin/node", "{script}"}, .file = "script.js"};
  EXPECT_NE(run_program(CommandExecutor(settings), script).end.detail, "ok");
  settings.policy =
      read_policy(R"({"memory":"512 MiB","syscalls.add":["mmap","mprotect","pkey_mprotect"]})", "policy").request;
  const ProgramResult result = run_program(CommandExecutor(settings), script);
  EXPECT_EQ(result.end.detail, "ok") << result.end.error << result.err;
  EXPECT_EQ(result.out, "999999000000\n");
}

class Native : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(programs_folder(state_.path().string(), 7)); }
  std::string add_program(const std::string& program) {
    const std::string bytes = read_file(program);
    const std::string hash = sha256_hex(bytes);
    std::ofstream(programs_folder(state_.path().string(), 7) + "/" + hash, std::ios::binary) << bytes;
    return hash;
  }
  TempDir state_;
};

TEST_F(Native, ProgramIsRunByItsHashWithItsArguments) {
  const NativeExecutor native(state_.path().string());
  const std::string hash = add_program("/usr/bin/printf");
  EXPECT_EQ(run_program(native, hash + "\n%s-%s\n\nb c\n").out, "-b c");
  EXPECT_EQ(run_program(native, hash.substr(0, 12) + "\nx").out, "x");
  EXPECT_EQ(run_program(native, hash + "\n%s\n{script}").out, "{script}") << "arguments of the job are not expanded";
}

TEST_F(Native, ProgramWithAnotherHashIsNotRun) {
  const NativeExecutor native(state_.path().string());
  const std::string hash = add_program("/usr/bin/printf");
  std::ofstream(programs_folder(state_.path().string(), 7) + "/" + hash, std::ios::app) << "x";
  EXPECT_THAT(run_program(native, hash).end.error, HasSubstr("does not match the hash in its name"));
  EXPECT_THAT(run_program(native, std::string(64, 'a')).end.error, HasSubstr("mycojobs program add"));
  EXPECT_THAT(run_program(native, "../../../../usr/bin/env").end.error, HasSubstr("SHA-256"));
  EXPECT_THAT(run_program(native, "abc").end.error, HasSubstr("8 to 64 digits"));
}

TEST_F(Native, ProgramChangedAfterARunIsNotRunAgain) {
  const NativeExecutor native(state_.path().string());
  const std::string hash = add_program("/usr/bin/printf");
  EXPECT_EQ(run_program(native, hash + "\nx").out, "x");
  const std::string path = programs_folder(state_.path().string(), 7) + "/" + hash;
  std::ofstream(path, std::ios::app) << "x";
  EXPECT_THAT(run_program(native, hash).end.error, HasSubstr("does not match the hash in its name"));
  std::filesystem::remove(path);
  EXPECT_THAT(run_program(native, hash).end.error, HasSubstr("no program of this context"));
}

TEST_F(Native, UnsuitableProgramIsRejectedBeforeItRuns) {
  const NativeExecutor native(state_.path().string());
  const std::string hash = add_program("/usr/bin/printf");
  EXPECT_EQ(run_program(native, hash + "\nx").out, "x");
  JobFacts facts = make_facts(hash);
  facts.job.context_id = 7;
  facts.granted_policy.disk_bytes = 1000;
  const auto conversation = native.begin(facts, nullptr);
  ASSERT_FALSE(conversation);
  EXPECT_THAT(conversation.error().message, HasSubstr("policy.disk"));
}

TEST_F(Native, CacheReturnsTheSameSealedFileUntilAChange) {
  const std::string hash = add_program("/usr/bin/printf");
  const std::string path = programs_folder(state_.path().string(), 7) + "/" + hash;
  const std::uint64_t size = std::filesystem::file_size(path);
  ProgramCache cache;
  const auto first = cache.load(path, hash, size);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(::pwrite((*first)->get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate((*first)->get(), 0), -1);
  EXPECT_EQ(cache.load(path, hash, size).value(), *first);
  EXPECT_EQ(cache.load(path, hash, size - 1).error().code, Code::invalid);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_NE(cache.load(path, hash, size).value(), *first);
}

TEST_F(Native, CacheDistinguishesMissingFromUnreadable) {
  const std::string hash = add_program("/usr/bin/printf"), folder = programs_folder(state_.path().string(), 7);
  std::filesystem::create_directory(folder + "/odd");
  ProgramCache cache;
  EXPECT_EQ(cache.load(folder + "/odd", hash, 1).error().code, Code::unsupported);
  EXPECT_EQ(cache.load(folder + "/gone", hash, 1).error().code, Code::unsupported);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const auto result = cache.load(folder + "/" + hash, hash, 1 << 30);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(result.error().code, Code::unavailable);
}

TEST_F(Native, CacheKeepsTheLastUsed) {
  const std::string hash = add_program("/usr/bin/printf"), other = add_program("/usr/bin/env"),
                    folder = programs_folder(state_.path().string(), 7);
  const std::uint64_t capacity_bytes =
      std::max(std::filesystem::file_size(folder + "/" + hash), std::filesystem::file_size(folder + "/" + other));
  ProgramCache cache(capacity_bytes);
  const auto first = cache.load(folder + "/" + hash, hash, capacity_bytes).value();
  EXPECT_EQ(cache.load(folder + "/" + hash, hash, capacity_bytes).value(), first);
  ASSERT_TRUE(cache.load(folder + "/" + other, other, capacity_bytes));
  EXPECT_NE(cache.load(folder + "/" + hash, hash, capacity_bytes).value(), first);
  ProgramCache none(1);
  EXPECT_NE(none.load(folder + "/" + hash, hash, capacity_bytes).value(),
            none.load(folder + "/" + hash, hash, capacity_bytes).value());
}

TEST(Programs, LeftoverProgressWriterDelaysNoEnd) {
  const ProgramResult result =
      run_program(make_bash_executor(),
                  "(setsid cat /dev/zero > $MYCOJOBS_PROGRESS &)\n(yes 0.5 > $MYCOJOBS_PROGRESS &)\n"
                  "sleep 0.2; echo k=v > $MYCOJOBS_RESULT\n");
  EXPECT_EQ(result.end.detail, "ok") << result.end.error;
  EXPECT_EQ(result.end.result, (TextMap{{"k", "v"}}));
}

}  // namespace
}  // namespace mycojobs::test
