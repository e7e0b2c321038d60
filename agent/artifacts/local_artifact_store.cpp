#include "artifacts/local_artifact_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "artifacts/artifact_folder.h"
#include "artifacts/artifact_sweep.h"
#include "artifacts/artifact_usage.h"
#include "artifacts/inbound_quota.h"
#include "artifacts/job_artifacts.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr int kFolderWaitMs = 2000;
constexpr std::uint64_t kForgetEveryMs = 5000;

// Returns the error unavailable: the host may be able to write later, so the sender tries again.
tl::unexpected<Error> cannot(const std::string& path) {
  return fail(Code::unavailable, path + ": " + errno_text(errno));
}

std::optional<std::uint64_t> size_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(info.st_size);
}

std::optional<std::uint64_t> size_of(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(info.st_size);
}

Result<void> write_at(int fd, std::string_view bytes, std::uint64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno != EINTR) return cannot(path);
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
    }
  }
  return {};
}

Result<std::string> hash_of(int fd, const std::string& path) {
  Sha256 hash;
  std::array<char, 65536> some{};
  for (std::uint64_t at = 0;;) {
    const ssize_t got = ::pread(fd, some.data(), some.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot(path);
    if (got == 0) return hash.hex();
    hash.update({some.data(), static_cast<std::size_t>(got)});
    at += static_cast<std::uint64_t>(got);
  }
}

// Keeps the folder locked and updates the time stamps of the job folders at the end: a process that wants to delete
// files waits for the lock, and then notices that the folders have changed.
class RetainedFolders final : public ArtifactStore::RetainedFiles {
 public:
  explicit RetainedFolders(Fd lock) : lock_(std::move(lock)) {}
  ~RetainedFolders() override {
    for (const std::string& each : jobs_) (void)touch(each);
  }
  Result<void> add(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return cannot(path);
    MJ_CHECK(touch(path));
    jobs_.push_back(path);
    return {};
  }

 private:
  static Result<void> touch(const std::string& path) {
    return ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0 ? Result<void>() : cannot(path);
  }
  Fd lock_;
  std::vector<std::string> jobs_;
};

class HostArtifacts final : public ArtifactStore {
 public:
  HostArtifacts(std::string state_dir, const Clock& clock, std::uint64_t sweep_every_ms, std::uint64_t max_incoming)
      : clock_(clock),
        state_dir_(std::move(state_dir)),
        sweep_every_ms_(sweep_every_ms),
        quota_(state_dir_, max_incoming) {}

  Result<std::string> read(RecordStore& store, Id context, const std::string& job_key, const FileContent& file,
                           std::uint64_t offset, std::size_t max) override {
    MJ_TRY(store_names, artifact_store_names(store, context));
    const Fd fd = open_of(store_names, context, job_key, file);
    if (!fd)
      return fail(Code::not_found, "an artifact of " + job_key + " is not on this host with the content of its record");
    std::string piece(static_cast<std::size_t>(std::min<std::uint64_t>(max, file.bytes - std::min(file.bytes, offset))),
                      '\0');
    for (std::size_t got = 0; got < piece.size();) {
      const ssize_t more = ::pread(fd.get(), piece.data() + got, piece.size() - got, static_cast<off_t>(offset + got));
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) return fail(Code::not_found, "an artifact of " + job_key + " cannot be read on this host");
      got += static_cast<std::size_t>(more);
    }
    return piece;
  }

  Result<bool> has(RecordStore& store, Id context, const std::string& job_key,
                   const std::vector<FileContent>& files) override {
    MJ_TRY(store_names, artifact_store_names(store, context));
    return std::all_of(files.begin(), files.end(),
                       [&](const FileContent& each) { return open_of(store_names, context, job_key, each); });
  }

  std::optional<std::uint64_t> is_complete(Id context, const InboundBundleId& bundle,
                                           const FileContent& file) const override {
    if (size_of(path_of(context, bundle, file)) == file.bytes) return file.bytes;
    if (file.bytes == 0) return std::nullopt;  // an empty file is complete as soon as its space is reserved
    return size_of(part_of(context, bundle, file));
  }

  Result<void> expect(RecordStore& store, Id context, const InboundBundleId& bundle,
                      const std::vector<FileContent>& files) override {
    MJ_TRY(store_name, artifact_store_name(store, context));
    if (auto made = ArtifactFolder(state_dir_, context).make(store_name); !made)
      return fail(Code::unavailable, made.error().message);
    std::vector<FileContent> without;
    for (const FileContent& file : files)
      if (!is_complete(context, bundle, file)) without.push_back(file);
    const auto lock = quota_.reserve_space(context, bundle, without);
    if (!lock) return tl::unexpected<Error>(lock.error());
    for (const std::string& folder : {incoming(context), folder_of(context, bundle)})
      if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return cannot(folder);
    // The first file is created last: callers check it first, so after a crash in this loop they reserve the space
    // again.
    for (auto file = without.rbegin(); file != without.rend(); ++file) {
      const std::string path = part_of(context, bundle, *file);
      if (!Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600))) return cannot(path);
      if (file->bytes == 0) MJ_CHECK(add(context, bundle, *file, 0, ""));
    }
    return {};
  }

  std::uint64_t share() const override { return quota_.sender_limit(); }

  Result<std::uint64_t> add(Id context, const InboundBundleId& bundle, const FileContent& file, std::uint64_t offset,
                            std::string_view piece) override {
    const std::string path = path_of(context, bundle, file), part = part_of(context, bundle, file);
    if (const auto whole = size_of(path); whole == file.bytes) return file.bytes;
    const Fd fd(::open(part.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) return fail(Code::not_found, "no job waits for this file");
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return fail(Code::unavailable, "the file is written just now");
    const auto size = size_of(part);  // checked by name, since the file may have been completed after it was opened
    if (!size || size != size_of(fd.get())) return fail(Code::unavailable, "the file was written just now");
    if (offset <= *size && offset + piece.size() > *size) {
      piece.remove_prefix(static_cast<std::size_t>(*size - offset));
      if (*size + piece.size() > file.bytes) return refuse(fd.get(), "is longer than its recorded size");
      MJ_CHECK(write_at(fd.get(), piece, *size, part));
    }
    const std::uint64_t now = size_of(fd.get()).value_or(0);
    if (now > file.bytes) return refuse(fd.get(), "is longer than its recorded size");
    if (now < file.bytes) return now;
    MJ_TRY(hash, hash_of(fd.get(), part));
    if (hash != file.sha256) return refuse(fd.get(), "does not have the hash of its record");
    if (::rename(part.c_str(), path.c_str()) != 0) return cannot(path);
    return now;
  }

  Result<std::unique_ptr<RetainedFiles>> retain_files(RecordStore& store, Id context, const InboundBundleId& bundle,
                                                      const std::vector<ForJob>& to) override {
    const ArtifactFolder folder(state_dir_, context);
    MJ_TRY(store_name, artifact_store_name(store, context));
    auto lock = folder.lock(false, kFolderWaitMs);
    if (!lock) return fail(Code::unavailable, folder.path() + "/lock is held by another process");
    auto held = std::make_unique<RetainedFolders>(std::move(*lock));
    for (const ForJob& each : to) {
      if (each.files.empty()) continue;
      const std::string job = folder.job(store_name, each.job_key);
      // Before add(): a caller with missing files repeats the call with other jobs, and must not leave folders of
      // the first ones behind.
      MJ_TRY(files, whole_files(context, bundle, each, job));
      MJ_CHECK(held->add(job));
      const ArtifactUsage usage(folder, store_name);
      if (auto linked = link_files(files, folder, job, usage, caller_of_job(each.job_key)); !linked)
        return fail(Code::unavailable, "an artifact for " + each.job_key + ": " + linked.error().message);
    }
    return std::unique_ptr<RetainedFiles>(std::move(held));
  }

  void drop(Id context, const InboundBundleId& bundle) override {
    std::error_code left_to_tidy;
    fs::remove_all(folder_of(context, bundle), left_to_tidy);
  }

  Result<std::uint64_t> sweep(RecordStore& store, Id context) override {
    forget_old();
    const auto own = sweep_of(context);
    const std::lock_guard lock(own->mutex);
    MJ_TRY(next_ms, own->sweep.sweep_some(store, context));
    return std::min(next_ms, kForgetEveryMs);
  }

 private:
  std::string incoming(Id context) const { return ArtifactFolder(state_dir_, context).path() + "/incoming"; }
  std::string folder_of(Id context, const InboundBundleId& bundle) const {
    return incoming(context) + '/' + InboundQuota::folder_name(bundle);
  }
  std::string path_of(Id context, const InboundBundleId& bundle, const FileContent& file) const {
    return folder_of(context, bundle) + '/' + InboundQuota::file_name(file);
  }
  std::string part_of(Id context, const InboundBundleId& bundle, const FileContent& file) const {
    return path_of(context, bundle, file) + ".part";
  }
  // Returns the files of a job that are to be linked into its folder, each content once. Error not_found: a file has
  // not been received completely.
  Result<std::vector<WholeFile>> whole_files(Id context, const InboundBundleId& bundle, const ForJob& to,
                                             const std::string& job) const {
    std::map<std::string_view, WholeFile> files;
    for (const FileContent& file : to.files) {
      WholeFile whole;
      whole.path = path_of(context, bundle, file);
      whole.sha256 = file.sha256;
      whole.bytes = file.bytes;
      if (size_of(whole.path) == file.bytes) {
        files.emplace(file.sha256, std::move(whole));
      } else if (size_of(job + '/' + file.sha256) != file.bytes) {  // otherwise an agent that died since has linked it
        return fail(Code::not_found, "an artifact for " + to.job_key + " was not received completely: " + file.sha256);
      }
    }
    std::vector<WholeFile> out;
    for (auto& [sha256, file] : files) out.push_back(std::move(file));
    return out;
  }
  // Counts the files and links them. Files from another host were accepted by message.max_incoming_bytes, so they are
  // never refused here. After an error the space of files without a link is given back.
  static Result<void> link_files(const std::vector<WholeFile>& files, const ArtifactFolder& folder,
                                 const std::string& job, const ArtifactUsage& usage, Id caller) {
    std::vector<std::uint64_t> sizes;
    for (const WholeFile& file : files) {
      if (!size_of(job + '/' + file.sha256)) sizes.push_back(file.bytes);
    }
    MJ_CHECK(usage.reserve(caller, sizes, {}));
    for (const WholeFile& file : files) {
      auto kept = keep_artifact(file, folder.objects() + '/' + file.sha256, job + '/' + file.sha256);
      if (kept) continue;
      std::uint64_t room = 0;
      for (const WholeFile& each : files) {
        if (!size_of(job + '/' + each.sha256)) room += accounted_artifact_bytes(each.bytes);
      }
      (void)usage.release_bytes(caller, room);  // after an error ArtifactSweep corrects the count
      return kept;
    }
    return {};
  }
  // Returns an empty descriptor if the file does not exist.
  Fd open_of(const std::vector<std::string>& store_names, Id context, const std::string& job_key,
             const FileContent& file) const {
    for (const std::string& name : store_names) {
      const std::string path = ArtifactFolder(state_dir_, context).job(name, job_key) + '/' + file.sha256;
      Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (fd && size_of(fd.get()) == file.bytes) return fd;
    }
    return {};
  }
  // Empties the file but keeps it, since its space stays reserved.
  static tl::unexpected<Error> refuse(int part, const std::string& why) {
    (void)!::ftruncate(part, 0);  // bytes that remain are refused again
    return fail(Code::invalid, "the file " + why);
  }

  // The disk of a context can hang. The threads of other contexts skip this work in the meantime.
  void forget_old() {
    const std::unique_lock lock(forgetting_, std::try_to_lock);
    const std::uint64_t now = clock_.boot_ms();
    if (!lock || now < next_forget_ms_) return;
    next_forget_ms_ = now + kForgetEveryMs;
    quota_.delete_expired();
  }
  struct ContextSweep {
    std::mutex mutex;
    ArtifactSweep sweep;
  };
  std::shared_ptr<ContextSweep> sweep_of(Id context) {
    const std::lock_guard lock(finding_);
    auto& own = sweeps_[context];
    if (!own) own.reset(new ContextSweep{{}, ArtifactSweep(clock_, state_dir_, sweep_every_ms_)});
    return own;
  }

  const Clock& clock_;
  const std::string state_dir_;
  const std::uint64_t sweep_every_ms_;
  const InboundQuota quota_;
  std::mutex forgetting_;
  std::uint64_t next_forget_ms_ = 0;  // once for all contexts
  std::mutex finding_;
  // One for each context, so that a disk that hangs does not affect other contexts.
  std::map<Id, std::shared_ptr<ContextSweep>> sweeps_;
};

}  // namespace

std::shared_ptr<ArtifactStore> make_artifact_store(const std::string& state_dir, const Clock& clock,
                                                   std::uint64_t sweep_every_ms, std::uint64_t max_incoming) {
  if (state_dir.empty()) return nullptr;
  return std::make_shared<HostArtifacts>(state_dir, clock, sweep_every_ms, max_incoming);
}

}  // namespace mycojobs
