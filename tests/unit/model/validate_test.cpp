#include <gtest/gtest.h>

#include "model/codec.h"
#include "model/job_validation.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

Job make_valid_job() {
  Job job;
  job.id = 2001;
  job.caller_id = 12;
  job.context_id = 1;
  job.script = "print(1)";
  job.script_type = "python";
  return job;
}

std::string get_findings(const Job& job) { return join(validate(job)); }

TEST(ValidateJob, GoodJobHasNoFindings) {
  Job job = make_valid_job();
  EXPECT_EQ(get_findings(job), "");
  job.timeout = 4294967295;
  job.env_vars = {{"A", ""}, {"lower case with blanks", "x=y\n"}};
  job.dependends = {1, 2};
  EXPECT_EQ(get_findings(job), "");
}

// Error texts contain submitted data, so they must be bounded.
TEST(ValidateJob, FindingsAreFew) {
  Job job = make_valid_job();
  job.dependends.assign(9000, 0);
  EXPECT_EQ(get_findings(job), "dependends: 0 is not a job id");
  for (int i = 0; i < 1000; ++i) job.env_vars.emplace("a=" + std::to_string(i), "");
  EXPECT_EQ(validate(job).size(), 16U);
  const std::vector<FieldProblem> many(40, {"a", "a: is odd"});
  EXPECT_EQ(join(many).size(), 16 * std::string("a: is odd; ").size() + std::string("and 24 more").size());
}

TEST(TruncateText, SplitsNoCharacter) {
  EXPECT_EQ(truncate_utf8("short", 5), "short");
  EXPECT_EQ(truncate_utf8("longer than that", 9), "longer...");
  EXPECT_EQ(truncate_utf8("\u00e4\u00e4\u00e4\u00e4", 6), "\u00e4...");
  EXPECT_TRUE(is_utf8(truncate_utf8(std::string(5000, '\xc3'), 4096).substr(4093)));
  EXPECT_EQ(truncate_utf8(std::string(5000, 'x'), kMaxReasonBytes).size(), kMaxReasonBytes);
}

TEST(ValidateJob, ArgumentsAreBounded) {
  Job job = make_valid_job();
  job.args = {"", "--flag", std::string(60000, 'x')};
  EXPECT_EQ(get_findings(job), "");
  job.args.emplace_back(6000, 'x');
  EXPECT_EQ(get_findings(job).substr(0, 60), "args: 66006 bytes are more than the 65536 of all arguments: ");
  job.args.assign(1001, "");
  EXPECT_EQ(get_findings(job).substr(0, 41), "args: 1001 arguments are more than 1000: ");
  job.args = {"a", std::string("b\0c", 3)};
  EXPECT_EQ(get_findings(job), "args: [1] contains NUL: the system cannot pass it on");
}

TEST(ValidateJob, IdsArePositive) {
  for (auto member : {&Job::id, &Job::caller_id, &Job::context_id}) {
    Job job = make_valid_job();
    job.*member = 0;
    ASSERT_EQ(validate(job).size(), 1U);
    EXPECT_NE(get_findings(job).find("id: is missing or 0: give a whole number from 1 to 4294967295"),
              std::string::npos);
  }
}

TEST(ValidateJob, ScriptAndScriptTypeArePresent) {
  Job job = make_valid_job();
  job.script.clear();
  job.script_type.clear();
  EXPECT_EQ(get_findings(job),
            "script: is missing or empty; script_type: is missing: give the kind of script, such as python");
  job = make_valid_job();
  job.script_type = "../Py";
  EXPECT_EQ(get_findings(job),
            "script_type: \"../Py\" is not a script type: 1 to 32 of a-z, 0-9, '_' and '-', a letter first");
}

TEST(ValidateJob, TimeoutZeroIsNotForever) {
  Job job = make_valid_job();
  job.timeout = 0;
  EXPECT_EQ(get_findings(job), "timeout: 0 is not allowed: give 1 to 4294967295 seconds, or leave it out");
}

TEST(ValidateJob, EnvironmentIsValidated) {
  using namespace std::string_literals;
  for (const auto& name : {""s, "A=B"s, "="s, "A\0B"s}) {
    Job job = make_valid_job();
    job.env_vars[name] = "x";
    ASSERT_EQ(validate(job).size(), 1U) << name;
    EXPECT_EQ(validate(job)[0].field, "env_vars");
    EXPECT_EQ(validate(job)[0].message.find('\0'), std::string::npos);
  }
  Job job = make_valid_job();
  job.env_vars["A"] = "x\0y"s;
  EXPECT_EQ(get_findings(job), "env_vars: the value of \"A\" contains NUL: the system cannot pass it on");
}

TEST(ValidateJob, NameIsText) {
  using namespace std::string_literals;
  Job job = make_valid_job();
  job.name = "a\0b"s;
  EXPECT_EQ(get_findings(job), "name: contains NUL: rename the job");
}

TEST(ValidateJob, JobDoesNotDependOnItself) {
  Job job = make_valid_job();
  job.dependends = {3, 2001, 0};
  EXPECT_EQ(get_findings(job), "dependends: 2001 is the job itself") << "only the first occurrence is reported";
}

}  // namespace
}  // namespace mycojobs
