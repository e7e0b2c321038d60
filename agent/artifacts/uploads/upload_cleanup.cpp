#include "artifacts/uploads/upload_cleanup.h"

#include <filesystem>
#include <vector>

#include "artifacts/artifact_folder.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/uploads/upload_folder.h"
#include "base/log.h"
#include "model/upload.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> list_upload_ids(const std::string& folder) {
  std::vector<std::string> ids;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (std::string name = entry->path().filename().string(); is_upload_id(name)) ids.push_back(std::move(name));
  }
  return ids;
}

// A client that still sends the file holds the lock.
void delete_upload(const std::string& folder) {
  const auto lock = lock_file(folder + "/lock", true, 0);
  if (!lock) return;
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) log(LogLevel::warn, "coordinator", "{}: an expired upload cannot be deleted: {}", folder, error.message());
}

}  // namespace

Result<std::uint64_t> UploadCleanup::run_step(Store& store, Id context) {
  constexpr std::uint64_t kDisabledMs = 3600000;
  if (state_dir_.empty()) return kDisabledMs;
  const std::uint64_t now_ms = clock_.boot_ms();
  if (now_ms < next_ms_) return next_ms_ - now_ms;
  next_ms_ = now_ms + kIntervalMs;
  std::error_code error;
  if (!fs::exists(uploads_folder(ArtifactFolder(state_dir_, context)), error)) return kIntervalMs;
  MJ_TRY(has_more, store.expire_uploads(context));
  if (has_more) next_ms_ = now_ms;
  MJ_CHECK(delete_files_without_record(store, context));
  return next_ms_ - now_ms;
}

Result<void> UploadCleanup::delete_files_without_record(Store& store, Id context) const {
  const ArtifactFolder folder(state_dir_, context);
  MJ_TRY(store_names, artifact_store_names(store, context));
  for (const std::string& store_name : store_names) {
    for (const std::string& id : list_upload_ids(uploads_folder(folder, store_name))) {
      MJ_TRY(upload, store.find_upload(context, id));
      if (!upload) delete_upload(upload_folder(folder, store_name, id));
    }
  }
  return {};
}

}  // namespace mycojobs
