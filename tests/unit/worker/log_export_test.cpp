// Tests of the export of logs to files. tests/e2e/log_export_test.py tests standard output and a log shipper.
#include "worker/logs/log_export.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/process.h"

namespace mycojobs {
namespace {

using Json = nlohmann::json;
using namespace test;
using testing::HasSubstr;

constexpr std::uint64_t kTimeMs = 1893456000000;  // 2030-01-01T00:00:00Z

// Reads the complete lines of a file that may be written at the same time.
std::vector<Json> read_lines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) lines.push_back(Json::parse(line));
  return lines;
}

Log make_entry(const std::string& text, std::uint64_t time_ms = kTimeMs, LogStream stream = LogStream::out) {
  Log entry;
  entry.ts_ms = time_ms;
  entry.stream = stream;
  entry.text = text;
  return entry;
}

TEST(LogExport, EachLineHasTheFieldsOfItsRun) {
  const TempDir folder;
  {
    const auto log_export = LogExport::start(folder.path().string()).value();
    const auto of_flow = log_export->make_sink(
        {"job:12:1", 3, 33, 20, "build", 2, "c1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"});
    of_flow->add_entry(make_entry("one\ntwo \"\xff\"\n"));
    const auto single = log_export->make_sink({"job:12:2", 3, 0, 20, "", 1, "c2", ""});
    single->add_entry(make_entry("no line end", kTimeMs + 5, LogStream::err));
    single->add_entry(make_entry("a message\n", kTimeMs + 5, LogStream::system));
  }
  const auto lines = read_lines(folder.path().string() + "/jobs-2030-01-01.jsonl");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], Json::parse(R"({"time": "2030-01-01T00:00:00.000Z", "context": 3, "job": "job:12:1", "attempt": 2,
      "runner": 20, "claim_id": "c1", "flow": 33, "node": "build", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
      "span_id": "00f067aa0ba902b7", "stream": "stdout", "text": "one"})"));
  EXPECT_EQ(lines[1]["text"], "two \"\xEF\xBF\xBD\"");
  EXPECT_EQ(lines[2], Json::parse(R"({"time": "2030-01-01T00:00:00.005Z", "context": 3, "job": "job:12:2", "attempt": 1,
      "runner": 20, "claim_id": "c2", "stream": "stderr", "text": "no line end", "partial": true})"));
  EXPECT_EQ(lines[3]["stream"], "agent");
}

TEST(LogExport, EachDayHasAFileThatMayBeMoved) {
  const TempDir folder;
  const std::string first = folder.path().string() + "/jobs-2030-01-01.jsonl",
                    second = folder.path().string() + "/jobs-2030-01-02.jsonl";
  for (int i = 0; i < 2; ++i) {
    const auto log_export = LogExport::start(folder.path().string()).value();
    const auto sink = log_export->make_sink({});
    sink->add_entry(make_entry("of the first day\n"));
    sink->add_entry(make_entry("of the second day\n", kTimeMs + 24ULL * 3600 * 1000));
  }
  EXPECT_EQ(read_lines(first).size(), 2U);
  std::filesystem::rename(first, first + ".1");
  {
    const auto log_export = LogExport::start(folder.path().string()).value();
    log_export->make_sink({})->add_entry(make_entry("after the move\n"));
  }
  EXPECT_EQ(read_lines(first).size(), 1U);
  EXPECT_EQ(read_lines(second).size(), 2U);
}

TEST(LogExport, OutputBeyondTheQueueIsCounted) {
  const TempDir folder;
  const std::string path = folder.path().string() + "/jobs-2030-01-01.jsonl";
  std::filesystem::create_directory(path);  // lines cannot be written yet
  const std::string text = std::string((1U << 20) - 1, 'x') + '\n';
  constexpr std::size_t kEntries = 40;
  {
    const auto log_export = LogExport::start(folder.path().string()).value();
    const auto sink = log_export->make_sink({});
    for (std::size_t i = 0; i < kEntries; ++i) sink->add_entry(make_entry(text));
    std::filesystem::remove(path);
    ASSERT_TRUE(eventually([&] {
      const auto lines = read_lines(path);
      return !lines.empty() && lines.back().contains("dropped_bytes");
    }));
  }
  std::size_t bytes = 0;
  for (const Json& line : read_lines(path))
    bytes +=
        line.contains("text") ? line["text"].get<std::string>().size() + 1 : line["dropped_bytes"].get<std::size_t>();
  EXPECT_EQ(bytes, kEntries * text.size());
}

TEST(LogExport, ImpossibleTargetIsRejectedWithTheRemedy) {
  EXPECT_THAT(LogExport::start("logs").error().message, HasSubstr("neither stdout nor the whole path of a folder"));
  EXPECT_THAT(LogExport::start("/no/such/folder").error().message, HasSubstr("create the folder"));
}

}  // namespace
}  // namespace mycojobs
