#include "inspect/log_lines.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace mycojobs {
namespace {
constexpr std::size_t kMaxLineBytes = 64U << 10;  // bounds the memory of an unfinished line
}  // namespace

void LogLineSplitter::report_line(Log& line, const LineCallback& callback) {
  if (!line.text.empty() && line.text.back() == '\r') line.text.pop_back();
  callback(line);
  line.text.clear();
}

void LogLineSplitter::add_part(const Log& part, const LineCallback& callback) {
  if (part.begins_run) flush(callback);
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

namespace {

// Returns the number of lines that begin in the text. begins_line: true if a line begins at the first byte.
std::size_t count_line_beginnings(std::string_view text, bool begins_line) {
  const auto line_ends = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  return line_ends + (begins_line ? 1 : 0) - (text.ends_with('\n') ? 1 : 0);
}

// Removes the text up to and including the first line end, or all of the text if it has no line end.
void remove_first_line(std::string& text) { text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1); }

}  // namespace

void LogSelection::add_part(Log log) {
  if (log.text.empty()) return;
  if (log.begins_run) {
    has_open_line_.clear();
    skips_current_line_.clear();
  }
  bool& has_open_line = has_open_line_[log.stream];
  const bool begins_line = !std::exchange(has_open_line, !log.text.ends_with('\n'));
  bool& skips_current_line = skips_current_line_[log.stream];
  if (log.ts_ms < since_ms_) {
    skips_current_line = has_open_line;
    return;
  }
  Part part{std::move(log), 0, begins_line};
  if (!begins_line && skips_current_line) {
    remove_first_line(part.log.text);
    if (part.log.text.empty()) return;
    part.begins_line = true;
  }
  skips_current_line = false;
  part.line_count = count_line_beginnings(part.log.text, part.begins_line);
  line_count_ += part.line_count;
  parts_.push_back(std::move(part));
  while (!parts_.empty() && line_count_ - parts_.front().line_count >= max_lines_) {
    line_count_ -= parts_.front().line_count;
    parts_.pop_front();
  }
}

std::vector<Log> LogSelection::pop_selected() {
  std::vector<Log> out;
  std::map<LogStream, bool> has_begun;
  for (Part& part : std::exchange(parts_, {})) {
    std::string& text = part.log.text;
    if (max_lines_ != kAllLines && !has_begun[part.log.stream] && !part.begins_line) remove_first_line(text);
    for (; line_count_ > max_lines_ && !text.empty(); --line_count_) remove_first_line(text);
    if (text.empty()) continue;
    has_begun[part.log.stream] = true;
    out.push_back(std::move(part.log));
  }
  line_count_ = 0;
  max_lines_ = kAllLines;
  return out;
}

}  // namespace mycojobs
