// Does each operation a number of times between two switches of callgrind, which counts the instructions and writes a
// file named after each. Without valgrind around it, it only shows that every operation does its work.
// instructions TIMES [OPERATION]: with a name that one alone, so that callgrind_annotate tells where it goes.
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

constexpr int kWarmUp = 100;  // the allocator's bins are filled, what is made once is made

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
  // One room after the other, so that what one holds in memory does not move another's counts.
  for (const auto room : {store_operations, sandbox_operations, executor_operations}) {
    for (const Operation& operation : room()) {
      if (wanted.empty() || operation.name == wanted) count(operation, times);
    }
  }
}
