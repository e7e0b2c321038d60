#include "artifacts/uploads/upload_cleanup.h"

#include <algorithm>
#include <filesystem>
#include <map>
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

// Records expire without regard to the folder: their uploads may be at other coordinators, or have never begun.
Result<std::uint64_t> UploadCleanup::run_step(Store& store, Id context) {
  const std::uint64_t now_ms = clock_.boot_ms();
  if (now_ms < next_ms_) return next_ms_ - now_ms;
  next_ms_ = now_ms + kIntervalMs;
  const auto has_more = store.expire_uploads(context);
  auto deleted = delete_files_without_record(store, context);
  MJ_CHECK(has_more);
  MJ_CHECK(deleted);
  if (*has_more) next_ms_ = now_ms;
  return next_ms_ - now_ms;
}

// Examines the next kMaxExamined files, since each costs a query. A record that cannot be read delays no other file.
Result<void> UploadCleanup::delete_files_without_record(Store& store, Id context) {
  const ArtifactFolder folder(state_dir_, context);
  std::error_code error;
  if (state_dir_.empty() || !fs::exists(uploads_folder(folder), error)) return {};
  MJ_TRY(store_names, artifact_store_names(store, context));
  std::map<std::string, std::string> ids;  // ids of uploads by the path of their folder
  for (const std::string& store_name : store_names) {
    for (std::string& id : list_upload_ids(uploads_folder(folder, store_name))) {
      std::string path = upload_folder(folder, store_name, id);
      ids.emplace(std::move(path), std::move(id));
    }
  }
  Result<void> result;
  auto next = ids.upper_bound(last_examined_);
  for (std::size_t count = std::min(kMaxExamined, ids.size()); count > 0; --count, ++next) {
    if (next == ids.end()) next = ids.begin();
    const auto& [path, id] = *next;
    last_examined_ = path;
    const auto upload = store.find_upload(context, id);
    if (!upload && result) result = tl::unexpected<Error>(upload.error());
    if (upload && !*upload) delete_upload(path);
  }
  return result;
}

}  // namespace mycojobs
