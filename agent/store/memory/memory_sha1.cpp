#include "store/memory/memory_sha1.h"

#include <array>
#include <bit>
#include <cstdint>

#include "base/ids.h"

namespace mycojobs::memory {
namespace {

using State = std::array<std::uint32_t, 5>;

void add_block(State& state, std::string_view block) {
  std::array<std::uint32_t, 80> w{};
  for (std::size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(block[i]);
  for (std::size_t i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  auto [a, b, c, d, e] = state;
  for (std::size_t i = 0; i < 80; ++i) {
    const std::uint32_t mixed = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                                : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                                : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                                         : (b ^ c ^ d) + 0xca62c1d6;
    const std::uint32_t next = std::rotl(a, 5) + mixed + e + w[i];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  }
  const State round{a, b, c, d, e};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += round[i];
}

std::string big_endian(std::uint64_t number, int bytes) {
  std::string out;
  for (int shift = bytes * 8 - 8; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
  return out;
}

}  // namespace

std::string sha1_hex(std::string_view text) {
  std::string padded(text);
  padded += '\x80';
  padded.append((120 - padded.size() % 64) % 64, '\0');
  padded += big_endian(std::uint64_t{text.size()} * 8, 8);
  State state{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  for (std::string_view rest = padded; !rest.empty(); rest.remove_prefix(64)) add_block(state, rest);
  std::string digest;
  for (std::uint32_t part : state) digest += big_endian(part, 4);
  return to_hex(digest);
}

}  // namespace mycojobs::memory
