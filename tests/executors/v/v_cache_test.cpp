// The cache of compiled V programs and the output of the compiler, without a sandbox.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "executors/v/binary_cache.h"
#include "executors/v/compiler.h"
#include "support/process.h"
#include "v_driver.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kKey(64, 'a'), kOther(64, 'b'), kThird(64, 'c');

void make_older(const BinaryCache& cache, const std::string& key, int seconds) {
  const fs::path path = cache.folder() + '/' + key;
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::seconds(seconds));
}

TEST(VProbe, CompilesAndRunsOneLine) {
  const TempDir state;
  const CompilerFolder compiler;
  const VExecutor executor(compiler.program(), {}, state.path());
  const auto probed = executor.probe();
  ASSERT_TRUE(probed) << probed.error().message;
  EXPECT_THAT(*probed, StartsWith("V 0.4.11"));
  EXPECT_FALSE(fs::is_empty(state / "v-trusted")) << "the next start of an agent does not compile";
}

struct BrokenCompiler {
  const char* script;
  const char* problem;
};

TEST(VProbe, CompilerThatOnlyPrintsItsVersionIsRejected) {
  for (const auto& [script, problem] :
       {BrokenCompiler{"echo 'error: no room' >&2; exit 1", "cannot compile: error: no room"},
        BrokenCompiler{"echo 'cc: error: no libc'; exit 1", "cannot compile: cc: error: no libc"},
        BrokenCompiler{"printf '#!/bin/sh\\nexit 7\\n' > $2; chmod +x $2", "does not run: exit code 7"}}) {
    const TempDir state;
    const CompilerFolder compiler;
    std::ofstream(compiler.program()) << "#!/bin/sh\n[ $1 = version ] && echo V 0.4.11 && exit 0\n" << script << '\n';
    const auto probed = VExecutor(compiler.program(), {}, state.path()).probe();
    ASSERT_FALSE(probed) << script;
    EXPECT_THAT(probed.error().message, HasSubstr(problem));
  }
}

TEST(VModules, ScriptsThatImportTheNetworkAreFound) {
  for (const char* script : {"import net", "import os\nimport net.http\n", "  import net.websocket { Client }",
                             "import veb", "module main\r\nimport  vweb\r\n"})
    EXPECT_TRUE(imports_network(script)) << script;
  for (const char* script :
       {"", "import os", "import network", "// import net", "println('import net')", "import\tnet"})
    EXPECT_FALSE(imports_network(script)) << script;
}

TEST(BinaryCache, ReturnsStoredFiles) {
  const TempDir state;
  const BinaryCache cache(state.path(), 7);
  EXPECT_FALSE(cache.find(kKey));
  ASSERT_TRUE(cache.store(kKey, std::string("a\0b", 3)));
  EXPECT_EQ(cache.find(kKey), std::string("a\0b", 3));
  EXPECT_FALSE(BinaryCache(state.path(), 8).find(kKey)) << "another context";
}

TEST(BinaryCache, ChangedOrShortenedFileIsRemoved) {
  const TempDir state;
  const BinaryCache cache(state.path(), 7);
  const std::string path = cache.folder() + '/' + kKey;
  ASSERT_TRUE(cache.store(kKey, "program"));
  std::ofstream(path, std::ios::app) << "more";
  EXPECT_FALSE(cache.find(kKey));
  EXPECT_FALSE(fs::exists(path));
  ASSERT_TRUE(cache.store(kKey, "program"));
  fs::resize_file(path, 10);
  EXPECT_FALSE(cache.find(kKey));
  fs::create_symlink("/etc/hostname", path);
  EXPECT_FALSE(cache.find(kKey)) << "a link is never followed";
  EXPECT_TRUE(cache.store(kKey, "program"));
  EXPECT_TRUE(cache.find(kKey));
}

TEST(BinaryCache, UnreadableFileIsKept) {
  const TempDir state;
  const BinaryCache cache(state.path(), 7);
  ASSERT_TRUE(cache.store(kKey, "program"));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  EXPECT_FALSE(cache.find(kKey));
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(cache.find(kKey), "program");
}

TEST(BinaryCache, LeastRecentlyUsedAreRemovedFirst) {
  const TempDir state;
  const BinaryCache cache(state.path(), 7, 2 * (65 + 100));
  ASSERT_TRUE(cache.store(kKey, std::string(100, 'x')));
  ASSERT_TRUE(cache.store(kOther, std::string(100, 'x')));
  make_older(cache, kKey, 200);
  make_older(cache, kOther, 100);
  EXPECT_TRUE(cache.find(kKey)) << "used now";
  ASSERT_TRUE(cache.store(kThird, std::string(100, 'x')));
  EXPECT_TRUE(cache.find(kKey));
  EXPECT_FALSE(cache.find(kOther));
  EXPECT_TRUE(cache.find(kThird));
}

TEST(BinaryCache, LeftoversOfAKilledAgentAreRemoved) {
  const TempDir state;
  const BinaryCache cache(state.path(), 7);
  ASSERT_TRUE(cache.store(kKey, "program"));
  for (const char* name : {".new-1-1", ".new-1-2"}) std::ofstream(cache.folder() + '/' + name) << "half";
  make_older(cache, ".new-1-1", 7200);
  ASSERT_TRUE(cache.store(kOther, "program"));
  EXPECT_FALSE(fs::exists(cache.folder() + "/.new-1-1"));
  EXPECT_TRUE(fs::exists(cache.folder() + "/.new-1-2")) << "somebody may be writing it";
}

TEST(BinaryCache, ConcurrentWritersAndReadersSeeCompleteFiles) {
  const TempDir state;
  const std::string program(300000, 'p');
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const BinaryCache cache(state.path(), 7);
      for (int round = 0; round < 50; ++round) {
        if (!cache.store(kKey, program)) ++wrong;
        const auto found = cache.find(kKey);
        if (!found || *found != program) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CompileError, FirstErrorLineOfTheScriptIsTheMessage) {
  const ScriptError error = parse_compile_error(
      "main.v:1:8: warning: module 'os' is imported but never used\n/job/main.v:12:5: error: unexpected name `x`\n"
      "   12 |     x\nmain.v:14:1: error: second\nnot-main.v:1:1: error: x\n",
      "greet.v");
  EXPECT_EQ(error.type, "CompileError");
  EXPECT_EQ(error.message, "greet.v:12:5: error: unexpected name `x`");
  EXPECT_EQ(error.line, 12U);
  EXPECT_TRUE(error.retry_forbidden);
  EXPECT_THAT(error.traceback, StartsWith("greet.v:1:8: warning"));
  EXPECT_THAT(error.traceback, HasSubstr("not-main.v:1:1"));
}

TEST(CompileError, FirstErrorOrLastLineIsReportedWithoutAPlace) {
  EXPECT_EQ(
      parse_compile_error("=====\n/tmp/v/x.c:3:1: fatal error: y.h: No such file\n====\nbuilder error: C\n", "a.v")
          .message,
      "/tmp/v/x.c:3:1: fatal error: y.h: No such file");
  EXPECT_EQ(parse_compile_error("one\ntwo\n\n", "a.v").message, "two");
  EXPECT_EQ(parse_compile_error("", "a.v").message, "the compiler wrote nothing");
  EXPECT_EQ(parse_compile_error("main.v:99999999999:1: error: x", "a.v").line, 0U);
}

TEST(CompileError, ScriptHasTheNameOfItsJob) {
  EXPECT_EQ(get_source_name("greet"), "greet.v");
  EXPECT_EQ(get_source_name("greet.v"), "greet.v");
  for (const char* name : {"", "a/b", "a:b", "a b", "a\nb"}) EXPECT_EQ(get_source_name(name), "main.v") << name;
  EXPECT_EQ(get_source_name(std::string(200, 'x')), "main.v");
}

TEST(FindCompiler, NamesTheProblemAndTheRemedy) {
  const TempDir folder;
  const auto at = [](const std::string& path) { return find_compiler(path).error().message; };
  EXPECT_THAT(at("v"), HasSubstr("not an absolute path"));
  EXPECT_THAT(at(folder / "none"), HasSubstr("No such file or directory"));
  EXPECT_THAT(at(folder / "none"), HasSubstr("https://github.com/vlang/v"));
  EXPECT_THAT(at(folder.path()), HasSubstr("is not a file"));
  const std::string plain = folder.write("v", "#!/bin/sh\n");
  fs::permissions(plain, static_cast<fs::perms>(0755));
  EXPECT_THAT(at(plain), HasSubstr("jobs cannot see its folder")) << "below /tmp";
}

TEST(FindCompiler, ProgramOfTheSystemNeedsNoGrant) {
  const auto found = find_compiler("/usr/bin/env");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->folder, "");
  EXPECT_THAT(query_version(*found).error().message, HasSubstr("v: "));
}

}  // namespace
}  // namespace mycojobs::test
