#include "sandbox/freeze.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/fd.h"

namespace mycojobs::sandbox {
namespace {

struct Region {
  std::uintptr_t begin, end;
};

// Private, readable and writable; not the stack, on which we stand, nor what the kernel put there.
std::vector<Region> private_regions() {
  std::vector<Region> regions;
  regions.reserve(512);  // no allocation while the list is read: it would change what is listed
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return regions;
  char line[4500];
  while (std::fgets(line, sizeof line, maps) != nullptr && regions.size() < regions.capacity()) {
    Region region{};
    char mode[5] = {};
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &region.begin, &region.end, mode) != 3) continue;
    if (std::strcmp(mode, "rw-p") != 0) continue;
    if (std::strstr(line, "[stack") != nullptr || std::strstr(line, "[v") != nullptr) continue;
    regions.push_back(region);
  }
  std::fclose(maps);
  return regions;
}

// The list of mappings is text: its addresses are numbers.
void* as_pointer(std::uintptr_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(address);
}

constexpr std::size_t kMost = 256U << 20;

bool write_all(int fd, const Region& region) {
  const char* from = static_cast<const char*>(as_pointer(region.begin));
  for (std::size_t left = region.end - region.begin; left > 0;) {
    const ssize_t written = ::write(fd, from, left);
    if (written <= 0) return false;
    from += written;
    left -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

unsigned long freeze_memory() {
  const Fd file(::memfd_create("frozen", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return 0;
  const std::vector<Region> regions = private_regions();
  std::size_t total = 0;
  for (const Region& region : regions) total += region.end - region.begin;
  if (total > kMost) return 0;  // reserved far beyond what is used, as sanitizers do
  // From the first byte written to the last mapping: nothing that changes memory but our stack. The whole is written
  // first, since a seal forbids writing later.
  for (const Region& region : regions) {
    if (!write_all(file.get(), region)) return 0;
  }
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return 0;
  off_t offset = 0;
  for (const Region& region : regions) {
    const std::size_t size = region.end - region.begin;
    void* const address = as_pointer(region.begin);
    if (::mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file.get(), offset) != address) break;
    offset += static_cast<off_t>(size);
  }
  return static_cast<unsigned long>(offset);
}

}  // namespace mycojobs::sandbox
