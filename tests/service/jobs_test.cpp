#include "model/submitted_files.h"
#include "service_fixture.h"
#include "store/job_fields.h"

namespace mycojobs::service {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class JobService : public ServiceTest {
 protected:
  std::string waiting() {
    Job job = new_job();
    job.prerequisites = {"approval:ok"};
    const auto made = submit_job(submitter_, *store_, std::nullopt, job);
    EXPECT_TRUE(made) << error_message_of(made);
    return made ? redis_key(*made) : "";
  }
};

TEST_F(JobService, NewJobBelongsToItsCallerWithoutReservedFields) {
  const auto made = create_job(submitter_, *store_, std::nullopt, new_job());
  ASSERT_TRUE(made) << error_message_of(made);
  EXPECT_EQ(made->caller_id, 16U);
  EXPECT_EQ(made->context_id, 1U);
  Job forged = new_job();
  forged.caller_id = 12;
  EXPECT_THAT(error_message_of(create_job(submitter_, *store_, std::nullopt, forged)), StartsWith("caller_id: 12"));
  forged = new_job();
  forged.runner_id = 1;
  EXPECT_THAT(error_message_of(create_job(submitter_, *store_, std::nullopt, forged)), StartsWith("runner_id: "));
  forged = new_job();
  forged.unknown.emplace_back("odd", "x");
  EXPECT_EQ(error_message_of(create_job(submitter_, *store_, std::nullopt, forged)), "odd: no field of a job");
  Job empty = new_job();
  empty.script.clear();
  EXPECT_THAT(error_message_of(create_job(submitter_, *store_, std::nullopt, empty)), StartsWith("script: "));
  EXPECT_EQ(error_code_of(create_job(reader_, *store_, std::nullopt, new_job())), "denied");
  EXPECT_EQ(error_code_of(create_job(submitter_, *store_, 12, new_job())), "denied");
  EXPECT_EQ(create_job(operator_caller_, *store_, 12, new_job())->caller_id, 12U);
}

TEST_F(JobService, ScriptThatAgentsRejectIsRejectedAtSubmission) {
  RequestContext creator = submitter_;
  creator.max_script_bytes = 10;
  Job job = new_job(7);
  job.script = std::string(10, 'x');
  EXPECT_EQ(error_code_of(create_job(creator, *store_, std::nullopt, job)), "");
  job.id = 8;
  job.script += 'x';
  const std::string refused = "script: is 11 bytes, and job.max_script_bytes allows 10";
  EXPECT_EQ(error_code_of(create_job(creator, *store_, std::nullopt, job)), "too_large");
  EXPECT_EQ(error_message_of(create_job(creator, *store_, std::nullopt, job)), refused);
  EXPECT_EQ(error_message_of(submit_job(creator, *store_, std::nullopt, job)), refused);
  EXPECT_EQ(error_message_of(create_jobs(creator, *store_, std::nullopt, {new_job(9), job}, false)),
            "jobs[1]: " + refused);
  EXPECT_EQ(store_->keys(1, "job:", 10)->size(), 1U);
  creator.is_operator = true;
  EXPECT_EQ(impersonate(creator, 16, "actor_id")->max_script_bytes, 10U) << "also as another";
}

TEST_F(JobService, EveryEntryPointChecksTheCeiling) {
  const RequestContext creator = add_128_mib_ceiling(submitter_);
  Job job = new_job(7);
  job.policy = R"({"memory": "128 MiB"})";
  EXPECT_EQ(error_code_of(create_job(creator, *store_, std::nullopt, job)), "");
  EXPECT_EQ(error_code_of(start_job(creator, *store_, "job:16:7")), "");
  Job greedy = new_job(8);
  greedy.policy = R"({"memory": "129 MiB"})";
  EXPECT_EQ(error_code_of(create_job(creator, *store_, std::nullopt, greedy)), "invalid");
  EXPECT_THAT(error_message_of(create_job(creator, *store_, std::nullopt, greedy)),
              StartsWith(std::string(kAboveCeilingText)));
  EXPECT_THAT(error_message_of(submit_job(creator, *store_, std::nullopt, greedy)),
              StartsWith(std::string(kAboveCeilingText)));
  for (const bool queued : {false, true}) {
    EXPECT_THAT(error_message_of(create_jobs(creator, *store_, std::nullopt, {new_job(9), greedy}, queued)),
                StartsWith("jobs[1]: " + std::string(kAboveCeilingText)));
  }
  EXPECT_EQ(store_->keys(1, "job:", 10)->size(), 1U) << "nothing of it is written";
  EXPECT_EQ(impersonate(add_128_mib_ceiling(operator_caller_), 16, "actor_id")->ceilings->get(1).max.memory_bytes,
            128U << 20);

  // Another client wrote the job, or the ceiling was lowered since.
  ASSERT_EQ(error_code_of(create_job(submitter_, *store_, std::nullopt, greedy)), "")
      << "the built-in ceiling is 1 GiB";
  EXPECT_THAT(error_message_of(start_job(creator, *store_, "job:16:8")), StartsWith(std::string(kAboveCeilingText)));
  EXPECT_EQ(*store_->queue_length(1, "queue:python"), 1U);
}

TEST_F(JobService, BuiltInCeilingsApplyByDefault) {
  const auto refusal = [&](const std::string& type, const std::string& policy) {
    Job job = new_job();
    job.script_type = type;
    job.policy = policy;
    return error_message_of(submit_job(operator_caller_, *store_, std::nullopt, job));
  };
  EXPECT_EQ(refusal("python", R"({"memory": "1 GiB"})"), "");
  EXPECT_THAT(refusal("python", R"({"memory": "2 GiB"})"), StartsWith("policy.memory: 2 GiB is more than the ceiling"));
  EXPECT_THAT(refusal("python", R"({"net": ["example.org:443"]})"), StartsWith("policy.net: network is not allowed"));
  EXPECT_THAT(refusal("bash", R"({"warm": {"runs": 2}})"), StartsWith("policy.warm.runs: "));
}

TEST_F(JobService, OneInvalidJobStopsTheWholeBatch) {
  Job wrong = new_job(8);
  wrong.script_type = "Python!";
  EXPECT_THAT(error_message_of(create_jobs(submitter_, *store_, std::nullopt, {new_job(7), wrong}, false)),
              StartsWith("jobs[1]: "));
  EXPECT_TRUE(store_->keys(1, "job:", 10)->empty());
  EXPECT_EQ(error_code_of(create_jobs(submitter_, *store_, std::nullopt, std::vector<Job>(1001, new_job()), false)),
            "too_large");
}

TEST_F(JobService, ImpossibleJobIsRejectedBeforeItIsQueued) {
  Job job = new_job();
  job.prerequisites = {"wait:1s", "approval:ok", "file:/not/known/here", "foo"};
  EXPECT_THAT(error_message_of(submit_job(submitter_, *store_, std::nullopt, job)),
              StartsWith("prerequisites: prerequisite \"foo\": has an unknown kind"));
  job.prerequisites.pop_back();
  job.inputs = {"x"};
  EXPECT_THAT(error_message_of(submit_job(submitter_, *store_, std::nullopt, job)),
              StartsWith("inputs: \"x\" names no job"));
  job.dependends = {7};
  EXPECT_TRUE(submit_job(submitter_, *store_, std::nullopt, job));
}

TEST_F(JobService, BatchIsQueuedTogetherAndRepeatable) {
  std::vector<Job> jobs(600, new_job());
  for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].idempotency_key = "k" + std::to_string(i);
  for (const bool again : {false, true}) {
    std::vector<Job> asked = jobs;
    NewJobs made;
    ASSERT_TRUE(add_jobs(submitter_, *store_, std::nullopt, asked, true, made));
    ASSERT_FALSE(made.rejected);
    EXPECT_EQ(made.existed, std::vector<bool>(600, again));
    EXPECT_EQ(made.jobs[599].id, 600U);
    EXPECT_EQ(*store_->queue_length(1, "queue:python"), 600U);
  }
  NewJobs none;
  EXPECT_EQ(error_code_of(add_jobs(reader_, *store_, std::nullopt, jobs, true, none)), "denied");
}

TEST_F(JobService, BatchQueuesJobsThatWereCreatedBefore) {
  ASSERT_TRUE(create_job(submitter_, *store_, std::nullopt, new_job(7)));
  const auto made = create_jobs(submitter_, *store_, std::nullopt, {new_job(6), new_job(7), new_job(8)}, true);
  ASSERT_TRUE(made) << error_message_of(made);
  EXPECT_EQ((*made)[1].detail, "queued");
  EXPECT_EQ(*store_->queue_length(1, "queue:python"), 3U);
}

TEST_F(JobService, ConflictNamesItsJobAndThePositionInTheBatch) {
  Job other = new_job(900);
  other.script = "other";
  ASSERT_TRUE(create_job(submitter_, *store_, std::nullopt, other));
  std::vector<Job> jobs;
  for (Id id = 301; id <= 900; ++id) jobs.push_back(new_job(id));
  const std::string output = error_message_of(create_jobs(submitter_, *store_, std::nullopt, jobs, true));
  EXPECT_THAT(output, StartsWith("jobs[599]: "));
  const std::string written = std::to_string(*store_->queue_length(1, "queue:python"));
  EXPECT_NE(output.find(written + " jobs before it are written"), std::string::npos) << output;
  EXPECT_NE(written, "0");
}

TEST_F(JobService, SubmittingACreatedJobQueuesIt) {
  ASSERT_TRUE(create_job(submitter_, *store_, std::nullopt, new_job(7)));
  EXPECT_EQ(*store_->queue_length(1, "queue:python"), 0U);
  for (int i = 0; i < 2; ++i) {
    const auto queued = submit_job(submitter_, *store_, std::nullopt, new_job(7));
    ASSERT_TRUE(queued) << error_message_of(queued);
    EXPECT_EQ(*store_->queue_length(1, "queue:python"), 1U) << "once";
  }
  Job other = new_job(7);
  other.script = "1/0";
  EXPECT_EQ(error_code_of(submit_job(submitter_, *store_, std::nullopt, other)), "conflict");
}

TEST_F(JobService, ForeignAndMissingJobsLookTheSame) {
  ASSERT_TRUE(submit_job(other_submitter_, *store_, std::nullopt, new_job(1)));
  for (const char* key : {"job:17:1", "job:17:404"}) {
    for (const RequestContext& caller : {submitter_, unrelated_actor_}) {
      EXPECT_EQ(error_code_of(cancel_job(caller, *store_, key)), "denied") << key;
      EXPECT_EQ(error_code_of(retry_job(caller, *store_, key)), "denied") << key;
      EXPECT_EQ(error_code_of(restart_job(caller, *store_, key, std::nullopt)), "denied") << key;
      EXPECT_EQ(error_code_of(start_job(caller, *store_, key)), "denied") << key;
      EXPECT_EQ(error_code_of(find_job(caller, *store_, Action::read, key)), "denied") << key;
      EXPECT_EQ(error_code_of(answer_job(caller, *store_, {key, "ok"})), "denied") << key;
    }
  }
  EXPECT_EQ(error_code_of(cancel_job(admin_, *store_, "job:17:404")), "not_found");
  EXPECT_EQ(error_code_of(retry_job(operator_caller_, *store_, "job:17:1")), "conflict");
  const auto cancelled = cancel_job(other_submitter_, *store_, "job:17:1");
  ASSERT_TRUE(cancelled) << error_message_of(cancelled);
  EXPECT_EQ(cancelled->status, JobStatus::error);
  EXPECT_EQ(cancelled->detail, "cancelled");
}

// The script belongs to its caller: a restart by another caller must not grant it further rights.
TEST_F(JobService, RestartRunsUnchangedAsTheOriginalCaller) {
  Job job = new_job(7);
  job.name = "report.py";
  job.timeout = 90;
  job.retries = 2;
  job.env_vars = {{"type", "pdf"}};
  job.args = {"-v"};
  ASSERT_TRUE(set_submitted_files(job, {"input", {{"n", "text"}}}));
  job.prerequisites = {"approval:send"};
  job.priority = 5;
  job.policy = R"({"memory": "64 MiB"})";
  job.idempotency_key = "once";
  job.concurrency_key = "reports";
  ASSERT_TRUE(submit_job(submitter_, *store_, std::nullopt, job));
  EXPECT_EQ(error_code_of(restart_job(admin_, *store_, "job:16:7", std::nullopt)), "conflict") << "it has not ended";
  ASSERT_TRUE(cancel_job(submitter_, *store_, "job:16:7"));
  for (const RequestContext& caller : {submitter_, admin_, operator_caller_}) {
    const auto again = restart_job(caller, *store_, "job:16:7", std::nullopt);
    ASSERT_TRUE(again) << error_message_of(again);
    EXPECT_EQ(again->caller_id, 16U);
    EXPECT_NE(again->id, 7U);
    const auto view = load_job(*store_, 1, "job:16:" + std::to_string(again->id));
    ASSERT_TRUE(view) << error_message_of(view);
    const Job& stored = view->job;
    EXPECT_EQ(stored.script, job.script);
    EXPECT_EQ(stored.name, job.name);
    EXPECT_EQ(stored.timeout, job.timeout);
    EXPECT_EQ(stored.retries, job.retries);
    EXPECT_EQ(stored.env_vars, job.env_vars);
    EXPECT_EQ(stored.args, job.args);
    EXPECT_EQ(stored.file_descriptions, job.file_descriptions);
    Job loaded = stored;
    EXPECT_TRUE(load_submitted_files(*store_, 1, redis_key(stored), loaded));
    EXPECT_EQ(*loaded.submitted_files, *job.submitted_files);
    EXPECT_EQ(stored.prerequisites, job.prerequisites) << "the approval is wanted again";
    EXPECT_EQ(stored.priority, job.priority);
    EXPECT_EQ(stored.policy, job.policy);
    EXPECT_EQ(stored.concurrency_key, job.concurrency_key);
    EXPECT_EQ(stored.idempotency_key, "");
    const std::string asked = caller.is_operator ? "operator" : std::to_string(caller.actor);
    EXPECT_EQ(stored.unknown, (Fields{{"restart_of", "job:16:7"}, {"restarted_by", asked}}));
  }
  EXPECT_EQ(error_code_of(restart_job(reader_, *store_, "job:16:7", std::nullopt)), "denied");
  EXPECT_EQ(error_code_of(restart_job(admin_, *store_, "job:16:404", std::nullopt)), "not_found");
}

// A client that has lost the answer asks again.
TEST_F(JobService, RestartWithAKeyIsCreatedOnce) {
  Job job = new_job(7);
  job.idempotency_key = "own";
  ASSERT_TRUE(submit_job(submitter_, *store_, std::nullopt, job));
  ASSERT_TRUE(cancel_job(submitter_, *store_, "job:16:7"));
  const std::uint64_t queued = *store_->queue_length(1, "queue:python");
  const auto first = restart_job(submitter_, *store_, "job:16:7", "again");
  ASSERT_TRUE(first) << error_message_of(first);
  for (const RequestContext& caller : {submitter_, admin_}) {
    const auto repeated = restart_job(caller, *store_, "job:16:7", "again");
    ASSERT_TRUE(repeated) << error_message_of(repeated);
    EXPECT_EQ(repeated->id, first->id);
  }
  EXPECT_NE(restart_job(submitter_, *store_, "job:16:7", "another")->id, first->id);
  EXPECT_EQ(error_code_of(restart_job(submitter_, *store_, "job:16:7", "own")), "conflict")
      << "it names the job itself";
  EXPECT_EQ(error_code_of(restart_job(submitter_, *store_, "job:16:7", "")), "invalid");
  EXPECT_EQ(*store_->queue_length(1, "queue:python"), queued + 2);
}

// A restart would run the job on another supervisor, or repeat an effect that the workflow runs once.
TEST_F(JobService, SupervisorJobsAndEffectsAreNotRestarted) {
  const auto ended_job = [&](const std::string& id, const std::string& field, const std::string& value) {
    redis_.run_command(1, {"HSET", "job:16:" + id, "id", id, "caller_id", "16", "context_id", "1", "script", "pass",
                           "script_type", "python", "status", "finished", field, value});
    return error_message_of(restart_job(admin_, *store_, "job:16:" + id, std::nullopt));
  };
  EXPECT_THAT(ended_job("7", "supervisor_url", "runner:50"), HasSubstr("was for a supervisor"));
  EXPECT_THAT(ended_job("8", "supervisor_url", "http://elsewhere:3030"), HasSubstr("was for a supervisor"));
  EXPECT_THAT(ended_job("9", "effect_of", "1 pay"), HasSubstr("is an effect of a workflow"));
  EXPECT_EQ(ended_job("10", "supervisor_url", ""), "");
  EXPECT_EQ(*store_->queue_length(1, "queue:python"), 1U);
}

TEST_F(JobService, RestartUsesTheCurrentCeiling) {
  Job job = new_job(7);
  job.policy = R"({"memory": "129 MiB"})";
  ASSERT_TRUE(submit_job(submitter_, *store_, std::nullopt, job));
  ASSERT_TRUE(cancel_job(submitter_, *store_, "job:16:7"));
  EXPECT_THAT(error_message_of(restart_job(add_128_mib_ceiling(submitter_), *store_, "job:16:7", std::nullopt)),
              StartsWith(std::string(kAboveCeilingText)));
}

TEST_F(JobService, FlowJobIsRetriedOnlyByItsFlow) {
  redis_.run_command(1, {"HSET", "job:16:7", "id", "7", "caller_id", "16", "context_id", "1", "script", "pass",
                         "script_type", "python", "status", "finished", "flow_id", "3"});
  const auto refused = restart_job(submitter_, *store_, "job:16:7", std::nullopt);
  EXPECT_EQ(error_code_of(refused), "conflict");
  EXPECT_THAT(error_message_of(refused), HasSubstr("flow replay"));
}

TEST_F(JobService, RunningJobWithoutARecordIsCancelled) {
  ASSERT_TRUE(submit_job(other_submitter_, *store_, std::nullopt, new_job(1)));
  ClaimRequest request;
  request.context = 1;
  request.runner = 7;
  request.instance = "0123456789abcdef0123456789abcdef";
  request.queues = {"queue:python"};
  const auto claimed = store_->claim(request);
  ASSERT_TRUE(claimed && claimed->jobs.size() == 1);
  redis_.erase(1, "job:17:1");
  EXPECT_EQ(error_code_of(cancel_job(submitter_, *store_, "job:17:1")), "denied");
  const auto cancelled = cancel_job(admin_, *store_, "job:17:1");
  ASSERT_TRUE(cancelled) << error_message_of(cancelled);
  EXPECT_EQ(cancelled->status, JobStatus::started);
  EXPECT_EQ(cancelled->id, 1U);
  const std::vector<ClaimRef> claims{claimed->jobs[0].ref};
  EXPECT_EQ(store_->renew(1, claims, 1000)->at(0), Renewal::cancel);
  redis_.run_command(1, {"HSET", "job:17:1", "id", "1"});
  EXPECT_EQ(cancel_job(other_submitter_, *store_, "job:17:1")->status, JobStatus::started) << "the claim says so";
}

TEST_F(JobService, AnswerNeedsSteeringRightsAndAName) {
  const std::string key = waiting();
  EXPECT_THAT(error_message_of(answer_job(operator_caller_, *store_, {key, "a b"})), StartsWith("name: "));
  EXPECT_EQ(error_code_of(answer_job(operator_caller_, *store_, {key, "ok", true, std::string(4097, 'x')})),
            "too_large");
  EXPECT_EQ(error_code_of(answer_job(unrelated_actor_, *store_, {key, "a b"})), "denied") << "rights come first";
  EXPECT_EQ(error_code_of(answer_job(reader_, *store_, {key, "ok"})), "denied");
}

TEST_F(JobService, UnreadableContextIsClosedToActors) {
  const std::string key = waiting();
  corrupt_admin_list();
  for (const EntryPoint way : {EntryPoint::rpc, EntryPoint::command}) {
    EXPECT_EQ(error_code_of(create_job(make_caller(12, way), *store_, std::nullopt, new_job())), "invalid");
    EXPECT_EQ(error_code_of(cancel_job(make_caller(16, way), *store_, key)), "invalid");
    EXPECT_EQ(error_code_of(answer_job(make_caller(12, way), *store_, {key, "ok"})), "invalid");
    EXPECT_EQ(error_code_of(list_jobs(make_caller(12, way), *store_, {}, [](std::uint64_t, std::uint64_t) {})),
              "invalid");
  }
  EXPECT_EQ(error_code_of(cancel_job(operator_caller_, *store_, key)), "");
}

}  // namespace
}  // namespace mycojobs::service
