// This process as the kernel counts it.
#pragma once

namespace mycojobs {

struct ProcessFacts {
  double started_s = 0;  // since 1970
  double cpu_s = 0;      // of all its threads; not of its children
  double memory_bytes = 0;
  double open_files = 0;
};
// Without /proc all but the CPU time is 0.
ProcessFacts process_facts();

}  // namespace mycojobs
