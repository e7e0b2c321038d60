// Records every call of a server-side script together with the data before the call. A test can repeat the call with
// data that another client has damaged. Runs on MemoryRedis, an in-process fake of Redis, with a clock that advances 1
// ms at each reading while the scenarios run. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/flow_store.h"
#include "store/objects/object_store.h"
#include "store/store.h"
#include "store/workflow_store.h"
#include "support/redis/memory_redis.h"

namespace mycojobs {

struct ScriptCall {
  const Script* script = nullptr;
  Id context = 0;
  std::vector<std::string> arguments;
  memory::Databases data_before;
  std::uint64_t now_ms = 0;
};

class ScriptRecorder {
 public:
  ScriptRecorder();

  // Records scenarios that call every script of the product at least once.
  void run_all_scripts();
  const std::vector<ScriptCall>& calls() const { return calls_; }

  struct RepeatResult {
    memory::MemoryReply reply;
    memory::Databases data_after;
    std::set<std::string> keys;  // keys that the script used in its commands
  };
  // Runs the script of the call again, with this data and at the time of the call.
  RepeatResult repeat(const ScriptCall&, memory::Databases data_before);
  // Returns a store with this data, and stops recording.
  std::unique_ptr<Store> open_store(memory::Databases data);

 private:
  class RecordingLink;
  struct SteppingClock final : Clock {
    mutable std::uint64_t now_ms = 1'700'000'000'000;
    bool advances_on_read = true;
    std::uint64_t unix_ms() const override { return advances_on_read ? now_ms++ : now_ms; }
    std::uint64_t boot_ms() const override { return 0; }
  };

  OpenLink open_link();
  void run_command(Id context, const std::vector<std::string>& words);
  void run_script(Id context, const Script&, const std::vector<std::string>& arguments);

  void run_job_scripts();
  void run_concurrency_scripts();
  void wait_for_inputs();
  void use_uploads();
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

  Job make_job(Id id) const;
  void submit_job(
      Id id, const std::function<void(Job&)>& change = [](Job&) {});
  std::vector<ClaimedJob> claim_jobs();
  void end_job(const ClaimRef&, bool has_succeeded);
  Id create_flow(std::uint32_t job_count);

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
