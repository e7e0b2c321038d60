// Runs each operation several times while callgrind counts instructions. callgrind writes one file per operation.
// Without valgrind, the program only shows that every operation works.
// instructions TIMES [OPERATION]: with a name, only that operation runs, for use with callgrind_annotate.
#include <valgrind/callgrind.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "instructions/operation.h"

namespace mycojobs::instructions {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "instructions: %s\n", what);
  std::exit(1);
}

namespace {

constexpr int kWarmUp = 100;  // fills the allocator's bins and creates objects that are created once

void count(const Operation& operation, int times) {
  volatile std::size_t kept = 0;
  for (int i = 0; i < kWarmUp; ++i) kept = kept + operation.once();
  CALLGRIND_TOGGLE_COLLECT;
  for (int i = 0; i < times; ++i) kept = kept + operation.once();
  CALLGRIND_TOGGLE_COLLECT;
  CALLGRIND_DUMP_STATS_AT(operation.name.c_str());
  std::printf("%s\n", operation.name.c_str());
}

}  // namespace
}  // namespace mycojobs::instructions

int main(int argc, char** argv) {
  using namespace mycojobs::instructions;
  const int times = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string_view wanted = argc > 2 ? argv[2] : "";
  require(times > 0, "usage: instructions TIMES [OPERATION]");
  // Creates the operations of one part at a time, so that memory of one part does not change the counts of another.
  for (const auto room : {store_operations, sandbox_operations, executor_operations}) {
    for (const Operation& operation : room()) {
      if (wanted.empty() || operation.name == wanted) count(operation, times);
    }
  }
}
