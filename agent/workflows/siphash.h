// SipHash-2-4 (https://www.aumasson.jp/siphash/siphash.pdf), a hash of short texts whose values cannot be chosen
// without the key. No side effects; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace mycojobs {

// REQUIRES: the key has 16 bytes.
std::uint64_t siphash(std::string_view key, std::string_view text);

}  // namespace mycojobs
