// Completion requests of shells, and a store with a format that is newer than the program.
#include <chrono>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class Complete : public Operator {};
class StoreFormatE2e : public Operator {};

TEST_F(Complete, OffersNamesOfTheStore) {
  mycojobs_.submit("pass", {"--caller", "7", "--id", "9"});
  redis_.cli(1, {"LPUSH", "queue:$(touch broken)", "job:1:1"});
  const ProcessResult jobs = mycojobs_({"complete", "jobs"});
  EXPECT_EQ(jobs.code, 0);
  EXPECT_EQ(jobs.out, "7:9\n");
  EXPECT_EQ(mycojobs_({"complete", "queues"}).out, "queue:python\n")
      << "a name that a shell would expand must not be offered";
  EXPECT_EQ(mycojobs_({"complete", "flows"}).out, "");
  EXPECT_EQ(mycojobs_({"complete", "schedules"}).out, "");
}

TEST_F(Complete, IsFastAndSilentWithoutRedis) {
  // A closed port, an address that does not answer, and a state folder without a running `dev`, which is not started.
  for (const std::string where : {"redis://127.0.0.1:1", "redis://192.0.2.1:6379", ""}) {
    std::vector<std::string> words{program_path(), "complete", "jobs", "--state-dir", folder_ / "nobody"};
    if (!where.empty()) words.insert(words.end(), {"--redis", where});
    const auto start_time = std::chrono::steady_clock::now();
    const ProcessResult result = run(folder_, words);
    EXPECT_EQ(result.code, 0) << where;
    EXPECT_EQ(result.out + result.err, "") << where;
    // The command gives up after 0.8 s; the bound allows for a busy machine.
    EXPECT_LT(std::chrono::steady_clock::now() - start_time, std::chrono::seconds(20)) << where;
  }
}

TEST_F(StoreFormatE2e, NewerStoreIsRejectedAndUnchanged) {
  mycojobs_.submit("pass");
  redis_.cli(1, {"HSET", "mj:format", "version", "3", "program", "9.9"});
  const std::string keys = redis_.cli(1, {"DBSIZE"});
  const std::string sentence = "context 1: its store has format 3 of mycojobs 9.9";
  expect_result(run(folder_, mycojobs_.make_argv({"job", "submit", "-", "--type", "python"}), {}, "pass"), 77,
                sentence);
  expect_result(run(folder_, mycojobs_.make_argv({"agent", "--runner", "20"})), 77, sentence);
  const auto doctor = mycojobs_.run_json({"doctor"});
  bool is_reported = false;
  for (const auto& check : doctor)
    is_reported = is_reported || check["detail"].get<std::string>().find(sentence) != std::string::npos;
  EXPECT_TRUE(is_reported) << doctor;
  EXPECT_EQ(redis_.cli(1, {"DBSIZE"}), keys);
  redis_.cli(1, {"DEL", "mj:format"});
  mycojobs_.submit("pass");
  EXPECT_EQ(redis_.cli(1, {"HGET", "mj:format", "version"}), "2")
      << "a store without a format version gets the current one";
}

}  // namespace
}  // namespace mycojobs::test
