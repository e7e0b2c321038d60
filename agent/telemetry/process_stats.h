// Figures of the kernel about this process.
#pragma once

namespace mycojobs {

struct ProcessFacts {
  double started_s = 0;  // since 1970
  double cpu_s = 0;      // of all its threads, without its children
  double memory_bytes = 0;
  double open_files = 0;
};
// Without /proc all figures except the CPU time are 0.
ProcessFacts process_facts();

}  // namespace mycojobs
