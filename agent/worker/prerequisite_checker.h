// Any agent looks after the jobs that wait for prerequisites: settles those whose conditions are all met at one time,
// those that never will be, and those that have waited too long. In a thread of its own: what is looked at may be slow.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mailbox.h"
#include "worker/context_pauses.h"
#include "worker/prerequisites.h"
#include "worker/probes.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class PrerequisiteChecker {
 public:
  PrerequisiteChecker(std::unique_ptr<Store>, const Clock&, StoreHealth&, StoreServers&, WorkerSettings);
  ~PrerequisiteChecker() { stop(); }
  void stop();

 private:
  enum class Seen { yes, no, later };  // later: it is being looked at
  struct Turn {
    std::uint64_t next_boot_ms = 0;
    std::uint32_t again_ms = 0;
  };

  void loop();
  void look_around();
  Result<void> look(Id context, Turn&);
  Result<void> judge(Id context, AwaitedPrerequisites job);
  Result<std::vector<Condition>> read_conditions(const std::vector<std::string>& texts) const;
  // never: why it cannot come true any more.
  Result<Seen> see(Id context, const AwaitedPrerequisites&, const Condition&, std::string& never);
  Result<Seen> see_key(Id context, const std::string& key);
  Result<Seen> see_flow(Id context, const Condition&, std::string& never);
  Result<std::uint64_t> now_ms(Id context, const std::string& job_key);
  Seen see_network(const Condition&);

  std::unique_ptr<Store> store_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  ContextPauses pauses_;
  std::unique_ptr<Probes> probes_;  // made when the first job needs it
  std::map<Id, Turn> turns_;
  std::map<std::pair<Id, std::string>, AwaitedPrerequisites> open_;  // jobs whose conditions are being looked at
  Mailbox<int> wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mycojobs
