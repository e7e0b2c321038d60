// The state machine of jobs, step by step: without threads, sandbox and descriptors; the test sets the time.
#include "worker/runs/job_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "artifacts/artifact_folder.h"
#include "artifacts/logs/spooled_log.h"
#include "support/fake_disk.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

constexpr std::uint64_t kStageShift = 56;  // each stage is a separate run in the sandbox
std::uint64_t second_stage(RunNumber run) { return run | std::uint64_t{1} << kStageShift; }

// Sends "request" at the start of each stage. Channel data with the prefix "?" is a call; other data is a note.
class StagedConversation final : public Conversation {
 public:
  explicit StagedConversation(std::size_t stages, std::size_t first_stage = 0, bool blocks_after_failure = false)
      : stage_(first_stage), remaining_stages_(stages - 1 - first_stage), blocks_after_failure_(blocks_after_failure) {}
  std::size_t stage() const override { return stage_; }
  std::uint64_t frame_count() const override { return frames_; }
  std::string consume_output() override { return std::exchange(output_, {}); }
  void feed(std::string_view bytes) override {
    ++frames_;
    (bytes.starts_with('?') ? calls_ : notes_).emplace_back(bytes.substr(bytes.starts_with('?') ? 1 : 0));
  }
  std::vector<std::string> consume_notes() override { return std::exchange(notes_, {}); }
  std::vector<std::string> consume_calls() override { return std::exchange(calls_, {}); }
  void answer(std::string_view reply) override { output_ += reply; }
  bool next_stage(const Outcome& outcome) override {
    if (remaining_stages_ == 0 || outcome.status != RunStatus::ok) return false;
    --remaining_stages_;
    ++stage_;
    output_ = "request";
    return true;
  }
  bool can_block_in_next_stage(const Outcome& outcome) const override {
    return blocks_after_failure_ || outcome.status == RunStatus::ok;
  }
  JobEnd finish(const Outcome& outcome) const override {
    JobEnd end;
    end.status = outcome.status == RunStatus::ok ? JobStatus::finished : JobStatus::error;
    end.detail = outcome.status == RunStatus::ok ? "ok" : "exit";
    end.error = outcome.reason;
    return end;
  }

 private:
  std::size_t stage_, remaining_stages_;
  bool blocks_after_failure_;
  std::uint64_t frames_ = 0;
  std::string output_ = "request";
  std::vector<std::string> notes_, calls_;
};

class JobRunsTest : public ::testing::Test {
 protected:
  static JobStart job(RunNumber run, std::size_t stages = 1) {
    JobStart start;
    start.run = run;
    start.claim = {1, "job:1:" + std::to_string(run), "claim", "token"};
    start.context = 1;
    start.specs.resize(stages);
    start.conversation = std::make_unique<StagedConversation>(stages);
    return start;
  }
  void step(JobRuns::Event event) { actions_ = runs_.step(std::move(event), now_); }
  void begin(JobStart start) {
    const RunNumber run = start.run;
    step(std::move(start));
    ASSERT_EQ(all<JobRuns::Launch>().size(), 1U);
    step(JobRuns::RunLaunched{run});
  }
  void end(RunNumber run, RunStatus status, std::string reason = {}) {
    Outcome outcome;
    outcome.status = status;
    outcome.reason = std::move(reason);
    step(RunEnded{run, outcome});
  }
  void advance_clock(std::uint64_t ms) { now_.boot_ms += ms, now_.unix_ms += ms; }

  // Returns all actions of this kind from the last step.
  template <class Kind>
  std::vector<const Kind*> all() const {
    std::vector<const Kind*> found;
    for (const auto& action : actions_) {
      if (const auto* one = std::get_if<Kind>(&action)) found.push_back(one);
    }
    return found;
  }
  template <class Kind>
  std::vector<const Kind*> reports() const {
    std::vector<const Kind*> found;
    for (const RunReport* each : all<RunReport>()) {
      if (const auto* one = std::get_if<Kind>(&each->report)) found.push_back(one);
    }
    return found;
  }
  std::vector<RunNumber> launched() const {
    std::vector<RunNumber> runs;
    for (const auto* each : all<JobRuns::Launch>()) runs.push_back(each->run);
    return runs;
  }
  std::vector<RunNumber> released() const {
    std::vector<RunNumber> runs;
    for (const RunReport* each : all<RunReport>()) {
      const auto* release = std::get_if<Release>(&each->report);
      if (release != nullptr && !release->was_started && each->is_last) runs.push_back(each->run);
    }
    return runs;
  }
  std::string log_lines() const {
    std::string text;
    for (const auto* append : reports<LogAppend>()) {
      for (const Log& line : append->lines) text += line.text;
    }
    return text;
  }

  JobRuns::CurrentTime now_{1000000, 1700000000000};
  std::vector<JobRuns::Action> actions_;
  JobRuns runs_{{1, 7000, {1000, 8000}}, 1};
};

TEST_F(JobRunsTest, JobIsLaunchedServedAndReported) {
  step(job(1));
  ASSERT_EQ(launched(), std::vector<RunNumber>{1});
  EXPECT_EQ(all<JobRuns::Launch>().at(0)->spec.run, 1U);
  step(JobRuns::RunLaunched{1});
  ASSERT_EQ(all<JobRuns::WriteChannel>().size(), 1U);
  EXPECT_EQ(runs_.next_channel_bytes(1), "request");
  EXPECT_EQ(runs_.next_channel_bytes(1), "");
  step(JobRuns::BytesReceived{1, JobPipe::out, "hello\n"});
  step(JobRuns::PipesDrained{1});
  EXPECT_EQ(log_lines(), "hello\n");
  end(1, RunStatus::ok);
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_EQ(reports<EndReport>().at(0)->end.detail, "ok");
  EXPECT_TRUE(all<RunReport>().back()->is_last);
  ASSERT_EQ(all<JobRuns::RunReaped>().size(), 1U);
  EXPECT_FALSE(runs_.next_wakeup_ms());
}

TEST_F(JobRunsTest, UnknownRunsAreIgnored) {
  std::vector<JobRuns::Event> events;
  events.emplace_back(JobRuns::Fence{7, 1});
  events.emplace_back(JobRuns::Kill{7, KillReason::cancelled});
  events.emplace_back(JobRuns::ReturnJobs{});
  events.emplace_back(JobRuns::BrokerAnswered{7, "{}"});
  events.emplace_back(JobRuns::RunLaunched{7});
  events.emplace_back(JobRuns::LaunchFailed{7, "why"});
  events.emplace_back(JobRuns::BytesReceived{7, JobPipe::out, "x"});
  events.emplace_back(JobRuns::PipesDrained{7});
  events.emplace_back(RunEnded{7, {}});
  events.emplace_back(JobRuns::TimePassed{});
  for (auto& event : events) {
    const std::size_t kind = event.index();
    step(std::move(event));
    EXPECT_TRUE(actions_.empty()) << "event " << kind;
  }
  EXPECT_EQ(runs_.next_channel_bytes(7), "");
}

TEST_F(JobRunsTest, JobsStartInOrderAsSlotsBecomeFree) {
  begin(job(1));
  step(job(2));
  step(job(3));
  EXPECT_TRUE(actions_.empty());
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(actions_.empty()) << "the slot is busy";
  end(1, RunStatus::ok);
  step(JobRuns::TimePassed{});
  EXPECT_EQ(launched(), std::vector<RunNumber>{2});
}

TEST_F(JobRunsTest, LaterJobDoesNotOvertakeAWaitingOne) {
  begin(job(1));
  step(job(2));
  end(1, RunStatus::ok);  // the slot is free
  step(job(3));
  EXPECT_TRUE(launched().empty());
  step(JobRuns::TimePassed{});
  EXPECT_EQ(launched(), std::vector<RunNumber>{2});
}

TEST_F(JobRunsTest, JobsThatWaitTooLongAreReturnedLastFirst) {
  begin(job(1));
  step(job(2));
  step(job(3));
  ASSERT_TRUE(runs_.next_wakeup_ms());
  advance_clock(PrefetchedJobs::kTimeoutMs - 1);
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(actions_.empty());
  advance_clock(1);
  step(JobRuns::TimePassed{});
  EXPECT_EQ(released(), (std::vector<RunNumber>{3, 2})) << "the job that is released last is claimed first";
  EXPECT_EQ(all<JobRuns::ClaimBackoff>().size(), 1U);
  EXPECT_FALSE(runs_.next_wakeup_ms());
}

TEST_F(JobRunsTest, TimeOfAWaitingJobCountsFromItsStart) {
  begin(job(1));
  JobStart second = job(2);
  second.deadline_boot_ms = now_.boot_ms + 1000;
  step(std::move(second));
  advance_clock(30);
  end(1, RunStatus::ok);
  step(JobRuns::TimePassed{});
  EXPECT_EQ(all<JobRuns::Launch>().at(0)->spec.limits.wall_ms, 1000U);
}

TEST_F(JobRunsTest, RenewedLeaseIsTheFenceOfAWaitingJob) {
  begin(job(1));
  step(job(2));
  step(job(3));
  step(JobRuns::Fence{3, 4711});
  EXPECT_TRUE(actions_.empty());
  step(JobRuns::Kill{2, KillReason::fenced});
  EXPECT_EQ(released(), std::vector<RunNumber>{2});
  end(1, RunStatus::ok);
  step(JobRuns::TimePassed{});
  ASSERT_EQ(launched(), std::vector<RunNumber>{3});
  EXPECT_EQ(all<JobRuns::Launch>().at(0)->spec.fence_boot_ms, 4711U);
}

TEST_F(JobRunsTest, FailedLaunchReturnsTheJobUncounted) {
  step(job(1));
  step(JobRuns::LaunchFailed{1, "no descriptors left"});
  ASSERT_EQ(released(), std::vector<RunNumber>{1});
  EXPECT_EQ(reports<Release>().at(0)->reason, "no descriptors left");
  EXPECT_EQ(all<JobRuns::LaunchBackoff>().size(), 1U);
  EXPECT_TRUE(all<JobRuns::RunReaped>().empty()) << "no stage of the job ran";
  step(job(2));
  EXPECT_EQ(launched(), std::vector<RunNumber>{2});
}

TEST_F(JobRunsTest, CancelHasGraceAndALostFenceHasNone) {
  begin(job(1));
  step(JobRuns::Kill{1, KillReason::cancelled});
  ASSERT_EQ(all<JobRuns::KillRun>().size(), 1U);
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->grace_ms, 7000U);
  step(JobRuns::Kill{1, KillReason::fenced});
  ASSERT_EQ(all<JobRuns::KillRun>().size(), 1U);
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->reason, KillReason::fenced);
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->grace_ms, 0U);
}

TEST_F(JobRunsTest, NextStageHasItsOwnNumberAndTheRemainingTime) {
  JobStart two = job(1, 2);
  two.deadline_boot_ms = now_.boot_ms + 1000;
  begin(std::move(two));
  step(JobRuns::Fence{1, 4711});
  ASSERT_EQ(all<JobRuns::MoveFence>().size(), 1U);
  EXPECT_EQ(all<JobRuns::MoveFence>().at(0)->sandbox_run, 1U);
  advance_clock(400);
  end(1, RunStatus::ok);
  ASSERT_EQ(launched(), std::vector<RunNumber>{1});
  const RunSpec& spec = all<JobRuns::Launch>().at(0)->spec;
  EXPECT_EQ(spec.run, second_stage(1));
  EXPECT_EQ(JobRuns::get_run_number(spec.run), 1U);
  EXPECT_EQ(spec.fence_boot_ms, 4711U);
  EXPECT_EQ(spec.limits.wall_ms, 600U);
  EXPECT_TRUE(all<RunReport>().empty()) << "the job continues";
  step(JobRuns::RunLaunched{1});
  EXPECT_TRUE(all<JobRuns::KillRun>().empty());
  end(second_stage(1), RunStatus::ok);
  EXPECT_EQ(reports<EndReport>().size(), 1U);
}

TEST_F(JobRunsTest, KillBetweenTwoStagesReachesTheNextOne) {
  begin(job(1, 2));
  end(1, RunStatus::ok);
  step(JobRuns::Kill{1, KillReason::cancelled});
  step(JobRuns::RunLaunched{1});
  ASSERT_EQ(all<JobRuns::KillRun>().size(), 1U);
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->sandbox_run, second_stage(1));
}

TEST_F(JobRunsTest, LauncherLostBetweenStagesCostsADelivery) {
  begin(job(1, 2));
  step(JobRuns::BytesReceived{1, JobPipe::out, "no end of line"});
  end(1, RunStatus::ok);
  step(JobRuns::LaunchFailed{1, "the launcher is gone"});
  EXPECT_EQ(log_lines(), "no end of line");
  ASSERT_EQ(reports<Release>().size(), 1U);
  EXPECT_TRUE(reports<Release>().at(0)->was_started);
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
  EXPECT_TRUE(all<JobRuns::LaunchBackoff>().empty());
}

// A granted folder does not answer: no delivery is counted, and the queue is paused.
TEST_F(JobRunsTest, UnstartedRunIsReturnedAsStartRejected) {
  JobStart start = job(1);
  start.queue = "queue:x";
  begin(std::move(start));
  RunEnded ended{1, {}};
  ended.outcome.never_started = true;
  ended.outcome.reason = "the granted /srv/x has not answered";
  step(std::move(ended));
  EXPECT_TRUE(reports<Release>().empty());
  ASSERT_EQ(all<StartRejected>().size(), 1U);
  EXPECT_EQ(all<StartRejected>().at(0)->queue, "queue:x");
  EXPECT_EQ(all<StartRejected>().at(0)->error.code, Code::unavailable);
  EXPECT_EQ(all<StartRejected>().at(0)->error.message, "the granted /srv/x has not answered");
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
}

// A job that needs none of the earlier stages begins with a later one.
TEST_F(JobRunsTest, UnstartedFirstRunOfALaterStageIsUncountedToo) {
  for (const bool has_setup_error : {false, true}) {
    JobStart start = job(1, 2);
    start.conversation = std::make_unique<StagedConversation>(2, 1);
    begin(std::move(start));
    RunEnded ended{second_stage(1), {}};
    ended.outcome.status = RunStatus::lost;
    ended.outcome.never_started = true;
    if (has_setup_error) ended.outcome.setup_error = SetupError{"fork", EMFILE, ""};
    step(std::move(ended));
    EXPECT_EQ(all<StartRejected>().size(), has_setup_error ? 0U : 1U);
    EXPECT_EQ(released(), has_setup_error ? std::vector<RunNumber>{1} : std::vector<RunNumber>{});
    EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
  }
}

TEST_F(JobRunsTest, UnstartedSecondRunCostsADelivery) {
  begin(job(1, 2));
  end(1, RunStatus::ok);
  step(JobRuns::RunLaunched{1});
  RunEnded ended{second_stage(1), {}};
  ended.outcome.status = RunStatus::lost;
  ended.outcome.never_started = true;
  step(std::move(ended));
  ASSERT_EQ(reports<Release>().size(), 1U);
  EXPECT_TRUE(reports<Release>().at(0)->was_started);
}

// The host lacks a resource that another host may have. The delivery is not counted, and claims are paused for a while.
TEST_F(JobRunsTest, RunThatTheHostCannotStartIsReturnedUncounted) {
  for (const std::size_t stage : {0U, 1U}) {
    begin(job(1, 2));
    if (stage == 1) end(1, RunStatus::ok);
    if (stage == 1) step(JobRuns::RunLaunched{1});
    RunEnded ended{stage == 0 ? 1 : second_stage(1), {}};
    ended.outcome.never_started = true;
    ended.outcome.setup_error = SetupError{"fork", EMFILE, ""};
    ended.outcome.reason = "fork: EMFILE";
    step(std::move(ended));
    EXPECT_EQ(released(), std::vector<RunNumber>{1}) << stage;
    EXPECT_EQ(reports<Release>().at(0)->reason, "fork: EMFILE");
    ASSERT_EQ(all<JobRuns::LaunchBackoff>().size(), 1U);
    EXPECT_EQ(all<JobRuns::LaunchBackoff>().at(0)->reason.rfind("out of descriptors: raise the limit", 0), 0U);
    EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
    EXPECT_TRUE(all<StartRejected>().empty());
  }
}

TEST_F(JobRunsTest, ReturnedJobsAreStoppedAndUncounted) {
  begin(job(1));
  step(JobRuns::ReturnJobs{});
  ASSERT_EQ(all<JobRuns::KillRun>().size(), 1U);
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->reason, KillReason::cancelled);
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->grace_ms, 7000U);
  EXPECT_TRUE(all<RunReport>().empty()) << "its processes still exist";
  end(1, RunStatus::cancelled);
  EXPECT_EQ(released(), std::vector<RunNumber>{1});
  EXPECT_TRUE(reports<EndReport>().empty());
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
}

TEST_F(JobRunsTest, EndedOrCancelledReturnedJobKeepsItsEnd) {
  begin(job(1));
  step(JobRuns::ReturnJobs{});
  end(1, RunStatus::ok);
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_EQ(reports<EndReport>().at(0)->end.detail, "ok");
  begin(job(2));
  step(JobRuns::Kill{2, KillReason::cancelled});
  step(JobRuns::ReturnJobs{});
  end(2, RunStatus::cancelled);
  EXPECT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_TRUE(reports<Release>().empty());
}

TEST_F(JobRunsTest, LostRunReturnsToItsQueue) {
  begin(job(1));
  end(1, RunStatus::lost, "the launcher is gone");
  ASSERT_EQ(reports<Release>().size(), 1U);
  EXPECT_TRUE(reports<Release>().at(0)->was_started);
  EXPECT_EQ(reports<Release>().at(0)->reason, "the launcher is gone");
  EXPECT_TRUE(reports<EndReport>().empty());
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
}

TEST_F(JobRunsTest, UnkillableRunIsReportedOnceAndKeepsItsSlot) {
  begin(job(1));
  end(1, RunStatus::unkillable, "process 4711");
  ASSERT_EQ(reports<DetailUpdate>().size(), 1U);
  EXPECT_TRUE(all<JobRuns::RunReaped>().empty());
  end(1, RunStatus::unkillable, "process 4711");
  EXPECT_TRUE(actions_.empty());
  step(job(2));
  EXPECT_TRUE(launched().empty());
  end(1, RunStatus::ok);
  EXPECT_EQ(reports<EndReport>().size(), 1U);
  step(JobRuns::TimePassed{});
  EXPECT_EQ(launched(), std::vector<RunNumber>{2});
}

TEST_F(JobRunsTest, OutputOverItsLimitKillsOnce) {
  JobStart start = job(1);
  start.output_bytes = 4;
  start.output_kill = true;
  begin(std::move(start));
  step(JobRuns::BytesReceived{1, JobPipe::out, "1234"});
  step(JobRuns::PipesDrained{1});
  EXPECT_TRUE(all<JobRuns::KillRun>().empty()) << "the output is at its limit";
  step(JobRuns::BytesReceived{1, JobPipe::err, "5"});
  step(JobRuns::PipesDrained{1});
  ASSERT_EQ(all<JobRuns::KillRun>().size(), 1U);
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->reason, KillReason::output_limit);
  step(JobRuns::BytesReceived{1, JobPipe::err, "6"});
  step(JobRuns::PipesDrained{1});
  EXPECT_TRUE(all<JobRuns::KillRun>().empty());
}

TEST_F(JobRunsTest, PartialLineIsShownWithoutItsEnd) {
  begin(job(1));
  step(JobRuns::BytesReceived{1, JobPipe::out, "50 %"});
  step(JobRuns::PipesDrained{1});
  EXPECT_EQ(log_lines(), "");
  step(JobRuns::TimePassed{});
  ASSERT_TRUE(runs_.next_wakeup_ms());
  advance_clock(RunOutput::kMaxPartialWaitMs - 1);
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(actions_.empty());
  advance_clock(1);
  step(JobRuns::TimePassed{});
  EXPECT_EQ(log_lines(), "50 %");
  EXPECT_FALSE(runs_.next_wakeup_ms()) << "no timer is pending";
}

TEST_F(JobRunsTest, ProtocolNotesAreLogLines) {
  begin(job(1));
  step(JobRuns::BytesReceived{1, JobPipe::channel, "half of it"});
  step(JobRuns::PipesDrained{1});
  EXPECT_EQ(log_lines(), "half of it\n");
}

TEST_F(JobRunsTest, CallReachesTheBrokerOnlyIfTheExecutorHasCalls) {
  begin(job(1));
  runs_.next_channel_bytes(1);
  step(JobRuns::BytesReceived{1, JobPipe::channel, "?{\"id\":1}"});
  EXPECT_TRUE(all<BrokerCall>().empty());
  EXPECT_EQ(all<JobRuns::WriteChannel>().size(), 1U);
  EXPECT_NE(runs_.next_channel_bytes(1).find("denied"), std::string::npos);
  end(1, RunStatus::ok);

  JobStart with_calls = job(2);
  with_calls.uses_object_store = true;
  begin(std::move(with_calls));
  runs_.next_channel_bytes(2);
  step(JobRuns::BytesReceived{2, JobPipe::channel, "?{\"id\":1}"});
  ASSERT_EQ(all<BrokerCall>().size(), 1U);
  EXPECT_EQ(all<BrokerCall>().at(0)->json, "{\"id\":1}");
  step(JobRuns::BrokerAnswered{2, "the answer"});
  EXPECT_EQ(all<JobRuns::WriteChannel>().size(), 1U);
  EXPECT_EQ(runs_.next_channel_bytes(2), "the answer");
}

TEST_F(JobRunsTest, FailureWithARemainingAttemptIsRetried) {
  JobStart start = job(1);
  start.retries = 1;
  begin(std::move(start));
  end(1, RunStatus::exit);
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_TRUE(reports<EndReport>().at(0)->retry_after_ms);
  start = job(2);
  start.retries = 1;
  start.attempt = 2;
  begin(std::move(start));
  end(2, RunStatus::exit);
  EXPECT_FALSE(reports<EndReport>().at(0)->retry_after_ms);
}

// A flooding pipe is paused; the other pipes of the job are still read.
TEST_F(JobRunsTest, FloodOfOutputPausesItsPipe) {
  JobRuns::Settings settings{1, 7000, {}};
  settings.read_budget.bytes = 1000;
  runs_ = JobRuns(settings, 1);
  begin(job(1));
  step(JobRuns::BytesReceived{1, JobPipe::out, std::string(5000, 'x')});
  step(JobRuns::PipesDrained{1, JobPipe::out});
  ASSERT_EQ(all<JobRuns::PauseReading>().size(), 1U);
  EXPECT_EQ(all<JobRuns::PauseReading>().at(0)->pipe, JobPipe::out);
  EXPECT_EQ(all<JobRuns::PauseReading>().at(0)->until_boot_ms, now_.boot_ms + 3000)
      << "a burst of 2000 lines is permitted";
  advance_clock(3000);
  step(JobRuns::BytesReceived{1, JobPipe::out, std::string(4096, 'y')});
  step(JobRuns::PipesDrained{1, JobPipe::out});
  EXPECT_EQ(all<JobRuns::PauseReading>().size(), 1U);
  end(1, RunStatus::ok);
  EXPECT_EQ(reports<EndReport>().size(), 1U) << "the end is not delayed by the budget";
}

// A job that tries to exceed its frame rate sends many frames in one write.
TEST_F(JobRunsTest, FramesOfTheChannelAreCharged) {
  JobRuns::Settings settings{1, 7000, {}};
  settings.read_budget.frames = 10;
  runs_ = JobRuns(settings, 1);
  JobStart start = job(1);
  start.uses_object_store = true;
  begin(std::move(start));
  for (int i = 0; i < 21; ++i) step(JobRuns::BytesReceived{1, JobPipe::channel, "a note"});
  step(JobRuns::PipesDrained{1, JobPipe::channel});
  ASSERT_EQ(all<JobRuns::PauseReading>().size(), 1U);
  EXPECT_EQ(all<JobRuns::PauseReading>().at(0)->until_boot_ms, now_.boot_ms + 100);
}

TEST_F(JobRunsTest, SecretsOfTheJobAreInNoReport) {
  JobStart start = job(1);
  start.redactor = std::make_shared<const Redactor>(std::vector<Secret>{{"TOKEN", "correct horse"}});
  begin(std::move(start));
  step(JobRuns::BytesReceived{1, JobPipe::out, "a correct "});
  step(JobRuns::BytesReceived{1, JobPipe::out, "horse\n"});
  step(JobRuns::PipesDrained{1});
  EXPECT_EQ(log_lines(), "a [secret TOKEN]\n");
  end(1, RunStatus::exit, "correct horse");
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_EQ(reports<EndReport>().at(0)->end.error, "[secret TOKEN]");
}

// Work in the background blocks no other job.

TEST_F(JobRunsTest, CauseOfADeniedAccessIsAwaitedForALimitedTime) {
  const std::vector<JobFolder> folders = {{"/srv/in", "/nonexistent/in", true, {1, 1}},
                                          {"/srv/out", "/nonexistent/out", true, {1, 1}}};
  JobStart unrelated = job(1);
  unrelated.folders = folders;
  begin(std::move(unrelated));
  end(1, RunStatus::exit, "out of ideas");
  EXPECT_EQ(reports<EndReport>().size(), 1U) << "the error names no folder";

  JobStart denied = job(2);
  denied.folders = folders;
  begin(std::move(denied));
  end(2, RunStatus::exit, "Permission denied: '/srv/out/x'");
  ASSERT_EQ(all<JobRuns::RunInBackground>().size(), 1U);
  EXPECT_EQ(all<JobRuns::RunInBackground>().at(0)->strand, "folder /nonexistent/out");
  EXPECT_TRUE(reports<EndReport>().empty());
  const auto work = all<JobRuns::RunInBackground>().at(0)->work;
  EXPECT_TRUE(runs_.next_wakeup_ms());
  advance_clock(HangDetector::kTimeoutMs - 1);
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(reports<EndReport>().empty());
  advance_clock(1);
  step(JobRuns::TimePassed{});
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_EQ(reports<EndReport>().at(0)->end.error, "Permission denied: '/srv/out/x'");
  EXPECT_FALSE(runs_.next_wakeup_ms());
  step(work());
  EXPECT_TRUE(actions_.empty()) << "the end was reported";
}

TEST_F(JobRunsTest, JobPreparedInBackgroundHasItsLatestFence) {
  JobStart start = job(1);
  start.conversation = nullptr;
  start.strand = "plugin 1";
  start.can_block_in_finish = true;
  start.create_conversation = [] {
    return Result<std::unique_ptr<Conversation>>(std::make_unique<StagedConversation>(1));
  };
  step(std::move(start));
  ASSERT_EQ(all<JobRuns::RunInBackground>().size(), 1U);
  EXPECT_EQ(all<JobRuns::RunInBackground>().at(0)->strand, "plugin 1");
  EXPECT_TRUE(launched().empty());
  const auto work = all<JobRuns::RunInBackground>().at(0)->work;
  step(JobRuns::Fence{1, 4711});
  EXPECT_TRUE(actions_.empty()) << "the run is not launched yet";
  step(work());
  ASSERT_EQ(launched(), std::vector<RunNumber>{1});
  EXPECT_EQ(all<JobRuns::Launch>().at(0)->spec.fence_boot_ms, 4711U);
  step(JobRuns::RunLaunched{1});
  end(1, RunStatus::ok);
  ASSERT_EQ(all<JobRuns::RunReaped>().size(), 1U) << "the slot of the run is free";
  ASSERT_EQ(all<JobRuns::RunInBackground>().size(), 1U);
  EXPECT_TRUE(reports<EndReport>().empty());
  const auto finish = all<JobRuns::RunInBackground>().at(0)->work;
  step(JobRuns::Kill{1, KillReason::cancelled});
  EXPECT_TRUE(actions_.empty()) << "the job has ended";
  step(finish());
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_EQ(reports<EndReport>().at(0)->end.detail, "ok");
}

TEST_F(JobRunsTest, JobKilledDuringPreparationReturnsAtOnce) {
  for (const bool returns_all : {true, false}) {
    JobStart start = job(1);
    start.conversation = nullptr;
    start.strand = "plugin 1";
    bool began = false;
    const auto shared = std::make_shared<int>();
    start.create_conversation = [&began, shared] {
      began = true;
      return Result<std::unique_ptr<Conversation>>(std::make_unique<StagedConversation>(1));
    };
    step(std::move(start));
    const auto work = all<JobRuns::RunInBackground>().at(0)->work;
    step(returns_all ? JobRuns::Event(JobRuns::ReturnJobs{}) : JobRuns::Kill{1, KillReason::cancelled});
    EXPECT_EQ(released(), std::vector<RunNumber>{1});
    EXPECT_TRUE(all<JobRuns::KillRun>().empty());
    EXPECT_EQ(shared.use_count(), 1) << "a blocked strand retains no reference";
    step(work());
    EXPECT_TRUE(actions_.empty());
    EXPECT_FALSE(began);
  }
}

TEST_F(JobRunsTest, FailedPreparationReturnsTheJob) {
  JobStart start = job(1);
  start.conversation = nullptr;
  start.strand = "plugin 1";
  start.queue = "queue:x";
  start.create_conversation = [] {
    return Result<std::unique_ptr<Conversation>>(fail(Code::invalid, "script: wrong"));
  };
  step(std::move(start));
  step(job(2));
  EXPECT_TRUE(launched().empty()) << "the only slot is busy";
  step(JobRuns::PrepareFinished{1, "plugin 1", nullptr, fail(Code::invalid, "script: wrong")});
  ASSERT_EQ(all<StartRejected>().size(), 1U);
  EXPECT_EQ(all<StartRejected>().at(0)->queue, "queue:x");
  EXPECT_EQ(all<StartRejected>().at(0)->claim.job_key, "job:1:1");
  EXPECT_EQ(all<StartRejected>().at(0)->error.message, "script: wrong");
  step(JobRuns::TimePassed{});
  EXPECT_EQ(launched(), std::vector<RunNumber>{2});
}

// A job whose inputs are on runner 20 until `missing` is empty.
class JobRunsInputs : public JobRunsTest {
 protected:
  std::vector<MissingInput> missing_{{{1, 20, "job:1:7", {std::string(64, 'a'), 5}, "the artifact"}, "store"}};

  void step_to_fetch() {
    JobStart start = job(1);
    start.conversation = nullptr;
    start.strand = "disk 1";
    start.queue = "queue:x";
    start.list_missing_inputs = [this] { return missing_; };
    start.create_conversation = [this]() -> Result<std::unique_ptr<Conversation>> {
      if (!missing_.empty()) return fail(Code::not_found, "inputs: missing");
      return std::make_unique<StagedConversation>(1);
    };
    step(std::move(start));
    step_background_work();
  }
  void step_background_work() {
    ASSERT_EQ(all<JobRuns::RunInBackground>().size(), 1U);
    step(all<JobRuns::RunInBackground>().at(0)->work());
  }
  void end_fetch(FetchStatus status) { step(JobRuns::InputsFetched{1, {status, 20, "the artifact: why"}}); }
};

TEST_F(JobRunsInputs, MissingInputsAreFetchedBeforeTheLaunch) {
  step_to_fetch();
  ASSERT_EQ(all<JobRuns::FetchInputs>().size(), 1U);
  EXPECT_EQ(all<JobRuns::FetchInputs>().at(0)->files.at(0).artifact.holder, 20U);
  advance_clock(60000);
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(actions_.empty()) << "a fetch is no hang of the disk";
  missing_.clear();
  end_fetch(FetchStatus::received);
  step_background_work();
  EXPECT_EQ(launched(), std::vector<RunNumber>{1});
}

TEST_F(JobRunsInputs, JobIsParkedWhileTheHolderIsAway) {
  step_to_fetch();
  end_fetch(FetchStatus::away);
  ASSERT_EQ(reports<AwaitInputs>().size(), 1U);
  EXPECT_TRUE(all<RunReport>().at(0)->is_last) << "slot and lease are free";
  const AwaitInputs& wait = *reports<AwaitInputs>().at(0);
  EXPECT_EQ(wait.holder, 20U);
  EXPECT_EQ(wait.timeout_ms, 24ULL * 3600 * 1000);
  EXPECT_EQ(wait.reason, "the artifact: why");
  EXPECT_EQ(wait.sources, std::vector<std::string>{"job:1:7"});
  begin(job(2));
}

TEST_F(JobRunsInputs, JobIsReleasedWhileOtherFilesAreReceived) {
  step_to_fetch();
  end_fetch(FetchStatus::busy);
  EXPECT_TRUE(reports<AwaitInputs>().empty()) << "no runner is away";
  EXPECT_EQ(released(), std::vector<RunNumber>{1});
}

TEST_F(JobRunsInputs, JobEndsIfItsInputsAreLost) {
  for (const FetchStatus status : {FetchStatus::lost, FetchStatus::damaged}) {
    step_to_fetch();
    end_fetch(status);
    ASSERT_EQ(reports<EndReport>().size(), 1U);
    EXPECT_EQ(reports<EndReport>().at(0)->end.detail, "artifact_lost");
    EXPECT_THAT(reports<EndReport>().at(0)->end.error, testing::HasSubstr("run that job again"));
  }
}

TEST_F(JobRunsInputs, HostThatCannotStoreInputsReturnsTheJob) {
  step_to_fetch();
  end_fetch(FetchStatus::failed);
  ASSERT_EQ(all<StartRejected>().size(), 1U);
  EXPECT_EQ(all<StartRejected>().at(0)->error.code, Code::unavailable);
}

TEST_F(JobRunsInputs, JobIsParkedWhileTheObjectStorageIsAway) {
  step_to_fetch();
  end_fetch(FetchStatus::storage_away);
  ASSERT_EQ(reports<AwaitInputs>().size(), 1U);
  EXPECT_TRUE(reports<AwaitInputs>().at(0)->is_stored);
  EXPECT_EQ(reports<AwaitInputs>().at(0)->timeout_ms, 24ULL * 3600 * 1000);
  step_to_fetch();
  step(JobRuns::InputsFetched{1, {FetchStatus::storage_away, {}, "the artifact: why"}});
  ASSERT_EQ(reports<AwaitInputs>().size(), 1U) << "the wait is limited, although no runner has the file";
  EXPECT_FALSE(reports<AwaitInputs>().at(0)->holder.is_known());
  EXPECT_TRUE(reports<AwaitInputs>().at(0)->is_stored);
}

TEST_F(JobRunsInputs, KilledJobEndsItsFetch) {
  for (const bool returns_all : {false, true}) {
    step_to_fetch();
    step(returns_all ? JobRuns::Event(JobRuns::ReturnJobs{}) : JobRuns::Kill{1, KillReason::cancelled});
    EXPECT_EQ(released(), std::vector<RunNumber>{1});
    EXPECT_EQ(all<JobRuns::CancelFetch>().size(), 1U);
    end_fetch(FetchStatus::received);
    EXPECT_TRUE(actions_.empty());
  }
}

TEST_F(JobRunsInputs, CacheThatDeletesInputsAtOnceIsNotFilledWithoutALimit) {
  step_to_fetch();
  for (int fetches = 1; fetches <= 3; ++fetches) {
    ASSERT_EQ(all<JobRuns::FetchInputs>().size(), 1U);
    end_fetch(FetchStatus::received);
    step_background_work();
  }
  ASSERT_EQ(all<StartRejected>().size(), 1U);
  EXPECT_THAT(all<StartRejected>().at(0)->error.message, testing::HasSubstr("artifacts.cache_bytes"));
}

class JobRunsHanging : public JobRunsTest {
 protected:
  static JobStart make_start_on_strand(RunNumber run, const std::string& lane) {
    JobStart start = job(run);
    start.conversation = nullptr;
    start.strand = lane;
    start.create_conversation = [] {
      return Result<std::unique_ptr<Conversation>>(std::make_unique<StagedConversation>(1));
    };
    return start;
  }
  std::vector<RunNumber> rejected_starts() const {
    std::vector<RunNumber> runs;
    for (const StartRejected* each : all<StartRejected>()) {
      EXPECT_EQ(each->error.code, Code::unavailable);
      EXPECT_THAT(each->error.message, testing::HasSubstr("\"disk 1\" of this agent has not answered for 10 s"));
      runs.push_back(each->run);
    }
    return runs;
  }
  JobRuns::Event make_answer(RunNumber run, std::string lane) {
    return JobRuns::PrepareFinished{run, std::move(lane), nullptr, std::make_unique<StagedConversation>(1)};
  }
};

TEST_F(JobRunsHanging, JobsBehindAHangingStrandLeaveTheirSlots) {
  step(make_start_on_strand(1, "disk 1"));
  step(job(2));
  EXPECT_EQ(runs_.next_wakeup_ms(), 50U) << "the second job waits for the slot";
  advance_clock(HangDetector::kTimeoutMs - 1);
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(rejected_starts().empty());
  advance_clock(1);
  step(JobRuns::TimePassed{});
  EXPECT_EQ(rejected_starts(), std::vector<RunNumber>{1});
  EXPECT_EQ(runs_.next_wakeup_ms(), 500U);

  step(make_start_on_strand(3, "disk 1"));
  EXPECT_EQ(rejected_starts(), std::vector<RunNumber>{3});
  begin(job(4));
  end(4, RunStatus::ok);
  step(make_start_on_strand(5, "disk 2"));
  EXPECT_EQ(all<JobRuns::RunInBackground>().size(), 1U) << "the job of the other strand starts";
  step(make_answer(5, "disk 2"));
  EXPECT_EQ(launched(), std::vector<RunNumber>{5});
  step(JobRuns::RunLaunched{5});
  end(5, RunStatus::ok);

  step(make_answer(1, "disk 1"));
  EXPECT_TRUE(actions_.empty()) << "the job was released";
  EXPECT_FALSE(runs_.next_wakeup_ms());
  step(make_start_on_strand(6, "disk 1"));
  EXPECT_EQ(all<JobRuns::RunInBackground>().size(), 1U) << "the strand answers again";
}

TEST_F(JobRunsHanging, SlowStrandIsWaitedFor) {
  runs_ = JobRuns({2, 10000, {}}, 1);
  step(make_start_on_strand(1, "disk 1"));
  step(make_start_on_strand(2, "disk 1"));
  advance_clock(HangDetector::kTimeoutMs - 1);
  step(make_answer(1, "disk 1"));
  EXPECT_EQ(launched(), std::vector<RunNumber>{1});
  advance_clock(HangDetector::kTimeoutMs - 1);
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(rejected_starts().empty());
  step(make_answer(2, "disk 1"));
  EXPECT_EQ(launched(), std::vector<RunNumber>{2});
}

TEST_F(JobRunsHanging, TimeLimitCountsFromTheStart) {
  JobStart start = make_start_on_strand(1, "disk 1");
  start.deadline_boot_ms = now_.boot_ms + 3000;
  step(std::move(start));
  advance_clock(5000);
  step(make_answer(1, "disk 1"));
  ASSERT_EQ(all<JobRuns::Launch>().size(), 1U);
  EXPECT_EQ(all<JobRuns::Launch>().at(0)->spec.limits.wall_ms, 3000U);
}

class JobRunsBetween : public JobRunsTest {
 protected:
  std::function<JobRuns::Event()> end_first_stage() {
    JobStart start = job(1, 2);
    start.strand = "v 1";
    begin(std::move(start));
    runs_.next_channel_bytes(1);
    end(1, RunStatus::ok);
    EXPECT_EQ(all<JobRuns::RunInBackground>().size(), 1U);
    EXPECT_EQ(all<JobRuns::RunInBackground>().at(0)->strand, "v 1");
    return all<JobRuns::RunInBackground>().at(0)->work;
  }
};

TEST_F(JobRunsBetween, BlockingStageChangesRunInBackground) {
  const auto finish_stage_work = end_first_stage();
  EXPECT_TRUE(launched().empty());
  step(JobRuns::BytesReceived{1, JobPipe::channel, "late"});
  step(JobRuns::BrokerAnswered{1, "late"});
  EXPECT_TRUE(actions_.empty()) << "another thread uses the conversation";
  EXPECT_EQ(runs_.next_channel_bytes(1), "");
  step(JobRuns::Fence{1, 4711});
  step(finish_stage_work());
  ASSERT_EQ(all<JobRuns::Launch>().size(), 1U);
  EXPECT_EQ(all<JobRuns::Launch>().at(0)->spec.run, second_stage(1));
  EXPECT_EQ(all<JobRuns::Launch>().at(0)->spec.fence_boot_ms, 4711U);
  step(JobRuns::RunLaunched{1});
  EXPECT_EQ(runs_.next_channel_bytes(1), "request");
  end(second_stage(1), RunStatus::ok);
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
  EXPECT_EQ(reports<EndReport>().size(), 1U) << "the end is reported without waiting for other work";
}

TEST_F(JobRunsBetween, JobKilledBetweenStagesEndsWithTheNextStage) {
  const auto finish_stage_work = end_first_stage();
  step(JobRuns::Kill{1, KillReason::cancelled});
  step(JobRuns::Kill{1, KillReason::fenced});
  EXPECT_TRUE(all<JobRuns::KillRun>().empty());
  step(finish_stage_work());
  step(JobRuns::RunLaunched{1});
  ASSERT_EQ(all<JobRuns::KillRun>().size(), 1U);
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->sandbox_run, second_stage(1));
  EXPECT_EQ(all<JobRuns::KillRun>().at(0)->reason, KillReason::fenced) << "another agent may have claimed the job";
  EXPECT_TRUE(all<JobRuns::WriteChannel>().empty());
}

TEST_F(JobRunsBetween, HangingStrandReturnsTheJobAndFreesItsSlot) {
  const auto finish_stage_work = end_first_stage();
  EXPECT_EQ(runs_.next_wakeup_ms(), 500U);
  step(JobRuns::Kill{1, KillReason::cancelled});
  advance_clock(HangDetector::kTimeoutMs - 1);
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(actions_.empty());
  advance_clock(1);
  step(JobRuns::TimePassed{});
  ASSERT_EQ(reports<Release>().size(), 1U);
  EXPECT_TRUE(reports<Release>().at(0)->was_started);
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
  step(finish_stage_work());
  EXPECT_TRUE(actions_.empty());
  EXPECT_FALSE(runs_.next_wakeup_ms());
}

TEST_F(JobRunsBetween, FailedStageIsTheLastWithoutAWait) {
  JobStart start = job(1, 2);
  start.strand = "v 1";
  begin(std::move(start));
  end(1, RunStatus::exit);
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
}

TEST_F(JobRunsBetween, FailedStageEndsOnItsStrandIfItCanBlock) {
  JobStart start = job(1, 2);
  start.strand = "python 1";
  start.conversation = std::make_unique<StagedConversation>(2, 0, true);
  begin(std::move(start));
  end(1, RunStatus::exit);
  EXPECT_TRUE(all<JobRuns::RunReaped>().empty());
  ASSERT_EQ(all<JobRuns::RunInBackground>().size(), 1U);
  const auto work = all<JobRuns::RunInBackground>().at(0)->work;
  step(work());
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
  EXPECT_EQ(reports<EndReport>().size(), 1U);
}

class JobRunsLog : public JobRunsTest {
 protected:
  // Starts a job whose log has a limit of 100 bytes in the store, and reads 4 KiB of its output.
  void begin_verbose_job(bool has_archive = false) {
    JobStart start = job(1);
    LogSpool::Settings settings;
    settings.state_dir = folder_.path().string();
    settings.context = 1;
    settings.store_name = "store";
    settings.job_key = "job:1:1";
    settings.has_archive = has_archive;
    settings.max_archive_bytes = 1U << 20;
    settings.all_queued_bytes = queue_bytes_;
    start.log_spool = std::make_shared<LogSpool>(std::move(settings));
    start.artifacts = std::make_shared<ArtifactQueue>(
        make_run_artifacts(folder_.path().string(), 1, std::string(24, 'a'), "job:1:1", 1U << 20));
    start.output_bytes = 100;
    begin(std::move(start));
    for (int i = 0; i < 4; ++i) step(JobRuns::BytesReceived{1, JobPipe::out, std::string(1023, 'x') + '\n'});
    step(JobRuns::PipesDrained{1});
  }
  // Executes the background work of the last step on this strand. Returns its event.
  JobRuns::Event execute_work(const std::string& strand) {
    for (const auto* work : all<JobRuns::RunInBackground>())
      if (work->strand == strand) return work->work();
    ADD_FAILURE() << "no work on " << strand;
    return JobRuns::TimePassed{};
  }
  std::uint64_t count_spooled_bytes() const {
    std::uint64_t bytes = 0;
    const std::string folder = ArtifactFolder(folder_.path().string(), 1).log_folder("store", "job:1:1");
    for (const Log& line : read_spooled_lines({folder}, {0, 100000}).value().lines) bytes += line.size;
    return bytes;
  }
  // Returns the text of the lines that the last step has reported.
  std::string reported_text() {
    std::string text;
    for (const auto* append : reports<LogAppend>())
      for (const Log& line : append->lines) text += line.text;
    return text;
  }
  TempDir folder_;
  const std::shared_ptr<LogQueueBytes> queue_bytes_ = std::make_shared<LogQueueBytes>(1U << 20);
};

TEST_F(JobRunsLog, EndWaitsForTheLogOnTheDisk) {
  begin_verbose_job();
  auto written = execute_work("log 1");
  step(JobRuns::BytesReceived{1, JobPipe::out, "last\n"});
  step(std::move(written));
  end(1, RunStatus::ok);
  EXPECT_TRUE(reports<EndReport>().empty());
  step(execute_work("log 1"));
  EXPECT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_EQ(count_spooled_bytes(), 4 * 1024 + 5 - 50U) << "all but the head";
}

TEST_F(JobRunsLog, HangingDiskDelaysTheEndForALimitedTime) {
  begin_verbose_job();
  end(1, RunStatus::ok);
  EXPECT_TRUE(reports<EndReport>().empty());
  EXPECT_TRUE(runs_.next_wakeup_ms());
  advance_clock(HangDetector::kTimeoutMs);
  step(JobRuns::TimePassed{});
  EXPECT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_TRUE(queue_bytes_->try_add(1U << 20)) << "the queue is empty";
  step(JobRuns::LogClosed{1});
  EXPECT_TRUE(actions_.empty());
}

TEST_F(JobRunsLog, HangingDiskOfTheLogDropsTheArchiveAndBlocksNoArtifacts) {
  begin_verbose_job(true);
  end(1, RunStatus::ok);
  for (const auto* work : all<JobRuns::RunInBackground>()) EXPECT_EQ(work->strand, "log 1");
  EXPECT_TRUE(runs_.next_wakeup_ms());
  advance_clock(HangDetector::kTimeoutMs);
  step(JobRuns::TimePassed{});
  EXPECT_TRUE(queue_bytes_->try_add(1U << 20));
  step(execute_work("disk 1"));
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_NE(reports<EndReport>().at(0)->end.artifacts_dropped.find("job.log.gz"), std::string::npos);
  step(JobRuns::ArchiveWritten{1, {}});
  EXPECT_TRUE(actions_.empty());
}

TEST_F(JobRunsLog, ErrorOfTheLastWriteIsInTheLog) {
  std::ofstream(folder_ / "contexts") << "not a folder";
  begin_verbose_job();
  end(1, RunStatus::ok);
  step(execute_work("log 1"));
  EXPECT_NE(reported_text().find("not kept on the disk of this host"), std::string::npos);
  EXPECT_EQ(reports<EndReport>().size(), 1U);
}

TEST_F(JobRunsLog, ErrorOfAWriteThatEndsAfterTheRunIsInTheLog) {
  std::ofstream(folder_ / "contexts") << "not a folder";
  begin_verbose_job();
  auto written = execute_work("log 1");
  end(1, RunStatus::ok);
  step(std::move(written));
  EXPECT_NE(reported_text().find("not kept on the disk of this host"), std::string::npos);
}

TEST_F(JobRunsLog, CompleteLogIsAnArtifact) {
  begin_verbose_job(true);
  end(1, RunStatus::ok);
  step(execute_work("log 1"));
  step(execute_work("disk 1"));
  step(execute_work("log 1"));
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_NE(reports<EndReport>().at(0)->end.artifacts.find("job.log.gz"), std::string::npos);
}

TEST_F(JobRunsLog, QuietJobUsesNoDisk) {
  begin_verbose_job();
  EXPECT_FALSE(all<JobRuns::RunInBackground>().empty());
  JobStart quiet = job(2);
  quiet.log_spool = std::make_shared<LogSpool>(LogSpool::Settings{});
  end(1, RunStatus::ok);
  step(execute_work("log 1"));
  begin(std::move(quiet));
  step(JobRuns::BytesReceived{2, JobPipe::out, "hello\n"});
  step(JobRuns::PipesDrained{2});
  end(2, RunStatus::ok);
  EXPECT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_TRUE(all<JobRuns::RunInBackground>().empty());
}

class JobRunsDisk : public JobRunsTest {
 protected:
  void begin_with_file(const std::string& file = "file") {
    JobStart start = job(1);
    start.artifacts = std::make_shared<ArtifactQueue>(std::make_unique<FakeDisk>(disk_));
    start.conversation = std::make_unique<ArtifactConversation>(*start.artifacts, file);
    begin(std::move(start));
  }
  std::function<JobRuns::Event()> work() {
    EXPECT_EQ(all<JobRuns::RunInBackground>().size(), 1U);
    EXPECT_EQ(all<JobRuns::RunInBackground>().at(0)->strand, "disk 1");
    return all<JobRuns::RunInBackground>().at(0)->work;
  }
  DiskControl disk_;
};

TEST_F(JobRunsDisk, FilesAreWrittenInOrderBeforeTheEnd) {
  begin_with_file();
  step(JobRuns::BytesReceived{1, JobPipe::channel, "1"});
  const auto first = work();
  step(JobRuns::BytesReceived{1, JobPipe::channel, "2"});
  EXPECT_TRUE(actions_.empty()) << "one piece at a time";
  EXPECT_EQ(disk_.calls(), "");
  step(first());
  const auto second = work();
  step(JobRuns::BytesReceived{1, JobPipe::channel, "3"});
  end(1, RunStatus::ok);
  const auto last = work();
  EXPECT_EQ(all<JobRuns::RunReaped>().size(), 1U);
  EXPECT_TRUE(reports<EndReport>().empty());
  step(second());
  EXPECT_TRUE(actions_.empty());
  step(last());
  ASSERT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_EQ(disk_.calls(), "open file write 1 write 2 write 3 finish");
}

TEST_F(JobRunsDisk, EndListsDroppedFilesAsThePolicySays) {
  for (const bool optional : {false, true}) {
    JobStart start = job(optional ? 2 : 1);
    start.artifacts = std::make_shared<ArtifactQueue>(std::make_unique<FakeDisk>(disk_));
    start.artifacts->report_dropped({"big", DropReason::bytes, 100});
    start.artifacts_optional = optional;
    begin(std::move(start));
    end(optional ? 2 : 1, RunStatus::ok);
    step(work()());
    ASSERT_EQ(reports<EndReport>().size(), 1U);
    EXPECT_EQ(has_lost_artifacts(reports<EndReport>().at(0)->end.artifacts_dropped), !optional);
    EXPECT_FALSE(reports<EndReport>().at(0)->end.artifacts_dropped.empty());
  }
}

TEST_F(JobRunsDisk, ChannelIsPausedWhileTheQueueIsFull) {
  begin_with_file();
  const std::string much(ArtifactQueue::kMaxQueuedBytes, 'x');
  step(JobRuns::BytesReceived{1, JobPipe::channel, "x"});
  const auto first = work();
  EXPECT_TRUE(all<JobRuns::PauseChannel>().empty());
  step(JobRuns::BytesReceived{1, JobPipe::channel, much});
  ASSERT_EQ(all<JobRuns::PauseChannel>().size(), 1U);
  EXPECT_TRUE(all<JobRuns::PauseChannel>().at(0)->is_held);
  step(JobRuns::Kill{1, KillReason::cancelled});
  EXPECT_EQ(all<JobRuns::KillRun>().size(), 1U);
  step(first());
  EXPECT_TRUE(all<JobRuns::PauseChannel>().empty()) << "the remaining data is being written";
  step(work()());
  ASSERT_EQ(all<JobRuns::PauseChannel>().size(), 1U);
  EXPECT_FALSE(all<JobRuns::PauseChannel>().at(0)->is_held);
  end(1, RunStatus::cancelled);
  step(work()());  // the run notifies its disk at destruction, so the disk is destroyed before the runs
}

TEST_F(JobRunsDisk, RejectedFilesAreLoggedDuringAndAfterTheRun) {
  begin_with_file("bad");
  step(JobRuns::BytesReceived{1, JobPipe::channel, "x"});
  step(work()());
  EXPECT_EQ(log_lines(), "bad is not kept\n");
  end(1, RunStatus::ok);
  step(work()());
  EXPECT_EQ(log_lines(), "finished\n");
}

TEST_F(JobRunsDisk, JobWithoutFilesWaitsForNoDisk) {
  begin_with_file();
  end(1, RunStatus::ok);
  EXPECT_TRUE(all<JobRuns::RunInBackground>().empty());
  EXPECT_EQ(reports<EndReport>().size(), 1U);
  EXPECT_EQ(disk_.calls(), "");
}

TEST_F(JobRunsDisk, FilesOfALostRunAreRemovedInBackground) {
  begin_with_file();
  step(JobRuns::BytesReceived{1, JobPipe::channel, "x"});
  auto write = work();
  end(1, RunStatus::lost);
  ASSERT_EQ(reports<Release>().size(), 1U);
  auto drop = work();
  actions_.clear();
  step(write());
  EXPECT_TRUE(actions_.empty()) << "no run waits for the result";
  write = {};
  EXPECT_EQ(disk_.calls(), "open file write x");
  drop = {};
  EXPECT_EQ(disk_.calls(), "open file write x gone");
}

}  // namespace
}  // namespace mycojobs::test
