#include "artifacts/uploads/upload_receiver.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "artifacts/uploads/upload_folder.h"
#include "base/errno_text.h"

namespace mycojobs {
namespace {

tl::unexpected<Error> make_disk_error(const std::string& path) {
  return fail(Code::unavailable, path + ": " + errno_text(errno));
}

// The content must be on the disk before the record of the upload is complete.
Result<void> sync_path(const std::string& path, int flags) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | flags));
  if (!fd || ::fsync(fd.get()) != 0) return make_disk_error(path);
  return {};
}

// Unused disk that uploads leave for others.
constexpr std::uint64_t kMinFreeBytes = 64ULL << 20;

Result<void> check_free_disk(const std::string& path, std::uint64_t bytes) {
  struct statvfs disk {};
  if (::statvfs(path.c_str(), &disk) != 0) return make_disk_error(path);
  const std::uint64_t free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free_bytes >= kMinFreeBytes && free_bytes - kMinFreeBytes >= bytes) return {};
  return fail(Code::unavailable, path + ": the disk has " + std::to_string(free_bytes) +
                                     " free bytes, too few for an upload of " + std::to_string(bytes) +
                                     ": free some, or call another coordinator");
}

}  // namespace

Result<std::unique_ptr<UploadReceiver>> UploadReceiver::create(const ArtifactFolder& folder,
                                                               const std::string& store_name,
                                                               const UploadReference& reference) {
  if (auto created = folder.create(store_name); !created) return fail(Code::unavailable, created.error().message);
  MJ_CHECK(check_free_disk(folder.path(), reference.bytes));
  const std::string path = upload_folder(folder, store_name, reference.id);
  for (const std::string& parent : {uploads_folder(folder), uploads_folder(folder, store_name), path})
    if (::mkdir(parent.c_str(), 0700) != 0 && errno != EEXIST) return make_disk_error(parent);
  auto lock = lock_file(path + "/lock", true, 0);
  if (!lock) return fail(Code::conflict, "another client sends this upload now");
  std::unique_ptr<UploadReceiver> receiver(new UploadReceiver(path, reference, std::move(*lock)));
  (void)::unlink(receiver->part_path().c_str());  // deletes the part of an upload that a crash has ended
  if (auto created = receiver->file_.create(receiver->part_path()); !created)
    return fail(Code::unavailable, created.error().message);
  return receiver;
}

UploadReceiver::~UploadReceiver() {
  if (!is_stored_) (void)::unlink(part_path().c_str());
}

Result<void> UploadReceiver::write(std::string_view bytes) {
  if (bytes.size() > reference_.bytes - file_.bytes()) {
    return fail(Code::too_large,
                "the file is longer than the " + std::to_string(reference_.bytes) + " bytes of artifact.put");
  }
  if (auto written = file_.write(bytes); !written) return fail(Code::unavailable, written.error().message);
  return {};
}

Result<void> UploadReceiver::finish() {
  if (auto finished = file_.finish(); !finished) return fail(Code::unavailable, finished.error().message);
  if (file_.bytes() != reference_.bytes) {
    return fail(Code::invalid, "the file has " + std::to_string(file_.bytes()) + " bytes, and artifact.put has named " +
                                   std::to_string(reference_.bytes));
  }
  if (const std::string hash = file_.hash(); hash != reference_.sha256)
    return fail(Code::invalid, "the file has the SHA-256 hash " + hash + ", and artifact.put has named another");
  const std::string path = folder_ + '/' + reference_.sha256;
  MJ_CHECK(sync_path(part_path(), 0));
  if (std::rename(part_path().c_str(), path.c_str()) != 0) return make_disk_error(path);
  is_stored_ = true;
  return sync_path(folder_, O_DIRECTORY);
}

}  // namespace mycojobs
