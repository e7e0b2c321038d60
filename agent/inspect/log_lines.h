// Splits the parts of a log into lines for display. A part contains several lines, or a piece of a line. Only whole
// lines are reported; an unfinished line is reported when a later part completes it, or by flush(). No side effects.
#pragma once

#include <functional>
#include <map>

#include "model/records.h"

namespace mycojobs {

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

}  // namespace mycojobs
