#include "security/secret_watcher.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop_thread.h"
#include "base/parse.h"
#include "base/strands/mount_table.h"
#include "base/strands/strand_pool.h"

namespace mycojobs {

// The kernel's notifications about changes of the folders of all contexts, and of their parent folder, in which they
// may be created later. If the kernel sends none (a network file system, no inotify instance left), the descriptor
// never becomes readable.
class FolderChanges {
 public:
  // `folder` contains the folders of all contexts. It is empty if secrets are not read from files.
  explicit FolderChanges(const std::string& folder) : parent_(folder) {
    if (folder.empty()) return;
    inotify_fd_.reset(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (!inotify_fd_)
      log(LogLevel::warn, "worker",
          "inotify is not available ({}): changes of secrets are detected every {} s. Raise "
          "fs.inotify.max_user_instances",
          errno_text(errno), SecretWatcher::kCheckIntervalMs / 1000);
  }
  int fd() const { return inotify_fd_.get(); }
  // Watches the folder of the context and the parent folder. Can block on a disk. Thread-safe. REQUIRES: called before
  // each scan, so that every change during or after the scan is notified.
  void watch(Id context) {
    if (!inotify_fd_) return;
    constexpr std::uint32_t kCreatedEvents = IN_CREATE | IN_MOVED_TO | IN_ONLYDIR;
    const int parent_watch = ::inotify_add_watch(inotify_fd_.get(), parent_.c_str(), kCreatedEvents);
    // IN_CREATE is not watched, because a file that was just created is empty.
    constexpr std::uint32_t kChangedEvents = IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM;
    const int folder_watch =
        ::inotify_add_watch(inotify_fd_.get(), get_folder(context).c_str(), kChangedEvents | IN_ONLYDIR);
    const std::lock_guard lock(mutex_);
    if (parent_watch >= 0) parent_watch_ = parent_watch;
    if (folder_watch >= 0) contexts_by_watch_[folder_watch].insert(context);
  }
  // Returns the contexts with notifications since the last call. Returns `all` if it is unknown which context changed.
  std::set<Id> read_changed(const std::set<Id>& all) {
    std::set<Id> changed;
    alignas(inotify_event) std::array<char, 4096> buffer;  // NOLINT(*-member-init): filled by read
    const std::lock_guard lock(mutex_);
    for (ssize_t size = 1; size > 0;) {
      size = inotify_fd_ ? ::read(inotify_fd_.get(), buffer.data(), buffer.size()) : 0;
      for (ssize_t offset = 0; offset < size;) {
        inotify_event event;  // NOLINT(*-member-init): filled by memcpy
        std::memcpy(&event, buffer.data() + offset, sizeof event);
        add_changed(event, event.len > 0 ? buffer.data() + offset + sizeof event : "", all, changed);
        offset += static_cast<ssize_t>(sizeof event + event.len);
      }
    }
    return changed;
  }
  std::string get_folder(Id context) const { return parent_ + '/' + std::to_string(context); }

 private:
  void add_changed(const inotify_event& event, const char* name, const std::set<Id>& all, std::set<Id>& changed) {
    std::uint64_t created = 0;
    if (event.wd == parent_watch_ &&
        (event.mask & (IN_IGNORED | IN_Q_OVERFLOW)) == 0) {  // the name is that of a context's folder
      if (parse_u64(name, created) && all.contains(static_cast<Id>(created))) changed.insert(static_cast<Id>(created));
      return;
    }
    const auto watch = contexts_by_watch_.find(event.wd);
    if (watch == contexts_by_watch_.end()) {  // notifications were lost, or the watch is not entered yet
      changed = all;
      return;
    }
    changed.insert(watch->second.begin(), watch->second.end());
    if ((event.mask & IN_IGNORED) != 0) contexts_by_watch_.erase(watch);
  }

  const std::string parent_;
  Fd inotify_fd_;
  std::mutex mutex_;  // guards the members below
  int parent_watch_ = -1;
  std::map<int, std::set<Id>> contexts_by_watch_;  // several contexts if their folders are links to the same folder
};

class SecretWatcher::Loop final : public TimedLoop {
 public:
  Loop(const SecretSources& sources, const std::vector<Id>& contexts, const Clock& clock)
      : clock_(clock), folder_changes_(sources.folder), all_(contexts.begin(), contexts.end()) {
    for (const Id context : all_) contexts_.try_emplace(context, sources, context);
    if (sources.empty()) {
      for (auto& [id, context] : contexts_) context.current = context.reader.rescan();
    } else {
      thread_.emplace(*this, "secrets");
    }
  }
  ~Loop() {
    thread_.reset();
    strands_.stop();  // before the members that the strands use
  }
  std::uint64_t run_once() {
    const std::uint64_t now = clock_.boot_ms();
    std::set<Id> due = folder_changes_.read_changed(all_);
    if (rescan_requested_.exchange(false) || now >= next_check_ms_) {
      due = all_;
      next_check_ms_ = now + kCheckIntervalMs;
    }
    for (const Id context : due) request_scan(context, contexts_.at(context));
    const bool is_complete = strands_.start_missing_threads();
    return std::min<std::uint64_t>(next_check_ms_ - now, is_complete ? kCheckIntervalMs : StrandPool::kHangingMs);
  }
  // Waits until a folder changes or the loop is woken, at most for the given time.
  void wait_until_due(std::uint64_t ms) {
    std::array<pollfd, 2> descriptors{{{wakeup_fd(), POLLIN, 0}, {folder_changes_.fd(), POLLIN, 0}}};
    ::poll(descriptors.data(), descriptors.size(), static_cast<int>(ms));
    clear_wakeup();
  }
  void request_rescan() {
    rescan_requested_ = true;
    wake();
  }
  Result<void> check_started() const { return thread_ ? thread_->started() : Result<void>(); }
  std::shared_ptr<const SecretSet> current(Id context) const {
    const std::lock_guard lock(mutex_);
    return contexts_.at(context).current;
  }

 private:
  struct Context {
    Context(const SecretSources& sources, Id context) : reader(sources, context) {}
    SecretReader reader;                       // used by the strand of the context
    std::shared_ptr<const SecretSet> current;  // guarded by mutex_, as are the members below
    bool is_scanning = false;
    bool has_changed = false;  // since the current scan began
  };

  void request_scan(Id id, Context& context) {
    {
      const std::lock_guard lock(mutex_);
      context.has_changed = true;
      if (std::exchange(context.is_scanning, true)) return;
    }
    strands_.post({"secrets " + std::to_string(id), mounts_.find_mount_point(folder_changes_.get_folder(id))},
                  [this, id, &context] { scan(id, context); });
  }
  // Scans the folder until it has not changed during a scan.
  void scan(Id id, Context& context) {
    constexpr std::uint64_t kSlowMs = 1000;
    for (std::unique_lock lock(mutex_); std::exchange(context.has_changed, false) && !stopped();) {
      lock.unlock();
      const std::uint64_t start_ms = clock_.boot_ms();
      folder_changes_.watch(id);
      auto secrets = context.reader.rescan();
      if (const std::uint64_t duration_ms = clock_.boot_ms() - start_ms; duration_ms >= kSlowMs)
        log(LogLevel::warn, "worker", "context {}: the scan of its secrets took {} ms: check the disk of secrets_dir",
            id, duration_ms);
      lock.lock();
      context.current = std::move(secrets);
      if (!context.has_changed) context.is_scanning = false;
    }
  }

  static constexpr std::size_t kMaxThreads = 3;  // for each disk; a scan takes microseconds

  const Clock& clock_;
  FolderChanges folder_changes_;
  const std::set<Id> all_;
  mutable std::mutex mutex_;
  std::map<Id, Context> contexts_;
  MountTable mounts_;  // used by the thread only
  std::uint64_t next_check_ms_ = 0;
  std::atomic<bool> rescan_requested_{false};
  StrandPool strands_{kMaxThreads};
  std::optional<LoopThread<Loop>> thread_;  // last member: the thread uses all members above
};

SecretWatcher::SecretWatcher(const SecretSources& sources, const std::vector<Id>& contexts, const Clock& clock)
    : loop_(std::make_unique<Loop>(sources, contexts, clock)) {}

SecretWatcher::~SecretWatcher() = default;

void SecretWatcher::request_rescan() { loop_->request_rescan(); }

Result<void> SecretWatcher::check_started() const { return loop_->check_started(); }

std::shared_ptr<const SecretSet> SecretWatcher::get(Id context) const { return loop_->current(context); }

bool SecretWatcher::are_current(Id context, const std::vector<Secret>& values) const {
  const auto secrets = get(context);
  // Before the first scan `secrets` is null. No process can have received other values yet, so all values are current.
  return !secrets || secrets->contains(values);
}

}  // namespace mycojobs
