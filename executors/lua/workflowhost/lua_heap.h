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
  // limit: maximum bytes of all blocks. Reserves addresses; the kernel allocates memory on the first write. Error: io.
  Result<void> reserve(std::size_t limit);
  std::size_t limit() const { return limit_; }
  std::size_t blocks() const { return blocks_; }

  // Same contract as lua_Alloc: old sizes are exact, size 0 frees. Returns nullptr if the limit is exceeded. Adds the
  // bytes of new blocks to `grown`.
  void* reallocate(void* block, std::size_t old_size, std::size_t new_size, std::uint64_t& grown);

  void clear();
  struct Image {
    std::string bytes;
    std::size_t used = 0, blocks = 0;
    void* free[192] = {};
  };
  Image image() const;
  void restore(const Image&);

 private:
  static std::size_t class_of(std::size_t size);
  static std::size_t bytes_of(std::size_t size_class);

  char* base_ = nullptr;
  std::size_t limit_ = 0, reserve_ = 0;
  std::size_t used_ = 0;  // bytes of all blocks
  std::size_t blocks_ = 0;
  std::size_t top_ = 0;  // highest end of all blocks allocated so far
  std::size_t dirty_ = 0;
  void* free_[192] = {};  // per size class: list of free blocks, linked through the blocks
};

}  // namespace mycojobs::workflow
