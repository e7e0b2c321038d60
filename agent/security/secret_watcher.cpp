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
  // folder: empty if there are no files.
  FolderChanges(const std::string& folder, Id context) {
    if (folder.empty()) return;
    parent_ = folder, own_ = folder + '/' + std::to_string(context);
    changes_.reset(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (!changes_)
      log(LogLevel::warn, "worker",
          "context {}: inotify is not available ({}): changes of its secrets are detected every {} s. Raise "
          "fs.inotify.max_user_instances",
          context, errno_text(errno), SecretsWatch::kCheckMs / 1000);
  }
  int fd() const { return changes_.get(); }
  // To be called before a read: later changes are notified, and earlier notifications are discarded.
  void begin() {
    if (!changes_) return;
    std::array<char, 4096> room;
    while (::read(changes_.get(), room.data(), room.size()) > 0) {
    }
    constexpr std::uint32_t kMade = IN_CREATE | IN_MOVED_TO | IN_ONLYDIR;
    ::inotify_add_watch(changes_.get(), parent_.c_str(), kMade);
    // Without IN_CREATE, since a file that was just created is empty.
    constexpr std::uint32_t kChanged = IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM;
    ::inotify_add_watch(changes_.get(), own_.c_str(), kChanged | IN_ONLYDIR);
  }

 private:
  std::string parent_, own_;
  Fd changes_;
};

class SecretsWatch::ContextWatcher final : public TimedLoop {
 public:
  // Without places no thread is needed.
  ContextWatcher(const SecretSources& places, Id context, const Clock& clock)
      : clock_(clock), context_(context), changes_(places.folder, context), secrets_(places, context) {
    if (places.empty()) {
      found_ = secrets_.rescan();
    } else {
      thread_.emplace(*this, "secrets " + std::to_string(context));
    }
  }
  std::uint64_t run_once() {
    constexpr std::uint64_t kSlowMs = 1000;
    const std::uint64_t began = clock_.boot_ms();
    changes_.begin();
    auto found = secrets_.rescan();
    if (const std::uint64_t took = clock_.boot_ms() - began; took >= kSlowMs)
      log(LogLevel::warn, "worker", "context {}: the scan of its secrets took {} ms: check the disk of secrets_dir",
          context_, took);
    const std::lock_guard lock(mutex_);
    found_ = std::move(found);
    return kCheckMs;
  }
  // Waits until the folder changes or the loop is woken, at most for the given time.
  void wait_until_due(std::uint64_t ms) {
    std::array<pollfd, 2> waiting{{{wakeup_fd(), POLLIN, 0}, {changes_.fd(), POLLIN, 0}}};
    ::poll(waiting.data(), waiting.size(), static_cast<int>(ms));
    clear_wakeup();
  }
  void look_now() { wake(); }
  Result<void> started() const { return thread_ ? thread_->started() : Result<void>(); }
  std::shared_ptr<const SecretSet> found() {
    const std::lock_guard lock(mutex_);
    return found_;
  }

 private:
  const Clock& clock_;
  Id context_;
  FolderChanges changes_;  // used by the thread only
  Secrets secrets_;        // used by the thread only
  std::mutex mutex_;
  std::shared_ptr<const SecretSet> found_;
  std::optional<LoopThread<ContextWatcher>> thread_;
};

SecretsWatch::SecretsWatch(const SecretSources& places, const std::vector<Id>& contexts, const Clock& clock) {
  for (const Id context : contexts)
    watchers_.emplace(context, std::make_unique<ContextWatcher>(places, context, clock));
}

SecretsWatch::~SecretsWatch() {
  for (const auto& [context, look] : watchers_) look->stop();  // signals all threads before the first one is waited for
}

void SecretsWatch::rescan_now() {
  for (const auto& [context, look] : watchers_) look->look_now();
}

Result<void> SecretsWatch::started() const {
  for (const auto& [context, look] : watchers_) MJ_CHECK(look->started());
  return {};
}

std::shared_ptr<const SecretSet> SecretsWatch::of(Id context) const { return watchers_.at(context)->found(); }

bool SecretsWatch::has(Id context, const std::vector<Secret>& given) const {
  const auto found = of(context);
  return !found || found->has(given);  // null: no secret was read, so none was given to a process
}

}  // namespace mycojobs
