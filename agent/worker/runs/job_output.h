// The output of a job on its way to the log: redacted, in whole lines where possible, with its beginning and
// its end. Bytes in between are dropped and counted. Uses no thread and no clock: all times are arguments. Not
// thread-safe.
//
//   bytes of a pipe --> Redaction --> OutputCapture --> batches of lines, each for one call of the store
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
  // max_stored_bytes: limit of both streams together. The first half is emitted as it arrives, the second half by
  // close().
  explicit OutputCapture(std::uint64_t max_stored_bytes);

  // Each entry of the log ends between two UTF-8 characters, if the bytes are valid UTF-8.
  void feed(LogStream, std::string_view bytes, std::uint64_t now_ms);
  // Adds a line of the agent, which is never dropped.
  void add_note(std::string_view text, std::uint64_t now_ms);
  // Emits incomplete lines. The bytes of an incomplete character stay until the character is complete.
  void flush_partial(std::uint64_t now_ms);
  bool has_partial() const;
  // Ends the output: emits a line with the number of dropped bytes, if any, and then the last part of the output.
  void close(std::uint64_t now_ms);
  // Removes and returns the lines to store.
  std::vector<Log> pop_lines() { return std::exchange(lines_, {}); }

  std::uint64_t bytes(LogStream stream) const { return total_[stream == LogStream::err]; }

 private:
  void add(LogStream, std::string_view text, std::uint64_t now_ms);
  void add_partial(LogStream, std::size_t bytes, std::uint64_t now_ms);
  void trim_tail();
  void emit(LogStream, std::string text, std::uint64_t now_ms);

  std::uint64_t head_bytes_left_;
  std::uint64_t tail_max_;
  std::uint64_t tail_cost_ = 0, dropped_ = 0;
  std::uint64_t total_[2] = {0, 0};
  std::uint64_t next_seq_ = 1;
  std::string partial_[2];
  std::deque<Log> tail_;  // lines without sequence numbers, which emit() assigns
  std::vector<Log> lines_;
};

// The output of one run, through all of its stages.
class RunOutput {
 public:
  static constexpr std::uint64_t kMaxPartialWaitMs = 50;  // maximum wait of an incomplete line
  // Maximum number of lines of a batch. Each call of the store delays other clients of the server.
  static constexpr std::size_t kMaxBatchLines = 512;

  // redactor: redacts the secrets of the job; null if the job has no secrets.
  RunOutput(std::uint64_t max_stored_bytes, std::shared_ptr<const Redactor> redactor);

  // Returns the redacted bytes, some of which may be held back until a later call. The view is valid until the next
  // call.
  std::string_view feed(LogStream, std::string_view bytes, std::uint64_t unix_ms);
  void add_note(std::string_view text, std::uint64_t unix_ms);
  // Emits lines that have been incomplete for kMaxPartialWaitMs. Returns whether pop_batches() has new lines.
  bool flush_partial(std::uint64_t boot_ms, std::uint64_t unix_ms);
  bool has_partial() const { return capture_.has_partial(); }
  void close(std::uint64_t unix_ms);            // Ends the output.
  std::vector<std::vector<Log>> pop_batches();  // Removes and returns the lines to store, in batches.

  std::string redact(const std::string& text) const { return redaction_ ? redaction_->redactor->redact(text) : text; }
  void redact(JobEnd& end) const {
    if (redaction_) mycojobs::redact(*redaction_->redactor, end);
  }
  std::uint64_t bytes(LogStream stream) const { return capture_.bytes(stream); }
  std::uint64_t bytes() const { return bytes(LogStream::out) + bytes(LogStream::err); }

 private:
  struct StreamRedaction {
    explicit StreamRedaction(std::shared_ptr<const Redactor> secrets)
        : redactor(std::move(secrets)), out(*redactor), err(*redactor) {}
    std::shared_ptr<const Redactor> redactor;
    Redaction out, err;  // separate, since a secret does not continue in the other stream
    Redaction& get(LogStream stream) { return stream == LogStream::err ? err : out; }
  };
  OutputCapture capture_;
  std::unique_ptr<StreamRedaction> redaction_;  // null if the job has no secrets
  std::uint64_t partial_since_ms_ = 0;
};

// Sets the status output_limit if the output exceeds `max_bytes` (0 means unlimited), so that a job which ends before
// the kill arrives has the same end as a slower job.
void apply_output_limit(Outcome&, std::uint64_t max_bytes);

}  // namespace mycojobs
