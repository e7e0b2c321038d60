// Pieces of a log to lines, for people: a piece has several lines, or a part of one. Whole lines only: what was begun
// and not ended comes when it goes on, or at its end. Pure.
#pragma once

#include <functional>
#include <map>

#include "mycojobs/records.h"

namespace mycojobs {

class LogLines {
 public:
  // A line without its end; seq: of the piece that ended it, ts_ms: of the one that began it.
  using Tell = std::function<void(const Log&)>;
  void take(const Log& piece, const Tell&);
  void finish(const Tell&);  // no piece will follow: what was begun

 private:
  static void end_line(Log& open, const Tell&);
  std::map<LogStream, Log> open_;  // begun and not ended
};

}  // namespace mycojobs
