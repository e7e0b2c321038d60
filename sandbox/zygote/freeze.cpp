#include "sandbox/zygote/freeze.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/fd.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; missing in the libc of Debian 12
#endif

namespace mycojobs::sandbox {
namespace {

constexpr std::uintptr_t kHugePage = 2U << 20;
constexpr std::uintptr_t kMinHugeUse = 512U << 10;  // minimum use of a huge page
constexpr std::size_t kMaxDataBytes = 256U << 20;   // sanitizers reserve far more than is used

struct Region {
  std::uintptr_t begin, end;
  unsigned long long inode;
  int rights;
  // The region is private, and is not the current stack, a mapping of the kernel or memory that children do not
  // inherit.
  bool is_replaceable;
  bool is_heap;    // may grow, so nothing may be mapped behind it
  bool has_pages;  // some pages are in memory
  bool is_done;
  std::size_t size() const { return end - begin; }
};

// The C library caches freed chunks in many places. Allocates them, so that a job's allocations are adjacent instead of
// on many shared pages. Does nothing if the heap has no free memory at its end.
void exhaust_malloc() {
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
  constexpr std::size_t kMaxChunkBytes = 128U << 10;
  // cached by each thread and never returned to the top of the heap
  constexpr std::size_t kMaxBlocks = 1032, kMaxBlocksOfSize = 8;
  const struct mallinfo2 heap = ::mallinfo2();
  if (heap.keepcost == 0) return;
  const auto end = reinterpret_cast<std::uintptr_t>(::sbrk(0)) - heap.keepcost;
  for (std::size_t size = kMaxChunkBytes; size >= 24;
       size = size > kMaxBlocks ? std::max(size / 8 * 7, kMaxBlocks) : size - 16) {
    for (std::size_t remaining = heap.fordblks / size + kMaxBlocksOfSize; remaining > 0; --remaining) {
      void* const chunk = std::malloc(size);
      // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): allocated permanently
      if (reinterpret_cast<std::uintptr_t>(chunk) < end) continue;
      if (size > kMaxBlocks) std::free(chunk);
      break;
    }
  }
#endif
}

// Converts an address from the text of /proc/self/smaps.
void* as_pointer(std::uintptr_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(address);
}

bool read_region(const char* line, Region& region) {
  char mode[5] = {};
  if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*s %llu", &region.begin, &region.end, mode,
                  &region.inode) != 4)
    return false;
  region.rights =
      (mode[0] == 'r' ? PROT_READ : 0) | (mode[1] == 'w' ? PROT_WRITE : 0) | (mode[2] == 'x' ? PROT_EXEC : 0);
  region.is_heap = std::strstr(line, "[heap]") != nullptr;
  region.is_replaceable = mode[3] == 'p' && (region.is_heap || std::strchr(line, '[') == nullptr);
  return true;
}

// Merges the file-backed beginning of a program's data with its anonymous rest. Other adjacent regions stay separate,
// since unused regions would otherwise count as used.
bool try_extend(Region& region, const Region& next) {
  constexpr int kData = PROT_READ | PROT_WRITE;
  if (region.inode == 0 || next.inode != 0) return false;
  if (region.end != next.begin || region.rights != kData || next.rights != kData) return false;
  if (!region.is_replaceable || !next.is_replaceable || region.is_heap || next.is_heap) return false;
  region.end = next.end;
  region.has_pages |= next.has_pages;
  return true;
}

// True unless the kernel empties the region in a child (wf) or does not copy it (dc). glibc 2.41 stores the state of
// getrandom() in such memory (vDSO, Linux 6.11): if it were copied, all jobs of a zygote would generate the same
// numbers.
bool is_inherited_as_is(const char* flags) {
  return std::strstr(flags, " wf") == nullptr && std::strstr(flags, " dc") == nullptr;
}

std::vector<Region> read_maps() {
  std::vector<Region> regions;
  regions.reserve(1024);  // no allocation while the file is read, since it would change the mappings
  std::FILE* maps = std::fopen("/proc/self/smaps", "re");
  if (maps == nullptr) return regions;
  char line[4500];
  Region region{};
  while (std::fgets(line, sizeof line, maps) != nullptr && regions.size() < regions.capacity()) {
    Region next{};
    if (read_region(line, next)) region = next;
    if (std::strncmp(line, "Rss:", 4) == 0) region.has_pages = std::strtoul(line + 4, nullptr, 10) > 0;
    if (std::strncmp(line, "VmFlags:", 8) != 0) continue;  // the last line of each region
    region.is_replaceable = region.is_replaceable && is_inherited_as_is(line);
    if (regions.empty() || !try_extend(regions.back(), region)) regions.push_back(region);
  }
  std::fclose(maps);
  return regions;
}

// Returns the inode of the program's image. Libraries are placed by the loader, and rarely fill a huge page in one
// place.
unsigned long long find_program_inode(const std::vector<Region>& regions) {
  const auto headers = static_cast<std::uintptr_t>(::getauxval(AT_PHDR));
  for (const Region& region : regions) {
    if (headers >= region.begin && headers < region.end) return region.inode;
  }
  return 0;
}

bool is_free(const std::vector<Region>& regions, std::uintptr_t begin, std::uintptr_t end) {
  for (const Region& region : regions) {
    if (begin < region.end && region.begin < end) return false;
  }
  return true;
}

// Copies pages that contain data; empty pages stay unmapped, since fork copies an entry for each mapped page.
void copy_small(std::uintptr_t target, std::uintptr_t source, std::size_t size) {
  constexpr std::size_t kPage = 4096;
  for (std::size_t offset = 0; offset < size; offset += kPage) {
    const auto* const page = static_cast<const char*>(as_pointer(source + offset));
    const std::size_t length = std::min(kPage, size - offset);
    const bool is_empty = page[0] == 0 && std::memcmp(page, page + 1, length - 1) == 0;
    if (!is_empty) std::memcpy(as_pointer(target + offset), page, length);
  }
}

// Returns the huge pages between `begin` and `end` to which each child writes. As huge pages, they would be split in
// each child, which costs several faults.
using Blocks = std::vector<std::uintptr_t>;
bool contains(const Blocks& blocks, std::uintptr_t block) {
  return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}
Blocks find_written_blocks(std::span<const void* const> written_addresses, std::uintptr_t begin, std::uintptr_t end) {
  Blocks blocks;
  for (const void* address : written_addresses) {
    const std::uintptr_t block = reinterpret_cast<std::uintptr_t>(address) / kHugePage * kHugePage;
    if (block >= begin && block < end && !contains(blocks, block)) blocks.push_back(block);
  }
  return blocks;
}

// Copies the bytes between `data_begin` and `data_end` to addresses that are higher by `offset`. The copies of the huge
// pages between `begin` and `end` are huge pages, except for the blocks in `small`. The result is a single mapping: the
// range is faulted in before its parts differ, and then its parts are given the same advice.
bool copy_into_pages(std::uintptr_t begin, std::uintptr_t end, std::uintptr_t data_begin, std::uintptr_t data_end,
                     std::uintptr_t offset, const Blocks& small) {
  ::madvise(as_pointer(begin + offset), end - begin, MADV_HUGEPAGE);
  std::uintptr_t large = begin;
  while (contains(small, large)) large += kHugePage;
  *static_cast<volatile char*>(as_pointer(large + offset)) = 0;
  for (const std::uintptr_t block : small) ::madvise(as_pointer(block + offset), kHugePage, MADV_NOHUGEPAGE);
  for (std::uintptr_t block = begin; block < end; block += kHugePage) {
    const std::uintptr_t copy_begin = std::max(block, data_begin), copy_end = std::min(block + kHugePage, data_end);
    if (contains(small, block)) {
      copy_small(copy_begin + offset, copy_begin, copy_end - copy_begin);
    } else {
      std::memcpy(as_pointer(copy_begin + offset), as_pointer(copy_begin), copy_end - copy_begin);
      if (::madvise(as_pointer(block + offset), kHugePage, MADV_COLLAPSE) != 0) return false;
    }
  }
  return small.empty() || ::madvise(as_pointer(begin + offset), end - begin, MADV_NOHUGEPAGE) == 0;
}

// Replaces the region by copies in huge pages. A huge page beyond an end of the region is used if its range is free;
// otherwise the end stays unchanged. The ends of the heap always stay, since this process still writes there, and a
// huge page that is written is split.
std::size_t make_huge(const std::vector<Region>& regions, Region& region,
                      std::span<const void* const> written_addresses) {
  std::uintptr_t begin = region.begin / kHugePage * kHugePage,
                 end = (region.end + kHugePage - 1) / kHugePage * kHugePage;
  if (begin < region.begin && (region.is_heap || !is_free(regions, begin, region.begin))) begin += kHugePage;
  if (region.is_heap || !is_free(regions, region.end, end)) end -= kHugePage;
  // These pages are mapped from the file: fork copies nothing for them, and a child has one fault for sixteen pages.
  const bool is_file_backed = region.inode != 0 && (region.rights & PROT_WRITE) == 0;
  if (is_file_backed && end > region.end && region.end - (end - kHugePage) < kMinHugeUse) end -= kHugePage;
  if (begin >= end) return 0;
  const Blocks small = find_written_blocks(written_addresses, begin, end);
  const std::size_t size = end - begin, mapping_size = size + kHugePage;
  region.is_done = small.size() * kHugePage == size;  // all of it stays in small pages
  if (region.is_done) return 0;
  void* const mapping =
      ::mmap(nullptr, mapping_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return 0;
  const auto mapping_begin = reinterpret_cast<std::uintptr_t>(mapping);
  const std::uintptr_t copy = (mapping_begin + kHugePage - 1) / kHugePage * kHugePage;
  // From the first copied byte until the copy replaces the region, no memory except the stack may change.
  const bool is_replaced =
      copy_into_pages(begin, end, std::max(begin, region.begin), std::min(end, region.end), copy - begin, small) &&
      ((region.rights & PROT_WRITE) != 0 || ::mprotect(as_pointer(copy), size, region.rights) == 0) &&
      ::mremap(as_pointer(copy), size, size, MREMAP_MAYMOVE | MREMAP_FIXED, as_pointer(begin)) != MAP_FAILED;
  if (!is_replaced) {
    ::munmap(mapping, mapping_size);
    return 0;
  }
  if (copy > mapping_begin) ::munmap(mapping, copy - mapping_begin);
  ::munmap(as_pointer(copy + size), mapping_size - size - (copy - mapping_begin));
  region.is_done = true;
  return size - small.size() * kHugePage;
}

bool write_all(int fd, const Region& region) {
  const char* source = static_cast<const char*>(as_pointer(region.begin));
  for (std::size_t remaining = region.size(); remaining > 0;) {
    const ssize_t written = ::write(fd, source, remaining);
    if (written <= 0) return false;
    source += written;
    remaining -= static_cast<std::size_t>(written);
  }
  return true;
}

bool is_data(const Region& region) {
  return region.is_replaceable && region.has_pages && !region.is_done && region.rights == (PROT_READ | PROT_WRITE);
}

// Moves all remaining data regions to a sealed file.
std::size_t make_file(const std::vector<Region>& regions) {
  const Fd file(::memfd_create("frozen", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return 0;
  // As above, no memory may change. All regions are written first, since the seal forbids later writes.
  for (const Region& region : regions) {
    if (is_data(region) && !write_all(file.get(), region)) return 0;
  }
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return 0;
  off_t offset = 0;
  for (const Region& region : regions) {
    if (!is_data(region)) continue;
    void* const address = as_pointer(region.begin);
    if (::mmap(address, region.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file.get(), offset) != address)
      break;
    offset += static_cast<off_t>(region.size());
  }
  return static_cast<std::size_t>(offset);
}

std::size_t count_data_bytes(const std::vector<Region>& regions) {
  std::size_t size = 0;
  for (const Region& region : regions) size += is_data(region) ? region.size() : 0;
  return size;
}

}  // namespace

FreezeResult freeze_memory(std::span<const void* const> written_addresses, bool huge_pages) {
  FreezeResult result;
  exhaust_malloc();
  std::vector<Region> regions = read_maps();
  if (count_data_bytes(regions) > kMaxDataBytes) return result;
  const unsigned long long program = find_program_inode(regions);
  for (Region& region : regions) {
    const bool is_worthwhile =
        is_data(region) || (region.is_replaceable && region.inode == program && region.rights != 0);
    if (!huge_pages || !is_worthwhile || region.size() < kMinHugeUse) continue;
    result.huge_page_bytes += make_huge(regions, region, written_addresses);
  }
  if (count_data_bytes(regions) > kMinHugeUse) result.file_bytes = make_file(regions);
  return result;
}

}  // namespace mycojobs::sandbox
