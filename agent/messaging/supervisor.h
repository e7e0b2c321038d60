// The supervisor daemon of one context: runs message_loop.h on a thread pool and sends its requests. Each remote host
// and port has a sender thread of its own, so that a supervisor that is slow or unreachable delays only its own
// requests. Hosts that do not answer never occupy all sender threads. An idle sender thread ends after a while.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/mailbox.h"
#include "messaging/message_loop.h"
#include "messaging/transport/transports.h"
#include "store/hinted_loop.h"
#include "store/store_health.h"

namespace mycojobs {

struct SupervisorSettings {
  MessageSettings messages;
  std::uint32_t concurrency = 16;                           // maximum number of sender threads; one is for this host
  std::function<std::unique_ptr<Transports>()> transports;  // creates the transports of one sender thread
};

class Supervisor final : public HintedLoop {
 public:
  static Result<std::unique_ptr<Supervisor>> start(StoreFactory&, const Clock&, LoopPool&, SupervisorSettings);
  // Stops all threads and waits for them. The next supervisor repeats unfinished requests.
  ~Supervisor() override;

 private:
  class AddressSender;
  struct SenderEntry {
    std::unique_ptr<AddressSender> sender;
    std::string signer;        // signer of the message whose answer opened the thread; empty for other requests
    std::size_t reserved = 0;  // requests of this round
    bool is_idle() const;
  };
  struct SendResult {
    OutboundRequest request;
    Result<std::string> answer;
  };

  Supervisor(std::unique_ptr<Store>, std::unique_ptr<FlowStore>, const Clock&, SupervisorSettings);
  std::uint64_t run_iteration() override;
  std::chrono::milliseconds key_hint_delay(std::string_view key) const override;
  Result<std::uint64_t> run_round();
  Result<bool> send(OutboundRequest&);  // returns false if the request was returned unsent
  void update_unavailable_hosts();
  // Implements MessageLoop::SendDelay. Hosts that did not answer last time share a quarter of the sender threads. The
  // answers to one signer also get at most a quarter. One thread is reserved for this host.
  std::uint64_t send_delay_ms(const OutboxEntry&);
  std::uint64_t limit_delay_ms(const std::string& name, const std::string& signer) const;
  // Ends an idle sender thread if the limit of threads is reached. Returns whether another thread may be started. Hosts
  // that do not answer lose their thread between attempts.
  bool free_sender();
  // Error: the host is out of threads. The request waits until a thread can be created.
  Result<std::unique_ptr<AddressSender>> start_sender();

  SupervisorSettings settings_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FlowStore> flows_;
  MessageLoop loop_;
  Mailbox<SendResult> results_;
  std::map<std::string, SenderEntry> senders_;  // by extract_host(); one per host for all paths
  std::set<std::string> unavailable_hosts_;     // hosts that did not answer the last request
  LogOnce log_once_, log_threads_;
};

}  // namespace mycojobs
