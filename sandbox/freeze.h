// Makes a zygote cheap to fork. A child pays for each page that it touches and fork() for each page that is mapped;
// huge pages are shared whole, at the price of one entry for 2 MiB, and need no fault to be read.
//
//   program and large private memory   huge pages: copies of the same bytes, at the same place, with the same rights.
//                                      Less than 512 KiB of the program, or as little beyond its last whole huge page,
//                                      stays its file's: 2 MiB would be copied for it, and fork copies nothing for it
//   the heap                           huge pages where it fills them whole; the rest as if there were none
//   where the kernel has none to give  a private mapping of a sealed, unnamed file with the same bytes: fork() copies
//                                      no page tables for it, but a child meets a fault where it reads; the program
//                                      stays as it is
//   what each child writes to          small pages, if the host says where it is
//   what is small                      as it is: its few entries are copied
//   what no child is to have           as it is: the kernel empties it for each, or keeps it away. What libc's random
//                                      numbers come of lies there
//   what malloc keeps of freed memory  taken for good, some hundred KiB at most: a child's pieces then come from one
//                                      end
//
// Either way children share nothing that can be written, and no memory is writable and executable at any time.
#pragma once

#include <span>

namespace mycojobs::sandbox {

struct Frozen {
  unsigned long huge = 0, file = 0;  // bytes
};

// To be called once, by a single thread, after everything is warm. What cannot be frozen stays as it is: that costs
// time, not correctness. written: an address in each 2 MiB that every child writes to. huge_pages: false in tests of a
// kernel without them.
Frozen freeze_memory(std::span<const void* const> written = {}, bool huge_pages = true);

}  // namespace mycojobs::sandbox
