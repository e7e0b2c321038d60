#include "inspect/log_lines.h"

namespace mycojobs {
namespace {
constexpr std::size_t kMaxLineBytes = 64U << 10;  // a longer line is split
}  // namespace

void LogLineSplitter::report_line(Log& line, const LineCallback& callback) {
  if (!line.text.empty() && line.text.back() == '\r') line.text.pop_back();
  callback(line);
  line.text.clear();
}

void LogLineSplitter::add_part(const Log& part, const LineCallback& callback) {
  Log& line = unfinished_lines_[part.stream];
  line.stream = part.stream;
  for (const char c : part.text) {
    if (line.text.empty()) line.ts_ms = part.ts_ms;
    line.seq = part.seq;
    if (c == '\n') {
      report_line(line, callback);
    } else {
      line.text += c;
      if (line.text.size() >= kMaxLineBytes) report_line(line, callback);
    }
  }
}

void LogLineSplitter::flush(const LineCallback& callback) {
  for (auto& [stream, line] : unfinished_lines_) {
    if (!line.text.empty()) report_line(line, callback);
  }
}

}  // namespace mycojobs
