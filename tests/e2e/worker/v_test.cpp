// Jobs in V, from the queue to the record.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "e2e/world.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Folders below /var can be granted to jobs, folders below /tmp cannot.
class PlainV : public ::testing::Test {
 protected:
  PlainV() {
    std::string name = "/var/tmp/mycojobs-v-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    compiler_ = name;
    fs::permissions(compiler_, static_cast<fs::perms>(0755));
    fs::copy_file(mj::test::source_path("tests/executors/vstandin/v"), compiler_ / "v");
  }
  ~PlainV() override {
    std::error_code ignored;
    fs::remove_all(compiler_, ignored);
  }
  std::vector<std::string> make_v_options(std::vector<std::string> more_options = {}) const {
    more_options.insert(more_options.end(), {"--v-compiler", compiler_ / "v"});
    return more_options;
  }
  bool has_cached_program() const {
    std::error_code ignored;
    const fs::directory_iterator files(folder_ / "state/contexts/1/v-cache", ignored);
    return std::any_of(begin(files), end(files),
                       [](const auto& entry) { return entry.path().filename().string().size() == 64; });
  }

  TempDir folder_;
  RedisServer redis_{folder_};
  fs::path compiler_;
};

TEST_F(PlainV, ScriptIsCompiledOnceAndRunsTwice) {
  const Process agent = start_agent(folder_, redis_, 1, make_v_options());
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
  for (int id : {1, 2}) {
    const PlainJob job{.id = id,
                       .script =
                           "import os\n\nfn main() {\n\tprintln('hello from V')\n\tos.write_file("
                           "os.getenv('MYCOJOBS_RESULT'), 'answer=${6 * 7}') or { panic(err) }\n}\n",
                       .type = "v",
                       .timeout = "60"};
    submit(redis_, job);
    ASSERT_EQ(wait_for_status(redis_, job, Seconds(60)), "finished") << read_field(redis_, job, "error") << agent.err();
    EXPECT_EQ(read_job_log(folder_, redis_, job), "hello from V\n");
    EXPECT_THAT(redis_.cli(1, {"HGET", job.key(), "result"}), HasSubstr("42"));
    const auto receipt = nlohmann::json::parse(read_field(redis_, job, "receipt"));
    EXPECT_EQ(receipt["compile"]["cached"], id == 2);
  }
}

TEST_F(PlainV, CompilerErrorHasTheScriptsLine) {
  const Process agent = start_agent(folder_, redis_, 1, make_v_options());
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
  const PlainJob job{
      .id = 1, .script = "fn main() {\n\tprintln(nothing)\n}\n", .type = "v", .extra_fields = {"name", "greet"}};
  submit(redis_, job);
  ASSERT_EQ(wait_for_status(redis_, job), "error");
  EXPECT_THAT(read_field(redis_, job, "error"),
              HasSubstr("CompileError: greet.v:2:10: error: undefined ident: `nothing`"));
  EXPECT_EQ(nlohmann::json::parse(read_field(redis_, job, "error_info"))["line"], 2);
}

TEST_F(PlainV, AgentKilledBetweenTheTwoRunsLosesNoJob) {
  Process first_agent = start_agent(folder_, redis_, 1, make_v_options({"--lease", "2s"}));
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << first_agent.err();
  const PlainJob job{
      .id = 1,
      .script = "import time\n\nfn main() {\n\ttime.sleep(2 * time.second)\n\tprintln('to the end')\n}\n",
      .type = "v",
      .timeout = "60"};
  submit(redis_, job);
  ASSERT_TRUE(eventually([&] { return has_cached_program(); }, Seconds(60)))
      << "compiled programs are stored when the second run begins";
  first_agent.signal(SIGKILL);
  first_agent.wait();
  EXPECT_FALSE(has_ended(redis_, job));
  const Process second_agent = start_agent(folder_, redis_, 1, make_v_options({"--lease", "2s"}));
  ASSERT_EQ(wait_for_status(redis_, job, Seconds(60)), "finished")
      << read_field(redis_, job, "error") << second_agent.err();
  EXPECT_EQ(read_field(redis_, job, "deliveries"), "2");
  EXPECT_THAT(read_job_log(folder_, redis_, job), HasSubstr("to the end\n"));
  EXPECT_EQ(nlohmann::json::parse(read_field(redis_, job, "receipt"))["compile"]["cached"], true);
}

TEST_F(PlainV, CompilerFolderIsNotGrantedToTheJob) {
  const Process agent = start_agent(folder_, redis_, 1, make_v_options());
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
  const PlainJob job{.id = 1,
                     .script = "import os\n\nfn main() {\n\tif os.system('ls " + compiler_.string() +
                               "') != 0 {\n\t\tprintln('not there')\n\t}\n}\n",
                     .type = "v",
                     .timeout = "60"};
  submit(redis_, job);
  ASSERT_EQ(wait_for_status(redis_, job, Seconds(60)), "finished") << read_field(redis_, job, "error");
  EXPECT_THAT(read_job_log(folder_, redis_, job), HasSubstr("not there\n"));
}

TEST_F(PlainV, HostWithoutACompilerReportsWhereToGetIt) {
  const ProcessResult asked = run(folder_, {program_path(), "doctor", "--json", "--redis", redis_.url(), "--state-dir",
                                            folder_ / "state", "--v-compiler", folder_ / "none"});
  EXPECT_THAT(asked.out, HasSubstr("get V from https://github.com/vlang/v"));
  const Process agent = start_agent(folder_, redis_, 1, {"--v-compiler", folder_ / "none"});
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
  EXPECT_THAT(agent.err(), HasSubstr("executor v does not work here"));
}

TEST_F(PlainV, PolicyShowHasBothRuns) {
  const ProcessResult shown = run(folder_, {program_path(), "policy", "show", "--type", "v"});
  EXPECT_THAT(shown.out, HasSubstr("V.COMPILE"));
  EXPECT_THAT(shown.out, HasSubstr("V.RUN"));
}

}  // namespace
}  // namespace mycojobs::test
