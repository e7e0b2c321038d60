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
constexpr std::size_t kRegionOfZygote = 256U << 20;  // address space; unused memory is released
constexpr std::size_t kRegionOfAll = 512U << 10;     // small pages, written by each job
constexpr std::size_t kRegionOfJob = 1U << 20;
constexpr std::size_t kMaxZygoteShare = 1U << 20;  // maximum size of an object; larger objects use CPython's allocator
constexpr std::size_t kMaxJobShare = 10U << 10;    // includes an arena of the compiler
static_assert(kRegionOfAll + kRegionOfJob <= kHuge);

// Size classes of blocks including the header: steps of 16 bytes up to 1 KiB, then four steps per doubling.
constexpr std::size_t kStep = 16, kEvenTo = 1024, kEven = kEvenTo / kStep;
constexpr std::size_t kDoublings = 11;
constexpr std::size_t kClasses = kEven + 4 * kDoublings + 1;

constexpr std::size_t class_of(std::size_t block) {
  if (block <= kEvenTo) return (block + kStep - 1) / kStep;
  const auto doublings = static_cast<std::size_t>(std::bit_width(block - 1)) - 11;  // 0: up to 2 KiB
  const std::size_t step = (kEvenTo << doublings) / 4;
  return kEven + 4 * doublings + (block - (kEvenTo << doublings) + step - 1) / step;
}
constexpr std::size_t size_of(std::size_t number) {
  if (number <= kEven) return number * kStep;
  const std::size_t doublings = (number - kEven - 1) / 4;
  return (kEvenTo << doublings) + (number - kEven - 4 * doublings) * ((kEvenTo << doublings) / 4);
}
static_assert(size_of(class_of(1025)) == 1280 && size_of(class_of(2048)) == 2048 && size_of(class_of(2049)) == 2560);
static_assert(class_of(kMaxZygoteShare + 64) < kClasses);

struct Block {  // the header has 8 bytes; the object after it is aligned to 16
  std::uint64_t number;
  Block* next;  // only while the block is free
};

// A region with all members zero except `memory` is empty. The GIL guards it.
struct Region {
  std::byte* memory;  // 8 bytes before a multiple of 16
  std::size_t used, limit;
  std::array<Block*, kClasses> free;

  void* take(std::size_t size) {
    const std::size_t number = class_of(size + sizeof(std::uint64_t));
    Block* block = free[number];
    if (block != nullptr) {
      free[number] = block->next;
    } else {
      if (used + size_of(number) > limit) return nullptr;
      block = reinterpret_cast<Block*>(memory + used);
      block->number = number;
      used += size_of(number);
    }
    return &block->next;
  }
  void give(void* object) {
    Block* const block = block_of(object);
    block->next = free[block->number];
    free[block->number] = block;
  }
  bool has(const void* object) const {
    return reinterpret_cast<std::uintptr_t>(object) - reinterpret_cast<std::uintptr_t>(memory) < limit;
  }
  static Block* block_of(void* object) {
    return reinterpret_cast<Block*>(static_cast<std::byte*>(object) - offsetof(Block, next));
  }
};

constexpr std::size_t kFirst = 8;

Region of_zygote, of_all;
Region nothing;             // used until a job's region exists
Region* of_job = &nothing;  // follows of_all; its Region object is stored among the data that each job writes
Region* now = nullptr;
std::size_t most_now = kMaxZygoteShare;
PyMemAllocatorEx of_python;

void* allocate(void*, std::size_t size) {
  if (size <= most_now) {
    if (void* const memory = now->take(size); memory != nullptr) return memory;
    if (now == &of_all) {
      if (void* const memory = of_zygote.take(size); memory != nullptr) return memory;
    }
  }
  return of_python.malloc(of_python.ctx, size);
}

void* allocate_zeroed(void* context, std::size_t count, std::size_t size) {
  if (size != 0 && count > PTRDIFF_MAX / size) return nullptr;
  if (count * size > most_now) return of_python.calloc(of_python.ctx, count, size);
  void* const memory = allocate(context, count * size);
  return memory != nullptr ? std::memset(memory, 0, count * size) : nullptr;
}

void release(void*, void* memory) {
  if (of_job->has(memory)) return of_job->give(memory);
  Region* const zygotes = of_zygote.has(memory) ? &of_zygote : of_all.has(memory) ? &of_all : nullptr;
  if (zygotes == nullptr) return of_python.free(of_python.ctx, memory);
  if (now != of_job) zygotes->give(memory);
}

void* reallocate(void* context, void* memory, std::size_t size) {
  if (memory == nullptr) return allocate(context, size);
  if (!of_zygote.has(memory) && !of_all.has(memory) && !of_job->has(memory))
    return of_python.realloc(of_python.ctx, memory, size);
  const std::size_t room = size_of(Region::block_of(memory)->number) - sizeof(std::uint64_t);
  if (size <= room && (room <= 64 || size > room / 2)) return memory;
  void* const other = allocate(context, size);
  if (other == nullptr) return nullptr;
  std::memcpy(other, memory, std::min(size, room));
  release(context, memory);
  return other;
}

}  // namespace

void install() {
  constexpr std::size_t kTogether = kRegionOfZygote + kHuge;
  void* const raw =
      ::mmap(nullptr, kTogether + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return;
  const std::size_t ahead = (kHuge - reinterpret_cast<std::uintptr_t>(raw) % kHuge) % kHuge;
  std::byte* const base = static_cast<std::byte*>(raw) + ahead;
  if (ahead > 0) ::munmap(raw, ahead);
  ::munmap(base + kTogether, kHuge - ahead);
  std::byte* const small = base + kRegionOfZygote;
  // otherwise a job would receive a huge page of 2 MiB for a few hundred bytes
  ::madvise(small, kHuge, MADV_NOHUGEPAGE);
  of_zygote = {base, kFirst, kRegionOfZygote, {}};
  of_all = {small, kFirst, kRegionOfAll, {}};
  now = &of_zygote;
  PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &of_python);
  PyMemAllocatorEx ours{nullptr, allocate, allocate_zeroed, reallocate, release};
  PyMem_SetAllocator(PYMEM_DOMAIN_MEM, &ours);
  PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &ours);
}

void begin_chapter(ObjectGroup chapter) {
  if (now == nullptr) return;
  of_zygote.free.fill(nullptr);
  of_all.free.fill(nullptr);
  now = chapter == ObjectGroup::of_all_jobs ? &of_all : &of_zygote;
}

void seal() {
  if (now == nullptr) return;
  const std::size_t end = (of_zygote.used + kHuge - 1) / kHuge * kHuge;
  ::munmap(of_zygote.memory + end, kRegionOfZygote - end);  // unmapped, so that other mappings can use the addresses
  of_zygote.limit = end;
  void* const head = of_all.take(sizeof(Region));
  of_job = new (head != nullptr ? head : &nothing) Region{of_all.memory + kRegionOfAll, kFirst, kRegionOfJob, {}};
  now = of_job;
  most_now = kMaxJobShare;
}

const void* written_by_jobs() { return of_all.memory; }

}  // namespace mycojobs::heap
