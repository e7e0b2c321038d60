// Memory of one Lua state: a region that places blocks at the same addresses for the same sequence of requests.
// Therefore values that Lua derives from an address (the node of a function or table used as a key, and with it the
// time when a table grows) are equal in all processes. The whole region is copied to an image and back, so that each
// step starts from exactly the state that loading the program produced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs::workflow {

class Heap {
 public:
  static constexpr std::size_t kSizeClasses = 192;

  // Reserves the addresses of the region; the kernel allocates memory on the first write. `limit` is the maximum size
  // of all blocks. Error: `io`.
  Result<void> reserve(std::size_t limit);
  std::size_t limit() const { return limit_; }
  std::size_t block_count() const { return block_count_; }

  // Same contract as lua_Alloc: old sizes are exact, and size 0 frees the block. Returns nullptr if the limit is
  // exceeded. Adds the bytes of new blocks to `allocated_bytes`.
  void* reallocate(void* block, std::size_t old_size, std::size_t new_size, std::uint64_t& allocated_bytes);

  void clear();  // frees all blocks
  // A copy of the whole region and of the lists of free blocks.
  struct Image {
    std::string bytes;
    std::size_t used_bytes = 0, block_count = 0;
    void* free_lists[kSizeClasses] = {};
  };
  Image save_image() const;
  void restore(const Image&);

 private:
  static std::size_t get_size_class(std::size_t size);
  static std::size_t get_class_bytes(std::size_t size_class);

  char* base_ = nullptr;
  std::size_t limit_ = 0, reserved_bytes_ = 0;
  std::size_t used_bytes_ = 0;  // size of all blocks
  std::size_t block_count_ = 0;
  std::size_t end_ = 0;                  // offset behind the last block since clear()
  std::size_t dirty_end_ = 0;            // offset behind the bytes that may have been written
  void* free_lists_[kSizeClasses] = {};  // free blocks by size class, linked through the blocks
};

}  // namespace mycojobs::workflow
