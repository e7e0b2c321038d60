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

std::vector<std::uint32_t> numbers(std::size_t count) {
  std::vector<std::uint32_t> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::uint32_t>(i * 2654435761U);
  return made;
}

std::vector<std::string> lines_with(const std::string& rights) {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> found;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(rights) != std::string::npos) found.push_back(line);
  }
  return found;
}

// Returns the start of the mapping that contains `address`.
std::uintptr_t find_mapping(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (const std::string& line : lines_with("-")) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) == 2 && wanted >= begin && wanted < end)
      return begin;
  }
  return 0;
}

// Runs `holds` in a child process, which has only one thread. Returns its exit code.
int in_child(const std::function<bool()>& holds) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(holds() ? 0 : 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers reserve more memory than is ever frozen
#else
constexpr bool kSanitized = false;
#endif

class Freeze : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Freeze, testing::Bool(),
                         [](const auto& each) { return each.param ? "huge_pages" : "small_pages"; });

std::vector<std::uint32_t> of_the_program = numbers(1000);

TEST_P(Freeze, MemoryIsUnchanged) {
  const std::vector<std::uint32_t> wanted = numbers(3U << 20);
  std::vector<std::uint32_t> held = wanted;
  EXPECT_EQ(in_child([&] {
              const FreezeResult frozen = freeze_memory({}, GetParam());
              if (!kSanitized && frozen.huge + frozen.file < held.size() * sizeof held[0] / 2) return false;
              return held == wanted && of_the_program == numbers(1000);
            }),
            0);
}

TEST_P(Freeze, ChildWritesArePrivate) {
  std::vector<std::uint32_t> held = numbers(3U << 20);
  EXPECT_EQ(in_child([&] {
              freeze_memory({}, GetParam());
              const int status = in_child([&] {
                std::fill(held.begin(), held.end(), 7U);
                of_the_program[3] = 7;
                return held.front() == 7 && held.back() == 7;
              });
              return status == 0 && held == numbers(held.size()) && of_the_program == numbers(1000);
            }),
            0);
}

TEST_P(Freeze, WritesOfEachChildArePrivate) {
  std::vector<std::uint32_t> held = numbers(3U << 20);
  EXPECT_EQ(in_child([&] {
              const std::vector<const void*> written = {&of_the_program[3], &held[2U << 20], nullptr};
              freeze_memory(written, GetParam());
              // A separate mapping for the written part would cost more than it saves.
              if (find_mapping(&held[2U << 20]) != find_mapping(&held[1U << 20])) return false;
              const int status = in_child([&] {
                held[2U << 20] = 7;
                held.back() = 7;
                return held[2U << 20] == 7 && held[(2U << 20) + 1] == numbers(held.size())[(2U << 20) + 1];
              });
              return status == 0 && held == numbers(held.size()) && of_the_program == numbers(1000);
            }),
            0);
}

TEST_P(Freeze, NothingIsWritableAndExecutable) {
  EXPECT_EQ(in_child([] {
              freeze_memory({}, GetParam());
              return lines_with(" rwx").empty() && lines_with(" rw-s").empty();
            }),
            0);
}

TEST_P(Freeze, UntouchedMemoryIsNotAllocated) {
  constexpr std::size_t kSize = 64U << 20;
  EXPECT_EQ(in_child([] {
              void* const untouched =
                  ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
              ::madvise(untouched, kSize, MADV_NOHUGEPAGE);  // keeps this memory in a mapping of its own
              const FreezeResult frozen = freeze_memory({}, GetParam());
              return frozen.huge + frozen.file < kSize && *static_cast<const char*>(untouched) == 0;
            }),
            0);
}

// Maps the program's file at an aligned address, read-only.
const char* map_program(std::size_t size) {
  constexpr std::size_t kHuge = 2U << 20;
  void* const raw = ::mmap(nullptr, size + 3 * kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(raw) + kHuge - 1) / kHuge * kHuge;
  ::munmap(raw, size + 3 * kHuge);
  const Fd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return static_cast<const char*>(::mmap(reinterpret_cast<void*>(begin), size, PROT_READ, MAP_PRIVATE, file.get(), 0));
}

// Using 2 MiB for the last few pages of a program's text wastes memory and adds a copy in each zygote.
TEST(FreezeProgram, LittleMoreThanHugePagesIsNotCopied) {
  constexpr std::size_t kHuge = 2U << 20, kLittle = 300U << 10, kMuch = 1U << 20;
  EXPECT_EQ(in_child([] {
              const char* const little = map_program(kHuge + kLittle);
              const std::string held(little, kHuge + kLittle);
              freeze_memory();
              const std::uintptr_t end = find_mapping(little + kHuge);
              return find_mapping(little) == reinterpret_cast<std::uintptr_t>(little) &&
                     end == reinterpret_cast<std::uintptr_t>(little) + kHuge &&
                     held == std::string_view(little, held.size());
            }),
            0);
  EXPECT_EQ(in_child([] {
              const char* const much = map_program(kHuge + kMuch);
              const std::string held(much, kHuge + kMuch);
              freeze_memory();
              return find_mapping(much + kHuge) == reinterpret_cast<std::uintptr_t>(much) &&
                     held == std::string_view(much, held.size());
            }),
            0);
}

// libc stores the state of its random numbers in such memory. A copy would give every child the same numbers.
TEST_P(Freeze, PagesWipedOnForkAreStillWiped) {
  constexpr std::size_t kSize = 8U << 20;
  const std::vector<std::uint32_t> held = numbers(3U << 20);  // memory that can be frozen
  EXPECT_EQ(in_child([] {
              void* const memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              if (::madvise(memory, kSize, MADV_WIPEONFORK) != 0) return false;
              std::uint8_t* const bytes = static_cast<std::uint8_t*>(memory);
              std::fill(bytes, bytes + kSize, std::uint8_t{7});
              freeze_memory({}, GetParam());
              const int status = in_child([&] { return std::count(bytes, bytes + kSize, 0) == kSize; });
              return status == 0 && std::count(bytes, bytes + kSize, 7) == kSize;
            }),
            0);
}

}  // namespace
}  // namespace mycojobs::sandbox
