#include "coordinator/supervisor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/mailbox.h"
#include "coordinator/said_once.h"

namespace mycojobs {
namespace {

constexpr const char *kMailChannel = "mj:mail", *kOutgoing = "msg_out";
constexpr std::uint32_t kExchangeMs = 10000, kSupervisorAwayMs = 500;
constexpr std::uint32_t kLaneIdleMs = 30000;
constexpr std::size_t kMostInLane = 64;
constexpr std::uint64_t kNoRoomMs = 100, kNoRoomAwayMs = 5000;  // until it is tried again; nobody answers there

struct Carried {
  Parcel parcel;
  Result<std::string> answer;
};

// What goes to one address, one after the other.
class Lane {
 public:
  Lane(std::unique_ptr<Transports> transports, std::function<void(Carried)> carried)
      : transports_(std::move(transports)), carried_(std::move(carried)), thread_([this] { loop(); }) {}
  ~Lane() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  bool take(Parcel& parcel) {
    const std::lock_guard lock(mutex_);
    if (ended_ || waiting_.size() >= kMostInLane) return false;
    waiting_.push_back(std::move(parcel));
    wake_.notify_all();
    return true;
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return waiting_.empty() && !busy_;
  }
  bool is_away() const { return away_; }  // the last exchange had no answer

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
      auto answer = exchange(*parcel);
      const bool away = !answer && answer.error().code == Code::unavailable;
      away_ = away;
      carried_({std::move(*parcel), answer});
      if (!away) continue;
      // Nobody is there: the others need not find that out one by one.
      std::deque<Parcel> others;
      {
        const std::lock_guard lock(mutex_);
        others.swap(waiting_);
      }
      for (Parcel& each : others) carried_({std::move(each), answer});
    }
  }
  Result<std::string> exchange(const Parcel& parcel) {
    MJ_TRY(transport, transports_->of(parcel.address));
    return transport->exchange(parcel.address, parcel.request, kExchangeMs);
  }

  std::unique_ptr<Transports> transports_;
  std::function<void(Carried)> carried_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Parcel> waiting_;
  bool stop_ = false, ended_ = false, busy_ = false;
  std::atomic<bool> away_{false};
  std::thread thread_;  // last: it uses all of the above
};

class Supervising final : public Supervisor {
 public:
  Supervising(std::unique_ptr<Store> store, std::unique_ptr<FlowStore> flows, std::unique_ptr<Waiter> waiter,
              const Clock& clock, SupervisorSettings settings)
      : settings_(std::move(settings)),
        store_(std::move(store)),
        flows_(std::move(flows)),
        waiter_(std::move(waiter)),
        rounds_(*store_, *flows_, clock, settings_.messages),
        said_("supervisor", settings_.messages.context),
        thread_([this] { loop(); }) {}
  ~Supervising() override {
    ask_to_stop();
    thread_.join();
    lanes_.clear();
  }
  void ask_to_stop() override {
    stop_ = true;
    waiter_->wake();
  }

 private:
  void loop() {
    while (!stop_) {
      const auto next_ms = round();
      said_(next_ms ? nullptr : &next_ms.error());
      const std::uint64_t pause = next_ms.value_or(kSupervisorAwayMs);
      // An error of the waiter is one of the store, which the next round meets.
      if (pause > 0 && !stop_) (void)waiter_->wait(static_cast<std::uint32_t>(pause), next_ms.has_value());
    }
  }
  Result<std::uint64_t> round() {
    std::deque<Carried> carried = carried_.take();
    for (auto each = carried.begin(); each != carried.end(); ++each) {
      if (auto done = rounds_.settle(each->parcel, each->answer); !done) {
        // Those that are left are due again once their time is over.
        return tl::unexpected<Error>(std::move(done).error());
      }
    }
    std::erase_if(lanes_, [](const auto& lane) { return lane.second->ended(); });
    MJ_TRY(found, rounds_.round(settings_.concurrency * 4));
    for (Parcel& parcel : found.parcels) MJ_CHECK(send(parcel));
    return found.next_ms;
  }
  Result<void> send(Parcel& parcel) {
    auto lane = lanes_.find(parcel.address);
    if (lane == lanes_.end()) {
      if (lanes_.size() >= settings_.concurrency) {
        // Those that nobody answers are tried again and again: they do not keep their lanes meanwhile.
        const auto idle =
            std::find_if(lanes_.begin(), lanes_.end(), [](const auto& each) { return each.second->idle(); });
        if (idle == lanes_.end()) return rounds_.put_back(parcel, kNoRoomMs);
        lanes_.erase(idle);
      }
      auto made = std::make_unique<Lane>(settings_.transports(), [this](Carried each) {
        carried_.post(std::move(each));
        waiter_->wake();
      });
      lane = lanes_.emplace(parcel.address, std::move(made)).first;
    }
    if (lane->second->take(parcel)) return {};
    return rounds_.put_back(parcel, lane->second->is_away() ? kNoRoomAwayMs : kNoRoomMs);
  }

  SupervisorSettings settings_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<FlowStore> flows_;
  std::unique_ptr<Waiter> waiter_;
  MessageRounds rounds_;
  Mailbox<Carried> carried_;
  std::map<std::string, std::unique_ptr<Lane>> lanes_;
  SaidOnce said_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<Supervisor>> Supervisor::start(StoreFactory& stores, const Clock& clock,
                                                      SupervisorSettings settings) {
  MJ_TRY(store, stores.open());
  MJ_TRY(flows, stores.open_flows());
  MJ_TRY(waiter, stores.open_waiter({{settings.messages.context, kOutgoing}}, kMailChannel));
  return std::make_unique<Supervising>(std::move(store), std::move(flows), std::move(waiter), clock,
                                       std::move(settings));
}

}  // namespace mycojobs
