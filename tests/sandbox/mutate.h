// Mutates frames for fuzzing. The same seed produces the same frames.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace mycojobs::test {

using Random = std::mt19937_64;

// Applies up to three random changes to the bytes.
inline std::string mutate(std::string bytes, Random& random) {
  constexpr std::uint64_t kBoundaryValues[] = {0,    1,     2,     7,          8,          255,   256,
                                               4096, 16384, 65535, 0x7fffffff, 0x80000000, ~0ULL, ~0ULL - 8};
  for (std::uint64_t changes = random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const std::size_t position = random() % bytes.size();
    const std::uint64_t value = kBoundaryValues[random() % std::size(kBoundaryValues)];
    const std::size_t width = std::size_t{1} << random() % 4;
    switch (random() % 6) {
      case 0:
        bytes[position] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(position);
        break;
      case 2:
        bytes.insert(position, random() % 64, static_cast<char>(random()));
        break;
      case 3:
        bytes.append(bytes, position, random() % 256);
        break;
      case 4:
        bytes.erase(position, random() % 16);
        break;
      default:
        bytes.replace(position, width, reinterpret_cast<const char*>(&value), width);
    }
  }
  return bytes;
}

}  // namespace mycojobs::test
