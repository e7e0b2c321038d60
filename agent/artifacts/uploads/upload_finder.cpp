#include "artifacts/uploads/upload_finder.h"

#include <array>
#include <string_view>
#include <utility>

#include "artifacts/job_artifacts.h"
#include "artifacts/uploads/upload_folder.h"
#include "model/codec.h"
#include "model/upload.h"
#include "store/keys.h"

namespace mycojobs {

Result<std::string> UploadFinder::find(Id context, const std::string& job_key, const FileContent& file) {
  const std::uint64_t now_ms = clock_.boot_ms();
  const std::string key = job_key + ' ' + file.sha256;
  const auto cached = cache_.find(key);
  if (cached != cache_.end() && now_ms < cached->second.until_ms) return cached->second.folder;
  if (cache_.size() >= kMaxCached) cache_.clear();
  MJ_TRY(folder, look_up(context, job_key, file));
  if (!folder.empty()) cache_[key] = {folder, now_ms + kCacheMs};
  return std::move(folder);
}

Result<std::string> UploadFinder::look_up(Id context, const std::string& job_key, const FileContent& file) {
  const std::string field = std::string(kUploadFieldPrefix) + file.sha256;
  const std::array<std::string_view, 1> names = {field};
  auto fields = store_.load_fields(context, job_files_key(job_key), names);
  if (!fields && fields.error().code == Code::not_found) return std::string();
  if (!fields) return tl::unexpected<Error>(std::move(fields).error());
  const auto upload = parse_stored_upload(field_of(*fields, field));
  if (!upload || upload->bytes != file.bytes || upload->holder != holder_) return std::string();
  MJ_TRY(store_name, artifact_store_name(store_, context));
  return upload_folder(folder_, store_name, upload->id);
}

}  // namespace mycojobs
