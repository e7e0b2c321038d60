// Deterministic CBOR: one value, one text of bytes. RFC 8949 section 4.2.1 (core deterministic encoding): shortest
// lengths and numbers, definite lengths, keys of maps in the order of their encoded bytes, no tags. What is signed or
// hashed is encoded so; what arrives is taken only if it is the one encoding of its value. Pure; any thread.
//
// Values are those of JSON and byte strings (json::binary without a subtype): null, booleans, integers from -2^63 to
// 2^64 - 1, floats (a NaN is 7e00), texts that are UTF-8, arrays, maps with text keys.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::size_t kMaxCborDepth = 64;

// Error invalid: a text that is not UTF-8, deeper than kMaxCborDepth, a binary with a subtype.
Result<std::string> encode_cbor(const nlohmann::json&);

struct CborLimits {
  std::size_t bytes = 16U << 20, values = 1'000'000;
};
// Errors: invalid (ends early, goes on behind its value, is not deterministic, a key twice, a tag, an integer or simple
// value that JSON has not; names the byte), too_large.
Result<nlohmann::json> decode_cbor(std::string_view bytes, const CborLimits& = {});

}  // namespace mycojobs
