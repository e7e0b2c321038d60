// The run loop with a fake sandbox that the test controls; the tests check the reports for the store.
#include "worker/runs/run_loop.h"
#include "base/log.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "support/fake_sandbox.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

// Ends as the test specifies, whatever the job sent. Each piece of channel data becomes a note.
class ScriptedConversation final : public Conversation {
 public:
  explicit ScriptedConversation(JobEnd end) : end_(std::move(end)) {}
  std::string consume_output() override { return std::exchange(request_, {}); }
  void feed(std::string_view bytes) override { notes_.emplace_back(bytes); }
  std::vector<std::string> consume_notes() override { return std::exchange(notes_, {}); }
  JobEnd finish(const Outcome& outcome) const override {
    JobEnd end = end_;
    if (outcome.violation) end.receipt = outcome.violation->comm;
    if (outcome.status == RunStatus::output_limit) end.error = outcome.reason;
    return end;
  }

 private:
  std::string request_ = "x";
  JobEnd end_;
  std::vector<std::string> notes_;
};

// Treats channel data as calls on the object store; each reply becomes a note.
class CallingConversation final : public Conversation {
 public:
  std::string consume_output() override { return std::exchange(request_, {}); }
  void feed(std::string_view bytes) override { calls_.emplace_back(bytes); }
  std::vector<std::string> consume_calls() override { return std::exchange(calls_, {}); }
  void answer(std::string_view reply) override { notes_.emplace_back(reply); }
  std::vector<std::string> consume_notes() override { return std::exchange(notes_, {}); }
  JobEnd finish(const Outcome&) const override { return {}; }

 private:
  std::string request_ = "x";
  std::vector<std::string> calls_, notes_;
};

class RunLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "1");
    secret("TOKEN", "correct horse battery");
    settings_.secrets.folder = folder_.path().string();
    settings_.retry = {1000, 8000};
    settings_.slots = 16;
  }
  void secret(const std::string& name, const std::string& value) {
    ASSERT_EQ(::chmod(folder_.write("1/" + name, value).c_str(), 0600), 0);
  }
  void start(RunNumber run, JobEnd end = {}, std::uint32_t attempt = 1, std::uint32_t retries = 0, Id context = 1) {
    if (!loop_) {
      RunLoop::Callbacks callbacks{[this](RunReport report) { posted_.post(std::move(report)); }};
      callbacks.on_call = [this](const BrokerCall&) { ++asked_; };
      callbacks.has_current_secrets = [this](Id of, const std::vector<Secret>& given) {
        return SecretReader(settings_.secrets, of).rescan()->contains(given);
      };
      loop_ = std::make_unique<RunLoop>(std::make_unique<FakeSandbox>(control_), clock_, settings_, run_rate_,
                                        std::move(callbacks));
    }
    JobStart increment;
    increment.run = run;
    increment.claim = {context,  "job:1:" + std::to_string(run), "claim", "token", "python", traceparent_, attempt,
                       unix_us()};
    increment.context = context;
    increment.specs.emplace_back().context = context;
    increment.attempt = attempt;
    increment.retries = retries;
    increment.deadline_boot_ms = deadline_boot_ms_;
    const auto secrets = SecretReader(settings_.secrets, context).rescan();
    std::vector<Secret> granted;
    for (const Secret& each : secrets->all()) granted.push_back({each.name, each.value});
    increment.redactor = secrets->get_redactor(granted);
    increment.specs.back().warm = warm_;
    increment.warm_secrets = warm_secrets_;
    increment.specs.back().merge_output = merge_output_;
    increment.output_bytes = output_bytes_;
    increment.output_kill = output_kill_;
    increment.uses_object_store = calls_objects_;
    increment.conversation = std::make_unique<ScriptedConversation>(std::move(end));
    if (calls_) increment.conversation = std::make_unique<CallingConversation>();
    loop_->start(std::move(increment));
    ASSERT_TRUE(eventually([&] { return control_.is_running(run); }));
  }
  void collect() {
    for (RunReport& outgoing : posted_.consume_all()) {
      if (const auto* logs = std::get_if<LogAppend>(&outgoing.report)) {
        for (const Log& line : logs->lines) text_[line.stream] += line.text, last_seq_ = line.seq;
      } else {
        reports_.push_back(std::move(outgoing));
      }
    }
  }
  bool wait_for_reports(std::size_t count) {
    return eventually([&] {
      collect();
      return reports_.size() >= count;
    });
  }
  bool wait_for_text(LogStream stream, const std::string& text) {
    return eventually([&] {
      collect();
      return text_[stream].find(text) != std::string::npos;
    });
  }
  template <class Kind>
  const Kind& report(std::size_t at) {
    return std::get<Kind>(reports_.at(at).report);
  }

  std::uint64_t output_bytes_ = 1U << 20;
  bool output_kill_ = false;
  bool calls_ = false, calls_objects_ = false;
  std::atomic<int> asked_ = 0;
  std::uint64_t deadline_boot_ms_ = 0;
  std::string traceparent_;
  WarmReuse warm_;
  std::vector<Secret> warm_secrets_;
  TempDir folder_;
  SystemClock clock_;
  SandboxControl control_;
  WorkerSettings settings_;
  Mailbox<RunReport> posted_;
  std::map<LogStream, std::string> text_;
  std::uint64_t last_seq_ = 0;  // number of the latest line
  bool merge_output_ = false;
  std::vector<RunReport> reports_;
  RunRate run_rate_;
  std::unique_ptr<RunLoop> loop_;
};

// The process is forgotten even without other events, such as a new job or output.
TEST_F(RunLoopTest, WarmProcessWithARevokedSecretIsEnded) {
  warm_ = {10, 1000, "key", "family"};
  warm_secrets_ = {{"TOKEN", "correct horse battery"}};
  start(1);
  control_.end(1, RunStatus::ok);
  ASSERT_TRUE(wait_for_reports(1));
  const auto is_key_retired = [&] {
    std::lock_guard lock(control_.mutex);
    return !control_.retired_warm_keys.empty() && control_.retired_warm_keys.front() == "key";
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(WarmSecrets::kCheckIntervalMs + 500));
  EXPECT_FALSE(is_key_retired()) << "the key has not changed";
  std::filesystem::remove(folder_ / "1/TOKEN");
  EXPECT_TRUE(eventually(is_key_retired));
}

JobEnd failure(const std::string& detail = "exit") {
  JobEnd end;
  end.detail = detail;
  end.error = "failed";
  return end;
}

TEST_F(RunLoopTest, FloodingJobWaitsAndLosesNothing) {
  settings_.output_rate = 1 << 20;
  output_bytes_ = 16U << 20;
  start(1);
  int pipe = -1;
  {
    std::lock_guard lock(control_.mutex);
    pipe = control_.ends.at(1)[0].get();
  }
  const std::string text = std::string((3U << 20) - 1, 'x') + "\n";
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(pipe, text.data() + written, text.size() - written);
    if (count > 0) written += static_cast<std::size_t>(count);
    pollfd ready{pipe, POLLOUT, 0};
    ASSERT_EQ(::poll(&ready, 1, 10'000), 1) << "the agent stopped reading after " << written << " bytes";
  }
  control_.end(1, RunStatus::ok);
  ASSERT_TRUE(wait_for_reports(1));
  EXPECT_EQ(text_[LogStream::out].size(), written);
}

TEST_F(RunLoopTest, SecretsAreRemovedFromAllOutput) {
  JobEnd end = failure();
  end.error = "Error: correct horse battery";
  end.error_info = nlohmann::json({{"message", "correct horse\nbattery"}}).dump();
  end.result = {{"Y29ycmVjdCBob3JzZSBiYXR0ZXJ5", "correct%20horse%20battery"}};
  start(1, end);
  control_.write(1, LogStream::out, "a correct ");
  control_.write(1, LogStream::err, "horse battery\n");  // another stream is a separate text
  control_.write(1, LogStream::out, "horse battery\nand correct hor");
  control_.write(1, LogStream::system, "at correct horse battery");
  ASSERT_TRUE(wait_for_text(LogStream::system, "at"));
  ASSERT_TRUE(wait_for_text(LogStream::out, "and "));
  collect();
  EXPECT_EQ(text_[LogStream::out], "a [secret TOKEN]\nand ") << "a possible start of a secret is withheld";
  Outcome outcome;
  outcome.status = RunStatus::violation;
  outcome.violation.emplace().comm = "correct horse battery";
  control_.end(1, outcome);
  ASSERT_TRUE(wait_for_reports(1));
  EXPECT_EQ(text_[LogStream::out], "a [secret TOKEN]\nand correct hor");
  EXPECT_EQ(text_[LogStream::err], "horse battery\n");
  EXPECT_EQ(text_[LogStream::system], "at [secret TOKEN]\n");
  const JobEnd& stored = report<EndReport>(0).end;
  EXPECT_EQ(stored.error, "Error: [secret TOKEN]");
  EXPECT_EQ(stored.error_info, R"({"message":"[secret TOKEN]"})");
  EXPECT_EQ(stored.result, (TextMap{{"[secret TOKEN]", "[secret TOKEN]"}}));
  EXPECT_EQ(stored.receipt, "[secret TOKEN]");
}

TEST_F(RunLoopTest, ObjectCallsNeedAnExecutorWithObjects) {
  calls_ = true;
  start(1);
  control_.write(1, LogStream::system, R"({"id":1,"method":"osis.put","params":{}})");
  ASSERT_TRUE(eventually([&] {  // the reply becomes a note when the next data is read
    control_.write(1, LogStream::system, "again");
    collect();
    return text_[LogStream::system].find("only scripts of the type osis") != std::string::npos;
  }));
  EXPECT_EQ(asked_, 0);
  calls_objects_ = true;
  start(2);
  control_.write(2, LogStream::system, R"({"id":1,"method":"osis.put","params":{}})");
  EXPECT_TRUE(eventually([&] { return asked_ > 0; }));
}

TEST_F(RunLoopTest, OutputLimitKillsTheJobIfConfigured) {
  output_bytes_ = 2000;
  output_kill_ = true;
  start(1, failure());
  control_.write(1, LogStream::out, std::string(600, 'a') + "\n");
  control_.write(1, LogStream::err, std::string(300, 'b') + "\n");
  ASSERT_TRUE(wait_for_text(LogStream::err, "b"));
  EXPECT_TRUE(control_.is_running(1)) << "both streams count together, and the limit is not reached";
  control_.write(1, LogStream::out, std::string(1200, 'c') + "\n");
  ASSERT_TRUE(wait_for_reports(1));
  std::lock_guard lock(control_.mutex);
  ASSERT_EQ(control_.kill_calls.size(), 1U) << "the run is killed only once";
  EXPECT_EQ(control_.kill_calls[0].reason, KillReason::output_limit);
}

TEST_F(RunLoopTest, JobThatEndsBeforeTheOutputKillEndsTheSame) {
  output_bytes_ = 1000;
  output_kill_ = true;
  start(1);
  {
    std::lock_guard lock(control_.mutex);  // output and end are visible at the same time
    const std::string block(2000, 'a');
    ASSERT_EQ(::write(control_.ends.at(1)[0].get(), block.data(), block.size()), 2000);
    Outcome outcome;
    outcome.status = RunStatus::ok;
    control_.ended.push_back({1, outcome});
    control_.running.erase(1);
    control_.ends.erase(1);
    const std::uint64_t increment = 1;
    ASSERT_EQ(::write(control_.event.get(), &increment, sizeof increment), 8);
  }
  ASSERT_TRUE(wait_for_reports(1));
  EXPECT_EQ(report<EndReport>(0).end.error, "over its output limit of 1000 bytes (policy.output.keep)");
}

TEST_F(RunLoopTest, OutputIsShortenedToThePolicysLimit) {
  output_bytes_ = 1000;
  start(1);
  control_.write(1, LogStream::out, std::string(5000, 'a') + "\n");
  control_.end(1, RunStatus::ok);
  ASSERT_TRUE(wait_for_reports(1));
  EXPECT_LE(text_[LogStream::out].size(), 1000U);
  EXPECT_EQ(last_seq_, 1U + 4501U) << "one number for the head, and one for each byte behind it";
  std::lock_guard lock(control_.mutex);
  EXPECT_TRUE(control_.kill_calls.empty());
}

TEST_F(RunLoopTest, MergedOutputIsOneStream) {
  merge_output_ = true;
  start(1);
  control_.write(1, LogStream::err, "a\n");
  control_.write(1, LogStream::out, "b\n");
  control_.write(1, LogStream::err, "c\n");
  EXPECT_TRUE(wait_for_text(LogStream::out, "a\nb\nc\n")) << text_[LogStream::out];
  EXPECT_TRUE(text_[LogStream::err].empty());
}

TEST_F(RunLoopTest, SecretsOfOneContextAreNotThoseOfAnother) {
  start(1, {}, 1, 0, 2);
  control_.write(1, LogStream::out, "correct horse battery\n");
  EXPECT_TRUE(wait_for_text(LogStream::out, "correct horse battery\n"));
}

TEST_F(RunLoopTest, WaitReportsWhetherTheSandboxWasReady) {
  settings_.metrics = Metrics::make();
  RunNumber run = 0;
  for (const std::vector<StepTime>& setup : {std::vector<StepTime>{{"clone", 300}, {"mounts", 200}},
                                             {{std::string(kPrewarmedStep), 90}},
                                             {{"clone", 5000}, {std::string(kWarmStep), 40}},
                                             {{std::string(kWarmStep), 60}}}) {
    start(++run, failure());
    Outcome outcome;
    outcome.status = RunStatus::exit;
    outcome.setup = setup;
    control_.end(run, outcome);
    ASSERT_TRUE(wait_for_reports(run));
  }
  const std::string text = settings_.metrics->render();
  for (const char* line : {"sum{sandbox=\"new\"} 0.0005", "count{sandbox=\"ready\"} 1", "count{sandbox=\"warm\"} 2",
                           "sum{sandbox=\"warm\"} 0.0001"})
    EXPECT_NE(text.find(std::string("mycojobs_sandbox_setup_seconds_") + line), std::string::npos) << line << text;
}

struct RecordedSpans final : Traces {
  bool is_enabled() const override { return true; }
  void add(Span span) override {
    const std::lock_guard lock(mutex);
    spans.push_back(std::move(span));
  }
  std::vector<Span> named(const std::string& name) {
    const std::lock_guard lock(mutex);
    std::vector<Span> found;
    std::copy_if(spans.begin(), spans.end(), std::back_inserter(found), [&](const Span& s) { return s.name == name; });
    return found;
  }
  std::mutex mutex;
  std::vector<Span> spans;
};

// The sandbox may have been started long before the job arrived.
TEST_F(RunLoopTest, SpansStartWithTheClaimAndFailWithTheEnd) {
  const auto recorded = std::make_shared<RecordedSpans>();
  settings_.traces = recorded;
  traceparent_ = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const std::uint64_t before = unix_us();
  start(1, failure("exception"), 3);
  Outcome outcome;
  outcome.status = RunStatus::exit;
  outcome.setup = {{"clone", 3600000000U}};
  control_.end(1, outcome);
  ASSERT_TRUE(wait_for_reports(1));
  ASSERT_EQ(recorded->named("run").size(), 1U);
  const Span run = recorded->named("run")[0];
  EXPECT_EQ(run.error, "exception");
  EXPECT_EQ(run.kind, SpanKind::consumer);
  const Span sandbox = recorded->named("sandbox").at(0);
  EXPECT_GE(sandbox.start_us, before);
  EXPECT_EQ(sandbox.end_us, run.start_us);
  const std::pair<std::string, std::string> third{"mycojobs.attempt", "3"};
  for (const Span& span : {run, sandbox})
    EXPECT_EQ(std::count(span.attributes.begin(), span.attributes.end(), third), 1) << span.name;
}

TEST_F(RunLoopTest, FailureIsRetriedWhileAttemptsRemain) {
  start(1, failure(), 2, 2);
  start(2, failure(), 3, 2);
  JobEnd forbidden = failure();
  forbidden.retry_forbidden = true;
  start(3, forbidden, 1, 2);
  JobEnd later = failure();
  later.retry_after_ms = 77;
  start(4, later, 1, 2);
  JobEnd fine;
  fine.status = JobStatus::finished;
  start(5, fine, 1, 2);
  for (RunNumber run = 1; run <= 5; ++run) {
    control_.end(run, RunStatus::exit);
    ASSERT_TRUE(wait_for_reports(run));
  }
  ASSERT_TRUE(report<EndReport>(0).retry_after_ms);
  EXPECT_GE(*report<EndReport>(0).retry_after_ms, 1000U);
  EXPECT_LE(*report<EndReport>(0).retry_after_ms, 2000U);
  EXPECT_FALSE(report<EndReport>(1).retry_after_ms);
  EXPECT_FALSE(report<EndReport>(2).retry_after_ms);
  EXPECT_EQ(report<EndReport>(3).retry_after_ms, 77U);
  EXPECT_FALSE(report<EndReport>(4).retry_after_ms);
}

// A process that survives KILL does not end its job and blocks no other job.
TEST_F(RunLoopTest, UnkillableRunIsMarkedAndEndsWhenItIsGone) {
  start(1, failure("cancelled"));
  control_.make_unkillable(1);
  loop_->kill(1, KillReason::cancelled);
  ASSERT_TRUE(wait_for_reports(1));
  EXPECT_EQ(report<DetailUpdate>(0).detail, "unkillable");
  EXPECT_EQ(report<DetailUpdate>(0).claim.job_key, "job:1:1");
  EXPECT_FALSE(reports_[0].is_last) << "the slot and the lease are not released";

  start(2);
  control_.end(2, RunStatus::ok);
  ASSERT_TRUE(wait_for_reports(2));
  EXPECT_EQ(reports_[1].run, 2U);
  loop_->fence(1, clock_.boot_ms() + 100000);
  EXPECT_TRUE(eventually([&] { return control_.get_fence(1) > clock_.boot_ms(); })) << "the lease is still renewed";

  control_.end(1, RunStatus::cancelled);
  ASSERT_TRUE(wait_for_reports(3));
  EXPECT_EQ(report<EndReport>(2).end.detail, "cancelled");
  EXPECT_TRUE(reports_[2].is_last);
}

TEST_F(RunLoopTest, UnkillableRunIsReportedWithJobProcessAndHost) {
  start(1);
  control_.make_unkillable(1);
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof host), 0);
  init_log(LogLevel::warn, LogFormat::automatic);  // resets the suppression of repeated log lines
  ::testing::internal::CaptureStderr();
  loop_->kill(1, KillReason::fenced);
  EXPECT_TRUE(wait_for_reports(1));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("job:1:1: unkillable on host " + std::string(host) + ": " + SandboxControl::kUnkillableReason),
            std::string::npos)
      << log;
}

TEST_F(RunLoopTest, StageAfterTheDeadlineGetsNoTime) {
  deadline_boot_ms_ = 1;
  start(1);
  std::lock_guard lock(control_.mutex);
  EXPECT_EQ(control_.running.at(1).limits.wall_ms, 1U);
}

}  // namespace
}  // namespace mycojobs::test
