// The output of a job on its way to the log: redacted, in whole lines where possible, with beginning and end kept and
// the bytes in between counted. Uses no thread and no clock: all times are arguments. Not thread-safe.
//
//   bytes of a pipe --> Redaction --> OutputCapture --> lines, in portions for one call of the store each
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/records.h"
#include "sandbox/outcome.h"
#include "security/redactor.h"

namespace mycojobs {

// Splits output into lines and limits it. The bytes are redacted already, so all counts refer to redacted text and not
// to the bytes that the job wrote.
class OutputCapture {
 public:
  // kept_bytes: limit of both streams together. The first half is emitted as it arrives, the last half by close().
  explicit OutputCapture(std::uint64_t max_stored_bytes);

  // Each entry of the log ends between two UTF-8 characters, if the bytes are valid UTF-8.
  void feed(LogStream, std::string_view bytes, std::uint64_t now_ms);
  // Adds a line of the agent, which is always kept.
  void note(std::string_view text, std::uint64_t now_ms);
  // Emits incomplete lines. The bytes of an incomplete character stay until the character is complete.
  void flush_partial(std::uint64_t now_ms);
  bool has_partial() const;
  // Ends the output: emits a line with the number of dropped bytes, if any, and then the last part of the output.
  void close(std::uint64_t now_ms);
  // Removes and returns the lines to store.
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
  std::deque<Log> tail_;  // sequence numbers are not assigned yet
  std::vector<Log> ready_;
};

// The output of one run, through all of its stages.
class RunOutput {
 public:
  static constexpr std::uint64_t kPartialMs = 50;  // maximum wait of an incomplete line
  // Maximum size of a portion. Each call of the store delays other clients of the server.
  static constexpr std::size_t kMaxLinesBatch = 512;

  // redactor: for the secrets that were granted to the job; null: no secrets.
  RunOutput(std::uint64_t max_stored_bytes, std::shared_ptr<const Redactor> redactor);

  // Returns the redacted bytes, some of which may be held back until a later call. The view is valid until the next
  // call.
  std::string_view feed(LogStream, std::string_view bytes, std::uint64_t unix_ms);
  void note(std::string_view text, std::uint64_t unix_ms);
  // Emits lines that have been incomplete for kPartialMs. Returns whether take() has new lines.
  bool flush_partial(std::uint64_t boot_ms, std::uint64_t unix_ms);
  bool has_partial() const { return capture_.has_partial(); }
  void close(std::uint64_t unix_ms);     // Ends the output.
  std::vector<std::vector<Log>> take();  // Removes and returns the lines to store, in portions.

  std::string redact(const std::string& text) const { return clean_ ? clean_->redactor->redact(text) : text; }
  void redact(JobEnd& end) const {
    if (clean_) mycojobs::redact(*clean_->redactor, end);
  }
  std::uint64_t bytes(LogStream stream) const { return capture_.bytes(stream); }
  std::uint64_t bytes() const { return bytes(LogStream::out) + bytes(LogStream::err); }

 private:
  struct StreamRedaction {
    explicit StreamRedaction(std::shared_ptr<const Redactor> all)
        : redactor(std::move(all)), out(*redactor), err(*redactor) {}
    std::shared_ptr<const Redactor> redactor;
    Redaction out, err;  // each stream on its own: a secret does not continue in the other stream
    Redaction& of(LogStream stream) { return stream == LogStream::err ? err : out; }
  };
  OutputCapture capture_;
  std::unique_ptr<StreamRedaction> clean_;  // null: no secrets
  std::uint64_t partial_since_ms_ = 0;
};

// Sets the status output_limit if the output exceeds `max` bytes (0: unlimited). A job that ends before the kill
// arrives must have the same end as a slower job.
void apply_output_limit(Outcome&, std::uint64_t max);

}  // namespace mycojobs
