// Jobs in V, in the real sandbox.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "v_driver.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr const char* kHello = R"(import os

fn main() {
	name := os.getenv('WHO')
	println('hello ${name}')
	os.write_file(os.getenv('MYCOJOBS_RESULT'), 'name=${name}\n') or { panic(err) }
}
)";
constexpr const char* kForEver = "fn main() {\n\tprintln('begun')\n\tfor {\n\t}\n}\n";
constexpr const char* kEndlessToCompile = "#include __FILE__\n#include __FILE__\nfn main() {\n}\n";

TEST(V, RunsWithItsVariablesAndReturnsItsResult) {
  const VHost host;
  const VResult result = host.run({.script = kHello, .environment = {{"WHO", "you"}}});
  EXPECT_EQ(result.end.status, JobStatus::finished) << result.end.error << result.err;
  EXPECT_EQ(result.out, "hello you\n");
  EXPECT_EQ(result.end.result, (TextMap{{"name", "you"}}));
  const auto compile = nlohmann::json::parse(result.end.receipt)["compile"];
  EXPECT_FALSE(compile["cached"].get<bool>());
  EXPECT_GT(compile["wall_us"].get<int>(), 0);
  EXPECT_GT(nlohmann::json::parse(result.end.usage)["wall_us"], compile["wall_us"]) << "usage is that of both runs";
}

TEST(V, SecondRunOfAScriptIsNotCompiled) {
  const VHost host;
  const VResult first = host.run({.script = kHello, .environment = {{"WHO", "a"}}});
  const VResult second = host.run({.script = kHello, .environment = {{"WHO", "b"}}});
  EXPECT_FALSE(first.cached);
  EXPECT_TRUE(second.cached);
  EXPECT_EQ(second.out, "hello b\n") << second.end.error;
  EXPECT_THAT(host.list_cached_files(), SizeIs(1));
}

TEST(V, OtherScriptOrFlagsAreCompiledAgain) {
  VHost host;
  EXPECT_FALSE(host.run({.script = kHello}).cached);
  EXPECT_FALSE(host.run({.script = std::string(kHello) + "\n"}).cached);
  host.flags_ = {"-prod"};
  EXPECT_FALSE(host.run({.script = kHello}).cached);
  host.flags_ = {};
  EXPECT_TRUE(host.run({.script = kHello}).cached);
}

TEST(V, OtherCompilerCompilesAgain) {
  if (std::getenv("V_COMPILER") != nullptr) GTEST_SKIP() << "the compiler of V_COMPILER is not ours to change";
  VHost host;
  EXPECT_FALSE(host.run({.script = kHello}).cached);
  std::ofstream(host.compiler().program(), std::ios::app) << "# a newer one\n";
  EXPECT_FALSE(host.run({.script = kHello}).cached);
}

TEST(V, ContextsDoNotShareBinaries) {
  const VHost host;
  EXPECT_FALSE(host.run({.script = kHello, .context = 7}).cached);
  EXPECT_FALSE(host.run({.script = kHello, .context = 8}).cached);
  EXPECT_TRUE(host.run({.script = kHello, .context = 8}).cached);
}

TEST(V, ChangedFileOfTheCacheIsCompiledAgain) {
  const VHost host;
  host.run({.script = kHello});
  ASSERT_THAT(host.list_cached_files(), SizeIs(1));
  std::fstream file(host.list_cached_files()[0], std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(500);
  file.put('!');
  file.close();
  const VResult again = host.run({.script = kHello, .environment = {{"WHO", "you"}}});
  EXPECT_FALSE(again.cached);
  EXPECT_EQ(again.out, "hello you\n");
  EXPECT_TRUE(host.run({.script = kHello}).cached);
}

TEST(V, CompilerErrorIsTheJobsAndNamesTheLine) {
  const VHost host;
  const VResult result =
      host.run({.script = "fn main() {\n\tprintln('ran')\n\tprintln(missing)\n}\n", .name = "greet"});
  EXPECT_EQ(result.end.status, JobStatus::error);
  EXPECT_EQ(result.end.detail, "exception");
  EXPECT_THAT(result.end.error, StartsWith("CompileError: greet.v:3:10: error: undefined ident: `missing`"));
  EXPECT_EQ(result.info("type"), "CompileError");
  EXPECT_EQ(result.info("line"), "3");
  EXPECT_EQ(result.info("stage"), "compile");
  EXPECT_THAT(result.info("traceback"), HasSubstr("println(missing)"));
  EXPECT_TRUE(result.end.retry_forbidden);
  EXPECT_EQ(result.out, "") << "nothing runs";
  EXPECT_THAT(host.list_cached_files(), SizeIs(0));
}

TEST(V, ExitCodeAndPanicAreTheProgramsOwnEnd) {
  const VHost host;
  const VResult left = host.run({.script = "fn main() {\n\teprintln('no luck')\n\texit(3)\n}\n"});
  EXPECT_EQ(left.end.error, "exit code 3: no luck");
  EXPECT_EQ(left.info("stage"), "run");
  EXPECT_FALSE(left.end.retry_forbidden);
  const VResult panicked = host.run({.script = "fn main() {\n\tpanic('all is lost')\n}\n"});
  EXPECT_EQ(panicked.end.error, "exit code 1: V panic: all is lost");
}

TEST(V, GarbageCollectorIsSilentWithoutProcStat) {
  const VHost host;
  const VResult result = host.run({.script = "fn main() {\n\texit(3)\n}\n"});
  EXPECT_EQ(result.end.error, "exit code 3");
  EXPECT_THAT(result.err, Not(HasSubstr("GC Warning")));
  const VResult own = host.run({.script = "import os\n\nfn main() {\n\tprintln(os.getenv('GC_NPROCS'))\n}\n",
                                .environment = {{"GC_NPROCS", "4"}}});
  EXPECT_EQ(own.out, "4\n") << "the job's own value wins";
}

TEST(V, CCompilerErrorIsTheReason) {
  const VHost host;
  const VResult result = host.run({.script = "#include <nowhere/none.h>\n\nfn main() {\n}\n"});
  EXPECT_THAT(result.end.error, StartsWith("CompileError: "));
  EXPECT_THAT(result.end.error, HasSubstr("nowhere/none.h: No such file or directory"));
  EXPECT_THAT(result.info("traceback"), HasSubstr("nowhere/none.h: No such file or directory"));
}

TEST(V, NetworkModulesAreCompiledOnceForAllScripts) {
  const VHost host;
  const std::string script = "import net.http\n\nfn main() {\n\tprintln(http.Method.get)\n}\n";
  const VResult first = host.run({.script = script});
  EXPECT_EQ(first.out, "get\n") << first.end.error << first.err;
  for (int i = 0; i < 3000 && host.list_trusted_files().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ASSERT_THAT(host.list_trusted_files(), SizeIs(1));
  const std::string list_cached_files = read_file(host.list_trusted_files()[0]);
  for (const Id context : {7, 8}) {
    const VResult next = host.run({.script = script + "\n", .context = context});
    EXPECT_FALSE(next.cached);
    EXPECT_EQ(next.out, "get\n") << next.end.error;
    EXPECT_THAT(next.err, Not(HasSubstr("net.http is compiled")));
  }
  EXPECT_EQ(read_file(host.list_trusted_files()[0]), list_cached_files);
}

TEST(V, HostFilesAreHiddenAtCompileTime) {
  const VHost host;
  const TempDir folder;
  for (const std::string& path :
       {std::string("/etc/shadow"), folder.write("key", "canary-of-the-host\n"),
        host.list_cached_files().empty() ? std::string("/root/.bashrc") : host.list_cached_files()[0]}) {
    const VResult result = host.run({.script = "#include \"" + path + "\"\nfn main() {\n}\n"});
    EXPECT_THAT(result.end.error, StartsWith("CompileError: ")) << path;
    EXPECT_THAT(result.end.error, HasSubstr(path + ": No such file or directory"));
    EXPECT_THAT(result.out + result.err + result.end.error_info, Not(HasSubstr("canary")));
  }
  // The user list is that of the sandbox, not of the host.
  const VResult users = host.run({.script = "#include \"/etc/passwd\"\nfn main() {\n}\n"});
  EXPECT_THAT(users.out + users.err, HasSubstr("root:x:0:0:root:/:"));
  EXPECT_THAT(users.out + users.err, Not(HasSubstr("/root")));
}

TEST(V, JobDataIsHiddenAtCompileTime) {
  const VHost host;
  const VResult secret = host.run(
      {.script = "#include \"/job/secrets/key\"\nfn main() {\n}\n", .secrets = {{"key", "canary-of-the-secret"}}});
  EXPECT_THAT(secret.end.error, HasSubstr("/job/secrets/key: No such file or directory"));
  for (const std::string name : {"WHO", "MYCOJOBS_JOB_ID"}) {
    const VResult variable = host.run(
        {.script = "fn main() {\n\tprintln($env('" + name + "'))\n}\n", .environment = {{"WHO", "canary-of-the-job"}}});
    EXPECT_THAT(variable.end.error, StartsWith("CompileError: greet.v:2:10: error: ")) << variable.out;
    EXPECT_THAT(variable.end.error, HasSubstr(name));
  }
}

TEST(V, EndlessCompileEndsAtItsLimit) {
  const VHost host;
  const VResult cpu = host.run({.script = kEndlessToCompile, .policy = R"({"cpu": "1 s"})"});
  EXPECT_EQ(cpu.end.detail, "timeout_cpu");
  EXPECT_THAT(cpu.end.error, StartsWith("compiling: over the limit of 1000 ms of CPU"));
  EXPECT_EQ(cpu.info("stage"), "compile");
  const VResult wall = host.run({.script = kEndlessToCompile, .policy = R"({"wall": "1 s"})"});
  EXPECT_EQ(wall.end.detail, "timeout");
  EXPECT_THAT(wall.end.error, StartsWith("compiling: over the wall-clock limit of 1000 ms"));
  EXPECT_THAT(host.list_cached_files(), SizeIs(0));
}

TEST(V, HugeSourceEndsAtTheMemoryLimit) {
  const VHost host;
  const VResult result =
      host.run({.script = "#include \"/dev/zero\"\nfn main() {\n}\n", .policy = R"({"memory": "64 MiB"})"});
  EXPECT_EQ(result.end.status, JobStatus::error);
  EXPECT_EQ(result.info("stage"), "compile");
  EXPECT_THAT(result.out, HasSubstr("Killed"));  // printed by the C compiler
}

TEST(V, KilledProgramIsReportedAsRun) {
  const VHost host;
  const VResult wall = host.run({.script = kForEver, .policy = R"({"cpu": "1 s"})"});
  EXPECT_EQ(wall.out, "begun\n");
  EXPECT_EQ(wall.end.detail, "timeout_cpu");
  EXPECT_THAT(wall.end.error, StartsWith("running: over the limit"));
  EXPECT_EQ(wall.info("stage"), "run");
  const VResult aborted = host.run({.script = "#include <stdlib.h>\n\nfn C.abort()\n\nfn main() {\n\tC.abort()\n}\n"});
  EXPECT_EQ(aborted.end.error, "running: ended by signal 6 (SIGABRT)");
}

TEST(V, BinaryIsCachedForAnyJobSettings) {
  const VHost host;
  const TempDir folder;
  EXPECT_FALSE(host.run({.script = kHello, .policy = R"({"net": "loopback"})"}).cached);
  EXPECT_TRUE(host.run({.script = kHello}).cached);
}

}  // namespace
}  // namespace mycojobs::test
