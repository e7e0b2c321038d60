// Records of files that clients have uploaded to coordinators, and the registration of the coordinators that send them.
// The files are on the disks of the coordinators. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "model/records.h"
#include "model/upload.h"

namespace mycojobs {

class StoreConnection;

struct UploadRecord {
  UploadReference reference;
  Id caller = 0;
  std::string holder;        // name of the coordinator that has the file
  bool is_complete = false;  // jobs can use the file
};

class UploadStore {
 public:
  explicit UploadStore(StoreConnection& connection) : connection_(connection) {}

  // Registers a coordinator as a holder of files for a time. 0 ends the registration.
  Result<void> hold_files(Id context, const std::string& holder, std::uint64_t ttl_ms);

  // Returns whether the coordinator is registered as a holder of files now.
  Result<bool> is_holding_files(Id context, const std::string& holder);

  // Reserves an upload, which expires after ttl_ms unless it is completed. max_bytes: the limit for all uploads of the
  // caller. Error too_large: the limit is reached; the message names the setting.
  Result<void> begin_upload(Id context, const UploadRecord&, std::uint64_t ttl_ms, std::uint64_t max_bytes);
  // Returns no value if the upload does not exist or has expired.
  Result<std::optional<UploadRecord>> find_upload(Id context, const std::string& id);
  // Makes the upload usable for jobs. It expires after ttl_ms unless a job uses it. Returns the time of the expiry in
  // ms. Error not_found: the upload has expired.
  Result<std::uint64_t> complete_upload(Id context, const std::string& id, std::uint64_t ttl_ms);
  // Deletes records of uploads that have expired and that no job uses. Returns whether more may be due.
  Result<bool> expire_uploads(Id context);

 private:
  StoreConnection& connection_;
};

inline constexpr const char* kUploadQuotaSetting = "uploads.caller_bytes";

}  // namespace mycojobs
