// Freezing changes neither the contents of memory nor its permissions, and does not make it shared.
#include "sandbox/zygote/freeze.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

namespace mycojobs::sandbox {
namespace {

std::vector<std::uint32_t> make_numbers(std::size_t count) {
  std::vector<std::uint32_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<std::uint32_t>(i * 2654435761U);
  return numbers;
}

// Returns the lines of /proc/self/maps that contain `text`.
std::vector<std::string> find_map_lines(const std::string& text) {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> lines;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(text) != std::string::npos) lines.push_back(line);
  }
  return lines;
}

// Returns the start of the mapping that contains `address`.
std::uintptr_t find_mapping(const void* address) {
  const auto target = reinterpret_cast<std::uintptr_t>(address);
  for (const std::string& line : find_map_lines("-")) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) == 2 && target >= begin && target < end)
      return begin;
  }
  return 0;
}

// Checks `condition` in a child process, which has only one thread. Returns the wait status: 0 if the condition holds.
int run_in_child(const std::function<bool()>& condition) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(condition() ? 0 : 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // Sanitizers reserve more memory than is ever frozen.
#else
constexpr bool kSanitized = false;
#endif

class Freeze : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Freeze, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "huge_pages" : "small_pages"; });

std::vector<std::uint32_t> static_numbers = make_numbers(1000);

TEST_P(Freeze, MemoryIsUnchanged) {
  const std::vector<std::uint32_t> expected = make_numbers(3U << 20);
  std::vector<std::uint32_t> heap_numbers = expected;
  EXPECT_EQ(run_in_child([&] {
              const FreezeResult frozen = freeze_memory({}, GetParam());
              if (!kSanitized &&
                  frozen.huge_page_bytes + frozen.file_bytes < heap_numbers.size() * sizeof heap_numbers[0] / 2)
                return false;
              return heap_numbers == expected && static_numbers == make_numbers(1000);
            }),
            0);
}

TEST_P(Freeze, ChildWritesArePrivate) {
  std::vector<std::uint32_t> heap_numbers = make_numbers(3U << 20);
  EXPECT_EQ(run_in_child([&] {
              freeze_memory({}, GetParam());
              const int status = run_in_child([&] {
                std::fill(heap_numbers.begin(), heap_numbers.end(), 7U);
                static_numbers[3] = 7;
                return heap_numbers.front() == 7 && heap_numbers.back() == 7;
              });
              return status == 0 && heap_numbers == make_numbers(heap_numbers.size()) &&
                     static_numbers == make_numbers(1000);
            }),
            0);
}

TEST_P(Freeze, WritesOfEachChildArePrivate) {
  std::vector<std::uint32_t> heap_numbers = make_numbers(3U << 20);
  EXPECT_EQ(run_in_child([&] {
              const std::vector<const void*> written = {&static_numbers[3], &heap_numbers[2U << 20], nullptr};
              freeze_memory(written, GetParam());
              // A separate mapping for the written part would cost more than it saves.
              if (find_mapping(&heap_numbers[2U << 20]) != find_mapping(&heap_numbers[1U << 20])) return false;
              const int status = run_in_child([&] {
                heap_numbers[2U << 20] = 7;
                heap_numbers.back() = 7;
                return heap_numbers[2U << 20] == 7 &&
                       heap_numbers[(2U << 20) + 1] == make_numbers(heap_numbers.size())[(2U << 20) + 1];
              });
              return status == 0 && heap_numbers == make_numbers(heap_numbers.size()) &&
                     static_numbers == make_numbers(1000);
            }),
            0);
}

TEST_P(Freeze, NothingIsWritableAndExecutable) {
  EXPECT_EQ(run_in_child([] {
              freeze_memory({}, GetParam());
              return find_map_lines(" rwx").empty() && find_map_lines(" rw-s").empty();
            }),
            0);
}

TEST_P(Freeze, UntouchedMemoryIsNotAllocated) {
  constexpr std::size_t kBytes = 64U << 20;
  EXPECT_EQ(run_in_child([] {
              void* const untouched =
                  ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
              ::madvise(untouched, kBytes, MADV_NOHUGEPAGE);  // Separates this memory from other mappings.
              const FreezeResult frozen = freeze_memory({}, GetParam());
              return frozen.huge_page_bytes + frozen.file_bytes < kBytes && *static_cast<const char*>(untouched) == 0;
            }),
            0);
}

// Maps the program's file at an aligned address, read-only.
const char* map_program(std::size_t size) {
  constexpr std::size_t kHugePageBytes = 2U << 20;
  void* const raw =
      ::mmap(nullptr, size + 3 * kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const std::uintptr_t begin =
      (reinterpret_cast<std::uintptr_t>(raw) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  ::munmap(raw, size + 3 * kHugePageBytes);
  const Fd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return static_cast<const char*>(::mmap(reinterpret_cast<void*>(begin), size, PROT_READ, MAP_PRIVATE, file.get(), 0));
}

// Using 2 MiB for the last few pages of a program's text wastes memory and adds a copy in each zygote.
TEST(FreezeProgram, LittleMoreThanHugePagesIsNotCopied) {
  constexpr std::size_t kHugePageBytes = 2U << 20, kSmallRestBytes = 300U << 10, kLargeRestBytes = 1U << 20;
  EXPECT_EQ(run_in_child([] {
              const char* const program = map_program(kHugePageBytes + kSmallRestBytes);
              const std::string copy(program, kHugePageBytes + kSmallRestBytes);
              freeze_memory();
              const std::uintptr_t end = find_mapping(program + kHugePageBytes);
              return find_mapping(program) == reinterpret_cast<std::uintptr_t>(program) &&
                     end == reinterpret_cast<std::uintptr_t>(program) + kHugePageBytes &&
                     copy == std::string_view(program, copy.size());
            }),
            0);
  EXPECT_EQ(run_in_child([] {
              const char* const program = map_program(kHugePageBytes + kLargeRestBytes);
              const std::string copy(program, kHugePageBytes + kLargeRestBytes);
              freeze_memory();
              return find_mapping(program + kHugePageBytes) == reinterpret_cast<std::uintptr_t>(program) &&
                     copy == std::string_view(program, copy.size());
            }),
            0);
}

// libc stores the state of its random numbers in such memory. A copy would give every child the same numbers.
TEST_P(Freeze, PagesWipedOnForkAreStillWiped) {
  constexpr std::size_t kBytes = 8U << 20;
  const std::vector<std::uint32_t> heap_numbers = make_numbers(3U << 20);  // Memory that can be frozen.
  EXPECT_EQ(run_in_child([] {
              void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              if (::madvise(memory, kBytes, MADV_WIPEONFORK) != 0) return false;
              std::uint8_t* const bytes = static_cast<std::uint8_t*>(memory);
              std::fill(bytes, bytes + kBytes, std::uint8_t{7});
              freeze_memory({}, GetParam());
              const int status = run_in_child([&] { return std::count(bytes, bytes + kBytes, 0) == kBytes; });
              return status == 0 && std::count(bytes, bytes + kBytes, 7) == kBytes;
            }),
            0);
}

}  // namespace
}  // namespace mycojobs::sandbox
