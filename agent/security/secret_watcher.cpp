#include "security/secret_watcher.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop_thread.h"

namespace mycojobs {

// The kernel's notifications about changes of a context's folder, and of its parent folder, in which it may be created
// later. If the kernel sends none (a network file system, no inotify instance left), the descriptor never becomes
// readable.
class FolderChanges {
 public:
  // `folder` contains the folders of all contexts. It is empty if secrets are not read from files.
  FolderChanges(const std::string& folder, Id context) {
    if (folder.empty()) return;
    parent_ = folder, folder_ = folder + '/' + std::to_string(context);
    inotify_fd_.reset(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (!inotify_fd_)
      log(LogLevel::warn, "worker",
          "context {}: inotify is not available ({}): changes of its secrets are detected every {} s. Raise "
          "fs.inotify.max_user_instances",
          context, errno_text(errno), SecretWatcher::kCheckIntervalMs / 1000);
  }
  int fd() const { return inotify_fd_.get(); }
  // Discards the notifications so far and watches both folders again. REQUIRES: called before each scan, so that every
  // change during or after the scan is notified.
  void reset() {
    if (!inotify_fd_) return;
    std::array<char, 4096> buffer;
    while (::read(inotify_fd_.get(), buffer.data(), buffer.size()) > 0) {
    }
    constexpr std::uint32_t kCreatedEvents = IN_CREATE | IN_MOVED_TO | IN_ONLYDIR;
    ::inotify_add_watch(inotify_fd_.get(), parent_.c_str(), kCreatedEvents);
    // IN_CREATE is not watched, because a file that was just created is empty.
    constexpr std::uint32_t kChangedEvents = IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM;
    ::inotify_add_watch(inotify_fd_.get(), folder_.c_str(), kChangedEvents | IN_ONLYDIR);
  }

 private:
  std::string parent_, folder_;
  Fd inotify_fd_;
};

class SecretWatcher::ContextWatcher final : public TimedLoop {
 public:
  // No thread is needed if the agent has no sources of secrets.
  ContextWatcher(const SecretSources& sources, Id context, const Clock& clock)
      : clock_(clock), context_(context), folder_changes_(sources.folder, context), reader_(sources, context) {
    if (sources.empty()) {
      current_ = reader_.rescan();
    } else {
      thread_.emplace(*this, "secrets " + std::to_string(context));
    }
  }
  std::uint64_t run_once() {
    constexpr std::uint64_t kSlowMs = 1000;
    const std::uint64_t start_ms = clock_.boot_ms();
    folder_changes_.reset();
    auto secrets = reader_.rescan();
    if (const std::uint64_t duration_ms = clock_.boot_ms() - start_ms; duration_ms >= kSlowMs)
      log(LogLevel::warn, "worker", "context {}: the scan of its secrets took {} ms: check the disk of secrets_dir",
          context_, duration_ms);
    const std::lock_guard lock(mutex_);
    current_ = std::move(secrets);
    return kCheckIntervalMs;
  }
  // Waits until the folder changes or the loop is woken, at most for the given time.
  void wait_until_due(std::uint64_t ms) {
    std::array<pollfd, 2> descriptors{{{wakeup_fd(), POLLIN, 0}, {folder_changes_.fd(), POLLIN, 0}}};
    ::poll(descriptors.data(), descriptors.size(), static_cast<int>(ms));
    clear_wakeup();
  }
  void wake_up() { wake(); }
  Result<void> check_started() const { return thread_ ? thread_->started() : Result<void>(); }
  std::shared_ptr<const SecretSet> current() {
    const std::lock_guard lock(mutex_);
    return current_;
  }

 private:
  const Clock& clock_;
  Id context_;
  FolderChanges folder_changes_;  // used by the thread only
  SecretReader reader_;           // used by the thread only
  std::mutex mutex_;
  std::shared_ptr<const SecretSet> current_;
  std::optional<LoopThread<ContextWatcher>> thread_;
};

SecretWatcher::SecretWatcher(const SecretSources& sources, const std::vector<Id>& contexts, const Clock& clock) {
  for (const Id context : contexts)
    watchers_.emplace(context, std::make_unique<ContextWatcher>(sources, context, clock));
}

SecretWatcher::~SecretWatcher() {
  for (const auto& [context, watcher] : watchers_)
    watcher->stop();  // signals all threads before the destructors wait for the first one
}

void SecretWatcher::request_rescan() {
  for (const auto& [context, watcher] : watchers_) watcher->wake_up();
}

Result<void> SecretWatcher::check_started() const {
  for (const auto& [context, watcher] : watchers_) MJ_CHECK(watcher->check_started());
  return {};
}

std::shared_ptr<const SecretSet> SecretWatcher::get(Id context) const { return watchers_.at(context)->current(); }

bool SecretWatcher::are_current(Id context, const std::vector<Secret>& values) const {
  const auto secrets = get(context);
  // Before the first scan `secrets` is null. No process can have received other values yet, so all values are current.
  return !secrets || secrets->contains(values);
}

}  // namespace mycojobs
