// The standard input and the files of a job: requests, limits, descriptions and stored contents.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "model/codec.h"
#include "model/submitted_files.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

template <class T>
std::string error_of(const Result<T>& result) {
  return result ? "" : result.error().message;
}

json make_request() {
  return {{"script", "x"},
          {"script_type", "python"},
          {"stdin", "hello"},
          {"files", {{"a.txt", "A"}, {"lib/b.bin", {{"base64", "/w=="}}}}}};
}

TEST(SubmittedFiles, RequestBecomesContentsAndDescriptions) {
  const auto job = decode_job_request(make_request());
  ASSERT_TRUE(job) << error_of(job);
  ASSERT_NE(job->submitted_files, nullptr);
  EXPECT_EQ(job->submitted_files->stdin_bytes, "hello");
  EXPECT_EQ(job->submitted_files->files.at("lib/b.bin"), "\xff");
  EXPECT_EQ(json::parse(job->stdin_description), (json{{"bytes", 5}, {"sha256", sha256_hex("hello")}}));
  EXPECT_EQ(json::parse(job->file_descriptions).at("a.txt"), (json{{"bytes", 1}, {"sha256", sha256_hex("A")}}));
  EXPECT_FALSE(check_file_descriptions(*job));
  EXPECT_EQ(error_of(check_file_contents(*job)), "");
  EXPECT_EQ(to_json(*job).at("files").at("a.txt").at("bytes"), 1);
  EXPECT_EQ(count_submitted_bytes(*job), 5 + 6 + 10U);
}

TEST(SubmittedFiles, RecordHasNoContents) {
  const Fields record = encode(decode_job_request(make_request()).value());
  for (const auto& [name, value] : record) EXPECT_EQ(value.find("hello"), std::string::npos) << name;
  Job job = decode<Job>(record).record;
  EXPECT_TRUE(has_submitted_files(job));
  EXPECT_THAT(error_of(check_file_contents(job)), HasSubstr("stdin: has no content"));
}

TEST(SubmittedFiles, StoredContentsMustMatchTheRecord) {
  const Job submitted = decode_job_request(make_request()).value();
  const Fields stored = encode_submitted_files(*submitted.submitted_files);
  Job job = decode<Job>(encode(submitted)).record;
  ASSERT_EQ(error_of(restore_submitted_files(job, stored)), "");
  EXPECT_EQ(*job.submitted_files, *submitted.submitted_files);
  Fields changed = stored;
  changed.at(1).second = "other";
  EXPECT_EQ(error_of(restore_submitted_files(job, changed)),
            "files: \"a.txt\": its stored content is not that of the record: submit the job again");
  EXPECT_EQ(error_of(restore_submitted_files(job, {})), "stdin: its content is no longer stored: submit the job again");
}

TEST(SubmittedFiles, InvalidContentIsRejectedByField) {
  const auto get_error = [](const json& stdin_value, const json& files) {
    return error_of(parse_submitted_files({{"stdin", stdin_value}, {"files", files}}));
  };
  EXPECT_EQ(get_error(nullptr, nullptr), "");
  EXPECT_EQ(get_error(7, nullptr), "stdin: is neither a text nor an object such as {\"base64\": \"aGk=\"}");
  EXPECT_THAT(get_error({{"base64", "a"}}, nullptr), HasSubstr("stdin: its base64 is not valid"));
  EXPECT_THAT(get_error({{"bytes", 5}}, nullptr), HasSubstr("stdin: is neither"));
  EXPECT_THAT(get_error(nullptr, json::array()), HasSubstr("files: is not an object"));
  EXPECT_THAT(get_error(nullptr, {{"a", nullptr}}), HasSubstr("files: \"a\": is neither"));
}

std::string set_error(const SubmittedFiles& files) {
  Job job;
  const auto result = set_submitted_files(job, files);
  EXPECT_EQ(result.has_value(), job.submitted_files != nullptr);
  return error_of(result);
}

TEST(SubmittedFiles, NamesAndSizesAreBounded) {
  for (const char* name : {"", "/a", "../a", "a/../b", "a//b", "a\nb", "."})
    EXPECT_THAT(set_error({{}, {{name, "x"}}}), HasSubstr("is not a valid name")) << name;
  EXPECT_THAT(set_error({{}, {{"a", "x"}, {"a-b", "x"}, {"a/b", "x"}}}), HasSubstr("is a file and the folder of"));
  const std::string full(kMaxJobFileBytes, 'x');
  EXPECT_EQ(set_error({full, {{"a", full}, {"b", full}, {"c", std::string(kMaxJobFileBytes - 10, 'x')}}}), "");
  EXPECT_THAT(set_error({full, {{"a", full}, {"b", full}, {"c", full}, {"d", "x"}}}), HasSubstr("4194304"));
  EXPECT_THAT(set_error({{}, {{"big", full + "x"}}}),
              HasSubstr("files: \"big\": 1048577 bytes are more than the 1048576"));
  EXPECT_THAT(set_error({full + "x", {}}), HasSubstr("stdin: 1048577 bytes"));
  SubmittedFiles many;
  for (std::size_t i = 0; i <= kMaxJobFiles; ++i) many.files[std::to_string(i)] = "";
  EXPECT_THAT(set_error(many), HasSubstr("files: 101 files are more than 100"));
}

TEST(SubmittedFiles, ForeignDescriptionIsRejected) {
  for (const char* text : {"7", "[]", R"({"a": 1})", R"({"a": {"bytes": 1}})", R"({"../a": {"bytes": 1}})"}) {
    Job job;
    job.file_descriptions = text;
    const auto problem = check_file_descriptions(job);
    ASSERT_TRUE(problem) << text;
    EXPECT_EQ(problem->field, "files");
    EXPECT_THAT(problem->message, HasSubstr("files: ")) << text;
  }
}

}  // namespace
}  // namespace mycojobs
