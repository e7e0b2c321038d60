// `job submit --batch` with a file of one job per line: normal use by an operator, and malicious files.
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <set>
#include <sstream>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

const std::string kPassLine = R"({"script":"pass","script_type":"python"})";

class BatchE2e : public Operator {
 protected:
  std::string write_file(const std::string& name, const std::string& content) const {
    return folder_.write(name, content);
  }
  std::string make_lines(std::size_t count) const {
    std::string lines;
    for (std::size_t i = 0; i < count; ++i)
      lines += R"({"script":"pass","script_type":"python","name":")" + std::to_string(i) + "\"}\n";
    return lines;
  }
  ProcessResult run_batch(const std::string& path, std::vector<std::string> more_options = {},
                          std::string input = "") const {
    more_options.insert(more_options.begin(), {"job", "submit", "--batch", path});
    return mycojobs_(std::move(more_options), std::move(input));
  }
  std::size_t count_queued() const { return std::stoul(redis_.cli(1, {"LLEN", "queue:python"})); }
  void expect_refused(const std::string& line, const std::string& words, int code = 65) const {
    const ProcessResult result = run_batch(write_file("wrong.ndjson", kPassLine + "\n" + line + "\n"));
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_NE(result.err.find("line 2: " + words), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(redis_.cli(1, {"DBSIZE"}), "0") << words;
  }
  static std::vector<std::string> split_lines(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
};

TEST_F(BatchE2e, EachLineIsAJobAnsweredByItsKey) {
  const std::string path = write_file(
      "jobs.ndjson", kPassLine + "\r\n\n   \n" + R"({"script":"result['a']='b'","script_type":"python","priority":5})" +
                         "\n" + R"({"id":40,"payload":"pass","executor":"python"})");
  const ProcessResult result = run_batch(path);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "job:1:1\njob:1:2\njob:1:40\n");
  EXPECT_NE(result.err.find("3 jobs"), std::string::npos) << result.err;
  EXPECT_EQ(mycojobs_.read_field("job:1:2", "priority"), "5");
  Process agent = start_registered_agent(1);
  for (const char* key : {"job:1:1", "job:1:2", "job:1:40"})
    EXPECT_TRUE(mycojobs_.wait_for_value(key, "status", "finished"));
  EXPECT_EQ(mycojobs_.read_field("job:1:2", "result"), R"({"a":"b"})");
}

TEST_F(BatchE2e, StandardInputAndPipesAreReadTwice) {
  const ProcessResult result = run_batch("-", {"--caller", "7"}, make_lines(700));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(split_lines(result.out).size(), 700U);
  EXPECT_EQ(mycojobs_.read_field("job:7:700", "name"), "699");
}

TEST_F(BatchE2e, JsonReportsLineKeyAndWhetherItExisted) {
  const std::string path = write_file("jobs.ndjson", "\n" + kPassLine + "\n" + kPassLine + "\n");
  ASSERT_EQ(run_batch(path, {"--idempotency-key", "night"}).code, 0);
  const auto output = split_lines(run_batch(path, {"--idempotency-key", "night", "--json"}).out);
  ASSERT_EQ(output.size(), 2U);
  EXPECT_EQ(nlohmann::json::parse(output[1]), (nlohmann::json{{"existed", true}, {"key", "job:1:2"}, {"line", 3}}));
  EXPECT_EQ(count_queued(), 2U);
  EXPECT_EQ(mycojobs_.read_field("job:1:2", "idempotency_key"), "night:3");
}

TEST_F(BatchE2e, FileWithoutAKeyIsSubmittedAgain) {
  const std::string path = write_file("jobs.ndjson", kPassLine + "\n");
  EXPECT_EQ(run_batch(path).out, "job:1:1\n");
  EXPECT_EQ(run_batch(path).out, "job:1:2\n");
}

TEST_F(BatchE2e, ChangedFileIsRejectedAtTheChangedLine) {
  ASSERT_EQ(run_batch(write_file("jobs.ndjson", make_lines(3)), {"--idempotency-key", "k"}).code, 0);
  const std::string changed =
      kPassLine + "\n" + kPassLine + "\n" + R"({"script":"other","script_type":"python"})" + "\n";
  const ProcessResult result = run_batch(write_file("jobs.ndjson", changed), {"--idempotency-key", "k"});
  EXPECT_EQ(result.code, 65) << result.err;
  EXPECT_NE(result.err.find("line 3: job:1:3 exists with other content"), std::string::npos) << result.err;
  EXPECT_EQ(count_queued(), 3U);
}

TEST_F(BatchE2e, AllInvalidLinesAreNamedAndNothingIsWritten) {
  const ProcessResult result = run_batch(write_file("jobs.ndjson", "{\n" + kPassLine + "\n{}\n"));
  EXPECT_EQ(result.code, 65);
  EXPECT_NE(result.err.find("line 1: not JSON at column 2"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("line 3: script: is missing"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("no job was submitted"), std::string::npos) << result.err;
  EXPECT_EQ(redis_.cli(1, {"DBSIZE"}), "0");
  std::string many_lines;
  for (int i = 0; i < 100000; ++i) many_lines += "{\n";
  const ProcessResult many_errors_result = run_batch(write_file("jobs.ndjson", many_lines));
  EXPECT_LT(many_errors_result.err.size(), 2000U);
  EXPECT_NE(many_errors_result.err.find("the following lines were not checked"), std::string::npos);
}

TEST_F(BatchE2e, HostileLinesAreRejectedByLineAndField) {
  expect_refused("[1]", "a job is an object");
  expect_refused("null", "a job is an object");
  expect_refused("{\"script\":\"x\xff\",\"script_type\":\"python\"}", "not JSON at column 13");
  expect_refused(R"({"script":"x","script_type":"python","odd":1})", "odd: job.create does not have this parameter");
  expect_refused(R"({"script":"x","script_type":"python","timeout":"soon"})", "timeout: ");
  expect_refused(R"({"script":["x"],"script_type":"python"})", "script: ");
  expect_refused(R"({"script":"x","script":"y","script_type":"python"})", "JSON has the same key twice");
  expect_refused(R"({"script":"x","script_type":"python","caller_id":9})", "caller_id: 9 differs from the sender", 77);
  expect_refused(R"({"script":"x","script_type":"python","runner_id":9})", "runner_id: ");
  expect_refused(R"({"script":"x","script_type":"python","status":"finished"})", "status: ");
  expect_refused(R"({"script":"x","script_type":"python","policy":{"memory":"lots"}})", "policy.memory: ");
  expect_refused(std::string(100000, '['), "JSON nests deeper than 64 levels");
  std::string values = R"({"script":"x","script_type":"python","dependends":[)";
  for (int i = 0; i < 100000; ++i) values += "1,";
  expect_refused(values + "1]}", "JSON has more than the 65536 values");
  expect_refused(R"({"script":")" + std::string(5U << 20, 'x') + R"(","script_type":"python"})", "script: ");
}

TEST_F(BatchE2e, EndlessLineIsRejectedInBoundedMemory) {
  const std::string path = folder_ / "endless.ndjson";
  {
    std::ofstream out(path, std::ios::binary);
    const std::string piece(1U << 20, 'x');
    for (int i = 0; i < 64; ++i) out << piece;
  }
  const ProcessResult result = run_batch(path);
  EXPECT_EQ(result.code, 65) << result.err;
  EXPECT_NE(result.err.find("line 1: has more than the 16777216 bytes"), std::string::npos) << result.err;
}

TEST_F(BatchE2e, FlagsOfOneScriptAreRejected) {
  const std::string path = write_file("jobs.ndjson", kPassLine);
  for (const std::vector<std::string>& more_options :
       {std::vector<std::string>{"--retries", "3"}, {"--follow"}, {"--type", "python"}, {"--env", "A=b"}}) {
    const ProcessResult result = run_batch(path, more_options);
    EXPECT_EQ(result.code, 65);
    EXPECT_NE(result.err.find(more_options[0] + ": is of one script"), std::string::npos) << result.err;
  }
  expect_result(run_batch(folder_ / "none"), 66, "no such file");
  expect_result(run_batch(write_file("empty", "\n\n")), 65, "no line has a job to submit");
  expect_result(run_batch(path, {"--idempotency-key", std::string(300, 'k')}), 65, "is longer than 230 bytes");
}

TEST_F(BatchE2e, KilledBatchIsRepeatedWithoutLossOrDuplicates) {
  constexpr std::size_t kJobCount = 30000;
  const std::string path = write_file("jobs.ndjson", make_lines(kJobCount));
  const auto words = mycojobs_.make_argv({"job", "submit", "--batch", path, "--idempotency-key", "k"});
  std::size_t interrupted_count = 0;
  for (std::size_t min_queued : {1U, 3000U, 15000U}) {
    Process submitter(folder_, words);
    ASSERT_TRUE(eventually([&] { return count_queued() >= min_queued || !submitter.is_running(); }));
    submitter.signal(SIGKILL);
    (void)submitter.wait();
    interrupted_count += count_queued() < kJobCount ? 1 : 0;
  }
  EXPECT_GT(interrupted_count, 0U) << "no submitter was killed before its end";
  const ProcessResult last = run(folder_, words);
  EXPECT_EQ(last.code, 0) << last.err;
  const auto keys = split_lines(last.out);
  EXPECT_EQ(keys.size(), kJobCount);
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), kJobCount);
  EXPECT_EQ(count_queued(), kJobCount);
  const auto entries = split_lines(redis_.cli(1, {"LRANGE", "queue:python", "0", "-1"}));
  EXPECT_EQ(std::set<std::string>(entries.begin(), entries.end()).size(), kJobCount);
}

TEST_F(BatchE2e, ConflictingLinesOfOneIdAreRejectedFirst) {
  const std::string first_line = R"({"id":9,"script":"1","script_type":"python"})";
  const std::string changed_line = R"({"id":9,"script":"2","script_type":"python"})";
  expect_result(run_batch(write_file("twice", first_line + "\n" + first_line + "\n" + changed_line + "\n")), 65,
                "line 3: id: 9 is on line 1 too, with other content");
  EXPECT_EQ(count_queued(), 0U);
  EXPECT_EQ(run_batch(write_file("same", first_line + "\n" + first_line + "\n")).code, 0);
  EXPECT_EQ(count_queued(), 1U);
}

TEST_F(BatchE2e, LineRejectedByTheStoreCanBeSkipped) {
  const std::string line = kPassLine + std::string("\n");
  ASSERT_EQ(run_batch(write_file("first", R"({"id":9,"script":"1","script_type":"python"})")).code, 0);
  const std::string conflicting_line = R"({"id":9,"script":"2","script_type":"python"})"
                                       "\n";
  const ProcessResult rejected_result =
      run_batch(write_file("all", line + conflicting_line + line), {"--idempotency-key", "k"});
  EXPECT_EQ(rejected_result.code, 65);
  EXPECT_NE(rejected_result.err.find("line 2: job:1:9 exists with other content"), std::string::npos)
      << rejected_result.err;
  EXPECT_NE(rejected_result.err.find("Put that line right, or leave it empty"), std::string::npos)
      << rejected_result.err;
  EXPECT_EQ(run_batch(write_file("mended", line + "\n" + line), {"--idempotency-key", "k"}).code, 0);
  EXPECT_EQ(count_queued(), 3U);
}

TEST_F(BatchE2e, StopSignalReportsTheProgress) {
  const std::string path = write_file("jobs.ndjson", make_lines(200000));
  Process submitter(folder_, mycojobs_.make_argv({"job", "submit", "--batch", path, "--idempotency-key", "k"}));
  ASSERT_TRUE(eventually([&] { return count_queued() > 0; }));
  submitter.signal(SIGTERM);
  const ProcessResult result = submitter.wait();
  EXPECT_NE(result.code, 0);
  const auto keys = split_lines(result.out);
  EXPECT_EQ(count_queued(), keys.size());
  const std::string count = std::to_string(keys.size());
  EXPECT_NE(result.err.find("submitted so far: " + count + " jobs, to line " + count), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("--idempotency-key k submits the others"), std::string::npos) << result.err;
}

TEST_F(BatchE2e, ShortRedisOutageLosesNothing) {
  const std::string path = write_file("jobs.ndjson", make_lines(60000));
  Process submitter(folder_, mycojobs_.make_argv({"job", "submit", "--batch", path}));
  ASSERT_TRUE(eventually([&] { return count_queued() > 0; }));
  ::kill(redis_.pid(), SIGSTOP);
  eventually([] { return false; }, Seconds(0.5));
  ::kill(redis_.pid(), SIGCONT);
  const ProcessResult result = submitter.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count_queued(), 60000U);
}

// The peak memory use of the program does not grow with the file.
TEST_F(BatchE2e, MemoryIsBoundedForAMillionLines) {
  const std::string path = folder_ / "million.ndjson";
  {
    std::ofstream out(path);
    for (int i = 0; i < 1000000; ++i) out << kPassLine << '\n';
    out << "{}\n";  // all lines are checked, and none is submitted
  }
  const auto measure_peak_kb = [&](const std::string& batch_file) {
    const ProcessResult result = run(folder_, {"/bin/sh", "-c",
                                               program_path() + " job submit --redis " + redis_.url() +
                                                   " --state-dir " + (folder_ / "client") + " --batch " + batch_file +
                                                   " >/dev/null 2>&1 & p=$!; m=0; while kill -0 $p 2>/dev/null; do "
                                                   "n=$(awk '/VmHWM/{print $2}' /proc/$p/status 2>/dev/null); "
                                                   "[ \"${n:-0}\" -gt $m ] && m=$n; sleep 0.02; done; echo $m"});
    return std::stol("0" + result.out);
  };
  const long small_peak_kb = measure_peak_kb(write_file("few.ndjson", make_lines(20000)));
  const long large_peak_kb = measure_peak_kb(path);
  EXPECT_GT(small_peak_kb, 1000);
  EXPECT_LT(large_peak_kb, small_peak_kb + 8192);
  EXPECT_EQ(count_queued(), 20000U);
}

}  // namespace
}  // namespace mycojobs::test
