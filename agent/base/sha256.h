// SHA-256 and HMAC-SHA-256, from libsodium. An object hashes one text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mycojobs {

inline constexpr std::size_t kSha256Digits = 64;  // length of a hash as hex text

class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  std::string hex();  // kSha256Digits lower-case digits; may be called once, at the end

 private:
  alignas(std::uint64_t) unsigned char state_[128];  // crypto_hash_sha256_state
};

std::string sha256_hex(std::string_view bytes);
std::string hmac_sha256(std::string_view key, std::string_view bytes);  // 32 bytes

}  // namespace mycojobs
