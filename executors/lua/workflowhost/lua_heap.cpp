#include "executors/lua/workflowhost/lua_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/errno_text.h"

namespace mycojobs::workflow {
namespace {

constexpr std::size_t kGranularity = 16, kMaxSmallBytes = 1024, kSmallClasses = kMaxSmallBytes / kGranularity;
constexpr std::size_t kAlignment = std::size_t{1} << 32;  // Lua hashes the low 32 bits of an address
constexpr std::size_t kRetainedBytes = 1U << 20;          // used memory above this is returned to the kernel

}  // namespace

Result<void> Heap::reserve(std::size_t limit) {
  limit_ = limit;
  reserved_bytes_ = (4 * limit + (std::size_t{16} << 20)) & ~std::size_t{4095};  // blocks never change their size class
  const std::size_t mapped_bytes = reserved_bytes_ + kAlignment;
  void* const mapping = ::mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return fail(Code::io, "cannot reserve memory: " + errno_text(errno));
  char* const begin = static_cast<char*>(mapping);
  const std::size_t padding = (kAlignment - reinterpret_cast<std::uintptr_t>(begin) % kAlignment) % kAlignment;
  base_ = begin + padding;
  if (padding != 0) ::munmap(begin, padding);
  if (mapped_bytes != padding + reserved_bytes_)
    ::munmap(base_ + reserved_bytes_, mapped_bytes - padding - reserved_bytes_);
  if (::mprotect(base_, reserved_bytes_, PROT_READ | PROT_WRITE) != 0)
    return fail(Code::io, "cannot reserve memory: " + errno_text(errno));
  return {};
}

// Size classes are multiples of 16 bytes up to 1 KiB; above, there are four classes for each power of two.
std::size_t Heap::get_size_class(std::size_t size) {
  if (size <= kMaxSmallBytes) return (size - 1) / kGranularity;
  const auto power = static_cast<std::size_t>(std::bit_width(size - 1)) - 1;
  const std::size_t quarter = std::size_t{1} << (power - 2);
  return kSmallClasses + (power - 10) * 4 + (size - (std::size_t{1} << power) + quarter - 1) / quarter - 1;
}

std::size_t Heap::get_class_bytes(std::size_t size_class) {
  if (size_class < kSmallClasses) return (size_class + 1) * kGranularity;
  const std::size_t power = 10 + (size_class - kSmallClasses) / 4;
  return (std::size_t{1} << power) + ((size_class - kSmallClasses) % 4 + 1) * (std::size_t{1} << (power - 2));
}

void* Heap::reallocate(void* block, std::size_t old_size, std::size_t new_size, std::uint64_t& allocated_bytes) {
  const bool has_block = block != nullptr && old_size > 0;
  const std::size_t old_class = has_block ? get_size_class(old_size) : 0;
  const std::size_t old_bytes = has_block ? get_class_bytes(old_class) : 0;
  void* new_block = nullptr;
  if (new_size > 0) {
    if (new_size > limit_) return nullptr;
    const std::size_t size_class = get_size_class(new_size);
    if (has_block && size_class == old_class) return block;
    const std::size_t bytes = get_class_bytes(size_class);
    // While a block grows, both blocks exist for a short time. Shrinking a block never fails.
    if (used_bytes_ + bytes > limit_ && new_size > old_size) return nullptr;
    if (free_lists_[size_class] != nullptr) {
      new_block = free_lists_[size_class];
      std::memcpy(&free_lists_[size_class], new_block, sizeof(void*));
    } else if (bytes <= reserved_bytes_ - end_) {
      new_block = base_ + end_;
      end_ += bytes;
      dirty_end_ = std::max(dirty_end_, end_);
    } else {
      return new_size <= old_size ? block : nullptr;
    }
    used_bytes_ += bytes;
    ++block_count_;
    allocated_bytes += bytes;
    if (has_block) std::memcpy(new_block, block, std::min(old_size, new_size));
  }
  if (has_block) {
    std::memcpy(block, &free_lists_[old_class], sizeof(void*));
    free_lists_[old_class] = block;
    used_bytes_ -= old_bytes;
    --block_count_;
  }
  return new_block;
}

void Heap::clear() {
  if (dirty_end_ > kRetainedBytes)
    ::madvise(base_ + kRetainedBytes, (dirty_end_ - kRetainedBytes + 4095) & ~std::size_t{4095}, MADV_DONTNEED);
  used_bytes_ = block_count_ = end_ = dirty_end_ = 0;
  std::fill(std::begin(free_lists_), std::end(free_lists_), nullptr);
}

Heap::Image Heap::save_image() const {
  Image image{std::string(base_, end_), used_bytes_, block_count_, {}};
  std::copy(std::begin(free_lists_), std::end(free_lists_), std::begin(image.free_lists));
  return image;
}

void Heap::restore(const Image& image) {
  clear();
  std::memcpy(base_, image.bytes.data(), image.bytes.size());
  used_bytes_ = image.used_bytes;
  block_count_ = image.block_count;
  end_ = dirty_end_ = image.bytes.size();
  std::copy(std::begin(image.free_lists), std::end(image.free_lists), std::begin(free_lists_));
}

}  // namespace mycojobs::workflow
