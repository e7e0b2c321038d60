// A job's output on its way into the log: without secrets, whole lines where possible, head and tail kept, the middle
// counted. No thread and no clock: moments come in.
//
//   bytes of a pipe --> Redaction --> OutputCapture --> lines, in portions that the store takes at once
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "domain/redactor.h"
#include "mycojobs/outcome.h"
#include "mycojobs/records.h"

namespace mycojobs {

// What comes here is without its secrets, so that all counts are of what could be in the log, not of what the job
// wrote.
class OutputCapture {
 public:
  // kept_bytes: of both streams together; the first half is passed on as it comes, the last half at the end.
  explicit OutputCapture(std::uint64_t kept_bytes);

  // Each line of the log ends between two characters of UTF-8, as long as the bytes are UTF-8.
  void feed(LogStream, std::string_view bytes, std::uint64_t now_ms);
  // A line of ours. Always kept.
  void note(std::string_view text, std::uint64_t now_ms);
  // Parts of lines that have waited long enough for their end. An incomplete character waits for its other bytes.
  void flush_partial(std::uint64_t now_ms);
  bool has_partial() const;
  // No more comes: the tail, behind a line that says exactly how much was dropped.
  void close(std::uint64_t now_ms);
  // Lines to store now.
  std::vector<Log> take() { return std::exchange(ready_, {}); }

  std::uint64_t bytes(LogStream stream) const { return total_[stream == LogStream::err]; }

 private:
  void add(LogStream, std::string_view text, std::uint64_t now_ms);
  void add_partial(LogStream, std::size_t bytes, std::uint64_t now_ms);
  void trim_tail();
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

// All that one run writes, through all of its stages.
class RunOutput {
 public:
  static constexpr std::uint64_t kPartialMs = 50;   // how long a line may wait for its end
  static constexpr std::size_t kLinesAtOnce = 512;  // of a portion: the store takes one after the other, others wait

  // redactor: of the secrets that the job was granted; null: there are none.
  RunOutput(std::uint64_t kept_bytes, std::shared_ptr<const Redactor> redactor);

  // What became of the bytes: without secrets, and maybe later. Good until the next call.
  std::string_view feed(LogStream, std::string_view bytes, std::uint64_t unix_ms);
  void note(std::string_view text, std::uint64_t unix_ms);
  // Shows lines that have waited for their end since kPartialMs. True: there is something to take.
  bool flush_partial(std::uint64_t boot_ms, std::uint64_t unix_ms);
  bool has_partial() const { return capture_.has_partial(); }
  void close(std::uint64_t unix_ms);     // no more comes
  std::vector<std::vector<Log>> take();  // lines to store now

  std::string redact(const std::string& text) const { return clean_ ? clean_->redactor->redact(text) : text; }
  void redact(JobEnd& end) const {
    if (clean_) mycojobs::redact(*clean_->redactor, end);
  }
  std::uint64_t bytes(LogStream stream) const { return capture_.bytes(stream); }
  std::uint64_t bytes() const { return bytes(LogStream::out) + bytes(LogStream::err); }

 private:
  struct Clean {
    explicit Clean(std::shared_ptr<const Redactor> all) : redactor(std::move(all)), out(*redactor), err(*redactor) {}
    std::shared_ptr<const Redactor> redactor;
    Redaction out, err;  // each stream by itself: a value does not go on in the other one
    Redaction& of(LogStream stream) { return stream == LogStream::err ? err : out; }
  };
  OutputCapture capture_;
  std::unique_ptr<Clean> clean_;  // null: there is no secret
  std::uint64_t partial_since_ms_ = 0;
};

// A job that was over its limit (0: none) and gone before the kill came must not end otherwise than a slower one.
void judge_output(Outcome&, std::uint64_t most);

}  // namespace mycojobs
