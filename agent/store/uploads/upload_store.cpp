#include "store/uploads/upload_store.h"

#include <array>
#include <string_view>

#include "model/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/lua_scripts.h"
#include "store/record_store.h"
#include "store/redis/store_connection.h"

namespace mycojobs {

Result<void> UploadStore::hold_files(Id context, const std::string& holder, std::uint64_t ttl_ms) {
  MJ_CHECK(connection_.run(context, scripts::hold_files, Arguments().add(holder).add(ttl_ms)));
  return {};
}

Result<bool> UploadStore::is_holding_files(Id context, const std::string& holder) {
  MJ_TRY(until_ms, connection_.command(context, {"HGET", kFileHoldersKey, holder}));
  MJ_TRY(now, connection_.command(context, {"TIME"}));
  return until_ms.number() > now.at(0).number() * 1000;
}

Result<void> UploadStore::begin_upload(Id context, const UploadRecord& upload, std::uint64_t ttl_ms,
                                       std::uint64_t max_bytes) {
  const UploadReference& reference = upload.reference;
  Arguments arguments;
  arguments.add(reference.id).add(std::uint64_t{upload.caller}).add(reference.bytes).add(reference.sha256);
  arguments.add(upload.holder).add(ttl_ms).add(max_bytes);
  MJ_TRY(reply, connection_.run(context, scripts::upload_begin, arguments));
  if (reply.at(0).text() == "all_full") {
    return fail(Code::too_large,
                "the uploads of all callers have " + std::string(reply.at(1).text()) +
                    " bytes, and together they may have 16 times " + kUploadQuotaSetting +
                    ": wait until unused uploads have expired, delete jobs that use uploads, or raise it");
  }
  if (reply.at(0).text() != "full") return {};
  return fail(Code::too_large,
              "the uploads of caller " + std::to_string(upload.caller) + " have " + std::string(reply.at(1).text()) +
                  " bytes, and " + kUploadQuotaSetting + " allows " + std::to_string(max_bytes) +
                  ": wait until unused uploads have expired, delete jobs that use uploads, or raise it");
}

Result<std::optional<UploadRecord>> UploadStore::find_upload(Id context, const std::string& id) {
  static constexpr std::array<std::string_view, 5> kNames = {"caller", "bytes", "sha256", "holder", "stored"};
  auto fields = RecordStore(connection_).load_fields(context, kUploadKey + id, kNames);
  if (!fields && fields.error().code == Code::not_found) return std::optional<UploadRecord>();
  if (!fields) return tl::unexpected<Error>(std::move(fields).error());
  const auto reference = parse_upload_reference(id + '.' + std::string(field_of(*fields, "bytes")) + '.' +
                                                std::string(field_of(*fields, "sha256")));
  if (!reference) return std::optional<UploadRecord>();
  const auto caller = static_cast<Id>(parse_whole_number(std::string(field_of(*fields, "caller"))));
  return std::optional(
      UploadRecord{*reference, caller, std::string(field_of(*fields, "holder")), field_of(*fields, "stored") == "1"});
}

Result<std::uint64_t> UploadStore::complete_upload(Id context, const std::string& id, std::uint64_t ttl_ms) {
  MJ_TRY(reply, connection_.run(context, scripts::upload_complete, Arguments().add(id).add(ttl_ms)));
  if (reply.number() == 0) return fail(Code::not_found, "upload " + id + " has expired: begin it again");
  return reply.number();
}

Result<bool> UploadStore::expire_uploads(Id context) {
  constexpr std::uint64_t kMaxExamined = 100;
  MJ_TRY(reply, connection_.run(context, scripts::upload_expire, Arguments().add(kMaxExamined)));
  return reply.number() >= kMaxExamined;
}

}  // namespace mycojobs
