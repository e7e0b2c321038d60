// The output of the commands `job logs` and `flow logs`. For the main thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "cli/invocation.h"
#include "inspect/log_lines.h"
#include "model/records.h"

namespace mycojobs {

// Flags of the commands.
struct LogOptions {
  bool json = false;
  bool timestamps = false;     // print the time of each line
  std::uint64_t since_ms = 0;  // only lines since this time
  std::size_t max_lines = LogSelection::kAllLines;
};
std::vector<FlagRow> log_flags();  // the flags besides those of the request job.logs
Result<LogOptions> read_log_options(const Invocation&);

// Prints the log of a job: the original bytes to the stream that the job wrote to, or lines with their times, or JSON.
class JobLogPrinter {
 public:
  explicit JobLogPrinter(const LogOptions& options) : options_(options) {}
  void print_part(const Log&);
  void finish();  // prints unfinished lines

 private:
  static void print_line(const Log&);

  LogOptions options_;
  LogLineSplitter splitter_;
};

}  // namespace mycojobs
