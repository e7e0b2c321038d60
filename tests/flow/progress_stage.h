// Flows over the imitation of Redis: clients, coordinators and a runner take turns in one thread, on one clock. Any
// call of a client or coordinator that can change anything can be disturbed; a process that is killed begins anew.
//
// A job's script says what becomes of it: "ok", "ok key=value", "fail", "flaky" (fails at its first attempt), "hold"
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
#include "coordinator/create.h"
#include "coordinator/progress.h"
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
  std::uint64_t write = 0;  // the number of the call, from 1
  Fate fate = Fate::fine;
};

class FlowStage {
 public:
  FlowStage();  // the server is empty
  ~FlowStage();

  // What a client asks for, one thing after the other; a call without an answer is repeated.
  struct Request {
    std::function<Result<void>(FlowStore&)> call;
    std::function<bool()> when = nullptr;  // not before
  };
  void ask(Request asked) { requests_.push_back(std::move(asked)); }
  // Creates a flow of this definition under this name, and starts it.
  void ask_to_run(const std::string& name, const std::string& yaml);
  void ask_for(const std::string& name, FlowControl control, std::function<bool()> when = nullptr);

  void disturb(std::vector<Disturbance> disturbances) { disturbances_ = std::move(disturbances); }
  // Until every flow has ended and nobody wants anything, or for too long: false.
  bool play(int rounds = 3000);
  void client() { client_step(); }
  void restart_coordinator() { begin_coordinator(); }  // as after a kill: its lease runs on
  void coordinate(int rounds = 1);                     // undisturbed rounds of the coordinator
  void run_jobs();                                     // the runner: claims what it can, ends what it has
  std::uint64_t writes() const { return writes_; }     // by clients and coordinators
  // The end of every flow and job, in words.
  std::string outcome();
  std::vector<std::string> trouble();  // what must never be

  Id flow(const std::string& name) const { return flows_by_name_.at(name); }
  bool known(const std::string& name) const { return flows_by_name_.contains(name); }
  Fields record(const std::string& name);
  std::string field(const std::string& name, const std::string& field);
  LoadedRun run(const std::string& name);
  std::string place(const std::string& name, const std::string& node);   // "completed ok"
  std::string job_of(const std::string& name, const std::string& node);  // its key
  bool running(const std::string& name, const std::string& node);        // the runner has its job
  std::string plain(const std::vector<std::string>& words);

  StageClock& clock();
  MemoryServer& server();
  FlowStore& flows() { return *flows_; }
  Store& store() { return *store_; }
  RunCache cache;
  Result<FlowProgress> progress_of(const std::string& name, ProgressRequest request = {});

 private:
  enum class Who { nobody, client, coordinator };
  Fault judge(const ServerCall&);
  void client_step();
  void coordinator_step();
  void begin_coordinator();

  std::vector<Disturbance> disturbances_;
  std::deque<Request> requests_;
  std::map<std::string, Id> flows_by_name_;
  std::uint64_t writes_ = 0;
  int coordinators_ = 0;
  Who who_ = Who::nobody;
  bool dead_ = false;  // of who it is: killed, and every further call of it comes to nothing
  std::unique_ptr<FlowStore> flows_, client_flows_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ContextRounds> coordinator_;
  std::vector<Claimed> running_;
  std::map<std::string, int> claims_;  // by job: how often it was begun
};

}  // namespace mycojobs
