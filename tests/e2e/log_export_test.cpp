// The export of logs: an agent writes JSON lines, and rsyslog reads them.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/client.h"
#include "e2e/world.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

using namespace test;
using nlohmann::json;
using testing::HasSubstr;

class LogExportE2e : public Operator {
 protected:
  // Returns the path of rsyslogd: installed, or unpacked by `./dev test`. Empty if there is none.
  std::string find_rsyslogd() const {
    const std::string found = run(folder_, {"sh", "-c", "command -v rsyslogd || ls /usr/sbin/rsyslogd"}).out;
    return found.substr(0, found.find('\n'));
  }
  // Starts rsyslogd, which reads the JSON lines of the files and writes some of their fields to `shipped`.
  Process start_rsyslogd(const std::string& program) const {
    const std::string root = program.substr(0, program.rfind("/usr/sbin/"));
    const std::string libraries = root + "/usr/lib/" + kLibraryFolder;
    const std::string config = folder_.write("rsyslog.conf", R"(global(workDirectory=")" + folder_.path().string() +
                                                                 R"(")
module(load="imfile" mode="inotify")
module(load="mmjsonparse")
template(name="fields" type="string" string="%$!job%|%$!flow%|%$!node%|%$!attempt%|%$!trace_id%|%$!stream%|%$!text%\n")
ruleset(name="jobs") {
  action(type="mmjsonparse" cookie="")
  action(type="omfile" file=")" + (folder_ / "shipped") + R"(" template="fields")
}
input(type="imfile" File=")" + (folder_ / "logs") + R"(/jobs-*.jsonl" Tag="mycojobs:" ruleset="jobs")
)");
    return Process(folder_, {program, "-n", "-f", config, "-i", folder_ / "rsyslog.pid", "-M", libraries + "/rsyslog"},
                   {"LD_LIBRARY_PATH=" + libraries});
  }
#if defined(__aarch64__)
  static constexpr const char* kLibraryFolder = "aarch64-linux-gnu";
#else
  static constexpr const char* kLibraryFolder = "x86_64-linux-gnu";
#endif
};

TEST_F(LogExportE2e, ShipperReadsTheFilesOfADay) {
  const std::string rsyslogd = find_rsyslogd();
  if (rsyslogd.empty()) GTEST_SKIP() << "rsyslogd is not installed, and could not be fetched";
  std::filesystem::create_directory(folder_ / "logs");
  Process agent = start_agent(folder_, redis_, 20, {"--job-log-export", folder_ / "logs"});
  Process shipper = start_rsyslogd(rsyslogd);
  const std::string trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
  submit(redis_, {.id = 1,
                  .script = "import sys\nprint('first')\nprint('second \"quoted\"')\nprint('problem', file=sys.stderr)",
                  .extra_fields = {"traceparent", "00-" + trace_id + "-00f067aa0ba902b7-01"}});
  ASSERT_EQ(wait_for_status(redis_, {.id = 1}), "finished");
  const std::string fields = "job:12:1|||1|" + trace_id + "|";
  for (const std::string line : {"stdout|first\n", "stdout|second \"quoted\"\n", "stderr|problem\n"})
    EXPECT_TRUE(eventually([&] { return read_file(folder_ / "shipped").find(fields + line) != std::string::npos; }))
        << line << read_file(folder_ / "shipped") << shipper.err() << shipper.out();
}

TEST_F(LogExportE2e, StandardOutputHasOneObjectPerLine) {
  Process agent = start_agent(folder_, redis_, 20, {"--job-log-export", "stdout"});
  constexpr std::size_t kLines = 20000;
  submit(redis_, {.id = 1, .script = "for i in range(" + std::to_string(kLines) + "): print('line', i)"});
  ASSERT_EQ(wait_for_status(redis_, {.id = 1}), "finished");
  const std::string last = "\"text\":\"line " + std::to_string(kLines - 1) + "\"";
  ASSERT_TRUE(eventually([&] { return agent.out().find(last) != std::string::npos; }));
  std::istringstream lines(agent.out());
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json object = json::parse(line);
    EXPECT_EQ(object["job"], "job:12:1");
    EXPECT_EQ(object["text"], "line " + std::to_string(count));
  }
  EXPECT_EQ(count, kLines) << "all of the output is exported, also what Redis does not keep";
}

TEST_F(LogExportE2e, MissingFolderPreventsTheStart) {
  Process agent = start_agent(folder_, redis_, 20, {"--job-log-export", folder_ / "nowhere"});
  EXPECT_NE(agent.wait().code, 0);
  EXPECT_THAT(agent.err(), HasSubstr("create the folder"));
}

}  // namespace
}  // namespace mycojobs
