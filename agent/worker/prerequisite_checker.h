// The agent's thread that looks after jobs which wait for prerequisites, where no coordinator does
// (prerequisites/prerequisite_look.h).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "base/mailbox.h"
#include "prerequisites/prerequisite_look.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class PrerequisiteChecker {
 public:
  PrerequisiteChecker(PrerequisiteStores, const Clock&, StoreHealth&, StoreServers&, WorkerSettings);
  ~PrerequisiteChecker() { stop(); }
  void stop();

 private:
  void loop();
  void look_around();
  void failed(Id context, const Error& error) { health_.failed(context, "looking at prerequisites", error); }

  const Clock& clock_;
  StoreHealth& health_;
  std::vector<Id> contexts_;
  PrerequisiteLook look_;
  ContextPauses pauses_;
  std::map<Id, std::uint64_t> next_boot_ms_;
  Mailbox<int> wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mycojobs
