#include "executors/python/pyhost/heap.h"

#include <Python.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace mycojobs::heap {
namespace {

constexpr std::size_t kHuge = 2U << 20;
constexpr std::size_t kRegionOfZygote = 256U << 20;  // of addresses: what is not used is given back
constexpr std::size_t kRegionOfJob = 1U << 20;
constexpr std::size_t kMostOfZygote = 1U << 20;  // bytes of one object; a larger one is CPython's
constexpr std::size_t kMostOfJob = 10U << 10;    // an arena of the compiler among them
constexpr std::size_t kOfAll = 256U << 10;       // set aside for what each job writes to

// Sizes of blocks, their header with them: in steps of 16 to 1 KiB, from there four steps for each doubling.
constexpr std::size_t kStep = 16, kEvenTo = 1024, kEven = kEvenTo / kStep;
constexpr std::size_t kDoublings = 11;
constexpr std::size_t kClasses = kEven + 4 * kDoublings + 1;

constexpr std::size_t class_of(std::size_t block) {
  if (block <= kEvenTo) return (block + kStep - 1) / kStep;
  const auto doublings = static_cast<std::size_t>(std::bit_width(block - 1)) - 11;  // 0: to 2 KiB
  const std::size_t step = (kEvenTo << doublings) / 4;
  return kEven + 4 * doublings + (block - (kEvenTo << doublings) + step - 1) / step;
}
constexpr std::size_t size_of(std::size_t number) {
  if (number <= kEven) return number * kStep;
  const std::size_t doublings = (number - kEven - 1) / 4;
  return (kEvenTo << doublings) + (number - kEven - 4 * doublings) * ((kEvenTo << doublings) / 4);
}
static_assert(size_of(class_of(1025)) == 1280 && size_of(class_of(2048)) == 2048 && size_of(class_of(2049)) == 2560);
static_assert(class_of(kMostOfZygote + 64) < kClasses);

struct Block {  // 8 bytes before what is handed out, which is a multiple of 16
  std::uint64_t number;
  Block* next;  // while it is free
};

constexpr std::size_t kFirst =
    (sizeof(std::size_t) + sizeof(std::array<Block*, kClasses>) + kStep - 1) / kStep * kStep + 8;

// Stands at the beginning of its own memory; all zero is empty. The GIL is its lock.
struct Region {
  std::size_t used;
  std::array<Block*, kClasses> free;

  void* take(std::size_t size, std::size_t limit) {
    const std::size_t number = class_of(size + sizeof(std::uint64_t));
    Block* block = free[number];
    if (block != nullptr) {
      free[number] = block->next;
    } else {
      const std::size_t from = used == 0 ? kFirst : used;
      if (from + size_of(number) > limit) return nullptr;
      block = reinterpret_cast<Block*>(reinterpret_cast<std::byte*>(this) + from);
      block->number = number;
      used = from + size_of(number);
    }
    return &block->next;
  }
  void give(void* memory) {
    Block* const block = block_of(memory);
    block->next = free[block->number];
    free[block->number] = block;
  }
  static Block* block_of(void* memory) {
    return reinterpret_cast<Block*>(static_cast<std::byte*>(memory) - offsetof(Block, next));
  }
};

static_assert(kFirst >= sizeof(Region) + offsetof(Block, next) && (kFirst + offsetof(Block, next)) % kStep == 0);

// The zygote's, and right behind it a job's.
Region* of_zygote = nullptr;
Region* of_job = nullptr;
Region* now = nullptr;
std::size_t end_of_zygote = kRegionOfZygote;  // others may have what is behind it
std::size_t limit_now = kRegionOfZygote, most_now = kMostOfZygote;
std::size_t go_on_at = 0;  // once what is set aside is full
PyMemAllocatorEx of_python;

bool within(const void* memory, const Region* region, std::size_t size) {
  return reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(region) < size;
}

void leave_what_is_set_aside() {
  of_zygote->used = std::exchange(go_on_at, 0);
  limit_now = kRegionOfZygote;
}

void* allocate(void*, std::size_t size) {
  if (size <= most_now) {
    if (void* const memory = now->take(size, limit_now); memory != nullptr) return memory;
    if (go_on_at != 0) {
      leave_what_is_set_aside();
      return allocate(nullptr, size);
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
  if (within(memory, of_job, kRegionOfJob)) return of_job->give(memory);
  if (!within(memory, of_zygote, end_of_zygote)) return of_python.free(of_python.ctx, memory);
  if (now == of_zygote) of_zygote->give(memory);
}

void* reallocate(void* context, void* memory, std::size_t size) {
  if (memory == nullptr) return allocate(context, size);
  if (!within(memory, of_zygote, end_of_zygote) && !within(memory, of_job, kRegionOfJob))
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
  of_zygote = now = new (base) Region{};
  of_zygote->used = kFirst + kOfAll;
  of_job = reinterpret_cast<Region*>(base + kRegionOfZygote);
  PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &of_python);
  PyMemAllocatorEx ours{nullptr, allocate, allocate_zeroed, reallocate, release};
  PyMem_SetAllocator(PYMEM_DOMAIN_MEM, &ours);
  PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &ours);
}

void begin_chapter(Chapter chapter) {
  if (now == nullptr) return;
  now->free.fill(nullptr);
  if (chapter != Chapter::of_all_jobs || go_on_at != 0) return;
  go_on_at = std::exchange(now->used, kFirst);
  limit_now = kFirst + kOfAll;
}

void seal() {
  if (now == nullptr) return;
  if (go_on_at != 0) leave_what_is_set_aside();
  end_of_zygote = (of_zygote->used + kHuge - 1) / kHuge * kHuge;
  ::munmap(reinterpret_cast<std::byte*>(of_zygote) + end_of_zygote, kRegionOfZygote - end_of_zygote);
  // Apart from what a job has of its own, which is never in huge pages: it would be given 2 MiB for some hundred bytes.
  ::madvise(of_job, kHuge, MADV_NOHUGEPAGE);
  now = of_job;
  limit_now = kRegionOfJob;
  most_now = kMostOfJob;
}

}  // namespace mycojobs::heap
