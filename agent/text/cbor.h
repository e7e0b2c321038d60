// Deterministic CBOR: each value has exactly one encoding. The rules are those of RFC 8949 section 4.2.1 (core
// deterministic encoding): shortest lengths and numbers, definite lengths, map keys in the order of their encoded
// bytes, no tags. Data that is signed or hashed is encoded in this form, and input is accepted only in this form. Pure
// and thread-safe.
//
// Values are the values of JSON and byte strings (json::binary without a subtype): null, booleans, integers from -2^63
// to 2^64 - 1, floats (NaN is encoded as 7e00), UTF-8 text, arrays, and maps with text keys.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxCborDepth = 64;

// Error invalid: a text is not UTF-8, the value nests deeper than kMaxCborDepth, or a binary has a subtype.
Result<std::string> encode_cbor(const nlohmann::json&);

struct CborLimits {
  std::size_t bytes = 16U << 20, values = 1'000'000;
};
// Error invalid: the input ends early, has bytes after its value, is not deterministic, has a duplicate key, a tag, or
// an integer or simple value that JSON does not have. The message names the byte offset. Error too_large: a limit is
// exceeded.
Result<nlohmann::json> decode_cbor(std::string_view bytes, const CborLimits& = {});

}  // namespace mycojobs
