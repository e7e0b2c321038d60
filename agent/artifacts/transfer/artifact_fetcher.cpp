#include "artifacts/transfer/artifact_fetcher.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <set>
#include <utility>

#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/bucket_source.h"
#include "artifacts/transfer/transfer_loop.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/loop_thread.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::uint64_t kTransfersIdleTimeoutMs = 60000;
// Limits of one fetcher. A process has at most two fetchers, for downloads and for messages: together they request
// 2 fetchers * 4 files * 2 pieces, which are the 4 MiB that a process may request (transfer_receiver.h).
constexpr std::uint32_t kMaxFetches = 4;
constexpr std::size_t kMaxFilePieces = 2;
constexpr milliseconds kArrivalPollInterval{20};  // interval at which the size of the received file is read

Error make_fetch_error(const FetchEnd& fetch_end) {
  switch (fetch_end.status) {
    case FetchStatus::received:
    case FetchStatus::away:
    case FetchStatus::busy:
    case FetchStatus::storage_away:
      return {Code::unavailable, fetch_end.reason};
    case FetchStatus::lost:
      return {Code::not_found, fetch_end.reason};
    case FetchStatus::damaged:
    case FetchStatus::failed:
      break;
  }
  return {Code::io, fetch_end.reason};
}

}  // namespace

// Counts the fetches of all actors and of each actor, and enforces their limits. Thread-safe.
class ArtifactFetcher::FetchCounter {
 public:
  // Returns false, and counts nothing, if a limit is reached.
  bool try_add(Id actor, std::uint32_t max_per_actor) {
    const std::lock_guard lock(mutex_);
    if (actors_.size() >= kMaxFetches || actors_.count(actor) >= max_per_actor) return false;
    actors_.insert(actor);
    return true;
  }
  // Returns whether the limit of all actors, but not that of this actor, is reached.
  bool is_full_for(Id actor, std::uint32_t max_per_actor) {
    const std::lock_guard lock(mutex_);
    return actors_.size() >= kMaxFetches && actors_.count(actor) < max_per_actor;
  }
  void remove(Id actor) {
    const std::lock_guard lock(mutex_);
    actors_.erase(actors_.find(actor));
  }

 private:
  std::mutex mutex_;
  std::multiset<Id> actors_;  // the actor of each fetch
};

// The progress of one fetch, which the transfer loop reports and for which readers wait. Passes the file on to the
// target of the cache. Thread-safe.
class ArtifactFetcher::FetchTarget final : public FileTarget {
 public:
  FetchTarget(std::shared_ptr<FileTarget> cache_target, std::uint64_t file_bytes, std::shared_ptr<FetchCounter> counter,
              Id actor)
      : cache_target_(std::move(cache_target)), file_bytes_(file_bytes), counter_(std::move(counter)), actor_(actor) {}
  ~FetchTarget() override { release_count(); }

  Result<std::string> create_path() override { return cache_target_->create_path(); }
  Result<void> on_created(const std::string& path) override {
    MJ_CHECK(cache_target_->on_created(path));
    auto fd = std::make_shared<Fd>(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!*fd) return fail(Code::io, path + ": " + errno_text(errno));
    const std::lock_guard lock(mutex_);
    is_second_attempt_ = fd_ != nullptr;  // the receiver repeats a fetch if the hash of the content is wrong
    fd_ = std::move(fd);
    return {};
  }
  Result<void> store(const CompleteFile& file) override { return cache_target_->store(file); }

  void on_end(FetchEnd fetch_end) {
    {
      const std::lock_guard lock(mutex_);
      end_ = std::move(fetch_end);
    }
    ended_.notify_all();
    release_count();
  }

  // Waits until the byte at `offset` may be read, as part of a range that ends before range_end. Returns the file, and
  // sets readable_end to the offset after the last byte that may be read. Returns null after the deadline.
  Result<std::shared_ptr<Fd>> wait_for_bytes(std::uint64_t offset, std::uint64_t range_end, SteadyTime deadline,
                                             std::uint64_t& readable_end) {
    std::unique_lock lock(mutex_);
    while (true) {
      if (end_ && end_->status != FetchStatus::received) return tl::unexpected<Error>(make_fetch_error(*end_));
      if (is_second_attempt_ && was_read_early_)
        return fail(Code::io, "the runner has sent wrong content, which is requested again");
      readable_end = end_ ? file_bytes_ : find_readable_end(range_end);
      if (fd_ && (end_ || offset < readable_end)) {
        was_read_early_ = was_read_early_ || !end_;
        return fd_;
      }
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return std::shared_ptr<Fd>();
      ended_.wait_until(lock, std::min(deadline, now + kArrivalPollInterval));
    }
  }
  // Waits until the file was received. Returns false after the deadline.
  Result<bool> wait_for_end(SteadyTime deadline) {
    std::unique_lock lock(mutex_);
    if (!ended_.wait_until(lock, deadline, [this] { return end_.has_value(); })) return false;
    if (end_->status != FetchStatus::received) return tl::unexpected<Error>(make_fetch_error(*end_));
    return true;
  }
  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return end_.has_value();
  }

 private:
  // Returns the offset after the last byte that may be read while the hash is not verified yet; 0 means that no byte
  // may be read. REQUIRES: the caller holds mutex_.
  std::uint64_t find_readable_end(std::uint64_t range_end) const {
    struct stat info {};
    if (!fd_ || is_second_attempt_ || range_end < file_bytes_ || ::fstat(fd_->get(), &info) != 0) return 0;
    return std::min(static_cast<std::uint64_t>(info.st_size), file_bytes_ - std::min<std::uint64_t>(file_bytes_, 1));
  }
  // Called at the end of the fetch and by the destructor; only the first call has an effect.
  void release_count() {
    if (!is_released_.exchange(true)) counter_->remove(actor_);
  }

  const std::shared_ptr<FileTarget> cache_target_;
  const std::uint64_t file_bytes_;
  const std::shared_ptr<FetchCounter> counter_;
  const Id actor_;
  std::atomic<bool> is_released_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  // Guarded by mutex_:
  std::shared_ptr<Fd> fd_;  // the file that is being written; null before its creation
  bool is_second_attempt_ = false;
  bool was_read_early_ = false;  // true if bytes were read before the hash was verified
  std::optional<FetchEnd> end_;  // set when the fetch has ended
};

// The connection to the store, the transfer loop and its thread for the fetches of one context.
class ArtifactFetcher::ContextTransfers {
 public:
  ContextTransfers(ArtifactCache cache, std::unique_ptr<Store> store)
      : cache_(std::move(cache)), store_(std::move(store)) {}
  Result<void> start(StoreFactory& stores, TransferLoop::Settings settings, const Clock& clock,
                     std::shared_ptr<const ArtifactBucket> bucket, const std::shared_ptr<Metrics>& metrics) {
    loop_ = std::make_unique<TransferLoop>(*store_, std::move(settings), clock, metrics);
    source_.emplace(std::move(bucket), *loop_, metrics);
    MJ_CHECK(loop_->subscribe(stores));
    thread_.emplace(*loop_, "transfers");
    return thread_->started();
  }
  ArtifactSource& source() { return *source_; }
  const ArtifactCache& cache() const { return cache_; }
  void mark_used(std::uint64_t now_ms) { last_use_ms_ = now_ms; }
  bool is_idle(std::uint64_t now_ms) const { return now_ms > last_use_ms_ + kTransfersIdleTimeoutMs; }

 private:
  ArtifactCache cache_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<TransferLoop> loop_;
  std::optional<BucketSource> source_;
  std::optional<LoopThread<TransferLoop>> thread_;  // destroyed first, since the thread uses loop_ and store_
  std::uint64_t last_use_ms_ = 0;                   // guarded by ArtifactFetcher::mutex_
};

// A fetch with all of its readers. The last reader destroys it, which cancels an unfinished fetch.
class ArtifactFetcher::SharedFile final : public IncomingArtifact {
 public:
  SharedFile(std::shared_ptr<ContextTransfers> transfers, const RemoteArtifact& artifact,
             std::shared_ptr<FetchTarget> target)
      : transfers_(std::move(transfers)),
        target_(std::move(target)),
        fetch_number_(transfers_->source().fetch(
            artifact, target_, [progress = target_](FetchEnd fetch_end) { progress->on_end(std::move(fetch_end)); })) {}
  ~SharedFile() override {
    if (!target_->has_ended()) transfers_->source().cancel(fetch_number_);
  }

  Result<std::string> read(std::uint64_t offset, std::uint64_t range_end, std::size_t max_bytes,
                           std::uint32_t timeout_ms) override {
    std::uint64_t readable_end = 0;
    MJ_TRY(fd, target_->wait_for_bytes(offset, range_end, make_deadline(timeout_ms), readable_end));
    if (!fd) return std::string();
    const std::uint64_t available = std::min(readable_end, range_end) - offset;
    return read_file_piece(fd->get(), offset, static_cast<std::size_t>(std::min<std::uint64_t>(available, max_bytes)));
  }
  Result<bool> wait_until_complete(std::uint32_t timeout_ms) override {
    return target_->wait_for_end(make_deadline(timeout_ms));
  }
  bool has_ended() const { return target_->has_ended(); }

 private:
  static SteadyTime make_deadline(std::uint32_t timeout_ms) {
    return std::chrono::steady_clock::now() + milliseconds(timeout_ms);
  }
  std::shared_ptr<ContextTransfers> transfers_;
  std::shared_ptr<FetchTarget> target_;
  ArtifactSource::FetchNumber fetch_number_;
};

// A reader of a shared file. The file lingers after its last reader.
class ArtifactFetcher::Reader final : public IncomingArtifact {
 public:
  Reader(Id actor, std::shared_ptr<SharedFile> file, std::shared_ptr<LingeringFetches> lingering)
      : actor_(actor), file_(std::move(file)), lingering_(std::move(lingering)) {}
  ~Reader() override {
    if (!file_->has_ended()) lingering_->keep(actor_, std::move(file_));
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  Result<std::string> read(std::uint64_t offset, std::uint64_t range_end, std::size_t max_bytes,
                           std::uint32_t timeout_ms) override {
    return file_->read(offset, range_end, max_bytes, timeout_ms);
  }
  Result<bool> wait_until_complete(std::uint32_t timeout_ms) override { return file_->wait_until_complete(timeout_ms); }

 private:
  const Id actor_;
  std::shared_ptr<SharedFile> file_;
  const std::shared_ptr<LingeringFetches> lingering_;
};

ArtifactFetcher::ArtifactFetcher(StoreFactory& stores, const Clock& clock, Settings settings,
                                 std::shared_ptr<Metrics> metrics)
    : stores_(stores),
      clock_(clock),
      settings_(std::move(settings)),
      metrics_(std::move(metrics)),
      counter_(std::make_shared<FetchCounter>()),
      lingering_(std::make_shared<LingeringFetches>(settings_.linger)) {}

ArtifactFetcher::~ArtifactFetcher() = default;

void ArtifactFetcher::remove_idle(std::map<Id, std::shared_ptr<ContextTransfers>>& removed) {
  std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
  const std::uint64_t now_ms = clock_.boot_ms();
  for (auto entry = transfers_.begin(); entry != transfers_.end();) {
    const bool is_idle = entry->second.use_count() == 1 && entry->second->is_idle(now_ms);
    if (is_idle) removed.insert(*entry);
    entry = is_idle ? transfers_.erase(entry) : std::next(entry);
  }
}

// Creates the transfers while mutex_ is not held; otherwise a Redis server that does not answer would delay the fetches
// of other contexts.
Result<std::shared_ptr<ArtifactFetcher::ContextTransfers>> ArtifactFetcher::get_or_create_transfers(Id context) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = transfers_.find(context); found != transfers_.end()) return found->second;
  }
  MJ_TRY(store, stores_.open_reader());
  auto transfers = std::make_shared<ContextTransfers>(
      ArtifactCache(ArtifactFolder(settings_.state_dir, context), settings_.cache_limits), std::move(store));
  TransferLoop::Settings loop_settings;
  loop_settings.contexts = {context};
  loop_settings.state_dir = settings_.state_dir;
  loop_settings.max_file_pieces = kMaxFilePieces;
  loop_settings.link_networks = settings_.link_networks;
  MJ_CHECK(transfers->start(stores_, std::move(loop_settings), clock_, settings_.bucket, metrics_));
  const std::lock_guard lock(mutex_);
  return transfers_.emplace(context, transfers).first->second;  // another thread may have added transfers first
}

// Fetches without a reader make room for a fetch with one: those of the actor for its own limit, all for the limit of
// all actors.
bool ArtifactFetcher::try_add_fetch(Id actor) {
  const auto try_add = [&] { return counter_->try_add(actor, settings_.max_fetches_per_actor); };
  return try_add() || (lingering_->release_all_of(actor) && try_add()) ||
         (counter_->is_full_for(actor, settings_.max_fetches_per_actor) && lingering_->release_all() && try_add());
}

Result<std::shared_ptr<IncomingArtifact>> ArtifactFetcher::open(const RemoteArtifact& artifact,
                                                                const std::string& store_name, Id actor) {
  MJ_TRY(transfers, get_or_create_transfers(artifact.context));
  std::map<Id, std::shared_ptr<ContextTransfers>> removed;
  const std::lock_guard lock(mutex_);
  transfers->mark_used(clock_.boot_ms());
  remove_idle(removed);
  const FileKey key{artifact.context, artifact.job_key, artifact.content.sha256};
  if (const auto shared = files_[key].lock(); shared && !shared->has_ended())
    return std::make_shared<Reader>(actor, shared, lingering_);
  if (!try_add_fetch(actor)) return std::shared_ptr<IncomingArtifact>();
  auto target = std::make_shared<FetchTarget>(transfers->cache().make_target(store_name, artifact.job_key),
                                              artifact.content.bytes, counter_, actor);
  auto file = std::make_shared<SharedFile>(transfers, artifact, std::move(target));
  files_[key] = file;
  return std::make_shared<Reader>(actor, std::move(file), lingering_);
}

}  // namespace mycojobs
