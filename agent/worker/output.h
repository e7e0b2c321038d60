// A job's output on its way into the log: whole lines where possible, head and tail kept, the middle counted. It comes
// here without its secrets, so that all counts are of what could be in the log, not of what the job wrote.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/outcome.h"
#include "mycojobs/records.h"

namespace mycojobs {

class OutputCapture {
 public:
  // kept_bytes: of both streams together; the first half is passed on as it comes, the last half at the end.
  explicit OutputCapture(std::uint64_t kept_bytes);

  void feed(LogStream, std::string_view bytes, std::uint64_t now_ms);
  // A line of ours. Always kept.
  void note(std::string_view text, std::uint64_t now_ms);
  // Parts of lines that have waited long enough for their end.
  void flush_partial(std::uint64_t now_ms);
  bool has_partial() const { return !partial_[0].empty() || !partial_[1].empty(); }
  // No more comes: the tail, behind a line that says exactly how much was dropped.
  void close(std::uint64_t now_ms);
  // Lines to store now.
  std::vector<Log> take() { return std::exchange(ready_, {}); }

  std::uint64_t bytes(LogStream stream) const { return total_[stream == LogStream::err]; }

 private:
  void add(LogStream, std::string_view text, std::uint64_t now_ms);
  void emit(LogStream, std::string text, std::uint64_t now_ms);

  std::uint64_t head_left_;
  std::uint64_t tail_max_;
  std::uint64_t tail_cost_ = 0, dropped_ = 0;
  std::uint64_t total_[2] = {0, 0};
  std::uint64_t next_seq_ = 1;
  std::string partial_[2];
  std::deque<Log> tail_;  // without numbers yet
  std::vector<Log> ready_;
};

// A job that was over its limit (0: none) and gone before the kill came must not end otherwise than a slower one.
void judge_output(Outcome&, std::uint64_t most);

}  // namespace mycojobs
