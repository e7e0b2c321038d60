// Splits the parts of a log into lines for display. A part has several lines, or a piece of a line. Only whole lines
// are reported; an unfinished line is reported when it is completed or at the end. No side effects.
#pragma once

#include <functional>
#include <map>

#include "model/records.h"

namespace mycojobs {

class LogLines {
 public:
  // Called with a line without its end; seq: of the part that ended it, ts_ms: of the part that started it.
  using Tell = std::function<void(const Log&)>;
  void take(const Log& piece, const Tell&);
  void finish(const Tell&);  // Reports unfinished lines; no part follows.

 private:
  static void end_line(Log& open, const Tell&);
  std::map<LogStream, Log> open_;  // unfinished lines
};

}  // namespace mycojobs
