// A blocked component outside the agent delays no other work: other jobs still start, write output, are cancelled and
// end. The tests check the order of events and do not assert times.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "store/redis/store_connection.h"
#include "support/agent_fixture.h"
#include "support/gate.h"
#include "support/standing_secrets.h"
#include "support/still_file.h"
#include "worker/leases/instance_lock.h"
#include "worker/runs/hang_detector.h"

namespace mycojobs::test {
namespace {

// Imitates a plugin that does not answer: the script "begin" blocks in begin(), the script "finish" blocks in finish().
// The script "leaves" stores an artifact.
class HangingExecutor final : public Executor {
 public:
  HangingExecutor(BlockingGate& gate, bool may_wait) : gate_(gate), can_block_(may_wait) {}
  std::string_view name() const override { return can_block_ ? "plugin" : "plain"; }
  std::vector<std::string> script_types() const override { return {std::string(name())}; }
  std::vector<Stage> stages() const override { return {{std::string(name()), "fake", {}}}; }
  Result<std::string> probe() const override { return "1"; }
  bool can_block() const override { return can_block_; }
  Result<std::unique_ptr<Conversation>> begin(const JobFacts& facts, ArtifactSink* sink) const override {
    if (facts.job.script == "begin") gate_.pass();
    if (facts.job.script == "never") return fail(Code::invalid, "script: never");
    if (facts.job.script == "leaves" && sink != nullptr && sink->open("file", false)) {
      sink->write("bytes");
      sink->close();
    }
    return std::make_unique<Talk>(facts.job.script == "finish" ? &gate_ : nullptr);
  }

 private:
  struct Talk final : Conversation {
    explicit Talk(BlockingGate* gate) : gate_(gate) {}
    std::string consume_output() override { return {}; }
    void feed(std::string_view) override {}
    std::vector<std::string> consume_notes() override { return {}; }
    JobEnd finish(const Outcome& outcome) const override {
      if (gate_ != nullptr) gate_->pass();
      JobEnd end;
      end.status = outcome.status == RunStatus::ok ? JobStatus::finished : JobStatus::error;
      end.detail = outcome.status == RunStatus::ok ? "ok" : "cancelled";
      return end;
    }
    BlockingGate* gate_;
  };
  BlockingGate& gate_;
  bool can_block_;
};

// Imitates a plugin that holds back the jobs of one caller after that caller's failures.
class PausingExecutor final : public Executor {
 public:
  static constexpr Id kCaller = 66;
  std::string_view name() const override { return "rests"; }
  std::vector<std::string> script_types() const override { return {"rests"}; }
  std::vector<Stage> stages() const override { return {{"rests", "fake", {}}}; }
  Result<std::string> probe() const override { return "1"; }
  bool can_block() const override { return true; }
  bool is_paused(Id, Id caller) const override { return caller == kCaller; }
  Result<std::unique_ptr<Conversation>> begin(const JobFacts& facts, ArtifactSink* sink) const override {
    if (facts.job.caller_id == kCaller) return fail(Code::unavailable, "it rests");
    return FakeExecutor().begin(facts, sink);
  }
};

// Context 3 uses a Redis server of its own.
class TwoServers final : public StoreFactory {
 public:
  TwoServers(MemoryServer& all, MemoryServer& third) : all_(all), third_(third) {}
  Result<std::unique_ptr<Store>> open() override {
    return std::make_unique<Store>(std::make_unique<StoreConnection>(
        [this](Id context) -> Result<std::unique_ptr<Link>> { return get_server(context).open_link(context); }));
  }
  Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic) override {
    return get_server(queues.front().first).open_waiter(queues, topic);
  }
  Result<std::unique_ptr<HintSubscription>> subscribe(Id context, const HintTopics& topics,
                                                      HintListener& listener) override {
    return get_server(context).subscribe(context, topics, listener);
  }
  Result<std::unique_ptr<ObjectStore>> open_objects() override { return all_.open_objects(); }
  Result<std::unique_ptr<FlowStore>> open_flows() override { return all_.open_flows(); }
  Result<std::unique_ptr<WorkflowStore>> open_workflows() override { return all_.open_workflows(); }

 private:
  MemoryServer& get_server(Id context) { return context == 3 ? third_ : all_; }
  MemoryServer &all_, &third_;
};

class Isolation : public AgentTest {
 protected:
  ~Isolation() override {
    gate_.open();
    agent_.reset();
  }
  void start_all(std::uint32_t slots = 4) {
    settings_.slots = slots;
    std::vector<std::unique_ptr<Executor>> executors;
    executors.push_back(std::make_unique<FakeExecutor>());
    executors.push_back(std::make_unique<HangingExecutor>(gate_, true));
    executors.push_back(std::make_unique<HangingExecutor>(gate_, false));
    executors.push_back(std::make_unique<PausingExecutor>());
    auto agent = Agent::start({servers_, std::make_unique<FakeSandbox>(control_), std::move(executors), agent_clock_},
                              settings_);
    ASSERT_TRUE(agent) << agent.error().message;
    agent_ = std::move(*agent);
  }
  std::string submit_as(const std::string& type, const std::string& script) {
    Job job = new_job(script);
    job.script_type = type;
    return submit(job);
  }
  std::uint64_t wait_for_next_run() {
    const auto before = control_.runs();
    last_ = submit();
    std::uint64_t run = 0;
    EXPECT_TRUE(eventually([&] {
      for (const std::uint64_t each : control_.runs()) {
        if (std::find(before.begin(), before.end(), each) == before.end()) run = each;
      }
      return run != 0;
    }));
    return run;
  }
  // Runs two other jobs: the first writes output and ends, the second is cancelled.
  void expect_others_continue() {
    const std::uint64_t run = wait_for_next_run();
    const std::string writes = last_;
    control_.write(run, LogStream::out, "hello\n");
    EXPECT_TRUE(eventually([&] { return client_->logs(1, writes, 0, 10, 0).value().lines.size() == 1; }));
    control_.end(run, RunStatus::ok);
    EXPECT_TRUE(wait_for_end(writes));
    EXPECT_EQ(read(writes).status, JobStatus::finished);
    wait_for_next_run();
    const std::string cancelled = last_;
    EXPECT_TRUE(client_->cancel(1, cancelled));
    EXPECT_TRUE(wait_for_end(cancelled));
    EXPECT_EQ(read(cancelled).detail, "cancelled");
  }
  void expect_a_due_job_runs(std::uint64_t in_ms) {
    Job due = new_job();
    due.run_at_ms = clock_.unix_ms() + in_ms;
    const std::string delayed = submit(due);
    ASSERT_TRUE(wait_for_runs(1));
    control_.end_all(RunStatus::ok);
    EXPECT_TRUE(wait_for_end(delayed));
  }
  bool has_ended(const std::string& key) { return read(key).ended_ms != 0; }
  // Serves context 3, which has a server of its own, and context 1.
  void serve_contexts_1_and_3() {
    settings_.contexts = {3, 1};
    settings_.servers = {{3, 1}};
  }
  std::string submit_to_third() { return redis_key(of_third_->submit(new_job("x", 3)).value()); }
  Job read_third(const std::string& key) { return decode<Job>(*of_third_->load(3, key)).record; }
  bool runs_in_third(const std::string& key) {
    return eventually([&] {
      control_.end_all(RunStatus::ok);
      return read_third(key).status == JobStatus::finished;
    });
  }
  void disconnect_third() {
    third_.set_faults([](const ServerCall&) { return Fault::before; });
  }
  // The first call fails; later calls block.
  void hang_third() {
    third_.set_faults([this, first = true](const ServerCall&) mutable {
      if (std::exchange(first, false)) return Fault::before;
      gate_.pass();
      return Fault::none;
    });
  }
  // Registers the runner as an agent on another host with the same runner id would.
  static Result<void> hold_runner_id(Store& store, Id context, const std::string& instance = kOther) {
    Runner runner;
    runner.id = 1;
    runner.local = true;  // The next agent must follow this record.
    RunnerHolder held_by;
    return store.hold_runner(context, runner, {instance, "another host", "its boot", 1}, 60000, "", held_by);
  }
  static void claim_one(Store& store, Id context, const std::string& instance) {
    const auto reply = store.claim({.context = context, .runner = 1, .instance = instance, .queues = {"queue:fake"}});
    ASSERT_TRUE(reply && reply->jobs.size() == 1);
  }

  static inline const std::string kDead = std::string(32, 'd'), kOther = std::string(32, 'e');
  static inline const std::string kThirdIsOut = "this runner is not registered yet in the store of context 3";
  BlockingGate gate_;
  BlockingSecretsClock agent_clock_{gate_};
  std::string last_;
  MemoryServer third_{clock_};
  TwoServers servers_{server_, third_};
  std::unique_ptr<Store> of_third_ = *third_.open();
};

TEST_F(Isolation, PluginHangingInBeginDelaysNoOther) {
  start_all();
  const std::string hangs = submit_as("plugin", "begin");
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  expect_others_continue();
  EXPECT_EQ(gate_.waiting_count(), 1U);
  EXPECT_FALSE(has_ended(hangs));
  gate_.open();
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(hangs));
  EXPECT_EQ(read(hangs).status, JobStatus::finished);
}

// Regression test: held-back jobs were repeatedly first in their queue, and the queue was paused with them.
TEST_F(Isolation, PausedCallerDelaysNoOtherCallers) {
  start_all(1);
  std::vector<std::string> lock_file;
  for (int i = 0; i < 3; ++i) {
    Job job = new_job("x");
    job.script_type = "rests";
    job.caller_id = PausingExecutor::kCaller;
    lock_file.push_back(submit(job));
  }
  for (int i = 0; i < 20; ++i) {
    const std::string other = submit_as("rests", "y");
    EXPECT_TRUE(eventually([&] {
      control_.end_all(RunStatus::ok);
      return read(other).ended_ms != 0;
    })) << i;
    EXPECT_EQ(read(other).status, JobStatus::finished);
  }
  for (const std::string& key : lock_file) {
    EXPECT_EQ(read(key).status, JobStatus::dispatched);
    EXPECT_EQ(read(key).deliveries, 0U) << "a job that did not start has no delivery";
  }
}

TEST_F(Isolation, PluginHangingInBeginDoesNotKeepAllSlots) {
  start_all(2);
  const std::array hang{submit_as("plugin", "begin"), submit_as("plugin", "begin")};
  for (const std::string& each : hang) ASSERT_TRUE(eventually([&] { return read(each).status == JobStatus::started; }));
  agent_clock_.advance(HangDetector::kTimeoutMs);
  expect_others_continue();
  EXPECT_EQ(gate_.waiting_count(), 1U) << "only one call waits in the hanging plugin";
  gate_.open();
  ASSERT_TRUE(eventually([&] {
    control_.end_all(RunStatus::ok);
    return has_ended(hang[0]) && has_ended(hang[1]);
  }));
  for (const std::string& each : hang) EXPECT_EQ(read(each).status, JobStatus::finished);
}

TEST_F(Isolation, JobOfAPluginHangingInBeginIsCancelled) {
  start_all(1);
  const std::string hangs = submit_as("plugin", "begin");
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  ASSERT_TRUE(client_->cancel(1, hangs));
  ASSERT_TRUE(wait_for_end(hangs));
  EXPECT_EQ(read(hangs).detail, "cancelled");
  EXPECT_EQ(gate_.waiting_count(), 1U);
  expect_others_continue();  // the slot of the cancelled job is free
  gate_.open();
  expect_others_continue();
  EXPECT_EQ(control_.launches, 4U) << "jobs that started too late did not run";
}

TEST_F(Isolation, PluginHangingInFinishDelaysNoOther) {
  start_all(1);
  const std::string hangs = submit_as("plugin", "finish");
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  expect_others_continue();  // uses the only slot
  EXPECT_FALSE(has_ended(hangs));
  gate_.open();
  ASSERT_TRUE(wait_for_end(hangs));
  EXPECT_EQ(read(hangs).status, JobStatus::finished);
}

TEST_F(Isolation, OtherRunsAreCancelledDuringAHangingFinish) {
  start_all();
  const std::string hangs = submit_as("plugin", "finish");
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  expect_others_continue();
  EXPECT_FALSE(has_ended(hangs));
  gate_.open();
  EXPECT_TRUE(wait_for_end(hangs));
}

TEST_F(Isolation, ScriptTypesApplyToEntriesOfEveryQueue) {
  settings_.script_types = {"fake"};
  start_all();
  const std::string key = "job:7:4000";
  server_.run_command(1, {"HSET", key, "id", "4000", "caller_id", "7", "context_id", "1", "script_type", "plain",
                          "script", "x", "status", "dispatched"});
  server_.push(1, "queue:fake", key);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).detail, "dead_letter");
  EXPECT_EQ(read(key).error,
            "script_type: the setting script_types of runner 1 does not name \"plain\" (entry of queue:fake)");
}

TEST_F(Isolation, PluginsReasonForAnImpossibleJobIsItsEnd) {
  start_all();
  const std::string never = submit_as("plugin", "never");
  ASSERT_TRUE(wait_for_end(never));
  EXPECT_EQ(read(never).detail, "dead_letter");
  EXPECT_EQ(read(never).error, "script: never");
}

// Storing the artifacts of each job waits up to 2 s for the lock. The jobs wait one after the other, without delaying
// other work.
TEST_F(Isolation, LockedDiskDelaysNoOther) {
  TempDir folder;
  settings_.state_dir = folder.path().string();
  start_all(8);
  const std::string lock = folder / "contexts/1/lock";
  std::filesystem::create_directories(std::filesystem::path(lock).parent_path());
  const Fd lock_file(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(lock_file);
  ASSERT_EQ(::flock(lock_file.get(), LOCK_EX), 0);
  std::vector<std::string> leaving;
  for (int i = 0; i < 5; ++i) leaving.push_back(submit_as("plain", "leaves"));
  ASSERT_TRUE(wait_for_runs(5));
  control_.end_all(RunStatus::ok);
  expect_others_continue();
  EXPECT_FALSE(has_ended(leaving.back())) << "the job did not get the lock before the other jobs ended";
  ASSERT_EQ(::flock(lock_file.get(), LOCK_UN), 0);
  for (const std::string& key : leaving) {
    ASSERT_TRUE(wait_for_end(key));
    EXPECT_EQ(read(key).status, JobStatus::finished);
  }
  EXPECT_NE(read(leaving.back()).artifacts, "") << "the lock was free for the last job";
}

TEST_F(Isolation, HangingDiskDelaysNoArtifactsOfOtherContexts) {
  TempDir folder;
  BlockingFile lock(folder / "contexts/1/lock");
  settings_.state_dir = folder.path().string();
  settings_.contexts = {1, 2};
  start_all();
  const auto submit_with_artifact = [&](Id context) {
    Job job = new_job("leaves", context);
    job.script_type = "plain";
    return submit(job);
  };
  const std::string blocked_job = submit_with_artifact(1);
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(eventually([&] { return lock.is_waited_for(); }));
  const std::string other_job = submit_with_artifact(2);
  ASSERT_TRUE(eventually([&] {
    control_.end_all(RunStatus::ok);
    return read(other_job, 2).ended_ms != 0;
  }));
  EXPECT_NE(read(other_job, 2).artifacts, "");
  expect_others_continue();
  EXPECT_FALSE(has_ended(blocked_job));
  EXPECT_TRUE(lock.is_blocked());
  lock.unblock();
  ASSERT_TRUE(wait_for_end(blocked_job));
  EXPECT_NE(read(blocked_job).artifacts, "");
}

// Returns whether this process has a thread of this name.
bool has_thread(const std::string& name) {
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(each.path() / "comm"), comm);
    if (comm == name) return true;
  }
  return false;
}

// The storage thread is blocked by the artifacts of one job; the check of the inputs of another job is queued behind
// it.
TEST_F(Isolation, InputsOnAHangingDiskDelayNoOther) {
  TempDir folder;
  BlockingFile lock(folder / "contexts/1/lock");
  settings_.state_dir = folder.path().string();
  start_all();
  wait_for_next_run();
  const std::string before = last_;
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(before));
  ASSERT_TRUE(client_->save(
      1, before, {{"artifacts", R"({"app":{"sha256":")" + std::string(64, 'a') + R"(","bytes":1,"text":true}})"}}));
  const std::string leaves = submit_as("plain", "leaves");
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  // The sweep of artifacts opens the lock as well, so the storage thread must have its work, too.
  ASSERT_TRUE(eventually([&] { return lock.is_waited_for() && has_thread(disk_strand_name(1)); }));
  Job wants = new_job();
  wants.dependends = {read(before).id};
  wants.inputs = {std::to_string(read(before).id) + "/app"};
  const std::string blocked_job = submit(wants);
  ASSERT_TRUE(eventually([&] { return read(blocked_job).status == JobStatus::started; }));
  expect_others_continue();
  EXPECT_FALSE(has_ended(blocked_job));
  EXPECT_FALSE(has_ended(leaves));
  EXPECT_TRUE(lock.is_blocked());
  lock.unblock();
  ASSERT_TRUE(wait_for_end(blocked_job));
  EXPECT_EQ(read(blocked_job).detail, "artifact_lost");
  EXPECT_NE(read(blocked_job).error.find("does not have it any more"), std::string::npos) << read(blocked_job).error;
}

TEST_F(Isolation, SecretsOnAHangingDiskBlockOnlyTheirContext) {
  TempDir folder;
  settings_.secrets.folder = folder.path().string();
  settings_.contexts = {2, 1};
  agent_clock_.block_context(2);
  start_all();
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  const std::string blocked_job = submit(new_job("x", 2));
  for (int i = 0; i < 3; ++i) expect_others_continue();
  EXPECT_EQ(read(blocked_job, 2).status, JobStatus::dispatched) << "another agent can claim the job";
  EXPECT_EQ(agent_->unready_reason(), "the secrets of context 2 are not read yet: see to the disk of secrets_dir");
  gate_.open();
  EXPECT_TRUE(eventually([&] {
    control_.end_all(RunStatus::ok);
    return read(blocked_job, 2).ended_ms != 0;
  }));
  EXPECT_EQ(agent_->unready_reason(), "");
}

TEST_F(Isolation, KnownSecretsStayValidOnAHangingDisk) {
  TempDir folder;
  std::filesystem::create_directory(folder / "1");
  ASSERT_EQ(::chmod(folder.write("1/db", "hunter2-of-the-test").c_str(), 0600), 0);
  settings_.secrets.folder = folder.path().string();
  settings_.ceilings.standard.secrets = {"db"};
  start_all();
  expect_others_continue();
  agent_clock_.block_context(1);
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  expect_others_continue();
  Job asks = new_job();
  asks.policy = R"({"secrets":["db"]})";
  const std::string key = submit(asks);
  ASSERT_TRUE(wait_for_runs(1));
  control_.write(control_.runs().front(), LogStream::out, "hunter2-of-the-test\n");
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).status, JobStatus::finished);
  EXPECT_EQ(client_->logs(1, key, 0, 10, 0).value().lines.at(0).text, "[secret db]\n");
  gate_.open();
}

// Delayed jobs, the lease of a dead agent and a silent runner are still processed.
TEST_F(Isolation, SweepOnAHangingDiskDelaysNoTimers) {
  TempDir folder;
  std::filesystem::create_directories(folder / "contexts/1/objects");
  BlockingFile lock(folder / "contexts/1/lock");
  settings_.state_dir = folder.path().string();
  settings_.lease_ms = 1000;
  start_all();
  ASSERT_TRUE(eventually([&] { return lock.is_waited_for(); }));
  const std::string of_the_dead = submit_as("other", "x");
  Runner dead;
  dead.id = 2;
  dead.detail = kRunnerRunning;
  RunnerHolder held_by;
  ASSERT_TRUE(client_->hold_runner(1, dead, {"b1", "host", "boot", 1}, 1000, "", held_by));
  const auto reply =
      client_->claim({.context = 1, .runner = 2, .instance = "b1", .queues = {"queue:other"}, .lease_ms = 1000});
  ASSERT_TRUE(reply && reply->jobs.size() == 1);
  ASSERT_NO_FATAL_FAILURE(expect_a_due_job_runs(500));
  EXPECT_TRUE(eventually([&] { return client_->queue_length(1, "queue:other").value() == 1; }));
  EXPECT_TRUE(eventually([&] { return decode<Runner>(*client_->load(1, "runner:2")).record.detail == "lost"; }));
  expect_others_continue();
  EXPECT_FALSE(has_ended(of_the_dead));
  EXPECT_TRUE(lock.is_blocked());
  lock.unblock();
}

std::size_t count_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_F(Isolation, ThreadsDoNotGrowWithTheContexts) {
  TempDir folder;
  settings_.state_dir = folder.path().string();
  settings_.secrets.folder = folder / "secrets";
  for (Id context = 2; context <= 50; ++context) settings_.contexts.push_back(context);
  const std::size_t threads_before = count_threads();
  start_all();
  for (const Id context : {1U, 17U, 50U}) {
    Job job = new_job("leaves", context);
    job.script_type = "plain";
    const std::string key = submit(job);
    EXPECT_TRUE(eventually([&] {
      control_.end_all(RunStatus::ok);
      return read(key, context).ended_ms != 0;
    }));
    EXPECT_NE(read(key, context).artifacts, "");
  }
  EXPECT_LE(count_threads(), threads_before + 14);
}

TEST_F(Isolation, ContextsOfOneServerShareItsThreads) {
  settings_.contexts = {1, 3};
  settings_.servers = {{1, 1}, {3, 1}};
  const std::size_t threads_before = count_threads();
  TwoServers servers(server_, server_);
  std::vector<std::unique_ptr<Executor>> executors;
  executors.push_back(std::make_unique<FakeExecutor>());
  auto agent =
      Agent::start({servers, std::make_unique<FakeSandbox>(control_), std::move(executors), agent_clock_}, settings_);
  ASSERT_TRUE(agent) << agent.error().message;
  agent_ = std::move(*agent);
  EXPECT_LE(count_threads(), threads_before + 8);
  for (const Id context : {1U, 3U}) {
    const std::string key = submit(new_job("x", context));
    EXPECT_TRUE(eventually([&] {
      control_.end_all(RunStatus::ok);
      return read(key, context).ended_ms != 0;
    }));
  }
}

// Every call to that server blocks: claims, lease renewals, reports and sweeps.
TEST_F(Isolation, HangingServerDelaysNoOtherContext) {
  settings_.contexts = {3, 1};
  settings_.servers = {{3, 1}};
  settings_.lease_ms = 1000;
  start_all();
  const auto of_third = *third_.open();
  const auto submit_to_server = [&] { return redis_key(of_third->submit(new_job("x", 3)).value()); };
  const std::string ends = submit_to_server();
  ASSERT_TRUE(wait_for_runs(1));
  const std::uint64_t run_there = control_.runs().front();
  third_.set_faults([this](const ServerCall&) {
    gate_.pass();
    return Fault::none;
  });
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; })) << "the next call to the server blocks";
  control_.end(run_there, RunStatus::ok);
  for (int i = 0; i < 5; ++i) expect_others_continue();
  ASSERT_NO_FATAL_FAILURE(expect_a_due_job_runs(100));
  EXPECT_EQ(gate_.waiting_count(), 1U);
  gate_.open();
  third_.set_faults(nullptr);
  const std::string later = submit_to_server();
  EXPECT_TRUE(eventually([&] {
    control_.end_all(RunStatus::ok);
    return decode<Job>(*of_third->load(3, later)).record.ended_ms != 0 &&
           decode<Job>(*of_third->load(3, ends)).record.ended_ms != 0;
  }));
}

TEST_F(Isolation, ServerMissingAtStartIsServedOnceAvailable) {
  TempDir folder;
  settings_.state_dir = folder.path().string();
  serve_contexts_1_and_3();
  { ASSERT_TRUE(InstanceLock::acquire(settings_.state_dir, 1, kDead)); }
  const std::string of_the_dead = submit_to_third(), of_the_dead_too = submit();
  ASSERT_TRUE(hold_runner_id(*of_third_, 3, kDead));
  ASSERT_NO_FATAL_FAILURE(claim_one(*of_third_, 3, kDead));
  ASSERT_NO_FATAL_FAILURE(claim_one(*client_, 1, kDead));
  const std::string blocked_job = submit_to_third();
  disconnect_third();
  start_all();
  EXPECT_EQ(agent_->unready_reason(), kThirdIsOut);
  ASSERT_TRUE(wait_for_runs(1)) << "the job of the available server is released and runs again";
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(of_the_dead_too));
  EXPECT_EQ(read(of_the_dead_too).deliveries, 2U);
  for (int i = 0; i < 3; ++i) expect_others_continue();
  EXPECT_TRUE(eventually([&] { return agent_->is_healthy(); }));
  EXPECT_EQ(agent_->unready_reason(), kThirdIsOut);
  EXPECT_FALSE(list_instances(settings_.state_dir, 1).empty()) << "a job of this instance is not released yet";
  third_.set_faults(nullptr);
  EXPECT_TRUE(runs_in_third(blocked_job));
  EXPECT_TRUE(runs_in_third(of_the_dead));
  EXPECT_EQ(read_third(of_the_dead).deliveries, 2U);
  EXPECT_TRUE(list_instances(settings_.state_dir, 1).empty());
  EXPECT_TRUE(eventually([&] { return agent_->unready_reason().empty(); })) << agent_->unready_reason();
  EXPECT_TRUE(eventually([&] { return agent_->is_healthy(); }));
}

TEST_F(Isolation, ServerHangingAtARetryDelaysNoOther) {
  serve_contexts_1_and_3();
  const std::string blocked_job = submit_to_third();
  hang_third();
  start_all();
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  for (int i = 0; i < 3; ++i) expect_others_continue();
  EXPECT_TRUE(eventually([&] { return agent_->is_healthy(); }));
  EXPECT_EQ(agent_->unready_reason(), kThirdIsOut);
  EXPECT_EQ(gate_.waiting_count(), 1U);
  gate_.open();
  EXPECT_TRUE(runs_in_third(blocked_job));
}

TEST_F(Isolation, AllServersRegisterTheRunnerConcurrently) {
  serve_contexts_1_and_3();
  const auto first_is_asked = std::make_shared<std::atomic<bool>>(false);
  server_.set_faults([=](const ServerCall& call) {
    if (call.name == "hold_runner") *first_is_asked = true;
    return Fault::none;
  });
  third_.set_faults([=](const ServerCall&) {
    return eventually([&] { return first_is_asked->load(); }) ? Fault::none : Fault::before;
  });
  start_all();
  EXPECT_EQ(agent_->unready_reason(), "");
}

TEST_F(Isolation, RunnerRejectedByOneServerIsNotRegistered) {
  serve_contexts_1_and_3();
  ASSERT_TRUE(hold_runner_id(*of_third_, 3));
  std::vector<std::unique_ptr<Executor>> executors;
  executors.push_back(std::make_unique<FakeExecutor>());
  const auto refused =
      Agent::start({servers_, std::make_unique<FakeSandbox>(control_), std::move(executors), agent_clock_}, settings_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::conflict);
  EXPECT_NE(refused.error().message.find("runner 1 of context 3 is held by"), std::string::npos);
  EXPECT_TRUE(hold_runner_id(*client_, 1)) << "the runner id is free again";
}

TEST_F(Isolation, RunnerRejectedByAReturningServerIsLost) {
  serve_contexts_1_and_3();
  ASSERT_TRUE(hold_runner_id(*of_third_, 3));
  const std::string not_ours = submit_to_third();
  disconnect_third();
  start_all();
  expect_others_continue();
  EXPECT_FALSE(agent_->has_lost_runner_id());
  third_.set_faults(nullptr);
  ASSERT_TRUE(eventually([&] { return agent_->has_lost_runner_id(); }));
  EXPECT_EQ(agent_->unready_reason(), "another agent has taken the id of this runner, or its record has another key");
  EXPECT_EQ(agent_->count_busy_slots(), 0U);
  agent_.reset();
  EXPECT_EQ(read_third(not_ours).status, JobStatus::dispatched);
  EXPECT_TRUE(hold_runner_id(*client_, 1));
  EXPECT_TRUE(hold_runner_id(*of_third_, 3)) << "the runner id still belongs to the other instance";
}

TEST_F(Isolation, AgentStartsWithTheFirstAvailableServer) {
  serve_contexts_1_and_3();
  const std::string of_first = submit(), of_third = submit_to_third();
  const auto reject_all = [](const ServerCall&) { return Fault::before; };
  server_.set_faults(reject_all);
  third_.set_faults(reject_all);
  const auto start_with = [&](std::function<bool(const Error&)> try_again) {
    std::vector<std::unique_ptr<Executor>> executors;
    executors.push_back(std::make_unique<FakeExecutor>());
    Agent::Dependencies parts{servers_, std::make_unique<FakeSandbox>(control_), std::move(executors), agent_clock_};
    parts.should_retry = std::move(try_again);
    return Agent::start(std::move(parts), settings_);
  };
  const auto refused = start_with([](const Error&) { return false; });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unavailable);
  int asked = 0;
  auto agent = start_with([&](const Error&) {
    if (++asked == 2) third_.set_faults(nullptr);
    return asked < 100;
  });
  ASSERT_TRUE(agent) << agent.error().message;
  EXPECT_EQ(asked, 2);
  agent_ = std::move(*agent);
  EXPECT_TRUE(runs_in_third(of_third));
  EXPECT_EQ(agent_->unready_reason(), "this runner is not registered yet in the store of context 1");
  server_.set_faults(nullptr);
  EXPECT_TRUE(eventually([&] {
    control_.end_all(RunStatus::ok);
    return has_ended(of_first);
  }));
}

TEST_F(Isolation, StoppingAgentReleasesItsHoldOnAHangingServer) {
  serve_contexts_1_and_3();
  hang_third();
  start_all();
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  std::thread leaves([this] { agent_.reset(); });
  gate_.open();
  leaves.join();
  EXPECT_TRUE(hold_runner_id(*client_, 1));
  EXPECT_TRUE(hold_runner_id(*of_third_, 3));
}

TEST_F(Isolation, HangingEndsAreStoredInOrderWithoutLoss) {
  start_all(2);
  std::vector<std::string> hang;
  for (int i = 0; i < 8; ++i) hang.push_back(submit_as("plugin", "finish"));
  ASSERT_TRUE(eventually([&] {
    control_.end_all(RunStatus::ok);
    return gate_.waiting_count() == 1;
  }));
  gate_.open();
  for (const std::string& key : hang) {
    ASSERT_TRUE(eventually([&] {
      control_.end_all(RunStatus::ok);
      return has_ended(key);
    }));
    EXPECT_EQ(read(key).status, JobStatus::finished);
  }
}

TEST_F(Isolation, StoppingAgentWaitsForHangingCallsWithoutLoss) {
  start_all(1);
  const std::string hangs = submit_as("plugin", "begin");
  ASSERT_TRUE(eventually([&] { return gate_.waiting_count() == 1; }));
  std::thread leaves([this] { agent_.reset(); });
  gate_.open();
  leaves.join();
  EXPECT_FALSE(has_ended(hangs)) << "the claim expires, and another agent claims the job";
}

}  // namespace
}  // namespace mycojobs::test
