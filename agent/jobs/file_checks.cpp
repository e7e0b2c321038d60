#include "jobs/file_checks.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxPendingChecks = 16;

}  // namespace

struct FileChecks::ThreadResults {
  std::mutex mutex;
  std::vector<std::pair<std::string, bool>> results;
  Fd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void check_file(const std::string& path) {
    std::error_code ignored;
    const bool exists = std::filesystem::exists(path, ignored);
    const std::lock_guard lock(mutex);
    results.emplace_back(path, exists);
    ::eventfd_write(event.get(), 1);
  }
};

FileChecks::FileChecks(const Clock& clock)
    : clock_(clock), thread_results_(std::make_shared<ThreadResults>()), results_(clock) {}

int FileChecks::event_fd() const { return thread_results_->event.get(); }

bool FileChecks::has_timed_out(std::uint64_t since_boot_ms) const {
  return clock_.boot_ms() - since_boot_ms >= kCheckTimeoutMs;
}

std::optional<bool> FileChecks::file_exists(const std::string& path) {
  if (const auto cached = results_.find(path)) return cached;
  const auto pending_check = pending_since_boot_ms_.find(path);
  if (pending_check != pending_since_boot_ms_.end())
    return has_timed_out(pending_check->second) ? std::optional(false) : std::nullopt;
  const auto check_timed_out = [this](const auto& check) { return has_timed_out(check.second); };
  if (pending_since_boot_ms_.size() >= kMaxPendingChecks)
    return std::all_of(pending_since_boot_ms_.begin(), pending_since_boot_ms_.end(), check_timed_out)
               ? std::optional(false)
               : std::nullopt;
  auto thread = start_thread([thread_results = thread_results_, path] { thread_results->check_file(path); }, "mj-file");
  if (!thread) {
    log(LogLevel::error, "prerequisites", "file:{}: {}", path, thread.error().message);
    return false;
  }
  thread->detach();
  pending_since_boot_ms_[path] = clock_.boot_ms();
  return std::nullopt;
}

bool FileChecks::collect_results() {
  eventfd_t count = 0;
  ::eventfd_read(event_fd(), &count);
  const std::lock_guard lock(thread_results_->mutex);
  results_.drop_expired();
  for (const auto& [path, exists] : thread_results_->results) {
    results_.put(path, exists);
    pending_since_boot_ms_.erase(path);
  }
  return !std::exchange(thread_results_->results, {}).empty();
}

}  // namespace mycojobs
