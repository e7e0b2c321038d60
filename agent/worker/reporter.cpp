#include "worker/reporter.h"

#include <poll.h>

#include <vector>

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

Reporter::Reporter(std::unique_ptr<Store> store, StoreHealth& health, std::function<void(RunNumber)> settled)
    : store_(std::move(store)), health_(health), settled_(std::move(settled)), thread_([this] { loop(); }) {}

void Reporter::stop() {
  stop_ = true;
  mailbox_.wake();
  if (thread_.joinable()) thread_.join();
}

void Reporter::loop() {
  while (!stop_) {
    pollfd waiting{mailbox_.fd(), POLLIN, 0};
    ::poll(&waiting, 1, pending_.empty() ? -1 : (failures_ > 0 ? retry_pause_ms(failures_) : 0));
    for (Outgoing& outgoing : mailbox_.take()) pending_.push_back(std::move(outgoing));
    if (pending_.empty() || stop_) continue;
    const std::size_t answered = send_some();
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(answered));
  }
}

std::size_t Reporter::send_some() {
  const Id context = claim_of(pending_.front().report).context;
  std::vector<Report> batch;
  std::size_t bytes = 0;
  for (const Outgoing& outgoing : pending_) {
    if (claim_of(outgoing.report).context != context || batch.size() == kBatch || bytes > kBatchBytes) break;
    bytes += size_of(outgoing.report);
    batch.push_back(outgoing.report);
  }
  auto answers = store_->report(context, batch);
  if (!answers) {
    ++failures_;
    health_.failed("storing results", answers.error());
    return 0;
  }
  failures_ = 0;
  health_.worked();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Outgoing& outgoing = pending_[i];
    const Result<void>& answer = (*answers)[i];
    if (!answer) {
      const bool stale = answer.error().code == Code::stale_claim;
      log(stale ? LogLevel::warn : LogLevel::error, "worker", "{}: report refused{}: {}",
          claim_of(outgoing.report).job_key, stale ? " as stale" : "", answer.error().message);
    }
    if (outgoing.last) settled_(outgoing.run);
  }
  return batch.size();
}

}  // namespace mycojobs
