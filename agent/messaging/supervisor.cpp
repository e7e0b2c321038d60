#include "messaging/supervisor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "base/log.h"
#include "base/thread.h"
#include "net/host.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr const char* kOutgoingList = "msg_out";
constexpr const char* kIncomingList = "msg_in";
// Every answer is added to the list of received messages, but only messages of plain clients are processed, so several
// changes share a round.
constexpr std::chrono::milliseconds kIncomingListDelay{1000};
// A change of this list is reported to every context of the server, so several changes share a round.
constexpr std::chrono::milliseconds kOutgoingListDelay{50};
constexpr std::uint32_t kExchangeTimeoutMs = 10000, kStoreRetryDelayMs = 500;
constexpr std::uint32_t kSenderIdleMs = 30000;
constexpr std::size_t kMaxSenderQueue = 64;
// Delay before a request is tried again: no free sender thread; the host does not answer; the signer has reached its
// limit of sender threads.
constexpr std::uint64_t kNoSenderDelayMs = 100, kUnavailableHostDelayMs = 5000, kSignerLimitDelayMs = 1000;
constexpr std::uint64_t kNothingSentDelayMs = 10;  // delay before the next round if no request could be sent
constexpr std::size_t kMaxUnavailableHosts = 10000;

}  // namespace

// The sender thread of one host. It sends the requests one after the other.
class Supervisor::AddressSender {
 public:
  AddressSender(std::unique_ptr<Transports> transports, std::function<void(SendResult)> on_result)
      : transports_(std::move(transports)), on_result_(std::move(on_result)) {}
  Result<void> begin() {
    MJ_TRY(thread, start_thread([this] { run_sender(); }));
    thread_ = std::move(thread);
    return {};
  }
  ~AddressSender() {
    {
      const std::lock_guard lock(mutex_);
      should_stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  // Moves the request to the queue. Returns false if the queue is full or the thread has ended.
  bool enqueue(OutboundRequest& request) {
    const std::lock_guard lock(mutex_);
    if (has_ended_ || queue_.size() >= kMaxSenderQueue) return false;
    queue_.push_back(std::move(request));
    wake_.notify_all();
    return true;
  }
  bool has_capacity(std::size_t reserved) {
    const std::lock_guard lock(mutex_);
    return !has_ended_ && queue_.size() + reserved < kMaxSenderQueue;
  }
  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return has_ended_;
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return queue_.empty() && !is_sending_;
  }
  // Both functions return false before the first request.
  bool is_host_unavailable() const { return is_host_unavailable_; }
  bool is_host_answering() const { return is_host_answering_; }

 private:
  // Waits for a request. Returns no value if the thread must end.
  std::optional<OutboundRequest> pop_request() {
    std::unique_lock lock(mutex_);
    is_sending_ = false;
    wake_.wait_for(lock, std::chrono::milliseconds(kSenderIdleMs), [this] { return should_stop_ || !queue_.empty(); });
    if (should_stop_ || queue_.empty()) {
      has_ended_ = true;
      return std::nullopt;
    }
    OutboundRequest request = std::move(queue_.front());
    queue_.pop_front();
    is_sending_ = true;
    return request;
  }
  void run_sender() {
    while (auto request = pop_request()) {
      bool is_peer_reachable = false;
      auto answer = exchange(*request, is_peer_reachable);
      const bool is_unavailable = !answer && answer.error().code == Code::unavailable && !is_peer_reachable;
      is_host_unavailable_ = is_unavailable;
      is_host_answering_ = !is_unavailable;
      on_result_({std::move(*request), answer});
      if (!is_unavailable) continue;
      // The host does not answer, so the queued requests are returned without an attempt.
      std::deque<OutboundRequest> pending;
      {
        const std::lock_guard lock(mutex_);
        pending.swap(queue_);
      }
      for (OutboundRequest& entry : pending) on_result_({std::move(entry), answer});
    }
  }
  Result<std::string> exchange(const OutboundRequest& request, bool& is_peer_reachable) {
    MJ_TRY(transport, transports_->select(request.address));
    auto answer = transport->exchange(request.address, request.request, kExchangeTimeoutMs);
    is_peer_reachable = transport->is_peer_reachable();
    return answer;
  }

  std::unique_ptr<Transports> transports_;
  std::function<void(SendResult)> on_result_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<OutboundRequest> queue_;
  bool should_stop_ = false, has_ended_ = false, is_sending_ = false;
  std::atomic<bool> is_host_unavailable_{false}, is_host_answering_{false};
  std::thread thread_;  // Last member: the thread uses all members above.
};

Result<std::unique_ptr<Supervisor>> Supervisor::start(StoreFactory& stores, const Clock& clock, LoopPool& pool,
                                                      SupervisorSettings settings) {
  MJ_TRY(store, stores.open());
  MJ_TRY(flows, stores.open_flows());
  const Id context = settings.messages.context;
  std::unique_ptr<Supervisor> supervisor(
      new Supervisor(std::move(store), std::move(flows), clock, std::move(settings)));
  MJ_CHECK(supervisor->begin(stores, context, {{kMailboxChangedChannel}, {kOutgoingList, kIncomingList}}, pool));
  return supervisor;
}

Supervisor::Supervisor(std::unique_ptr<Store> store, std::unique_ptr<FlowStore> flows, const Clock& clock,
                       SupervisorSettings settings)
    : HintedLoop(""),
      settings_(std::move(settings)),
      store_(std::move(store)),
      flows_(std::move(flows)),
      loop_(*store_, *flows_, clock, settings_.messages),
      log_once_("supervisor", settings_.messages.context),
      log_threads_("supervisor", settings_.messages.context) {}

Supervisor::~Supervisor() {
  end();
  senders_.clear();
}

std::uint64_t Supervisor::run_iteration() {
  const auto next_ms = run_round();
  log_once_(next_ms ? nullptr : &next_ms.error());
  return next_ms ? std::min(max_idle_ms(), *next_ms) : kStoreRetryDelayMs;
}

std::chrono::milliseconds Supervisor::key_hint_delay(std::string_view key) const {
  return key == kIncomingList ? kIncomingListDelay : kOutgoingListDelay;
}

Result<std::uint64_t> Supervisor::run_round() {
  std::deque<SendResult> results = results_.consume_all();
  for (auto entry = results.begin(); entry != results.end(); ++entry) {
    if (auto completed = loop_.complete(entry->request, entry->answer); !completed) {
      // The remaining requests are due again when their claims expire.
      return tl::unexpected<Error>(std::move(completed).error());
    }
  }
  update_unavailable_hosts();
  for (auto& [name, entry] : senders_) entry.reserved = 0;
  std::erase_if(senders_, [](const auto& entry) { return entry.second.sender->has_ended(); });
  MJ_TRY(batch,
         loop_.run_round(settings_.concurrency * 4, [this](const OutboxEntry& entry) { return send_delay_ms(entry); }));
  bool has_sent_any = batch.requests.empty();
  for (OutboundRequest& request : batch.requests) {
    MJ_TRY(is_sent, send(request));
    has_sent_any = has_sent_any || is_sent;
  }
  return has_sent_any ? batch.next_ms : std::max(batch.next_ms, kNothingSentDelayMs);
}

Result<bool> Supervisor::send(OutboundRequest& request) {
  const auto sender = senders_.find(extract_host(request.address));
  const bool is_sent = sender != senders_.end() && sender->second.sender->enqueue(request);
  if (!is_sent) MJ_CHECK(loop_.requeue_unsent(request, kNoSenderDelayMs));
  return is_sent;
}

void Supervisor::update_unavailable_hosts() {
  if (unavailable_hosts_.size() > kMaxUnavailableHosts) unavailable_hosts_.clear();
  for (const auto& [name, entry] : senders_) {
    if (!entry.sender->is_idle()) continue;
    if (entry.sender->is_host_unavailable()) {
      unavailable_hosts_.insert(name);
    } else if (entry.sender->is_host_answering()) {
      unavailable_hosts_.erase(name);
    }
  }
}

std::uint64_t Supervisor::send_delay_ms(const OutboxEntry& entry) {
  const std::string name = extract_host(field_of(entry.mark, "address"));
  auto position = senders_.find(name);
  if (position == senders_.end() || position->second.is_idle()) {
    const bool is_answer = entry.kind == "answer" || entry.kind == "logs";
    const std::string signer(is_answer ? field_of(entry.mark, "signer") : "");
    if (const std::uint64_t pause_ms = name.empty() ? 0 : limit_delay_ms(name, signer); pause_ms > 0) return pause_ms;
    if (position == senders_.end()) {
      if (!name.empty() && !free_sender()) return kNoSenderDelayMs;
      auto new_sender = start_sender();
      log_threads_(new_sender ? nullptr : &new_sender.error());
      if (!new_sender) return kNoSenderDelayMs;
      position = senders_.emplace(name, SenderEntry{std::move(*new_sender), "", 0}).first;
    }
    position->second.signer = signer;
  }
  SenderEntry& sender = position->second;
  if (!sender.sender->has_capacity(sender.reserved))
    return sender.sender->is_host_unavailable() ? kUnavailableHostDelayMs : kNoSenderDelayMs;
  ++sender.reserved;
  return 0;
}

std::uint64_t Supervisor::limit_delay_ms(const std::string& name, const std::string& signer) const {
  const std::size_t quarter = std::max(1U, settings_.concurrency / 4);
  std::size_t unavailable_count = 0, signer_count = 0;
  for (const auto& [other, entry] : senders_) {
    if (entry.is_idle()) continue;
    unavailable_count += unavailable_hosts_.contains(other) ? 1 : 0;
    signer_count += !signer.empty() && entry.signer == signer ? 1 : 0;
  }
  if (unavailable_hosts_.contains(name) && unavailable_count >= quarter) return kUnavailableHostDelayMs;
  return signer_count >= quarter ? kSignerLimitDelayMs : 0;
}

bool Supervisor::free_sender() {
  const std::size_t remote_senders = senders_.size() - senders_.count("");
  if (remote_senders + 1 < std::max(2U, settings_.concurrency)) return true;
  const auto idle_sender = std::find_if(senders_.begin(), senders_.end(), [](const auto& entry) {
    return !entry.first.empty() && entry.second.is_idle();
  });
  if (idle_sender == senders_.end()) return false;
  if (idle_sender->second.sender->is_host_unavailable()) unavailable_hosts_.insert(idle_sender->first);
  senders_.erase(idle_sender);
  return true;
}

Result<std::unique_ptr<Supervisor::AddressSender>> Supervisor::start_sender() {
  auto sender = std::make_unique<AddressSender>(settings_.transports(), [this](SendResult result) {
    results_.post(std::move(result));
    wake();
  });
  MJ_CHECK(sender->begin());
  return sender;
}

bool Supervisor::SenderEntry::is_idle() const { return reserved == 0 && sender->is_idle(); }

}  // namespace mycojobs
