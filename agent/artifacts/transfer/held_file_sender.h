// Sends the files that the coordinators of this host have, to agents with other state folders: files that were received
// with messages and answers, and uploads. Registers each folder with such files as a holder (holder_name.h), for a time
// that is renewed. Jobs wait for a holder whose registration has expired, as for the agent of a runner.
//
//   loop: finds folders with a name -> TransferLoop of the context (thread and connection of its own)
//                                   -> mj:file-holders, every kRegistrationIntervalMs
//
// A context without such files costs nothing. A folder that disappears or gets another name, as when its disk is
// unmounted, is no longer served under the old name. A loop of base/loop_thread.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/loop_thread.h"
#include "store/store.h"
#include "telemetry/metrics.h"

namespace mycojobs {

class HeldFileLinks;

class HeldFileSender final : public TimedLoop {
 public:
  static constexpr std::uint64_t kRegistrationIntervalMs = 10000, kRegistrationMs = 45000;
  static constexpr std::size_t kMaxContexts = 256;  // each needs a thread and connections

  struct Settings {
    std::function<bool(Id)> is_served;               // returns true for the contexts of the coordinator
    std::string state_dir;                           // if empty, nothing is sent
    std::uint64_t rate = 0;                          // see TransferLoop::Settings
    std::shared_ptr<HeldFileLinks> links = nullptr;  // see TransferLoop::Settings
  };
  // REQUIRES: stores and clock outlive the object.
  HeldFileSender(StoreFactory&, const Clock&, Settings, std::shared_ptr<Metrics> metrics = no_metrics());
  ~HeldFileSender();

  std::uint64_t run_once();  // Returns the time in ms until the next call.
  void ended();              // Ends the registrations, so that jobs are not started while the holder is away.

 private:
  class ContextSender;
  std::vector<Id> find_contexts() const;
  // Stops to send files of contexts that are not served any more, or whose folders have another name.
  void remove_obsolete_senders(const std::vector<Id>& contexts, std::uint64_t now_ms);
  // Starts to send the files of the context, unless it is sent already, and renews its registration when it is due.
  Result<void> serve(Id context, std::uint64_t now_ms);
  Result<void> open_registration_store();

  StoreFactory& stores_;
  const Clock& clock_;
  const Settings settings_;
  const std::shared_ptr<Metrics> metrics_;
  std::unique_ptr<Store> registration_store_;
  std::map<Id, std::unique_ptr<ContextSender>> senders_;
  std::map<Id, std::uint64_t> retry_ms_;  // contexts that could not be served, with the time of the next attempt
};

}  // namespace mycojobs
