// Splits and selects the lines of a log. The store has the log in parts, each a `Log` with text of one stream: several
// lines, or a piece of a line. The classes access no store and no files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "model/records.h"

namespace mycojobs {

// Splits the parts of a log into lines for display. A line is reported when its line end is added. An unfinished line
// is reported by flush(), when the output of the next run begins, and at 64 KiB: a longer line is reported in pieces.
class LogLineSplitter {
 public:
  // Called with a line without its line end. Log::seq is that of the last part of the line, Log::ts_ms that of the
  // first part.
  using LineCallback = std::function<void(const Log&)>;
  // Reports the lines that the part ends. If the part begins a run, unfinished lines of the run before are reported
  // first. REQUIRES: parts are added in the order of their sequence numbers.
  void add_part(const Log& part, const LineCallback&);
  // Reports all unfinished lines. Callers call it after the last part.
  void flush(const LineCallback&);

 private:
  static void report_line(Log& line, const LineCallback&);
  std::map<LogStream, Log> unfinished_lines_;  // an empty text means that the stream has no unfinished line
};

// Selects the last lines of a log, the lines that begin at or after a time, or both. The lines of all streams are
// counted together. If the beginning of a line is not selected, the rest of the line is removed from its parts.
class LogSelection {
 public:
  static constexpr std::size_t kAllLines = std::numeric_limits<std::size_t>::max();
  explicit LogSelection(std::uint64_t since_ms = 0, std::size_t max_lines = kAllLines)
      : since_ms_(since_ms), max_lines_(max_lines) {}

  // REQUIRES: parts are added in the order of their sequence numbers.
  void add_part(Log);
  // Removes and returns the selected parts. The number of lines is no longer limited afterwards: later parts are
  // selected by their time only.
  std::vector<Log> pop_selected();

 private:
  struct Part {
    Log log;
    std::size_t line_count = 0;  // number of lines that begin in the part
    bool begins_line = true;     // false if the part begins within a line
  };

  std::uint64_t since_ms_;
  std::size_t max_lines_;
  std::size_t line_count_ = 0;  // sum of Part::line_count over parts_
  std::deque<Part> parts_;
  // By stream: true if the latest part has not ended its last line.
  std::map<LogStream, bool> has_open_line_;
  // By stream: true if the beginning of the open line was not selected, so that the rest of the line is removed.
  std::map<LogStream, bool> skips_current_line_;
};

}  // namespace mycojobs
