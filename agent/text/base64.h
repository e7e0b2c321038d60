// Base64 as in RFC 4648 section 4, with padding and without line breaks, from libsodium.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mycojobs {

std::string encode_base64(std::string_view bytes);
// Returns no value if the text is not base64, or if its unused bits are not 0.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace mycojobs
