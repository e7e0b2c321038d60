// The output of a job on its way to the log: redacted, in whole lines where possible. The store has its beginning and,
// also while the job runs, the latest part of the rest. Bytes in between are dropped. Uses no thread and no clock: all
// times are arguments. Not thread-safe.
//
//   bytes of a pipe --> Redaction --> OutputCapture --> batches of lines, each for one call of the store
//
//   0 ........ head | dropped | stored lines of the tail | lines that wait | end of the output
//
// The head is numbered by lines. Behind it each byte has a number, and each note of the agent (Log::size). So a reader
// sees from the numbers alone how much it has missed, whatever was dropped since its last read.
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
  // emit_tail() and close().
  explicit OutputCapture(std::uint64_t max_stored_bytes);

  // Each entry of the log ends between two UTF-8 characters, if the bytes are valid UTF-8.
  void feed(LogStream, std::string_view bytes, std::uint64_t now_ms);
  // Adds a line of the agent, which is never dropped. It is emitted after the output before it.
  void add_note(std::string_view text, std::uint64_t now_ms);
  // Emits incomplete lines. The bytes of an incomplete character stay until the character is complete.
  void flush_partial(std::uint64_t now_ms);
  bool has_partial() const;
  // Emits waiting lines of the tail, oldest first, whose costs are at most max_cost together. Returns their costs.
  std::uint64_t emit_tail(std::uint64_t max_cost);
  std::uint64_t waiting_cost() const { return waiting_cost_; }  // costs of the waiting lines of the tail
  // Ends the output: emits the rest of the tail.
  void close(std::uint64_t now_ms);
  // Removes and returns the lines to store.
  std::vector<Log> pop_lines() { return std::exchange(lines_, {}); }
  // Lines of the output that were emitted and are no longer part of the tail, by their numbers. Notes between them
  // stay.
  struct DroppedLines {
    std::uint64_t first = 0, last = 0;  // 0: none
  };
  DroppedLines pop_dropped_lines() { return std::exchange(dropped_lines_, {}); }

  std::uint64_t bytes(LogStream stream) const { return total_[stream == LogStream::err]; }

 private:
  void add(LogStream, std::string_view text, std::uint64_t now_ms);
  void add_partial(LogStream, std::size_t bytes, std::uint64_t now_ms);
  void append_to_tail(LogStream, std::string_view piece, std::uint64_t now_ms);
  void trim_tail();
  void emit_waiting_line();

  struct EmittedLine {
    std::uint64_t seq = 0, cost = 0;
  };
  std::uint64_t head_bytes_left_;
  bool has_tail_ = false;  // whether the output is longer than the head
  std::uint64_t max_tail_cost_;
  std::uint64_t stored_cost_ = 0, waiting_cost_ = 0;
  std::uint64_t total_[2] = {0, 0};
  std::uint64_t last_seq_ = 0;     // number of the latest line, or of the latest byte of the tail
  std::uint64_t emitted_seq_ = 0;  // number of the latest emitted line
  std::string partial_[2];
  std::deque<EmittedLine> stored_tail_;  // emitted lines of the tail, without notes
  std::deque<Log> waiting_tail_;         // lines of the tail that were not emitted, and notes between them
  DroppedLines dropped_lines_;
  std::vector<Log> lines_;
};

// The output of one run, through all of its stages.
class RunOutput {
 public:
  static constexpr std::uint64_t kMaxPartialWaitMs = 50;  // maximum wait of an incomplete line
  // Maximum number of lines of a batch. Each call of the store delays other clients of the server.
  static constexpr std::size_t kMaxBatchLines = 512;
  // Rate and burst of the tail that is stored while the job runs, since all of it reaches the append-only file of
  // Redis. A faster job drops output before it was stored. A smaller amount than kTailQuantum waits for the rest of its
  // output.
  static constexpr std::uint64_t kTailBytesPerSecond = 64U << 10, kMaxTailBurst = 128U << 10, kTailQuantum = 16U << 10;

  // redactor: redacts the secrets of the job; null if the job has no secrets.
  RunOutput(std::uint64_t max_stored_bytes, std::shared_ptr<const Redactor> redactor);

  // Returns the redacted bytes, some of which may be held back until a later call. The view is valid until the next
  // call.
  std::string_view feed(LogStream, std::string_view bytes, std::uint64_t unix_ms);
  void add_note(std::string_view text, std::uint64_t unix_ms);
  // Emits lines that have been incomplete for kMaxPartialWaitMs. Returns whether lines were emitted.
  bool flush_partial(std::uint64_t boot_ms, std::uint64_t unix_ms);
  bool has_waiting_lines() const { return capture_.has_partial() || capture_.waiting_cost() > 0; }
  // Emits the tail as far as its rate permits.
  void emit_tail(std::uint64_t boot_ms);
  void close(std::uint64_t unix_ms);            // Ends the output.
  std::vector<std::vector<Log>> pop_batches();  // Removes and returns the lines to store, in batches.
  // Returns the stored lines to delete. Call it only together with a batch, which replaces them.
  OutputCapture::DroppedLines pop_dropped_lines() { return capture_.pop_dropped_lines(); }

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
  std::uint64_t tail_budget_ = kMaxTailBurst, tail_budget_ms_ = 0;  // budget of emit_tail() at that time
};

// Sets the status output_limit if the output exceeds `max_bytes` (0 means unlimited), so that a job which ends before
// the kill arrives has the same end as a slower job.
void apply_output_limit(Outcome&, std::uint64_t max_bytes);

}  // namespace mycojobs
