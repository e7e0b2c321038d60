// Reads statistics of the kernel about this process. Thread-safe.
#pragma once

namespace mycojobs {

struct ProcessStats {
  double started_s = 0;  // start time since the Unix epoch
  double cpu_s = 0;      // CPU time of all threads, without child processes
  double memory_bytes = 0;
  double open_files = 0;
};
// Without /proc all values except the CPU time are 0.
ProcessStats read_process_stats();

}  // namespace mycojobs
