#include "workflows/siphash.h"

#include <algorithm>
#include <array>
#include <bit>

namespace mycojobs {
namespace {

using State = std::array<std::uint64_t, 4>;

std::uint64_t read_little_endian(std::string_view bytes) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 8); ++i)
    word |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return word;
}

void mix(State& v, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    v[0] += v[1], v[2] += v[3];
    v[1] = std::rotl(v[1], 13) ^ v[0], v[3] = std::rotl(v[3], 16) ^ v[2];
    v[0] = std::rotl(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = std::rotl(v[1], 17) ^ v[2], v[3] = std::rotl(v[3], 21) ^ v[0];
    v[2] = std::rotl(v[2], 32);
  }
}

void add_word(State& v, std::uint64_t word) {
  v[3] ^= word;
  mix(v, 2);
  v[0] ^= word;
}

}  // namespace

std::uint64_t siphash(std::string_view key, std::string_view text) {
  const std::uint64_t k0 = read_little_endian(key), k1 = read_little_endian(key.substr(8));
  State v{k0 ^ 0x736f6d6570736575U, k1 ^ 0x646f72616e646f6dU, k0 ^ 0x6c7967656e657261U, k1 ^ 0x7465646279746573U};
  const std::uint64_t size = text.size();
  for (; text.size() >= 8; text.remove_prefix(8)) add_word(v, read_little_endian(text));
  add_word(v, read_little_endian(text) | (size << 56U));
  v[2] ^= 0xffU;
  mix(v, 4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

}  // namespace mycojobs
