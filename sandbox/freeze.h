// Makes a zygote cheap to fork: its private memory becomes a private mapping of a sealed, unnamed file that holds the
// same bytes. fork() then copies no page tables for it, and a child pays only for the pages that it touches; nobody can
// write the file, so children still share nothing.
#pragma once

namespace mycojobs::sandbox {

// To be called once, by a single thread, after everything is warm. What cannot be frozen stays as it is: that costs
// time, not correctness. Returns how many bytes were frozen.
unsigned long freeze_memory();

}  // namespace mycojobs::sandbox
