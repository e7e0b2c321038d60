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

constexpr std::size_t kMaxFilesBatch = 16;

}  // namespace

struct FileChecks::Answers {
  std::mutex mutex;
  std::vector<std::pair<std::string, bool>> results;
  Fd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void check_file(const std::string& path) {
    std::error_code ignored;
    const bool is_found = std::filesystem::exists(path, ignored);
    const std::lock_guard lock(mutex);
    results.emplace_back(path, is_found);
    ::eventfd_write(event.get(), 1);
  }
};

FileChecks::FileChecks(const Clock& clock) : clock_(clock), answers_(std::make_shared<Answers>()), seen_(clock) {}

int FileChecks::event_fd() const { return answers_->event.get(); }

bool FileChecks::hangs(std::uint64_t since_boot_ms) const { return clock_.boot_ms() - since_boot_ms >= kCheckMs; }

std::optional<bool> FileChecks::ask(const std::string& path) {
  if (const auto cached = seen_.find(path)) return cached;
  const auto pending_check = under_way_.find(path);
  if (pending_check != under_way_.end()) return hangs(pending_check->second) ? std::optional(false) : std::nullopt;
  const auto is_hanging = [this](const auto& check) { return hangs(check.second); };
  if (under_way_.size() >= kMaxFilesBatch)
    return std::all_of(under_way_.begin(), under_way_.end(), is_hanging) ? std::optional(false) : std::nullopt;
  auto thread = start_thread([answers = answers_, path] { answers->check_file(path); }, "mj-file");
  if (!thread) {
    log(LogLevel::error, "prerequisites", "file:{}: {}", path, thread.error().message);
    return false;
  }
  thread->detach();
  under_way_[path] = clock_.boot_ms();
  return std::nullopt;
}

bool FileChecks::take_results() {
  eventfd_t count = 0;
  ::eventfd_read(event_fd(), &count);
  const std::lock_guard lock(answers_->mutex);
  seen_.drop_old();
  for (const auto& [path, is_found] : answers_->results) {
    seen_.put(path, is_found);
    under_way_.erase(path);
  }
  return !std::exchange(answers_->results, {}).empty();
}

}  // namespace mycojobs
