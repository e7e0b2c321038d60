#include "service/upload_service.h"

#include "base/parse.h"
#include "base/random.h"
#include "base/sha256.h"
#include "model/upload_limits.h"

namespace mycojobs::service {
namespace {

constexpr std::size_t kIdBytes = 16;  // 32 hex digits

}  // namespace

Result<UploadRecord> begin_upload(const RequestContext& caller, Store& store, const UploadRequest& request,
                                  const UploadLimits& limits, const std::string& holder) {
  MJ_CHECK(check_permission(caller, store, Action::create, {.name = "jobs"}));
  MJ_TRY(owner, resolve_owner(caller, request.owner));
  if (!is_hex(request.sha256, kSha256Digits))
    return fail(Code::invalid, "sha256: is not a SHA-256 hash of 64 hex digits in lower case");
  if (request.bytes > limits.max_file_bytes) {
    return fail(Code::too_large, "bytes: " + std::to_string(request.bytes) +
                                     " are more than an uploaded file may have; job.max_artifact_bytes is " +
                                     std::to_string(limits.max_file_bytes) +
                                     " here: raise it, or send the file in parts");
  }
  if (request.bytes > kMaxUploadedBytes) {
    return fail(Code::too_large, "bytes: " + std::to_string(request.bytes) + " are more than the " +
                                     std::to_string(kMaxUploadedBytes) +
                                     " that the uploads of a job may have: send the file in parts to several jobs");
  }
  UploadRecord upload;
  upload.caller = owner;
  upload.reference = {make_upload_id(owner, random_hex(kIdBytes)), request.bytes, request.sha256};
  upload.holder = holder;
  MJ_CHECK(store.begin_upload(caller.context, upload, 2 * UploadLimits::max_duration_ms(request.bytes),
                              limits.max_caller_bytes));
  return upload;
}

Result<UploadRecord> find_upload(const RequestContext& caller, Store& store, const UploadReference& reference,
                                 const std::string& holder) {
  MJ_CHECK(check_permission(caller, store, Action::create, {.name = "jobs"}));
  MJ_TRY(upload, store.find_upload(caller.context, reference.id));
  const bool is_own = upload && (caller.is_operator || upload->caller == caller.actor);
  if (!is_own || upload->reference != reference)
    return fail(Code::not_found, "upload " + reference.id + " does not exist or has expired: call artifact.put again");
  if (upload->holder != holder) {
    return fail(Code::conflict, "upload " + reference.id +
                                    " belongs to another coordinator: send the file to the server that has "
                                    "answered artifact.put");
  }
  return std::move(*upload);
}

}  // namespace mycojobs::service
