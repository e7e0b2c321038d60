// Records every call of a server-side script together with the data before the call. A test can repeat the call with
// data that another client has damaged. Uses the imitation of Redis and simulated time. Not thread-safe.
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
  memory::Databases data;
  std::uint64_t now_ms = 0;
};

class ScriptRecorder {
 public:
  ScriptRecorder();

  // Records scenarios that call every script of the product at least once.
  void run_all_scripts();
  const std::vector<ScriptCall>& calls() const { return calls_; }

  struct RepeatResult {
    memory::MemoryReply answer;
    memory::Databases after;
    std::set<std::string> keys;  // keys that the script used in its commands
  };
  RepeatResult repeat(const ScriptCall&, memory::Databases);
  // Returns a store with this data. Its calls are not recorded.
  std::unique_ptr<Store> open_store(memory::Databases);

 private:
  class RecordingLink;
  struct SteppingClock final : Clock {
    mutable std::uint64_t now = 1'700'000'000'000;
    bool steps = true;
    std::uint64_t unix_ms() const override { return steps ? now++ : now; }
    std::uint64_t boot_ms() const override { return 0; }
  };

  OpenLink open_link();
  void run_command(Id context, const std::vector<std::string>& words);
  void run(Id context, const Script&, const std::vector<std::string>& arguments);

  void run_job_scripts();
  void run_concurrency_scripts();
  void run_job_request_scripts();
  void run_repair_scripts();
  void run_read_scripts();
  void run_flow_scripts();
  void run_flow_request_scripts();
  void run_object_scripts();
  void run_outgoing_message_scripts();
  void run_incoming_message_scripts();
  void run_record_scripts();
  void run_remaining_scripts();

  Job job(Id id) const;
  void submit(
      Id id, const std::function<void(Job&)>& change = [](Job&) {});
  std::vector<ClaimedJob> claim();
  void end(const ClaimRef&, bool finished);
  Id new_flow(std::uint32_t jobs);

  SteppingClock clock_;
  std::set<std::string> used_keys_;  // keys used by the running script
  memory::MemoryRedis redis_;
  bool is_recording_ = true, lose_next_reply_ = false;
  std::vector<ScriptCall> calls_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<ObjectStore> objects_;
  std::unique_ptr<WorkflowStore> workflows_;
};

}  // namespace mycojobs
