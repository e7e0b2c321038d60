#include "messaging/supervisor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/mailbox.h"
#include "base/thread.h"
#include "net/host.h"
#include "store/store_health.h"
#include "store/waiter_loop.h"

namespace mycojobs {
namespace {

constexpr const char *kMailChannel = "mj:mail", *kOutgoing = "msg_out";
constexpr std::uint32_t kExchangeMs = 10000, kSupervisorUnavailableMs = 500;
constexpr std::uint32_t kStrandIdleMs = 30000;
constexpr std::size_t kMaxStrandQueue = 64;
// Pause before a parcel is tried again: no free sender thread; the host does not answer; the signer has reached its
// limit of sender threads.
constexpr std::uint64_t kNoSpaceMs = 100, kNoSpaceUnavailableMs = 5000, kTooManyMs = 1000;
constexpr std::uint64_t kAllPutBackAgainMs = 10;  // pause before the next round if no parcel could be sent
constexpr std::size_t kMaxUnavailableAddresses = 10000;

struct SendResult {
  OutboundRequest parcel;
  Result<std::string> answer;
};

// The sender thread of one address. It sends parcels one after the other.
class AddressSender {
 public:
  AddressSender(std::unique_ptr<Transports> transports, std::function<void(SendResult)> carried)
      : transports_(std::move(transports)), carried_(std::move(carried)) {}
  Result<void> begin() {
    MJ_TRY(thread, start_thread([this] { loop(); }));
    thread_ = std::move(thread);
    return {};
  }
  ~AddressSender() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  bool take(OutboundRequest& parcel) {
    const std::lock_guard lock(mutex_);
    if (ended_ || waiting_.size() >= kMaxStrandQueue) return false;
    waiting_.push_back(std::move(parcel));
    wake_.notify_all();
    return true;
  }
  bool has_room(std::size_t promised) {
    const std::lock_guard lock(mutex_);
    return !ended_ && waiting_.size() + promised < kMaxStrandQueue;
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return waiting_.empty() && !busy_;
  }
  bool is_unavailable_now() const { return unavailable_; }  // the last request was not answered
  bool was_answered() const { return answered_; }           // the last request was answered

 private:
  std::optional<OutboundRequest> next() {
    std::unique_lock lock(mutex_);
    busy_ = false;
    wake_.wait_for(lock, std::chrono::milliseconds(kStrandIdleMs), [this] { return stop_ || !waiting_.empty(); });
    if (stop_ || waiting_.empty()) {
      ended_ = true;
      return std::nullopt;
    }
    OutboundRequest parcel = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    return parcel;
  }
  void loop() {
    while (auto parcel = next()) {
      bool is_peer_there = false;
      auto answer = exchange(*parcel, is_peer_there);
      const bool away = !answer && answer.error().code == Code::unavailable && !is_peer_there;
      unavailable_ = away;
      answered_ = !away;
      carried_({std::move(*parcel), answer});
      if (!away) continue;
      // The host does not answer, so the other parcels are returned without an attempt.
      std::deque<OutboundRequest> others;
      {
        const std::lock_guard lock(mutex_);
        others.swap(waiting_);
      }
      for (OutboundRequest& each : others) carried_({std::move(each), answer});
    }
  }
  Result<std::string> exchange(const OutboundRequest& parcel, bool& is_peer_there) {
    MJ_TRY(transport, transports_->of(parcel.address));
    auto answer = transport->exchange(parcel.address, parcel.request, kExchangeMs);
    is_peer_there = transport->is_peer_reachable();
    return answer;
  }

  std::unique_ptr<Transports> transports_;
  std::function<void(SendResult)> carried_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<OutboundRequest> waiting_;
  bool stop_ = false, ended_ = false, busy_ = false;
  std::atomic<bool> unavailable_{false}, answered_{false};
  std::thread thread_;  // Last member: the thread uses all members above.
};

class SupervisorImpl final : public Supervisor, public ContextLoopBase {
 public:
  SupervisorImpl(std::unique_ptr<Store> store, std::unique_ptr<FlowStore> flows, std::unique_ptr<Waiter> waiter,
                 const Clock& clock, SupervisorSettings settings)
      : ContextLoopBase(std::move(waiter), clock, ""),
        settings_(std::move(settings)),
        store_(std::move(store)),
        flows_(std::move(flows)),
        rounds_(*store_, *flows_, clock, settings_.messages),
        log_once_("supervisor", settings_.messages.context),
        log_threads_("supervisor", settings_.messages.context) {}
  const Result<void>& started() const { return thread_.started(); }
  ~SupervisorImpl() override {
    thread_.stop();
    strands_.clear();
  }
  void ask_to_stop() override { stop(); }

  std::uint64_t run_once() {
    const auto next_ms = round();
    log_once_(next_ms ? nullptr : &next_ms.error());
    set_work_queues(next_ms.has_value());
    return next_ms.value_or(kSupervisorUnavailableMs);
  }

 private:
  Result<std::uint64_t> round() {
    std::deque<SendResult> carried = carried_.take_all();
    for (auto each = carried.begin(); each != carried.end(); ++each) {
      if (auto done = rounds_.complete(each->parcel, each->answer); !done) {
        // The remaining parcels are due again when their claims expire.
        return tl::unexpected<Error>(std::move(done).error());
      }
    }
    remember_unavailable_addresses();
    for (auto& [name, each] : strands_) each.promised = 0;
    std::erase_if(strands_, [](const auto& each) { return each.second.sender->ended(); });
    MJ_TRY(found,
           rounds_.round(settings_.concurrency * 4, [this](const OutboxEntry& entry) { return room_of(entry); }));
    bool any_goes = found.parcels.empty();
    for (OutboundRequest& parcel : found.parcels) {
      MJ_TRY(goes, send(parcel));
      any_goes = any_goes || goes;
    }
    return any_goes ? found.next_ms : std::max(found.next_ms, kAllPutBackAgainMs);
  }
  // Returns false if the parcel was returned unsent.
  Result<bool> send(OutboundRequest& parcel) {
    const auto sender = strands_.find(host_of_address(parcel.address));
    const bool goes = sender != strands_.end() && sender->second.sender->take(parcel);
    if (!goes) MJ_CHECK(rounds_.requeue_unsent(parcel, kNoSpaceMs));
    return goes;
  }

  struct SenderEntry {
    std::unique_ptr<AddressSender> sender;
    std::string signer;        // signer of the message whose answer opened the thread; empty for other requests
    std::size_t promised = 0;  // parcels of this round
    bool idle() const { return promised == 0 && sender->idle(); }
  };

  void remember_unavailable_addresses() {
    if (unavailable_.size() > kMaxUnavailableAddresses) unavailable_.clear();
    for (const auto& [name, each] : strands_) {
      if (!each.sender->idle()) continue;
      if (each.sender->is_unavailable_now()) {
        unavailable_.insert(name);
      } else if (each.sender->was_answered()) {
        unavailable_.erase(name);
      }
    }
  }
  // Implements MessageLoop::SendDelay. Hosts that did not answer last time share a quarter of the sender threads. The
  // answers to one signer also get at most a quarter. One thread is reserved for this host.
  std::uint64_t room_of(const OutboxEntry& entry) {
    const std::string name = host_of_address(field_of(entry.mark, "address"));
    auto found = strands_.find(name);
    if (found == strands_.end() || found->second.idle()) {
      const bool is_answer = entry.kind == "answer" || entry.kind == "logs";
      const std::string signer(is_answer ? field_of(entry.mark, "signer") : "");
      if (const std::uint64_t pause_ms = name.empty() ? 0 : pause_of(name, signer); pause_ms > 0) return pause_ms;
      if (found == strands_.end()) {
        if (!name.empty() && !make_place()) return kNoSpaceMs;
        auto sender = new_strand();
        log_threads_(sender ? nullptr : &sender.error());
        if (!sender) return kNoSpaceMs;
        found = strands_.emplace(name, SenderEntry{std::move(*sender), "", 0}).first;
      }
      found->second.signer = signer;
    }
    SenderEntry& sender = found->second;
    if (!sender.sender->has_room(sender.promised))
      return sender.sender->is_unavailable_now() ? kNoSpaceUnavailableMs : kNoSpaceMs;
    ++sender.promised;
    return 0;
  }
  std::uint64_t pause_of(const std::string& name, const std::string& signer) const {
    const std::size_t quarter = std::max(1U, settings_.concurrency / 4);
    std::size_t away = 0, of_signer = 0;
    for (const auto& [other, each] : strands_) {
      if (each.idle()) continue;
      away += unavailable_.contains(other) ? 1 : 0;
      of_signer += !signer.empty() && each.signer == signer ? 1 : 0;
    }
    if (unavailable_.contains(name) && away >= quarter) return kNoSpaceUnavailableMs;
    return of_signer >= quarter ? kTooManyMs : 0;
  }
  // Ends an idle sender thread to make room for another host. Hosts that do not answer lose their thread between
  // attempts.
  bool make_place() {
    const std::size_t others = strands_.size() - strands_.count("");
    if (others + 1 < std::max(2U, settings_.concurrency)) return true;
    const auto idle = std::find_if(strands_.begin(), strands_.end(),
                                   [](const auto& each) { return !each.first.empty() && each.second.idle(); });
    if (idle == strands_.end()) return false;
    if (idle->second.sender->is_unavailable_now()) unavailable_.insert(idle->first);
    strands_.erase(idle);
    return true;
  }
  // Error: the host is out of threads. The parcel waits until a thread can be created.
  Result<std::unique_ptr<AddressSender>> new_strand() {
    auto sender = std::make_unique<AddressSender>(settings_.transports(), [this](SendResult each) {
      carried_.post(std::move(each));
      wake();
    });
    MJ_CHECK(sender->begin());
    return sender;
  }

  SupervisorSettings settings_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FlowStore> flows_;
  MessageLoop rounds_;
  Mailbox<SendResult> carried_;
  std::map<std::string, SenderEntry> strands_;  // by host_of_address(); one per host for all paths
  std::set<std::string> unavailable_;           // hosts that did not answer the last request
  LogOnce log_once_, log_threads_;
  LoopThread<SupervisorImpl> thread_{*this};  // Last member: the thread uses all members above.
};

}  // namespace

Result<std::unique_ptr<Supervisor>> Supervisor::start(StoreFactory& stores, const Clock& clock,
                                                      SupervisorSettings settings) {
  MJ_TRY(store, stores.open());
  MJ_TRY(flows, stores.open_flows());
  MJ_TRY(waiter, stores.open_waiter({{settings.messages.context, kOutgoing}}, kMailChannel));
  auto made = std::make_unique<SupervisorImpl>(std::move(store), std::move(flows), std::move(waiter), clock,
                                               std::move(settings));
  MJ_CHECK(made->started());
  return made;
}

}  // namespace mycojobs
