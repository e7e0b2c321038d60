#include "worker/artifact_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "worker/artifact_folder.h"
#include "worker/artifact_sweep.h"
#include "worker/artifacts.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr int kFolderWaitMs = 2000;
constexpr std::chrono::hours kForgotten{1};

// A host that cannot write now may be able to later: whoever sends it tries again.
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

// Under the lock of the folder: whoever takes something away waits, and sees then that the jobs' folders were touched.
class HeldFolders final : public ArtifactStore::HandedOver {
 public:
  explicit HeldFolders(Fd lock) : lock_(std::move(lock)) {}
  ~HeldFolders() override {
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
  HostArtifacts(std::string state_dir, const Clock& clock, std::uint64_t sweep_every_ms)
      : state_dir_(std::move(state_dir)), sweep_(clock, state_dir_, sweep_every_ms) {}

  Result<std::string> read(RecordStore& store, Id context, const std::string& job_key, const FileContent& file,
                           std::uint64_t offset, std::size_t max) override {
    MJ_TRY(store_names, artifact_store_names(store, context));
    const Fd fd = open_of(store_names, context, job_key, file);
    if (!fd) return fail(Code::not_found, "an artifact of " + job_key + " is not on this host as its record says");
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

  Result<std::uint64_t> expect(RecordStore& store, Id context, const std::string& parcel,
                               const FileContent& file) override {
    if (const auto whole = size_of(path_of(context, parcel, file)); whole == file.bytes) return file.bytes;
    MJ_TRY(store_name, artifact_store_name(store, context));
    if (auto made = ArtifactFolder(state_dir_, context).make(store_name); !made)
      return fail(Code::unavailable, made.error().message);
    for (const std::string& folder : {incoming(context), incoming(context) + '/' + parcel})
      if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return cannot(folder);
    const std::string path = part_of(context, parcel, file);
    const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return cannot(path);
    if (file.bytes == 0) return add(context, parcel, file, 0, "");
    return size_of(fd.get()).value_or(0);
  }

  Result<std::uint64_t> add(Id context, const std::string& parcel, const FileContent& file, std::uint64_t offset,
                            std::string_view piece) override {
    const std::string path = path_of(context, parcel, file), part = part_of(context, parcel, file);
    if (const auto whole = size_of(path); whole == file.bytes) return file.bytes;
    const Fd fd(::open(part.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) return fail(Code::not_found, "nobody here waits for this file");
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return fail(Code::unavailable, "the file is written just now");
    const auto size = size_of(part);  // by its name: it may be whole since it was opened
    if (!size || size != size_of(fd.get())) return fail(Code::unavailable, "the file was written just now");
    if (offset <= *size && offset + piece.size() > *size) {
      piece.remove_prefix(static_cast<std::size_t>(*size - offset));
      if (*size + piece.size() > file.bytes) return refuse(part, "is longer than it was said to be");
      MJ_CHECK(write_at(fd.get(), piece, *size, part));
    }
    const std::uint64_t now = size_of(fd.get()).value_or(0);
    if (now > file.bytes) return refuse(part, "is longer than it was said to be");
    if (now < file.bytes) return now;
    MJ_TRY(hash, hash_of(fd.get(), part));
    if (hash != file.sha256) return refuse(part, "has not the hash that its record names");
    if (::rename(part.c_str(), path.c_str()) != 0) return cannot(path);
    return now;
  }

  Result<std::unique_ptr<HandedOver>> hand_over(RecordStore& store, Id context, const std::string& parcel,
                                                const std::vector<ForJob>& to) override {
    const ArtifactFolder folder(state_dir_, context);
    MJ_TRY(store_name, artifact_store_name(store, context));
    auto lock = folder.lock(false, kFolderWaitMs);
    if (!lock) return fail(Code::unavailable, folder.path() + "/lock is held by another process");
    auto held = std::make_unique<HeldFolders>(std::move(*lock));
    for (const ForJob& each : to) {
      if (each.files.empty()) continue;
      const std::string job = folder.job(store_name, each.job_key);
      MJ_CHECK(held->add(job));
      for (const FileContent& file : each.files) {
        const std::string path = path_of(context, parcel, file);
        // Handed over before, by somebody who died since.
        if (size_of(path) != file.bytes && size_of(job + '/' + file.sha256) == file.bytes) continue;
        if (size_of(path) != file.bytes)
          return fail(Code::not_found, "an artifact for " + each.job_key + " has not come whole: " + file.sha256);
        WholeFile whole;
        whole.path = path;
        whole.sha256 = file.sha256;
        whole.bytes = file.bytes;
        if (auto kept = keep_artifact(whole, folder.objects() + '/' + file.sha256, job + '/' + file.sha256); !kept)
          return fail(Code::unavailable, "an artifact for " + each.job_key + ": " + kept.error().message);
      }
    }
    return std::unique_ptr<HandedOver>(std::move(held));
  }

  void drop(Id context, const std::string& parcel) override {
    std::error_code told_by_tidy;
    fs::remove_all(incoming(context) + '/' + parcel, told_by_tidy);
  }

  Result<void> tidy(RecordStore& store, Id context) override {
    std::error_code gone;
    for (fs::directory_iterator entry(incoming(context), gone), end; !gone && entry != end; entry.increment(gone)) {
      if (is_forgotten(entry->path())) drop(context, entry->path().filename().string());
    }
    const std::lock_guard lock(sweeping_);
    MJ_CHECK(sweep_.look_after(store, context));
    return {};
  }

 private:
  std::string incoming(Id context) const { return ArtifactFolder(state_dir_, context).path() + "/incoming"; }
  std::string path_of(Id context, const std::string& parcel, const FileContent& file) const {
    return incoming(context) + '/' + parcel + '/' + file.sha256;
  }
  std::string part_of(Id context, const std::string& parcel, const FileContent& file) const {
    return path_of(context, parcel, file) + ".part";
  }
  // None: it is not there.
  Fd open_of(const std::vector<std::string>& store_names, Id context, const std::string& job_key,
             const FileContent& file) const {
    for (const std::string& name : store_names) {
      const std::string path = ArtifactFolder(state_dir_, context).job(name, job_key) + '/' + file.sha256;
      Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (fd && size_of(fd.get()) == file.bytes) return fd;
    }
    return {};
  }
  static tl::unexpected<Error> refuse(const std::string& path, const std::string& why) {
    (void)::unlink(path.c_str());  // what stays is refused again
    return fail(Code::invalid, "the file " + why);
  }
  static bool is_forgotten(const fs::path& folder) {
    std::error_code unknown;
    auto last = fs::last_write_time(folder, unknown);
    if (unknown) return false;
    for (fs::directory_iterator entry(folder, unknown), end; !unknown && entry != end; entry.increment(unknown)) {
      std::error_code gone;
      if (const auto written = fs::last_write_time(entry->path(), gone); !gone) last = std::max(last, written);
    }
    return !unknown && fs::file_time_type::clock::now() - last > kForgotten;
  }

  const std::string state_dir_;
  std::mutex sweeping_;
  ArtifactSweep sweep_;
};

}  // namespace

std::shared_ptr<ArtifactStore> make_artifact_store(const std::string& state_dir, const Clock& clock,
                                                   std::uint64_t sweep_every_ms) {
  if (state_dir.empty()) return nullptr;
  return std::make_shared<HostArtifacts>(state_dir, clock, sweep_every_ms);
}

}  // namespace mycojobs
