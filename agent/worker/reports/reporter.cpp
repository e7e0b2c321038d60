#include "worker/reports/reporter.h"

#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <thread>
#include <vector>

#include "base/log.h"

namespace mycojobs {
namespace {

constexpr std::size_t kBatch = 256;
constexpr std::uint64_t kTimeoutMs = 1000;     // afterwards the thread waits for the answer, with a time-out
constexpr std::size_t kBatchBytes = 1U << 20;  // with kEntryBytes about 2,000 lines: a few ms of the store's time
constexpr std::size_t kEntryBytes = 512;       // approximate cost of an entry in the store

std::size_t size_of(const Report& report) {
  std::size_t bytes = kEntryBytes;
  if (const auto* logs = std::get_if<LogAppend>(&report)) {
    for (const Log& line : logs->lines) bytes += line.text.size() + kEntryBytes;
  } else if (const auto* end = std::get_if<EndReport>(&report)) {
    for (const auto& [key, value] : end->end.result) bytes += key.size() + value.size();
    bytes += end->end.error_info.size();
  }
  return bytes;
}

}  // namespace

const ClaimRef& claim_of(const Report& report) {
  return std::visit([](const auto& r) -> const ClaimRef& { return r.claim; }, report);
}

Reporter::Reporter(ClaimStore& store, const Clock& clock, StoreHealth& health, Receipts receipts, Callbacks callbacks)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      store_(store),
      health_(health),
      callbacks_(std::move(callbacks)),
      receipts_(std::move(receipts)),
      pauses_(clock) {
  watch(mailbox_.fd());
  watch(alarm_.fd());
}

// A connection is watched for one event: after its server has closed it, it would be readable in a loop.
void Reporter::watch(int fd) {
  const bool once = fd != mailbox_.fd() && fd != alarm_.fd();
  epoll_event event{};
  event.events = once ? EPOLLIN | EPOLLONESHOT : EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Reporter::post(RunReport outgoing) {
  if (!send_at_once(outgoing)) mailbox_.post(std::move(outgoing));
}

bool Reporter::send_at_once(RunReport& outgoing) {
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn || stop_ || sent_ || !mailbox_.empty() || callbacks_.gather_us() > 0) return false;
  const Id context = claim_of(outgoing.report).context;
  const bool waiting = std::any_of(lines_.begin(), lines_.end(), [](const auto& each) { return !each.second.empty(); });
  if (waiting || !pauses_.may_try(context)) return false;
  receipts_.complete(outgoing);
  const RunReport& kept = lines_[context].emplace_back(std::move(outgoing));
  const auto answer = store_.begin_report(context, {&kept.report, 1});
  if (!answer) return mailbox_.wake(), true;
  sent_ = context;
  alarm_.arm(kTimeoutMs);
  watch(*answer);
  return true;
}

void Reporter::read_replies() {
  const Id context = *std::exchange(sent_, std::nullopt);
  ContextReports& pending = lines_[context];
  const std::span<const Report> report(&pending.front().report, 1);
  if (const auto answers = store_.finish_report(context, report)) {
    settle(context, pending, report, *answers);
  } else {
    failed(context, answers.error());
  }
}

void Reporter::stop() {
  stop_ = true;
  mailbox_.wake();
}

std::optional<std::uint64_t> Reporter::pause_ms() const {
  std::uint64_t pause = UINT64_MAX;
  for (const auto& [context, pending] : lines_) {
    if (!pending.empty()) pause = std::min(pause, pauses_.left_ms(context));
  }
  return pause == UINT64_MAX ? std::nullopt : std::optional(pause);
}

void Reporter::wait_until_due(std::optional<std::uint64_t> ms) {
  epoll_event event{};
  const int limit = ms ? static_cast<int>(std::min<std::uint64_t>(*ms, INT_MAX)) : -1;
  if (::epoll_wait(epoll_.get(), &event, 1, limit) <= 0 || stop_) return;
  if (event.data.fd == alarm_.fd()) alarm_.acknowledge();
  // Reports that arrive during the pause cause no further wake-up, since the mailbox is not empty.
  if (event.data.fd != mailbox_.fd()) return;
  if (const std::uint32_t gather = callbacks_.gather_us(); gather > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(gather));
}

std::optional<std::uint64_t> Reporter::run_once() {
  const std::lock_guard turn(turn_);
  if (sent_) read_replies();
  for (RunReport& outgoing : mailbox_.take_all()) {
    receipts_.complete(outgoing);
    lines_[claim_of(outgoing.report).context].push_back(std::move(outgoing));
  }
  for (auto& [context, pending] : lines_) {
    if (!stop_ && !pending.empty() && pauses_.may_try(context)) send_some(context, pending);
  }
  return pause_ms();
}

void Reporter::send_some(Id context, ContextReports& pending) {
  std::vector<Report> batch;
  std::size_t bytes = 0;
  for (RunReport& outgoing : pending) {
    if (batch.size() == kBatch || bytes > kBatchBytes) break;
    bytes += size_of(outgoing.report);
    batch.push_back(std::move(outgoing.report));  // moved back if the batch cannot be stored
  }
  auto answers = store_.report(context, batch);
  if (!answers) {
    for (std::size_t i = 0; i < batch.size(); ++i) pending[i].report = std::move(batch[i]);
    return failed(context, answers.error());
  }
  settle(context, pending, batch, *answers);
}

void Reporter::failed(Id context, const Error& error) {
  pauses_.failed(context);
  health_.failed(context, "storing results", error);
}

void Reporter::settle(Id context, ContextReports& pending, std::span<const Report> reports,
                      const std::vector<Result<void>>& answers) {
  pauses_.on_success(context);
  health_.on_success(context);
  std::vector<RunNumber> settled;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const RunReport& outgoing = pending.front();
    const Result<void>& answer = answers[i];
    if (!answer) {
      const bool stale = answer.error().code == Code::stale_claim;
      log(stale ? LogLevel::warn : LogLevel::error, "worker", "{}: report refused{}: {}", claim_of(reports[i]).job_key,
          stale ? " as stale" : "", answer.error().message);
    }
    if (outgoing.last)
      settled.push_back(outgoing.run);
    else if (!answer && answer.error().code == Code::stale_claim)
      callbacks_.stale(outgoing.run);
    pending.pop_front();
  }
  if (!settled.empty()) callbacks_.settled(settled);
}

}  // namespace mycojobs
