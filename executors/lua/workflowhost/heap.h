// The memory of one state of Lua: a region whose blocks lie at the same places whenever the same is asked of it, so
// that nothing that Lua derives from an address (the place of a function or table as a key, and with it the moment when
// a table grows) differs between processes. It is copied out and back as a whole: that is how a step begins from the
// very state in which its program was left when it had been loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs::workflow {

class Heap {
 public:
  // limit: bytes that blocks may take. Reserves addresses, takes memory when it is written to. Error io.
  Result<void> reserve(std::size_t limit);
  std::size_t limit() const { return limit_; }
  std::size_t blocks() const { return blocks_; }

  // As a lua_Alloc: exact old sizes, size 0 frees. nullptr: over the limit. `grown` counts what new blocks took.
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
  std::size_t limit_ = 0, room_ = 0;
  std::size_t used_ = 0;  // by blocks
  std::size_t blocks_ = 0;
  std::size_t top_ = 0;  // end of the memory that was ever allocated
  std::size_t dirty_ = 0;
  void* free_[192] = {};  // of each class a list through the blocks themselves
};

}  // namespace mycojobs::workflow
