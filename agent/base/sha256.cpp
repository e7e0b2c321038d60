#include "base/sha256.h"

#include <sodium/crypto_auth_hmacsha256.h>
#include <sodium/crypto_hash_sha256.h>

#include <array>
#include <new>

namespace mycojobs {
namespace {

using State = crypto_hash_sha256_state;

State& get_state(unsigned char* storage) { return *std::launder(reinterpret_cast<State*>(storage)); }

}  // namespace

Sha256::Sha256() {
  static_assert(sizeof(State) <= sizeof state_ && alignof(State) <= alignof(std::uint64_t));
  crypto_hash_sha256_init(new (state_) State);
}

void Sha256::update(std::string_view bytes) {
  crypto_hash_sha256_update(&get_state(state_), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::string Sha256::hex() {
  std::array<unsigned char, crypto_hash_sha256_BYTES> hash{};
  crypto_hash_sha256_final(&get_state(state_), hash.data());
  std::string out;
  for (const unsigned char byte : hash) {
    constexpr const char* kDigits = "0123456789abcdef";
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string hmac_sha256(std::string_view key, std::string_view bytes) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(key.data()), key.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  std::string out(crypto_auth_hmacsha256_BYTES, '\0');
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(out.data()));
  return out;
}

}  // namespace mycojobs
