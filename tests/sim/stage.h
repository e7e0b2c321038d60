// A world with clients and hosts; on each host, a service restarts its agent when the agent ends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "invariant_checker.h"
#include "sim_agent.h"
#include "world.h"

namespace mycojobs::sim {

// A client that sends requests to the store, one after the other. An unanswered call is repeated; a killed client
// restarts with its current call.
class Client final : public Program, public Actor {
 public:
  struct Request {
    std::string description;
    std::function<Result<void>(Store&)> call;
    std::function<bool()> condition = nullptr;  // the call waits until this holds
  };
  Client(World&, std::string name);
  ~Client() override { world_.remove(*this); }

  void enqueue(Request request) { requests_.push_back(std::move(request)); }
  bool is_done() const { return requests_.empty(); }
  FlowStore& flows() { return *flows_; }
  Ms due() const override { return requests_.empty() ? kNever : due_; }
  void step() override;

 private:
  void on_killed() override;

  World& world_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FlowStore> flows_;
  std::deque<Request> requests_;
  Ms due_ = 0;
};

// The service manager of a host: runs one agent, and starts the next when the agent has ended.
class Service final : public Actor {
 public:
  Service(World&, InvariantChecker&, Host&, WorkerSettings);
  ~Service() override;

  void start(Ms delay_ms);
  void set_restart_delay(Ms delay_ms) { restart_delay_ = delay_ms; }  // kNever: no restart
  SimAgent* agent() { return agent_ && !agent_->is_killed() ? agent_.get() : nullptr; }
  bool is_quiet() const;
  Ms due() const override { return due_; }
  void step() override;
  const WorkerSettings& settings() const { return settings_; }
  Host& host() { return host_; }
  std::function<void()> on_end;  // called when an agent has ended

 private:
  World& world_;
  InvariantChecker& checker_;
  Host& host_;
  WorkerSettings settings_;
  std::unique_ptr<SimAgent> agent_;
  Ms due_ = kNever, start_at_ = kNever, restart_delay_ = 300;
  unsigned starts_ = 0;
};

struct StageSettings {
  std::uint64_t seed = 1;
  std::uint32_t lease_ms = 2000;
  Retention retention = Retention::same_for_all(0);
  std::uint64_t retention_count = 0;
};

class Stage {
 public:
  explicit Stage(const StageSettings&);

  World world;
  InvariantChecker checker;
  Client client;
  std::vector<std::unique_ptr<Host>> hosts;
  std::vector<std::unique_ptr<Service>> services;

  // Adds a runner that is not started yet, on a new host unless `host` is given. `change` modifies the settings of the
  // stage.
  Service& add_service(const std::function<void(WorkerSettings&)>& change = {}, Host* host = nullptr);
  static Job job(Id id, std::string script);
  // Pushes a job as a plain client does: first the record, then the queue entry.
  void push(const Job&);
  Store& store() { return checker.store(); }
  JobStoreState get_job_state(const std::string& key);
  bool has_ended(const std::string& key);

 private:
  StageSettings settings_;
};

inline const std::vector<std::string> kQueues{"queue:sim",        "queue:other",      "mj:queue:runner1",
                                              "mj:queue:runner2", "mj:queue:runner3", "mj:queue:runner4"};
std::string make_job_key(Id id);  // the key of a job of the stage's caller

}  // namespace mycojobs::sim
