// fuzz TARGET [options of libFuzzer] [CORPUS...]
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "fuzz/targets.h"

namespace {
const mycojobs::fuzz::Target* target = nullptr;
}

// NOLINTBEGIN(readability-identifier-naming): libFuzzer's names
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// NOLINTEND(readability-identifier-naming)

// Removes the name of the target from the arguments.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  target = *argc < 2 ? nullptr : mycojobs::fuzz::find_target((*argv)[1]);
  if (target == nullptr) {
    std::fprintf(stderr, "usage: fuzz TARGET [OPTION OF LIBFUZZER...] [CORPUS...]\n");
    std::exit(64);
  }
  for (int i = 1; i + 1 < *argc; ++i) (*argv)[i] = (*argv)[i + 1];
  (*argv)[--*argc] = nullptr;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)target->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
