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
#include "support/process.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Done {
  JobEnd end;
  Outcome outcome;
  std::string out, err;
};

Done run(const Executor& executor, std::string script, LocalRunHooks hooks = {}, std::uint64_t timeout_ms = 30000) {
  static std::uint64_t next = std::uint64_t{1} << 41;
  auto staged = stage_runs(executor, {}, {}, nullptr, timeout_ms).value();
  for (RunSpec& spec : staged.specs) spec.context = 7;
  JobFacts facts = make_facts(std::move(script));
  facts.granted_policy = staged.policy;
  Done done;
  auto conversation = executor.begin(facts, nullptr);
  if (!conversation) {
    done.end.error = conversation.error().message;
    return done;
  }
  hooks.on_output = [&done](bool is_err, std::string_view bytes) { (is_err ? done.err : done.out) += bytes; };
  auto ran = run_locally(shared_sandbox(), std::move(staged.specs), **conversation, hooks, next++);
  EXPECT_TRUE(ran) << ran.error().message;
  if (ran) done.end = std::move(ran->end), done.outcome = std::move(ran->outcome);
  return done;
}

CommandExecutor bash() {
  return CommandExecutor({.name = "bash", .command = {"/bin/bash", "{script}", "first", "{script}"}});
}

TEST(Programs, SignalThatEndsThemIsTheJobsEnd) {
  const Done done = run(bash(), "kill -SEGV $$\n");
  EXPECT_EQ(done.end.detail, "signal");
  EXPECT_THAT(done.end.error, HasSubstr("SIGSEGV"));
}

TEST(Programs, ExitCodeAndLastStderrLinesAreTheError) {
  const Done done = run(bash(), "echo first >&2; printf 'the reason \\xff \\n\\n' >&2; exit 42\n");
  EXPECT_EQ(done.end.detail, "exit");
  EXPECT_EQ(done.end.error, "exit code 42: the reason \xef\xbf\xbd");
  EXPECT_THAT(nlohmann::json::parse(done.end.error_info)["stderr"].get<std::string>(), HasSubstr("first\n"));
}

TEST(Programs, ArgumentsAndTheirScriptAreAsConfigured) {
  EXPECT_EQ(run(bash(), "echo $0 $1 $2; pwd").out, "/job/script first /job/script\n/job\n");
}

TEST(Programs, StandardStreamsCanBeOpenedByTheirPaths) {
  const Done done = run(bash(), R"(
echo a > /dev/stdout && echo b > /dev/stderr && echo c > /dev/fd/1 && echo d > /proc/self/fd/2 &&
  echo e | tee /dev/stderr > /dev/null && cat < /dev/stdin && echo f >> /proc/$$/fd/1
)");
  EXPECT_EQ(done.end.detail, "ok") << done.end.error;
  EXPECT_EQ(done.out, "a\nc\nf\n");
  EXPECT_EQ(done.err, "b\nd\ne\n");
}

TEST(Programs, StderrOfTheErrorStartsWithACharacter) {
  for (const int offset : {0, 1, 2}) {
    const Done done = run(bash(), "printf '%0" + std::to_string(offset) + "d' 0 | head -c " + std::to_string(offset) +
                                      " >&2; for i in $(seq 5000); do printf '\u20ac' >&2; done; exit 1\n");
    const auto text = nlohmann::json::parse(done.end.error_info)["stderr"].get<std::string>();
    EXPECT_THAT(text, StartsWith("\u20ac"));
    EXPECT_GT(text.size(), 4090U);
    EXPECT_LE(text.size(), 4096U);
  }
}

TEST(Programs, UnreadableResultIsNotRetried) {
  const Done done = run(bash(), "echo nonsense > $MYCOJOBS_RESULT\n");
  EXPECT_THAT(done.end.error, HasSubstr("ResultError"));
  EXPECT_TRUE(done.end.retry_forbidden);
}

TEST(Programs, ReceiveTermAndMayCleanUp) {
  LocalRunHooks hooks;
  hooks.cancel_text = "ready";
  // Bash runs a trap between two commands. A single long command that starts after the signal would delay the trap.
  const Done done = run(bash(), "trap 'echo tidied; exit 7' TERM\necho ready\nwhile :; do sleep 0.1; done\n", hooks);
  EXPECT_EQ(done.end.detail, "cancelled");
  EXPECT_EQ(done.out, "ready\ntidied\n");
}

TEST(Programs, EndlessProgramIsKilledWithItsProcesses) {
  const Done done = run(bash(), "trap '' TERM\n(setsid sleep 1000 &)\nwhile :; do sleep 1; done\n", {}, 1000);
  EXPECT_EQ(done.end.detail, "timeout");
}

TEST(Programs, MissingInterpreterIsNamedWithTheRemedy) {
  const CommandExecutor absent({.name = "zsh", .command = {"/usr/bin/no-such-shell", "{script}"}});
  const auto probed = absent.probe();
  ASSERT_FALSE(probed);
  EXPECT_THAT(probed.error().message, HasSubstr("[executors.zsh] command"));
  const Done done = run(absent, "x");
  EXPECT_EQ(done.end.detail, "exception");
  EXPECT_THAT(done.end.error, HasSubstr("cannot start /usr/bin/no-such-shell: ENOENT"));
}

TEST(Programs, ShellWithoutAVersionWorksIfItRunsTrue) {
  const CommandExecutor dash({.name = "sh", .command = {"/bin/dash", "{script}"}});
  ASSERT_TRUE(dash.probe()) << dash.probe().error().message;
  EXPECT_EQ(*dash.probe(), "/bin/dash");
  EXPECT_FALSE(CommandExecutor({.name = "sh", .command = {"/bin/false", "{script}"}}).probe());
  const CommandExecutor asked({.name = "sh", .command = {"/bin/dash", "{script}"}, .version = {"--which"}});
  EXPECT_FALSE(asked.probe()) << "the operator has named the arguments";
}

TEST(Programs, ReplacedResultFileIsAnError) {
  for (const char* script : {"rm $MYCOJOBS_RESULT; mkfifo $MYCOJOBS_RESULT", "ln -sf /etc/passwd $MYCOJOBS_RESULT",
                             "rm $MYCOJOBS_RESULT; mkdir $MYCOJOBS_RESULT"}) {
    const Done done = run(bash(), script);
    EXPECT_EQ(done.end.detail, "exception") << script;
    EXPECT_THAT(done.end.error, HasSubstr("result file: it is not a regular file")) << script;
  }
  EXPECT_EQ(run(bash(), "rm $MYCOJOBS_RESULT").end.detail, "ok");
}

TEST(Programs, FullFolderIsReported) {
  const Done done = run(bash(), "head -c 100000000 /dev/zero > /job/big; exit 9");
  EXPECT_NE(done.end.detail, "ok");
}

TEST(Programs, MachineCodeInMemoryNeedsTheOperatorsPermission) {
  const std::string script =
      "const f = (a) => a * 2; let s = 0; for (let i = 0; i < 1e6; i++) s += f(i); console.log(s);";
  CommandSettings node{.name = "node", .command = {"/usr/bin/node", "{script}"}, .file = "script.js"};
  EXPECT_NE(run(CommandExecutor(node), script).end.detail, "ok");
  node.policy =
      read_policy(R"({"memory":"512 MiB","syscalls.add":["mmap","mprotect","pkey_mprotect"]})", "policy").request;
  const Done done = run(CommandExecutor(node), script);
  EXPECT_EQ(done.end.detail, "ok") << done.end.error << done.err;
  EXPECT_EQ(done.out, "999999000000\n");
}

class Native : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(programs_folder(state_.path().string(), 7)); }
  std::string add(const std::string& program) {
    std::ifstream in(program, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const std::string hash = sha256_hex(bytes);
    std::ofstream(programs_folder(state_.path().string(), 7) + "/" + hash, std::ios::binary) << bytes;
    return hash;
  }
  TempDir state_;
};

TEST_F(Native, ProgramIsRunByItsHashWithItsArguments) {
  const NativeExecutor native(state_.path().string());
  const std::string hash = add("/usr/bin/printf");
  EXPECT_EQ(run(native, hash + "\n%s-%s\n\nb c\n").out, "-b c");
  EXPECT_EQ(run(native, hash.substr(0, 12) + "\nx").out, "x");
  EXPECT_EQ(run(native, hash + "\n%s\n{script}").out, "{script}") << "an argument is the job's own";
}

TEST_F(Native, ProgramWithAnotherHashIsNotRun) {
  const NativeExecutor native(state_.path().string());
  const std::string hash = add("/usr/bin/printf");
  std::ofstream(programs_folder(state_.path().string(), 7) + "/" + hash, std::ios::app) << "x";
  EXPECT_THAT(run(native, hash).end.error, HasSubstr("does not match the hash in its name"));
  EXPECT_THAT(run(native, std::string(64, 'a')).end.error, HasSubstr("mycojobs program add"));
  EXPECT_THAT(run(native, "../../../../usr/bin/env").end.error, HasSubstr("SHA-256"));
  EXPECT_THAT(run(native, "abc").end.error, HasSubstr("8 to 64 digits"));
}

TEST_F(Native, ProgramChangedAfterARunIsNotRunAgain) {
  const NativeExecutor native(state_.path().string());
  const std::string hash = add("/usr/bin/printf");
  EXPECT_EQ(run(native, hash + "\nx").out, "x");
  const std::string path = programs_folder(state_.path().string(), 7) + "/" + hash;
  std::ofstream(path, std::ios::app) << "x";
  EXPECT_THAT(run(native, hash).end.error, HasSubstr("does not match the hash in its name"));
  std::filesystem::remove(path);
  EXPECT_THAT(run(native, hash).end.error, HasSubstr("no program of this context"));
}

TEST_F(Native, UnsuitableProgramIsRejectedBeforeItRuns) {
  const NativeExecutor native(state_.path().string());
  const std::string hash = add("/usr/bin/printf");
  EXPECT_EQ(run(native, hash + "\nx").out, "x");
  JobFacts facts = make_facts(hash);
  facts.job.context_id = 7;
  facts.granted_policy.disk_bytes = 1000;
  const auto begun = native.begin(facts, nullptr);
  ASSERT_FALSE(begun);
  EXPECT_THAT(begun.error().message, HasSubstr("policy.disk"));
}

TEST_F(Native, CacheReturnsTheSameSealedFileUntilAChange) {
  const std::string hash = add("/usr/bin/printf");
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
  const std::string hash = add("/usr/bin/printf"), folder = programs_folder(state_.path().string(), 7);
  std::filesystem::create_directory(folder + "/odd");
  ProgramCache cache;
  EXPECT_EQ(cache.load(folder + "/odd", hash, 1).error().code, Code::unsupported);
  EXPECT_EQ(cache.load(folder + "/gone", hash, 1).error().code, Code::unsupported);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const auto short_of_files = cache.load(folder + "/" + hash, hash, 1 << 30);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(short_of_files.error().code, Code::unavailable);
}

TEST_F(Native, CacheKeepsTheLastUsed) {
  const std::string hash = add("/usr/bin/printf"), other = add("/usr/bin/env"),
                    folder = programs_folder(state_.path().string(), 7);
  const std::uint64_t room =
      std::max(std::filesystem::file_size(folder + "/" + hash), std::filesystem::file_size(folder + "/" + other));
  ProgramCache cache(room);
  const auto first = cache.load(folder + "/" + hash, hash, room).value();
  EXPECT_EQ(cache.load(folder + "/" + hash, hash, room).value(), first);
  ASSERT_TRUE(cache.load(folder + "/" + other, other, room));
  EXPECT_NE(cache.load(folder + "/" + hash, hash, room).value(), first);
  ProgramCache none(1);
  EXPECT_NE(none.load(folder + "/" + hash, hash, room).value(), none.load(folder + "/" + hash, hash, room).value());
}

TEST(Programs, LeftoverProgressWriterDelaysNoEnd) {
  const Done done = run(bash(),
                        "(setsid cat /dev/zero > $MYCOJOBS_PROGRESS &)\n(yes 0.5 > $MYCOJOBS_PROGRESS &)\n"
                        "sleep 0.2; echo k=v > $MYCOJOBS_RESULT\n");
  EXPECT_EQ(done.end.detail, "ok") << done.end.error;
  EXPECT_EQ(done.end.result, (TextMap{{"k", "v"}}));
}

}  // namespace
}  // namespace mycojobs::test
