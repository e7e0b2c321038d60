// Base64 as RFC 4648 section 4 has it: with padding, without line ends. By libsodium.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mycojobs {

std::string encode_base64(std::string_view bytes);
// Nothing: it is not base64, or its last bits are not 0.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace mycojobs
