// Fixture that runs the real threads of an agent with an in-memory store and a sandbox that the test controls.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "model/codec.h"
#include "support/fake_sandbox.h"
#include "support/process.h"
#include "support/redis/memory_server.h"
#include "worker/agent.h"

namespace mycojobs::test {

class AgentTest : public ::testing::Test {
 protected:
  SystemClock clock_;
  MemoryServer server_{clock_};
  SandboxControl control_;
  std::unique_ptr<Store> client_ = *server_.open();
  WorkerSettings settings_ = default_settings();
  std::unique_ptr<Agent> agent_;

  static WorkerSettings default_settings() {
    WorkerSettings settings;
    settings.runner.id = 1;
    settings.runner.local = true;
    settings.contexts = {1};
    return settings;
  }
  void start(std::uint32_t slots = 2, std::uint32_t lease_ms = 30000) {
    settings_.slots = slots;
    settings_.lease_ms = lease_ms;
    std::vector<std::unique_ptr<Executor>> executors;
    executors.push_back(std::make_unique<FakeExecutor>());
    auto agent =
        Agent::start({server_, std::make_unique<FakeSandbox>(control_), std::move(executors), clock_}, settings_);
    ASSERT_TRUE(agent) << agent.error().message;
    agent_ = std::move(*agent);
  }
  // Injects `faults` until the returned object is destroyed. The agent outlives the local variables of the test, so
  // declare the returned object after the variables that `faults` uses.
  [[nodiscard]] std::shared_ptr<void> with_faults(std::function<Fault(const ServerCall&)> faults) {
    server_.set_faults(std::move(faults));
    return {&server_, [](MemoryServer* server) { server->set_faults(nullptr); }};
  }
  static Job new_job(const std::string& script = "x", Id context = 1) {
    Job job;
    job.caller_id = 7;
    job.context_id = context;
    job.script = script;
    job.script_type = "fake";
    return job;
  }
  std::string submit(const Job& job) {
    auto stored = client_->submit(job);
    EXPECT_TRUE(stored) << stored.error().message;
    return stored ? redis_key(*stored) : "";
  }
  std::string submit(const std::string& script = "x") { return submit(new_job(script)); }
  Job read(const std::string& key, Id context = 1) { return decode<Job>(*client_->load(context, key)).record; }
  bool wait_for_runs(std::size_t count) {
    return eventually([&] { return control_.runs().size() == count; });
  }
  bool wait_for_end(const std::string& key) {
    return eventually([&] { return read(key).ended_ms != 0; });
  }
};

}  // namespace mycojobs::test
