// The inputs that a job receives from its dependencies, for valid and invalid records.
#include "worker/intake/job_inputs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "artifacts/job_artifacts.h"
#include "base/sha256.h"
#include "model/flow_data.h"
#include "support/hand_clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class JobInputsTest : public ::testing::Test {
 protected:
  TempDir folder_;
  ManualClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  JobFacts facts_;
  std::string store_name_;

  void SetUp() override {
    facts_.job.caller_id = facts_.job.context_id = 1;
    facts_.job.id = 9;
    facts_.granted_policy.disk_bytes = 1000;
    fs::create_directories(folder_ / "contexts/1/objects");
    store_name_ = artifact_store_name(*store_, 1).value();
  }
  static json make_artifact(const std::string& bytes) {
    return {{"sha256", sha256_hex(bytes)}, {"bytes", bytes.size()}, {"text", true}};
  }
  // Stores an artifact on this host for the given job of caller 1. Returns its entry for the job's record.
  json store_object(const std::string& bytes, Id job = 1) const {
    const std::string path = "contexts/1/jobs/" + store_name_ + "/1." + std::to_string(job);
    fs::create_directories(folder_ / path);
    folder_.write("contexts/1/objects/" + sha256_hex(bytes), bytes);
    folder_.write(path + '/' + sha256_hex(bytes), bytes);
    return make_artifact(bytes);
  }
  void add_dependency(Id id, const std::string& name, const std::string& artifacts) {
    ASSERT_TRUE(store_->save(
        1, job_key(1, id),
        {{"id", std::to_string(id)}, {"name", name}, {"artifacts", artifacts}, {"result", R"({"k":"v"})"}}));
    facts_.job.dependends.push_back(id);
  }
  std::string prepare_inputs(std::vector<std::string> names) {
    facts_.job.inputs = std::move(names);
    facts_.files.clear();
    auto inputs = JobInputs::read(*store_, folder_.path().string(), facts_.job);
    if (!inputs) return inputs.error().message;
    const auto found = inputs->resolve(facts_);
    return found ? "" : found.error().message;
  }
  std::vector<std::string> list_files() const {
    std::vector<std::string> all;
    for (const auto& [job, artifact] : facts_.files) all.push_back(job + "/" + artifact.name);
    return all;
  }
  static void expect_contains(const std::string& output, const std::string& words) {
    EXPECT_NE(output.find(words), std::string::npos) << output;
  }
};

TEST_F(JobInputsTest, FilesAreListedOnceByNameOrId) {
  add_dependency(1, "build", json({{"app", store_object("A")}, {"doc/readme", store_object("R")}}).dump());
  EXPECT_EQ(prepare_inputs({"build"}), "");
  EXPECT_EQ(list_files(), (std::vector<std::string>{"build/app", "build/doc/readme"}));
  EXPECT_EQ(prepare_inputs({"1/app"}), "");
  EXPECT_EQ(list_files(), std::vector<std::string>{"1/app"});
  EXPECT_EQ(prepare_inputs({"build/app", "build", "build/app"}), "");
  EXPECT_EQ(list_files().size(), 2U);
  EXPECT_EQ(facts_.inputs["build"].result["k"], "v");
}

TEST_F(JobInputsTest, EachIsAvailableOnceByNameOrId) {
  add_dependency(1, "one", "{}");
  add_dependency(2, "", "{}");
  add_dependency(3, "same", "{}");
  add_dependency(4, "same", "{}");
  add_dependency(5, "2", "{}");  // the id of another dependency
  EXPECT_EQ(prepare_inputs({"one", "1", "2", "5"}), "");
  std::vector<std::pair<std::string, Id>> called;
  for (const auto& [name, input] : facts_.inputs) called.emplace_back(name, input.id);
  EXPECT_EQ(called, (std::vector<std::pair<std::string, Id>>{{"2", 2}, {"3", 3}, {"4", 4}, {"5", 5}, {"one", 1}}));
}

TEST_F(JobInputsTest, TypesAreThoseOfTheRecordOrText) {
  add_dependency(1, "plain", "{}");
  ASSERT_TRUE(store_->save(1, job_key(1, 2), {{"id", "2"}, {"result", R"({"n":"1"})"}, {"result_json", R"(["n"])"}}));
  facts_.job.dependends.push_back(2);
  EXPECT_EQ(prepare_inputs({}), "");
  EXPECT_EQ(facts_.inputs["plain"].result_json, std::vector<std::string>());
  EXPECT_EQ(facts_.inputs["2"].result_json, std::vector<std::string>{"n"});
}

TEST_F(JobInputsTest, InvalidFolderNameIsReplacedByTheId) {
  add_dependency(1, "../../etc", json({{"a", store_object("A")}}).dump());
  add_dependency(2, std::string("nul\0l", 5), json({{"a", store_object("A", 2)}}).dump());
  EXPECT_EQ(prepare_inputs({"../../etc", std::string("nul\0l", 5)}), "");
  EXPECT_EQ(list_files(), (std::vector<std::string>{"1/a", "2/a"}));
}

TEST_F(JobInputsTest, MissingInputIsNamedWithTheRemedy) {
  add_dependency(
      1, "build",
      json({{"app", store_object("A")}, {"elsewhere", {{"sha256", std::string(64, 'a')}, {"bytes", 1}}}}).dump());
  expect_contains(prepare_inputs({"build/nothing"}), "stored no artifact \"nothing\"");
  expect_contains(prepare_inputs({"other"}), "names no job that this one depends on");
  expect_contains(prepare_inputs({"build/elsewhere"}), "is not on this host");
  expect_contains(prepare_inputs({""}), "names no job");
}

TEST_F(JobInputsTest, FileOfAnotherRunnerIsListedUntilItIsInTheCache) {
  add_dependency(1, "build", json({{"app", make_artifact("remote")}, {"here", store_object("local")}}).dump());
  ASSERT_TRUE(store_->save(1, job_key(1, 1), {{"runner_id", "30"}}));
  facts_.job.inputs = {"build"};
  auto inputs = JobInputs::read(*store_, folder_.path().string(), facts_.job);
  ASSERT_TRUE(inputs);
  EXPECT_EQ(inputs->resolve(facts_).error().code, Code::not_found);
  ASSERT_EQ(inputs->missing().size(), 1U);
  const MissingInput& missing = inputs->missing().front();
  EXPECT_EQ(missing.artifact.holder, 30U);
  EXPECT_EQ(missing.artifact.job_key, "job:1:1");
  EXPECT_EQ(missing.artifact.content.sha256, sha256_hex("remote"));
  EXPECT_EQ(missing.artifact.content.bytes, 6U);
  EXPECT_EQ(missing.store_name, store_name_);
  const std::string cache = "contexts/1/cache/" + store_name_;
  fs::create_directories(folder_ / (cache + "/1.2"));
  folder_.write(cache + "/1.2/" + sha256_hex("remote"), "remote");
  EXPECT_FALSE(inputs->resolve(facts_)) << "the file was received for another job";
  fs::create_directories(folder_ / (cache + "/1.1"));
  folder_.write(cache + "/1.1/" + sha256_hex("remote"), "remote");
  EXPECT_TRUE(inputs->resolve(facts_));
  EXPECT_EQ(list_files(), (std::vector<std::string>{"build/app", "build/here"}));
  folder_.write(cache + "/1.1/" + sha256_hex("remote"), "rem");
  EXPECT_EQ(inputs->resolve(facts_).error().code, Code::not_found) << "a short file is fetched again";
  EXPECT_EQ(inputs->missing().size(), 1U);
  EXPECT_FALSE(fs::exists(folder_ / (cache + "/1.1/" + sha256_hex("remote"))));
}

TEST_F(JobInputsTest, FilesThatExceedTheLimitsAreNotFetched) {
  json artifact = make_artifact("remote");
  artifact["bytes"] = 1ULL << 40;
  add_dependency(1, "build", json({{"app", artifact}}).dump());
  ASSERT_TRUE(store_->save(1, job_key(1, 1), {{"runner_id", "30"}}));
  expect_contains(prepare_inputs({"build"}), "name fewer");
  artifact["bytes"] = 2000;  // above policy.disk
  ASSERT_TRUE(store_->save(1, job_key(1, 1), {{"artifacts", json({{"app", artifact}}).dump()}}));
  expect_contains(prepare_inputs({"build"}), "increase policy.disk");
}

// A submitter can write the records of its jobs, so a hash in a record does not grant access to the file.
TEST_F(JobInputsTest, HashOfAnotherJobsFileGivesNothing) {
  (void)store_object("secret", 7);
  add_dependency(1, "thief", json({{"a", make_artifact("secret")}}).dump());
  add_dependency(2, "blind", json({{"a", make_artifact("on no host")}}).dump());
  const std::string stolen = prepare_inputs({"thief"}), absent = prepare_inputs({"blind"});
  expect_contains(stolen, "is not on this host");
  EXPECT_TRUE(facts_.files.empty());
  EXPECT_EQ(stolen.substr(stolen.find("is not")), absent.substr(absent.find("is not")))
      << "the error does not reveal whether the job exists";
}

TEST_F(JobInputsTest, AnyRecordIsHandled) {
  json lie = store_object("A");
  lie["bytes"] = UINT64_MAX;
  add_dependency(1, "lies", json({{"a", lie}}).dump());
  expect_contains(prepare_inputs({"lies"}), "does not have the content of its record");
  add_dependency(
      2, "odd",
      json({{"../up", store_object("A")}, {"n", {{"sha256", "../../etc/passwd"}, {"bytes", 1}}}, {"m", 7}}).dump());
  EXPECT_EQ(prepare_inputs({"odd"}), "");
  EXPECT_TRUE(facts_.files.empty());
  add_dependency(3, "broken", "{");
  EXPECT_EQ(prepare_inputs({"broken"}), "");
}

TEST_F(JobInputsTest, InputsBeyondTheDiskAreRejectedBeforeTheRun) {
  add_dependency(1, "large",
                 json({{"a", store_object(std::string(600, 'a'))}, {"b", store_object(std::string(600, 'b'))}}).dump());
  EXPECT_EQ(prepare_inputs({"large/a"}), "");
  expect_contains(prepare_inputs({"large"}), "policy.disk");
}

TEST_F(JobInputsTest, InputAboveTheFileSizeIsRejectedBeforeTheRun) {
  facts_.granted_policy.file_bytes = 600;
  add_dependency(1, "build",
                 json({{"a", store_object(std::string(600, 'a'))}, {"b", store_object(std::string(601, 'b'))}}).dump());
  EXPECT_EQ(prepare_inputs({"build/a"}), "");
  expect_contains(prepare_inputs({"build/b"}), "601 bytes, more than a file of the job may have (600)");
}

TEST_F(JobInputsTest, ExpiredDependencyHasNoInputs) {
  facts_.job.dependends = {77};
  EXPECT_EQ(prepare_inputs({}), "");
  expect_contains(prepare_inputs({"77/a"}), "stored no artifact");
}

TEST_F(JobInputsTest, RepeatedDependencyCountsOnce) {
  add_dependency(1, "build", json({{"app", store_object("A")}}).dump());
  facts_.job.dependends = {1, 1, 1};
  EXPECT_EQ(prepare_inputs({"build/app"}), "");
  EXPECT_EQ(list_files(), std::vector<std::string>{"build/app"});
}

TEST_F(JobInputsTest, NameMayHaveSlashes) {
  add_dependency(1, "build/linux", json({{"app", store_object("A")}}).dump());
  EXPECT_EQ(prepare_inputs({"build/linux"}), "");
  EXPECT_EQ(prepare_inputs({"build/linux/app"}), "");
  EXPECT_EQ(list_files(), std::vector<std::string>{"1/app"});
}

TEST_F(JobInputsTest, MemoryForOneJobIsLimited) {
  facts_.granted_policy.disk_bytes = 1ULL << 40;
  const std::string hash(64, 'a');
  const std::uint64_t bytes = 300ULL << 20;
  (void)store_object("");  // creates the job's folder
  const std::string object_path = "contexts/1/jobs/" + store_name_ + "/1.1/" + hash;
  fs::resize_file(folder_.write(object_path, ""), bytes);  // sparse file without allocated blocks
  add_dependency(1, "large", json({{"a", {{"sha256", hash}, {"bytes", bytes}, {"text", false}}}}).dump());
  expect_contains(prepare_inputs({"large"}), "name fewer");
}

TEST_F(JobInputsTest, ResultsOfAllDependenciesTogetherAreBounded) {
  const std::string result = json({{"k", std::string(9U << 20, 'x')}}).dump();
  for (Id id = 1; id <= 4; ++id) {
    ASSERT_TRUE(store_->save(1, job_key(1, id), {{"id", std::to_string(id)}, {"result", result}}));
    facts_.job.dependends.push_back(id);
  }
  expect_contains(prepare_inputs({}), "add jobs in between that join them");
  facts_.job.dependends.pop_back();
  EXPECT_EQ(prepare_inputs({}), "");
}

TEST_F(JobInputsTest, VariableThatIsTooLongForAProgramIsNamed) {
  const auto expand = [&](std::size_t size) -> std::string {
    EXPECT_TRUE(store_->save(
        1, job_key(1, 1), {{"id", "1"}, {"name", "build"}, {"result", json({{"k", std::string(size, 'x')}}).dump()}}));
    facts_.job.script = "x";
    facts_.job.script_type = "python";
    facts_.job.dependends = {1};
    facts_.job.env_vars = {{"A", "${build.k}"}};
    facts_.job.unknown = {{kFlowDataField, R"({"expand": {"env": ["A"]}})"}};
    const auto inputs = JobInputs::read(*store_, "", facts_.job);
    if (!inputs) return inputs.error().message;
    const auto expanded = inputs->expand_references(facts_.job);
    return expanded ? "" : expanded.error().message;
  };
  EXPECT_EQ(expand((128U << 10) - 3), "");
  expect_contains(expand((128U << 10) - 2), "env_vars: \"A\" has 131070 bytes");
}

TEST_F(JobInputsTest, RepeatedFilesAreCountedOnce) {
  const json artifact = store_object("");
  json many;
  for (int i = 0; i < 1000; ++i) many[std::to_string(i)] = artifact;
  std::vector<std::string> inputs;
  for (Id id = 1; id <= 100; ++id) {
    (void)store_object("", id);
    add_dependency(id, "n" + std::to_string(id), id <= 12 ? many.dump() : "{}");
    for (int i = 0; i < 200; ++i) inputs.push_back("n" + std::to_string(id % 10 + 1));
  }
  EXPECT_EQ(prepare_inputs(inputs), "");
  EXPECT_EQ(facts_.files.size(), 10000U);
  inputs.emplace_back("n11");
  expect_contains(prepare_inputs(inputs), "pack them");
}

}  // namespace
}  // namespace mycojobs::test
