// The lines of a log, which the store has in parts: a part contains several lines, or a piece of a line. No side
// effects.
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

// Splits the parts of a log into lines for display. Only whole lines are reported; an unfinished line is reported when
// a later part completes it, when the output of the next run begins, or by flush().
class LogLineSplitter {
 public:
  // Called with a line without its line end. `seq` is that of the part that completed the line, `ts_ms` that of the
  // part that started it.
  using LineCallback = std::function<void(const Log&)>;
  void add_part(const Log& part, const LineCallback&);
  // Reports the unfinished lines. Called after the last part.
  void flush(const LineCallback&);

 private:
  static void report_line(Log& line, const LineCallback&);
  std::map<LogStream, Log> unfinished_lines_;
};

// Selects the last lines of a log, or those since a time. The lines of all streams count. A part without the beginning
// of its first line is cut.
class LogSelection {
 public:
  static constexpr std::size_t kAllLines = std::numeric_limits<std::size_t>::max();
  explicit LogSelection(std::uint64_t since_ms = 0, std::size_t max_lines = kAllLines)
      : since_ms_(since_ms), max_lines_(max_lines) {}

  void add_part(Log);
  // Removes and returns the selected parts. The parts that are added afterwards are only selected by their time.
  std::vector<Log> pop_parts();

 private:
  struct Part {
    Log log;
    std::size_t line_count = 0;  // number of lines that begin in the part
    bool begins_line = true;     // false if the part begins within a line
  };

  std::uint64_t since_ms_;
  std::size_t max_lines_;
  std::size_t line_count_ = 0;  // sum over parts_
  std::deque<Part> parts_;
  std::map<LogStream, bool> is_within_line_;        // whether the latest part of the stream has not ended its line
  std::map<LogStream, bool> is_beginning_skipped_;  // whether the beginning of the present line was not selected
};

}  // namespace mycojobs
