#include "model/upload.h"

#include <array>

#include "base/parse.h"
#include "base/sha256.h"

namespace mycojobs {
namespace {

constexpr std::size_t kUploadDigits = 32;

// Splits a text at a separator. Returns no value if the number of parts is not N.
template <std::size_t N>
std::optional<std::array<std::string_view, N>> split_parts(std::string_view text, char separator) {
  std::array<std::string_view, N> parts;
  for (std::size_t i = 0; i < N; ++i) {
    const std::size_t end = text.find(separator);
    if ((end == std::string_view::npos) != (i + 1 == N)) return std::nullopt;
    parts[i] = text.substr(0, end);
    if (i + 1 < N) text.remove_prefix(end + 1);
  }
  return parts;
}

bool are_id_parts(std::string_view caller, std::string_view digits) {
  std::uint64_t id = 0;
  return parse_u64(caller, id) && id <= UINT32_MAX && std::to_string(id) == caller && is_hex(digits, kUploadDigits);
}

}  // namespace

std::string make_upload_id(Id caller, std::string_view random_digits) {
  return std::to_string(caller) + '.' + std::string(random_digits);
}

bool is_upload_id(std::string_view id) {
  const auto parts = split_parts<2>(id, '.');
  return parts && are_id_parts((*parts)[0], (*parts)[1]);
}

std::string to_string(const UploadReference& reference) {
  return reference.id + '.' + std::to_string(reference.bytes) + '.' + reference.sha256;
}

std::optional<UploadReference> parse_upload_reference(std::string_view text) {
  const auto parts = split_parts<4>(text, '.');
  if (!parts) return std::nullopt;
  const auto& [caller, digits, bytes, sha256] = *parts;
  UploadReference reference{std::string(caller) + '.' + std::string(digits), 0, std::string(sha256)};
  if (!are_id_parts(caller, digits) || !parse_u64(bytes, reference.bytes) || !is_hex(sha256, kSha256Digits))
    return std::nullopt;
  return reference;
}

std::optional<StoredUpload> parse_stored_upload(std::string_view text) {
  const auto parts = split_parts<3>(text, ' ');
  if (!parts) return std::nullopt;
  StoredUpload upload{std::string((*parts)[0]), 0, std::string((*parts)[2])};
  if (!is_upload_id(upload.id) || !parse_u64((*parts)[1], upload.bytes)) return std::nullopt;
  return upload;
}

}  // namespace mycojobs
