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

constexpr std::size_t kMaxBatchReports = 256;
// After this time, the thread blocks until the answer arrives or the time-out of the store has passed.
constexpr std::uint64_t kAnswerTimeoutMs = 1000;
// Limit of estimate_bytes() for a batch: about 2,000 lines, added or deleted, which the store needs a few ms to
// process.
constexpr std::size_t kMaxBatchBytes = 1U << 20;
constexpr std::size_t kEntryBytes = 512;  // approximate size of an entry in the store without its text

std::size_t estimate_bytes(const Report& report) {
  std::size_t bytes = kEntryBytes;
  if (const auto* logs = std::get_if<LogAppend>(&report)) {
    bytes += logs->dropped_bytes;
    for (const Log& line : logs->lines) bytes += line.text.size() + kEntryBytes;
  } else if (const auto* end = std::get_if<EndReport>(&report)) {
    for (const auto& [key, value] : end->end.result) bytes += key.size() + value.size();
    bytes += end->end.error_info.size();
  }
  return bytes;
}

}  // namespace

const ClaimRef& get_claim(const Report& report) {
  return std::visit([](const auto& typed) -> const ClaimRef& { return typed.claim; }, report);
}

Reporter::Reporter(ClaimStore& store, const Clock& clock, StoreHealth& health, ReceiptSigner receipts,
                   Callbacks callbacks)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      store_(store),
      health_(health),
      callbacks_(std::move(callbacks)),
      receipts_(std::move(receipts)),
      pauses_(clock) {
  watch_descriptor(mailbox_.fd());
  watch_descriptor(timer_.fd());
}

// Connections are watched for one event only, because a connection that the server has closed would stay readable.
void Reporter::watch_descriptor(int fd) {
  const bool is_connection = fd != mailbox_.fd() && fd != timer_.fd();
  epoll_event event{};
  event.events = is_connection ? EPOLLIN | EPOLLONESHOT : EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Reporter::post(RunReport report) {
  if (!send_at_once(report)) mailbox_.post(std::move(report));
}

bool Reporter::send_at_once(RunReport& report) {
  const std::unique_lock lock(store_mutex_, std::try_to_lock);
  if (!lock || stop_ || sent_context_ || !mailbox_.empty() || callbacks_.batch_delay_us() > 0) return false;
  const Id context = get_claim(report.report).context;
  const bool has_pending_reports = std::any_of(pending_reports_.begin(), pending_reports_.end(),
                                               [](const auto& entry) { return !entry.second.empty(); });
  if (has_pending_reports || !pauses_.can_try(context)) return false;
  receipts_.complete_receipt(report);
  if (report.awaits_upload) return callbacks_.upload(std::move(report)), true;
  const RunReport& pending = pending_reports_[context].emplace_back(std::move(report));
  const auto answer = store_.begin_report(context, {&pending.report, 1});
  if (!answer) return mailbox_.wake(), true;
  sent_context_ = context;
  timer_.arm(kAnswerTimeoutMs);
  watch_descriptor(*answer);
  return true;
}

void Reporter::read_answers() {
  const Id context = *std::exchange(sent_context_, std::nullopt);
  ContextReports& pending = pending_reports_[context];
  const std::span<const Report> reports(&pending.front().report, 1);
  if (const auto answers = store_.finish_report(context, reports)) {
    process_answers(context, pending, reports, *answers);
  } else {
    on_failed(context, answers.error());
  }
}

void Reporter::stop() {
  stop_ = true;
  mailbox_.wake();
}

std::optional<std::uint64_t> Reporter::next_attempt_ms() const {
  std::uint64_t pause = UINT64_MAX;
  for (const auto& [context, pending] : pending_reports_) {
    if (!pending.empty()) pause = std::min(pause, pauses_.remaining_ms(context));
  }
  return pause == UINT64_MAX ? std::nullopt : std::optional(pause);
}

void Reporter::wait_until_due(std::optional<std::uint64_t> ms) {
  epoll_event event{};
  const int limit = ms ? static_cast<int>(std::min<std::uint64_t>(*ms, INT_MAX)) : -1;
  if (::epoll_wait(epoll_.get(), &event, 1, limit) <= 0 || stop_) return;
  if (event.data.fd == timer_.fd()) timer_.acknowledge();
  // Reports that arrive during the pause cause no further wake-up, since the mailbox is not empty.
  if (event.data.fd != mailbox_.fd()) return;
  if (const std::uint32_t delay_us = callbacks_.batch_delay_us(); delay_us > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
}

std::optional<std::uint64_t> Reporter::run_once() {
  const std::lock_guard lock(store_mutex_);
  if (sent_context_) read_answers();
  for (RunReport& report : mailbox_.consume_all()) {
    receipts_.complete_receipt(report);
    if (report.awaits_upload) {
      callbacks_.upload(std::move(report));
      continue;
    }
    pending_reports_[get_claim(report.report).context].push_back(std::move(report));
  }
  for (auto& [context, pending] : pending_reports_) {
    if (!stop_ && !pending.empty() && pauses_.can_try(context)) send_batch(context, pending);
  }
  return next_attempt_ms();
}

void Reporter::send_batch(Id context, ContextReports& pending) {
  std::vector<Report> batch;
  std::size_t bytes = 0;
  for (RunReport& report : pending) {
    if (batch.size() == kMaxBatchReports || bytes > kMaxBatchBytes) break;
    bytes += estimate_bytes(report.report);
    batch.push_back(std::move(report.report));  // moved back if the batch cannot be stored
  }
  auto answers = store_.report(context, batch);
  if (!answers) {
    for (std::size_t i = 0; i < batch.size(); ++i) pending[i].report = std::move(batch[i]);
    return on_failed(context, answers.error());
  }
  process_answers(context, pending, batch, *answers);
}

void Reporter::on_failed(Id context, const Error& error) {
  pauses_.on_failure(context);
  health_.on_failure(context, "storing results", error);
}

void Reporter::process_answers(Id context, ContextReports& pending, std::span<const Report> reports,
                               const std::vector<Result<void>>& answers) {
  pauses_.on_success(context);
  health_.on_success(context);
  std::vector<RunNumber> settled_runs;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const RunReport& report = pending.front();
    const Result<void>& answer = answers[i];
    if (!answer) {
      const bool is_stale = answer.error().code == Code::stale_claim;
      log(is_stale ? LogLevel::warn : LogLevel::error, "worker", "{}: report refused{}: {}",
          get_claim(reports[i]).job_key, is_stale ? " as stale" : "", answer.error().message);
    }
    if (report.is_last)
      settled_runs.push_back(report.run);
    else if (!answer && answer.error().code == Code::stale_claim)
      callbacks_.on_stale(report.run);
    pending.pop_front();
  }
  if (!settled_runs.empty()) callbacks_.on_settled(settled_runs);
}

}  // namespace mycojobs
