#include "inspect/log_lines.h"

namespace mycojobs {
namespace {
constexpr std::size_t kMaxLine = 64U << 10;  // a longer line is split
}  // namespace

void LogLines::end_line(Log& open, const Tell& tell) {
  if (!open.text.empty() && open.text.back() == '\r') open.text.pop_back();
  tell(open);
  open.text.clear();
}

void LogLines::take(const Log& piece, const Tell& tell) {
  Log& open = open_[piece.stream];
  open.stream = piece.stream;
  for (const char c : piece.text) {
    if (open.text.empty()) open.ts_ms = piece.ts_ms;
    open.seq = piece.seq;
    if (c == '\n') {
      end_line(open, tell);
    } else {
      open.text += c;
      if (open.text.size() >= kMaxLine) end_line(open, tell);
    }
  }
}

void LogLines::finish(const Tell& tell) {
  for (auto& [stream, open] : open_) {
    if (!open.text.empty()) end_line(open, tell);
  }
}

}  // namespace mycojobs
