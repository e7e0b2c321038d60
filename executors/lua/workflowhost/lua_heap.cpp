#include "executors/lua/workflowhost/lua_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/errno_text.h"

namespace mycojobs::workflow {
namespace {

constexpr std::size_t kStep = 16, kSmall = 1024, kSmallClasses = kSmall / kStep;
constexpr std::size_t kAlignment = std::size_t{1} << 32;  // Lua hashes the low 32 bits of an address
constexpr std::size_t kReservedBytes = 1U << 20;          // used memory above this is returned to the kernel

}  // namespace

Result<void> Heap::reserve(std::size_t limit) {
  limit_ = limit;
  reserve_ = (4 * limit + (std::size_t{16} << 20)) & ~std::size_t{4095};  // blocks never change their size class
  const std::size_t asked = reserve_ + kAlignment;
  void* const found = ::mmap(nullptr, asked, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return fail(Code::io, "cannot reserve memory: " + errno_text(errno));
  char* const begin = static_cast<char*>(found);
  const std::size_t skipped = (kAlignment - reinterpret_cast<std::uintptr_t>(begin) % kAlignment) % kAlignment;
  base_ = begin + skipped;
  if (skipped != 0) ::munmap(begin, skipped);
  if (asked != skipped + reserve_) ::munmap(base_ + reserve_, asked - skipped - reserve_);
  if (::mprotect(base_, reserve_, PROT_READ | PROT_WRITE) != 0)
    return fail(Code::io, "cannot reserve memory: " + errno_text(errno));
  return {};
}

// Size classes are multiples of 16 bytes up to 1 KiB; above, there are four classes for each power of two.
std::size_t Heap::class_of(std::size_t size) {
  if (size <= kSmall) return (size - 1) / kStep;
  const auto power = static_cast<std::size_t>(std::bit_width(size - 1)) - 1;
  const std::size_t quarter = std::size_t{1} << (power - 2);
  return kSmallClasses + (power - 10) * 4 + (size - (std::size_t{1} << power) + quarter - 1) / quarter - 1;
}

std::size_t Heap::bytes_of(std::size_t size_class) {
  if (size_class < kSmallClasses) return (size_class + 1) * kStep;
  const std::size_t power = 10 + (size_class - kSmallClasses) / 4;
  return (std::size_t{1} << power) + ((size_class - kSmallClasses) % 4 + 1) * (std::size_t{1} << (power - 2));
}

void* Heap::reallocate(void* block, std::size_t old_size, std::size_t new_size, std::uint64_t& grown) {
  const bool had = block != nullptr && old_size > 0;
  const std::size_t old_class = had ? class_of(old_size) : 0;
  const std::size_t old_bytes = had ? bytes_of(old_class) : 0;
  void* made = nullptr;
  if (new_size > 0) {
    if (new_size > limit_) return nullptr;
    const std::size_t size_class = class_of(new_size);
    if (had && size_class == old_class) return block;
    const std::size_t bytes = bytes_of(size_class);
    // While a block grows, both blocks exist for a short time. Shrinking a block never fails.
    if (used_ + bytes > limit_ && new_size > old_size) return nullptr;
    if (free_[size_class] != nullptr) {
      made = free_[size_class];
      std::memcpy(&free_[size_class], made, sizeof(void*));
    } else if (bytes <= reserve_ - top_) {
      made = base_ + top_;
      top_ += bytes;
      dirty_ = std::max(dirty_, top_);
    } else {
      return new_size <= old_size ? block : nullptr;
    }
    used_ += bytes;
    ++blocks_;
    grown += bytes;
    if (had) std::memcpy(made, block, std::min(old_size, new_size));
  }
  if (had) {
    std::memcpy(block, &free_[old_class], sizeof(void*));
    free_[old_class] = block;
    used_ -= old_bytes;
    --blocks_;
  }
  return made;
}

void Heap::clear() {
  if (dirty_ > kReservedBytes)
    ::madvise(base_ + kReservedBytes, (dirty_ - kReservedBytes + 4095) & ~std::size_t{4095}, MADV_DONTNEED);
  used_ = blocks_ = top_ = dirty_ = 0;
  std::fill(std::begin(free_), std::end(free_), nullptr);
}

Heap::Image Heap::image() const {
  Image image{std::string(base_, top_), used_, blocks_, {}};
  std::copy(std::begin(free_), std::end(free_), std::begin(image.free));
  return image;
}

void Heap::restore(const Image& image) {
  clear();
  std::memcpy(base_, image.bytes.data(), image.bytes.size());
  used_ = image.used;
  blocks_ = image.blocks;
  top_ = dirty_ = image.bytes.size();
  std::copy(std::begin(image.free), std::end(image.free), std::begin(free_));
}

}  // namespace mycojobs::workflow
