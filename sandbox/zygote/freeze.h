// Makes forks of a zygote cheap. fork() costs time for each mapped page, and a child for each page that it touches.
// Huge pages have one entry for 2 MiB, are shared as a whole, and cause no fault when they are read.
//
//   program and large private memory   huge pages: copies of the same bytes, at the same address, with the same rights.
//                                      Parts of the program below 512 KiB, or less than that beyond its last whole
//                                      huge page, stay mapped from the file: fork copies nothing for them, whereas a
//                                      huge page would use 2 MiB
//   the heap                           huge pages where it fills them completely; otherwise unchanged
//   without huge pages in the kernel   a private mapping of a sealed, unnamed file with the same bytes: fork() copies
//                                      no page tables for it, but a child has a fault for each page; the program is
//                                      unchanged
//   memory that each child writes      small pages, if the host names its addresses
//   small regions                      unchanged: their few entries are copied
//   memory that children must not get  unchanged: the kernel empties it for each child, or does not map it. It contains
//                                      the state of libc's random numbers
//   free memory in malloc              allocated permanently, at most some hundred KiB, so that a child's allocations
//                                      are adjacent
//
// In all cases children share no writable memory, and no memory is ever writable and executable.
#pragma once

#include <span>

namespace mycojobs::sandbox {

struct FreezeResult {
  unsigned long huge_page_bytes = 0;  // moved to huge pages
  unsigned long file_bytes = 0;       // moved to the sealed file
};

// Called once, by a single thread, after warm-up. Regions that cannot be frozen stay unchanged, which costs time but
// not correctness. `written_addresses` has an address in each 2 MiB that every child writes. `huge_pages` is false in
// tests of a kernel without huge pages.
FreezeResult freeze_memory(std::span<const void* const> written_addresses = {}, bool huge_pages = true);

}  // namespace mycojobs::sandbox
