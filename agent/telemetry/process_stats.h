// Reads statistics of the kernel about this process. Thread-safe.
#pragma once

namespace mycojobs {

struct ProcessStats {
  double start_time_s = 0;  // Seconds since the Unix epoch.
  double cpu_time_s = 0;    // User and system time of all threads, without child processes.
  double resident_bytes = 0;
  double open_files = 0;
};
// If /proc is not mounted, all values except the CPU time are 0.
ProcessStats read_process_stats();

}  // namespace mycojobs
