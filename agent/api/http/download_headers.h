// Headers of requests and answers for files: ranges (RFC 9110, section 14) and names of files (RFC 6266). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs::api {

// The bytes [begin, end) of a file.
struct ByteRange {
  std::uint64_t begin = 0, end = 0;
  bool is_partial = false;  // the answer has status 206
  std::uint64_t size() const { return end - begin; }
};
// Parses the header Range for a file of this size. The result is the whole file if the header is empty, has another
// unit than bytes, or names several ranges. Error invalid: the header has another form, or the file has none of the
// bytes (status 416).
Result<ByteRange> parse_byte_range(std::string_view header, std::uint64_t file_bytes);
// Returns the header Content-Range: "bytes 0-99/1000".
std::string format_content_range(const ByteRange&, std::uint64_t file_bytes);

// Returns the header Content-Disposition for a download: `attachment; filename="a_.txt"; filename*=UTF-8''%C3%A4.txt`.
// The file name is the last part of the path `name`. Characters that could end or disguise the name are replaced by
// '_': control characters, quotes, backslashes and marks that change the writing direction.
std::string format_attachment(std::string_view name);

}  // namespace mycojobs::api
