// Records every call of a server-side script with the data before the call, so a test can repeat the call with data
// that another client has damaged. Runs on the imitation of Redis with simulated time.
//
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/flow_store.h"
#include "store/object_store.h"
#include "store/store.h"
#include "store/workflow_store.h"
#include "support/redis/memory_redis.h"

namespace mycojobs {

struct ScriptCall {
  const Script* script = nullptr;
  Id context = 0;
  std::vector<std::string> arguments;
  memory::Databases before;
  std::uint64_t now_ms = 0;
};

class ScriptRecorder {
 public:
  ScriptRecorder();

  // Runs scenarios that call every script of the product at least once.
  void play();
  const std::vector<ScriptCall>& calls() const { return calls_; }

  struct Outcome {
    memory::MemoryReply answer;
    memory::Databases after;
    std::set<std::string> keys;  // keys that the script used in its commands
  };
  Outcome repeat(const ScriptCall&, memory::Databases);
  // Returns a store with this data. Its calls are not recorded.
  std::unique_ptr<Store> store_over(memory::Databases);

 private:
  class RecordingLink;
  struct SteppingClock final : Clock {
    mutable std::uint64_t now = 1'700'000'000'000;
    bool steps = true;
    std::uint64_t unix_ms() const override { return steps ? now++ : now; }
    std::uint64_t boot_ms() const override { return 0; }
  };

  OpenLink open_link();
  void plain(Id context, const std::vector<std::string>& words);
  void run(Id context, const Script&, const std::vector<std::string>& arguments);

  void play_jobs();
  void play_shared_keys();
  void play_job_requests();
  void play_repairs();
  void play_reads();
  void play_flows();
  void play_flow_requests();
  void play_objects();
  void play_outgoing_messages();
  void play_incoming_messages();
  void play_records();
  void play_rest();

  Job job(Id id) const;
  void submit(
      Id id, const std::function<void(Job&)>& change = [](Job&) {});
  std::vector<ClaimedJob> claim();
  void end(const ClaimRef&, bool finished);
  Id new_flow(std::uint32_t jobs);

  SteppingClock clock_;
  std::set<std::string> named_;  // keys used by the running script
  memory::MemoryRedis redis_;
  bool recording_ = true, lose_next_reply_ = false;
  std::vector<ScriptCall> calls_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<ObjectStore> objects_;
  std::unique_ptr<WorkflowStore> worlds_;
};

}  // namespace mycojobs
