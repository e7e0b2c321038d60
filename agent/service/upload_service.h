// Uploads of files for jobs (model/upload.h): a client announces size and hash, sends the file to the coordinator, and
// names the upload in `files` of a job. An upload is usable by jobs of its caller only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "artifacts/uploads/upload_receiver.h"
#include "service/service_caller.h"
#include "store/uploads/upload_store.h"

namespace mycojobs::service {

struct UploadLimits {
  std::uint64_t max_file_bytes = 64ULL << 20;           // the setting job.max_artifact_bytes
  std::uint64_t max_caller_bytes = 1ULL << 30;          // the setting uploads.caller_bytes
  std::uint64_t expiry_ms = 24ULL * 3600 * 1000;        // the setting uploads.expiry
  static constexpr std::uint64_t kMinRate = 32U << 10;  // bytes in a second; a slower client is disconnected
  // Returns the maximum duration of an upload.
  static std::uint64_t max_duration_ms(std::uint64_t bytes) { return 60000 + bytes * 1000 / kMinRate; }
};

struct UploadRequest {
  std::uint64_t bytes = 0;
  std::string sha256;
  std::optional<Id> owner;  // no value: the caller
};
// Reserves an upload at the coordinator whose folder has the name `holder`. Errors: denied (the caller must not create
// jobs, or names another owner), invalid, too_large (a limit; the message names the setting), those of the store.
Result<UploadRecord> begin_upload(const RequestContext&, Store&, const UploadRequest&, const UploadLimits&,
                                  const std::string& holder);
// Returns the record of an upload that the caller may send to this coordinator. Errors: denied, not_found (it has
// expired, or belongs to another caller), conflict (another coordinator has to receive it).
Result<UploadRecord> find_upload(const RequestContext&, Store&, const UploadReference&, const std::string& holder);

}  // namespace mycojobs::service
