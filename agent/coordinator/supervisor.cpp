#include "coordinator/supervisor.h"

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
#include "coordinator/context_turns.h"
#include "coordinator/log_once.h"
#include "domain/host.h"

namespace mycojobs {
namespace {

constexpr const char *kMailChannel = "mj:mail", *kOutgoing = "msg_out";
constexpr std::uint32_t kExchangeMs = 10000, kSupervisorAwayMs = 500;
constexpr std::uint32_t kLaneIdleMs = 30000;
constexpr std::size_t kMostInLane = 64;
// Pause before a parcel is tried again: no free sender thread; the host does not answer; the signer has reached its
// limit of sender threads.
constexpr std::uint64_t kNoRoomMs = 100, kNoRoomAwayMs = 5000, kTooManyMs = 1000;
constexpr std::uint64_t kAllPutBackAgainMs = 10;  // pause before the next round if no parcel could be sent
constexpr std::size_t kMostAwayKept = 10000;

struct Carried {
  Parcel parcel;
  Result<std::string> answer;
};

// The sender thread of one address. It sends parcels one after the other.
class Lane {
 public:
  Lane(std::unique_ptr<Transports> transports, std::function<void(Carried)> carried)
      : transports_(std::move(transports)), carried_(std::move(carried)) {}
  Result<void> begin() {
    MJ_TRY(thread, start_thread([this] { loop(); }));
    thread_ = std::move(thread);
    return {};
  }
  ~Lane() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  bool take(Parcel& parcel) {
    const std::lock_guard lock(mutex_);
    if (ended_ || waiting_.size() >= kMostInLane) return false;
    waiting_.push_back(std::move(parcel));
    wake_.notify_all();
    return true;
  }
  bool has_room(std::size_t promised) {
    const std::lock_guard lock(mutex_);
    return !ended_ && waiting_.size() + promised < kMostInLane;
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return waiting_.empty() && !busy_;
  }
  bool is_away() const { return away_; }           // the last request was not answered
  bool was_answered() const { return answered_; }  // the last request was answered

 private:
  std::optional<Parcel> next() {
    std::unique_lock lock(mutex_);
    busy_ = false;
    wake_.wait_for(lock, std::chrono::milliseconds(kLaneIdleMs), [this] { return stop_ || !waiting_.empty(); });
    if (stop_ || waiting_.empty()) {
      ended_ = true;
      return std::nullopt;
    }
    Parcel parcel = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    return parcel;
  }
  void loop() {
    while (auto parcel = next()) {
      bool is_peer_there = false;
      auto answer = exchange(*parcel, is_peer_there);
      const bool away = !answer && answer.error().code == Code::unavailable && !is_peer_there;
      away_ = away;
      answered_ = !away;
      carried_({std::move(*parcel), answer});
      if (!away) continue;
      // The host does not answer, so the other parcels are returned without an attempt.
      std::deque<Parcel> others;
      {
        const std::lock_guard lock(mutex_);
        others.swap(waiting_);
      }
      for (Parcel& each : others) carried_({std::move(each), answer});
    }
  }
  Result<std::string> exchange(const Parcel& parcel, bool& is_peer_there) {
    MJ_TRY(transport, transports_->of(parcel.address));
    auto answer = transport->exchange(parcel.address, parcel.request, kExchangeMs);
    is_peer_there = transport->is_peer_there();
    return answer;
  }

  std::unique_ptr<Transports> transports_;
  std::function<void(Carried)> carried_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Parcel> waiting_;
  bool stop_ = false, ended_ = false, busy_ = false;
  std::atomic<bool> away_{false}, answered_{false};
  std::thread thread_;  // Last member: the thread uses all members above.
};

class Supervising final : public Supervisor, public ContextTurns {
 public:
  Supervising(std::unique_ptr<Store> store, std::unique_ptr<FlowStore> flows, std::unique_ptr<Waiter> waiter,
              const Clock& clock, SupervisorSettings settings)
      : ContextTurns(std::move(waiter), clock, ""),
        settings_(std::move(settings)),
        store_(std::move(store)),
        flows_(std::move(flows)),
        rounds_(*store_, *flows_, clock, settings_.messages),
        log_once_("supervisor", settings_.messages.context),
        log_threads_("supervisor", settings_.messages.context) {}
  const Result<void>& started() const { return thread_.started(); }
  ~Supervising() override {
    thread_.stop();
    lanes_.clear();
  }
  void ask_to_stop() override { stop(); }

  std::uint64_t turn() {
    const auto next_ms = round();
    log_once_(next_ms ? nullptr : &next_ms.error());
    take_work(next_ms.has_value());
    return next_ms.value_or(kSupervisorAwayMs);
  }

 private:
  Result<std::uint64_t> round() {
    std::deque<Carried> carried = carried_.take();
    for (auto each = carried.begin(); each != carried.end(); ++each) {
      if (auto done = rounds_.settle(each->parcel, each->answer); !done) {
        // The remaining parcels are due again when their claims expire.
        return tl::unexpected<Error>(std::move(done).error());
      }
    }
    remember_who_is_away();
    for (auto& [name, each] : lanes_) each.promised = 0;
    std::erase_if(lanes_, [](const auto& each) { return each.second.lane->ended(); });
    MJ_TRY(found,
           rounds_.round(settings_.concurrency * 4, [this](const OutboxEntry& entry) { return room_of(entry); }));
    bool any_goes = found.parcels.empty();
    for (Parcel& parcel : found.parcels) {
      MJ_TRY(goes, send(parcel));
      any_goes = any_goes || goes;
    }
    return any_goes ? found.next_ms : std::max(found.next_ms, kAllPutBackAgainMs);
  }
  // Returns false if the parcel was returned unsent.
  Result<bool> send(Parcel& parcel) {
    const auto lane = lanes_.find(host_of_address(parcel.address));
    const bool goes = lane != lanes_.end() && lane->second.lane->take(parcel);
    if (!goes) MJ_CHECK(rounds_.put_back(parcel, kNoRoomMs));
    return goes;
  }

  struct OpenLane {
    std::unique_ptr<Lane> lane;
    std::string signer;        // signer of the message whose answer opened the thread; empty for other requests
    std::size_t promised = 0;  // parcels of this round
    bool idle() const { return promised == 0 && lane->idle(); }
  };

  void remember_who_is_away() {
    if (away_.size() > kMostAwayKept) away_.clear();
    for (const auto& [name, each] : lanes_) {
      if (!each.lane->idle()) continue;
      if (each.lane->is_away()) {
        away_.insert(name);
      } else if (each.lane->was_answered()) {
        away_.erase(name);
      }
    }
  }
  // Implements MessageRounds::Room. Hosts that did not answer last time share a quarter of the sender threads. The
  // answers to one signer also get at most a quarter. One thread is reserved for this host.
  std::uint64_t room_of(const OutboxEntry& entry) {
    const std::string name = host_of_address(field_of(entry.mark, "address"));
    auto found = lanes_.find(name);
    if (found == lanes_.end() || found->second.idle()) {
      const bool is_answer = entry.kind == "answer" || entry.kind == "logs";
      const std::string signer(is_answer ? field_of(entry.mark, "signer") : "");
      if (const std::uint64_t pause_ms = name.empty() ? 0 : pause_of(name, signer); pause_ms > 0) return pause_ms;
      if (found == lanes_.end()) {
        if (!name.empty() && !make_place()) return kNoRoomMs;
        auto lane = new_lane();
        log_threads_(lane ? nullptr : &lane.error());
        if (!lane) return kNoRoomMs;
        found = lanes_.emplace(name, OpenLane{std::move(*lane), "", 0}).first;
      }
      found->second.signer = signer;
    }
    OpenLane& lane = found->second;
    if (!lane.lane->has_room(lane.promised)) return lane.lane->is_away() ? kNoRoomAwayMs : kNoRoomMs;
    ++lane.promised;
    return 0;
  }
  std::uint64_t pause_of(const std::string& name, const std::string& signer) const {
    const std::size_t quarter = std::max(1U, settings_.concurrency / 4);
    std::size_t away = 0, of_signer = 0;
    for (const auto& [other, each] : lanes_) {
      if (each.idle()) continue;
      away += away_.contains(other) ? 1 : 0;
      of_signer += !signer.empty() && each.signer == signer ? 1 : 0;
    }
    if (away_.contains(name) && away >= quarter) return kNoRoomAwayMs;
    return of_signer >= quarter ? kTooManyMs : 0;
  }
  // Ends an idle sender thread to make room for another host. Hosts that do not answer lose their thread between
  // attempts.
  bool make_place() {
    const std::size_t others = lanes_.size() - lanes_.count("");
    if (others + 1 < std::max(2U, settings_.concurrency)) return true;
    const auto idle = std::find_if(lanes_.begin(), lanes_.end(),
                                   [](const auto& each) { return !each.first.empty() && each.second.idle(); });
    if (idle == lanes_.end()) return false;
    if (idle->second.lane->is_away()) away_.insert(idle->first);
    lanes_.erase(idle);
    return true;
  }
  // Error: the host is out of threads. The parcel waits until a thread can be created.
  Result<std::unique_ptr<Lane>> new_lane() {
    auto lane = std::make_unique<Lane>(settings_.transports(), [this](Carried each) {
      carried_.post(std::move(each));
      wake();
    });
    MJ_CHECK(lane->begin());
    return lane;
  }

  SupervisorSettings settings_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FlowStore> flows_;
  MessageRounds rounds_;
  Mailbox<Carried> carried_;
  std::map<std::string, OpenLane> lanes_;  // by host_of_address(); one per host for all paths
  std::set<std::string> away_;             // hosts that did not answer the last request
  LogOnce log_once_, log_threads_;
  TurnThread<Supervising> thread_{*this};  // Last member: the thread uses all members above.
};

}  // namespace

Result<std::unique_ptr<Supervisor>> Supervisor::start(StoreFactory& stores, const Clock& clock,
                                                      SupervisorSettings settings) {
  MJ_TRY(store, stores.open());
  MJ_TRY(flows, stores.open_flows());
  MJ_TRY(waiter, stores.open_waiter({{settings.messages.context, kOutgoing}}, kMailChannel));
  auto made =
      std::make_unique<Supervising>(std::move(store), std::move(flows), std::move(waiter), clock, std::move(settings));
  MJ_CHECK(made->started());
  return made;
}

}  // namespace mycojobs
