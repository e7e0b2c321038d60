// Mutated frames for fuzzing. The same seed gives the same frames.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace mycojobs::test {

using Random = std::mt19937_64;

inline std::string mutated(std::string bytes, Random& random) {
  constexpr std::uint64_t kValues[] = {0,    1,     2,     7,          8,          255,   256,
                                       4096, 16384, 65535, 0x7fffffff, 0x80000000, ~0ULL, ~0ULL - 8};
  for (std::uint64_t times = random() % 4; times > 0 && !bytes.empty(); --times) {
    const std::size_t at = random() % bytes.size();
    const std::uint64_t value = kValues[random() % std::size(kValues)];
    const std::size_t width = std::size_t{1} << random() % 4;
    switch (random() % 6) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, random() % 64, static_cast<char>(random()));
        break;
      case 3:
        bytes.append(bytes, at, random() % 256);
        break;
      case 4:
        bytes.erase(at, random() % 16);
        break;
      default:
        bytes.replace(at, width, reinterpret_cast<const char*>(&value), width);
    }
  }
  return bytes;
}

}  // namespace mycojobs::test
