#include "worker/reporter.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/turns.h"

namespace mycojobs {
namespace {

constexpr std::size_t kBatch = 256;
constexpr std::size_t kBatchBytes = 1U << 20;  // with kEntryBytes about 2,000 lines: a few ms of the store's time
constexpr std::size_t kEntryBytes = 512;       // what one more entry costs the store, about

const ClaimRef& claim_of(const Report& report) {
  return std::visit([](const auto& r) -> const ClaimRef& { return r.claim; }, report);
}

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

Reporter::Reporter(ClaimStore& store, const Clock& clock, StoreHealth& health, StoreServers& servers, Receipts receipts,
                   Callbacks callbacks)
    : store_(store),
      health_(health),
      callbacks_(std::move(callbacks)),
      receipts_(std::move(receipts)),
      clock_(clock),
      pauses_(clock, servers) {}

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

void Reporter::rest(std::optional<std::uint64_t> ms) {
  // What comes while we gather wakes nobody: the mailbox has been found full already.
  if (!wait_readable(mailbox_.fd(), ms) || stop_) return;
  if (const std::uint32_t gather = callbacks_.gather_us(); gather > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(gather));
}

std::optional<std::uint64_t> Reporter::turn() {
  for (Outgoing& outgoing : mailbox_.take()) {
    receipts_.complete(outgoing);
    lines_[claim_of(outgoing.report).context].push_back(std::move(outgoing));
  }
  for (auto& [context, pending] : lines_) {
    if (!stop_ && !pending.empty() && pauses_.may_try(context)) send_some(context, pending);
  }
  return pause_ms();
}

void Reporter::send_some(Id context, Line& pending) {
  std::vector<Report> batch;
  std::size_t bytes = 0;
  for (Outgoing& outgoing : pending) {
    if (batch.size() == kBatch || bytes > kBatchBytes) break;
    bytes += size_of(outgoing.report);
    batch.push_back(std::move(outgoing.report));  // comes back if it could not be stored
  }
  const std::uint64_t before = clock_.boot_ms();
  auto answers = store_.report(context, batch);
  if (!answers) {
    for (std::size_t i = 0; i < batch.size(); ++i) pending[i].report = std::move(batch[i]);
    pauses_.failed(context, before);
    health_.failed(context, "storing results", answers.error());
    return;
  }
  pauses_.worked(context);
  health_.worked(context);
  std::vector<RunNumber> settled;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Outgoing& outgoing = pending.front();
    const Result<void>& answer = (*answers)[i];
    if (!answer) {
      const bool stale = answer.error().code == Code::stale_claim;
      log(stale ? LogLevel::warn : LogLevel::error, "worker", "{}: report refused{}: {}", claim_of(batch[i]).job_key,
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
