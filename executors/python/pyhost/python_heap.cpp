#include "executors/python/pyhost/python_heap.h"

#include <Python.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace mycojobs::heap {
namespace {

constexpr std::size_t kHuge = 2U << 20;
constexpr std::size_t kZygoteRegionBytes = 256U << 20;  // address space; unused memory is released
constexpr std::size_t kSharedRegionBytes = 512U << 10;  // small pages, written by each job
constexpr std::size_t kJobRegionBytes = 1U << 20;
constexpr std::size_t kMaxZygoteShare = 1U << 20;  // maximum size of an object; larger objects use CPython's allocator
constexpr std::size_t kMaxJobShare = 10U << 10;    // includes an arena of the compiler
static_assert(kSharedRegionBytes + kJobRegionBytes <= kHuge);

// Size classes of blocks including the header: steps of 16 bytes up to 1 KiB, then four steps per doubling.
constexpr std::size_t kStep = 16, kMaxLinearBytes = 1024, kLinearClasses = kMaxLinearBytes / kStep;
constexpr std::size_t kDoublings = 11;
constexpr std::size_t kSizeClasses = kLinearClasses + 4 * kDoublings + 1;

constexpr std::size_t get_size_class(std::size_t block) {
  if (block <= kMaxLinearBytes) return (block + kStep - 1) / kStep;
  const auto doublings = static_cast<std::size_t>(std::bit_width(block - 1)) - 11;  // 0 for blocks up to 2 KiB
  const std::size_t step = (kMaxLinearBytes << doublings) / 4;
  return kLinearClasses + 4 * doublings + (block - (kMaxLinearBytes << doublings) + step - 1) / step;
}
constexpr std::size_t get_class_size(std::size_t number) {
  if (number <= kLinearClasses) return number * kStep;
  const std::size_t doublings = (number - kLinearClasses - 1) / 4;
  return (kMaxLinearBytes << doublings) +
         (number - kLinearClasses - 4 * doublings) * ((kMaxLinearBytes << doublings) / 4);
}
static_assert(get_class_size(get_size_class(1025)) == 1280 && get_class_size(get_size_class(2048)) == 2048 &&
              get_class_size(get_size_class(2049)) == 2560);
static_assert(get_size_class(kMaxZygoteShare + 64) < kSizeClasses);

struct Block {  // the header has 8 bytes; the object after it is aligned to 16
  std::uint64_t number;
  Block* next;  // only while the block is free
};

// A region with all members zero except `memory` is empty. The GIL guards it.
struct Region {
  std::byte* memory;  // 8 bytes before a multiple of 16
  std::size_t used, limit;
  std::array<Block*, kSizeClasses> free;

  void* allocate(std::size_t size) {
    const std::size_t number = get_size_class(size + sizeof(std::uint64_t));
    Block* block = free[number];
    if (block != nullptr) {
      free[number] = block->next;
    } else {
      if (used + get_class_size(number) > limit) return nullptr;
      block = reinterpret_cast<Block*>(memory + used);
      block->number = number;
      used += get_class_size(number);
    }
    return &block->next;
  }
  void release(void* object) {
    Block* const block = block_of(object);
    block->next = free[block->number];
    free[block->number] = block;
  }
  bool contains(const void* object) const {
    return reinterpret_cast<std::uintptr_t>(object) - reinterpret_cast<std::uintptr_t>(memory) < limit;
  }
  static Block* block_of(void* object) {
    return reinterpret_cast<Block*>(static_cast<std::byte*>(object) - offsetof(Block, next));
  }
};

constexpr std::size_t kFirstOffset = 8;

Region zygote_region, shared_region;
Region empty_region;  // used until a job's region exists
// Follows shared_region in memory. The Region object is among the data that each job writes.
Region* job_region = &empty_region;
Region* current_region = nullptr;
std::size_t max_region_object_bytes = kMaxZygoteShare;
PyMemAllocatorEx python_allocator;

void* allocate(void*, std::size_t size) {
  if (size <= max_region_object_bytes) {
    if (void* const memory = current_region->allocate(size); memory != nullptr) return memory;
    if (current_region == &shared_region) {
      if (void* const memory = zygote_region.allocate(size); memory != nullptr) return memory;
    }
  }
  return python_allocator.malloc(python_allocator.ctx, size);
}

void* allocate_zeroed(void* context, std::size_t count, std::size_t size) {
  if (size != 0 && count > PTRDIFF_MAX / size) return nullptr;
  if (count * size > max_region_object_bytes) return python_allocator.calloc(python_allocator.ctx, count, size);
  void* const memory = allocate(context, count * size);
  return memory != nullptr ? std::memset(memory, 0, count * size) : nullptr;
}

void release(void*, void* memory) {
  if (job_region->contains(memory)) return job_region->release(memory);
  Region* const region = zygote_region.contains(memory)   ? &zygote_region
                         : shared_region.contains(memory) ? &shared_region
                                                          : nullptr;
  if (region == nullptr) return python_allocator.free(python_allocator.ctx, memory);
  if (current_region != job_region) region->release(memory);
}

void* reallocate(void* context, void* memory, std::size_t size) {
  if (memory == nullptr) return allocate(context, size);
  if (!zygote_region.contains(memory) && !shared_region.contains(memory) && !job_region->contains(memory))
    return python_allocator.realloc(python_allocator.ctx, memory, size);
  const std::size_t capacity = get_class_size(Region::block_of(memory)->number) - sizeof(std::uint64_t);
  if (size <= capacity && (capacity <= 64 || size > capacity / 2)) return memory;
  void* const new_memory = allocate(context, size);
  if (new_memory == nullptr) return nullptr;
  std::memcpy(new_memory, memory, std::min(size, capacity));
  release(context, memory);
  return new_memory;
}

}  // namespace

void install() {
  constexpr std::size_t kTotalBytes = kZygoteRegionBytes + kHuge;
  void* const raw =
      ::mmap(nullptr, kTotalBytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return;
  const std::size_t prefix_bytes = (kHuge - reinterpret_cast<std::uintptr_t>(raw) % kHuge) % kHuge;
  std::byte* const base = static_cast<std::byte*>(raw) + prefix_bytes;
  if (prefix_bytes > 0) ::munmap(raw, prefix_bytes);
  ::munmap(base + kTotalBytes, kHuge - prefix_bytes);
  std::byte* const small_pages = base + kZygoteRegionBytes;
  // Otherwise a job would receive a huge page of 2 MiB for a few hundred bytes.
  ::madvise(small_pages, kHuge, MADV_NOHUGEPAGE);
  zygote_region = {base, kFirstOffset, kZygoteRegionBytes, {}};
  shared_region = {small_pages, kFirstOffset, kSharedRegionBytes, {}};
  current_region = &zygote_region;
  PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &python_allocator);
  PyMemAllocatorEx allocator{nullptr, allocate, allocate_zeroed, reallocate, release};
  PyMem_SetAllocator(PYMEM_DOMAIN_MEM, &allocator);
  PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &allocator);
}

void start_object_group(ObjectGroup group) {
  if (current_region == nullptr) return;
  zygote_region.free.fill(nullptr);
  shared_region.free.fill(nullptr);
  current_region = group == ObjectGroup::written_by_jobs ? &shared_region : &zygote_region;
}

void seal() {
  if (current_region == nullptr) return;
  const std::size_t end = (zygote_region.used + kHuge - 1) / kHuge * kHuge;
  ::munmap(zygote_region.memory + end, kZygoteRegionBytes - end);  // other mappings can use the addresses
  zygote_region.limit = end;
  void* const region_memory = shared_region.allocate(sizeof(Region));
  job_region = new (region_memory != nullptr ? region_memory : &empty_region)
      Region{shared_region.memory + kSharedRegionBytes, kFirstOffset, kJobRegionBytes, {}};
  current_region = job_region;
  max_region_object_bytes = kMaxJobShare;
}

const void* get_job_written_memory() { return shared_region.memory; }

}  // namespace mycojobs::heap
