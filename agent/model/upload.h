// Files that a client uploads to a coordinator before it submits a job with them. A request names an upload by its
// reference, which contains size and hash, so that a job with the file is described without a query:
//
//   12.9f86d081884c7d659a2feaa0c55ad015.1048577.<sha256>     caller, random digits, size, hash
//
// The first two parts are the id of the upload. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/records.h"

namespace mycojobs {

// Prefix of the fields of mj:job-files:<job key> that name uploads, followed by the hash.
inline constexpr std::string_view kUploadFieldPrefix = "upload:";

struct UploadReference {
  std::string id;  // "<caller>.<32 hex digits>"
  std::uint64_t bytes = 0;
  std::string sha256;
  bool operator==(const UploadReference&) const = default;
};

std::string make_upload_id(Id caller, std::string_view random_digits);  // REQUIRES: 32 hex digits
// Returns whether the text has the form of an id, so that it is safe as a file name.
bool is_upload_id(std::string_view id);
std::string to_string(const UploadReference&);
std::optional<UploadReference> parse_upload_reference(std::string_view text);

// A file of a job that is an upload, as the store describes it: "<id> <bytes> <holder>".
struct StoredUpload {
  std::string id;
  std::uint64_t bytes = 0;
  std::string holder;  // to_string(FileHolder)
};
std::optional<StoredUpload> parse_stored_upload(std::string_view text);

}  // namespace mycojobs
