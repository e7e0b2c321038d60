// Flows over the in-memory Redis: clients, coordinators and a runner take turns on one thread with one clock. A fault
// can be injected into any writing call of a client or a coordinator; a killed process is restarted.
//
// The script of a job selects its behaviour: "ok", "ok key=value", "fail", "flaky" (fails at its first attempt), "hold"
// (runs until it is cancelled).
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/context_loop.h"
#include "flows/flow_creation.h"
#include "flows/flow_progress.h"
#include "run_world.h"
#include "support/redis/memory_server.h"

namespace mycojobs {

struct StageClock final : Clock {
  std::uint64_t now = 1'700'000'000'000;
  std::uint64_t unix_ms() const override { return now; }
  std::uint64_t boot_ms() const override { return now; }
};

enum class Fate { fine, request_lost, reply_lost, killed_before, killed_after };
struct Disturbance {
  std::uint64_t write = 0;  // number of the writing call, from 1
  Fate fate = Fate::fine;
};

class FlowStage {
 public:
  FlowStage();  // the server is empty
  ~FlowStage();

  // The requests of the client, in order; a call without a reply is repeated.
  struct Request {
    std::function<Result<void>(FlowStore&)> call;
    std::function<bool()> when = nullptr;  // the call waits for this condition
  };
  void ask(Request asked) { requests_.push_back(std::move(asked)); }
  // Creates a flow of this definition under this name, and starts it.
  void request_run(const std::string& name, const std::string& yaml);
  void request_control(const std::string& name, FlowControl control, std::function<bool()> when = nullptr);

  void disturb(std::vector<Disturbance> disturbances) { disturbances_ = std::move(disturbances); }
  // Runs until every flow has ended and no request is left. Returns false after `rounds` rounds.
  bool play(int rounds = 3000);
  void client() { client_step(); }
  void restart_coordinator() { begin_coordinator(); }  // as after a kill: the old lease is still held
  void coordinate(int rounds = 1);                     // runs undisturbed rounds of the coordinator
  void run_jobs();                                     // runs the runner: claims jobs and ends running jobs
  std::uint64_t writes() const { return writes_; }     // by clients and coordinators
  // Describes the end of every flow and job.
  std::string outcome();
  std::vector<std::string> find_violations();  // returns the violated invariants

  Id flow(const std::string& name) const { return flows_by_name_.at(name); }
  bool known(const std::string& name) const { return flows_by_name_.contains(name); }
  Fields record(const std::string& name);
  std::string field(const std::string& name, const std::string& field);
  LoadedRun run(const std::string& name);
  std::string describe_node(const std::string& name, const std::string& node);  // such as "completed ok"
  std::string find_job_key(const std::string& name, const std::string& node);   // the key of the job
  bool running(const std::string& name, const std::string& node);               // whether the runner holds the job
  std::string run_command(const std::vector<std::string>& words);

  StageClock& clock();
  MemoryServer& server();
  FlowStore& flows() { return *flows_; }
  Store& store() { return *store_; }
  RunCache cache;
  Result<FlowProgress> progress_flow(const std::string& name, ProgressRequest request = {});

 private:
  enum class Who { nobody, client, coordinator };
  Fault choose_fault(const ServerCall&);
  void client_step();
  void coordinator_step();
  void begin_coordinator();

  std::vector<Disturbance> disturbances_;
  std::deque<Request> requests_;
  std::map<std::string, Id> flows_by_name_;
  std::uint64_t writes_ = 0;
  int coordinators_ = 0;
  Who who_ = Who::nobody;
  bool dead_ = false;  // the process `who_` was killed: all its further calls fail
  std::unique_ptr<FlowStore> flows_, client_flows_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ContextLoop> coordinator_;
  std::vector<ClaimedJob> running_;
  std::map<std::string, int> claims_;  // how often each job was started
};

}  // namespace mycojobs
