// Prepares the output of a job for its log: redacts it, splits it into entries and limits their total cost. The classes
// use no thread and no clock: all times are arguments. Not thread-safe.
//
//   bytes of a pipe --> Redaction --> OutputCapture --> batches of entries, each for one call of the store
//
// An entry is a stored `Log`: text of one stream with several lines, or a piece of a long line. A note is an entry with
// a message of the agent. The cost of an entry is the size of its text, but at least 64 bytes, so that many short
// entries reach the limit as well. Notes cost nothing.
//
// The head is the beginning of the output up to half of the limit. The tail is the latest output after the head, up to
// the other half; it is stored while the job runs. Output between head and tail is dropped:
//
//   head | dropped | stored entries of the tail | waiting entries of the tail | end of the output
//
// Each entry of the head has one sequence number. In the tail each byte and each note has a number: an entry has the
// number of its last byte (Log::seq), and the count of its numbers (Log::size). Readers compute from a gap between two
// entries how many bytes they have missed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "artifacts/logs/log_sink.h"
#include "base/token_bucket.h"
#include "model/records.h"
#include "sandbox/outcome.h"
#include "security/redactor.h"

namespace mycojobs {

// Splits output into entries and limits their cost. The input is redacted already, so all sizes are those of redacted
// text, not of the bytes that the job wrote.
class OutputCapture {
 public:
  // max_stored_bytes: maximum cost of the stored entries of both streams. Output of the head is emitted as soon as a
  // line is complete, output of the tail by emit_tail() and close(). Emitted entries are returned by pop_entries().
  explicit OutputCapture(std::uint64_t max_stored_bytes);

  // Adds a sink, which receives each later entry and note before any of them is dropped.
  void add_sink(std::shared_ptr<LogSink> sink) { sinks_.push_back(std::move(sink)); }
  // Adds output. If the output is valid UTF-8, no entry ends within a character.
  void feed(LogStream, std::string_view bytes, std::uint64_t now_ms);
  // Adds a note, which is never dropped. The note is emitted after the output that was added before it.
  void add_note(std::string_view text, std::uint64_t now_ms);
  // Treats incomplete lines as complete, so that a prompt or a progress bar reaches the log. The bytes of an incomplete
  // UTF-8 character are retained until the character is complete.
  void flush_partial_lines(std::uint64_t now_ms);
  // Treats incomplete lines and incomplete characters as complete.
  void flush_all(std::uint64_t now_ms);
  // Returns true if flush_partial_lines() would emit output.
  bool has_partial_line() const;
  // Emits waiting entries of the tail, oldest first, with a total cost of at most max_cost. Returns this total.
  std::uint64_t emit_tail(std::uint64_t max_cost);
  // Returns the total cost of the waiting entries of the tail.
  std::uint64_t waiting_cost() const { return waiting_cost_; }
  // Ends the output: emits all remaining output, and a note if the last bytes were dropped.
  void close(std::uint64_t now_ms);
  // Removes and returns the emitted entries.
  std::vector<Log> pop_entries() { return std::exchange(entries_, {}); }
  // Sequence numbers of the first and the last emitted entry of a range that has left the tail; 0 means none. The store
  // deletes all entries of the output from first to last, but no notes.
  struct DroppedEntries {
    std::uint64_t first = 0, last = 0;
    std::uint64_t bytes = 0;  // estimated size of the range in the store, with its notes
  };
  // Limit of a range, and with kStoredEntryBytes also of its number of entries, since a call of the store that deletes
  // them delays other clients of the server.
  static constexpr std::uint64_t kMaxDroppedBytes = 256U << 10, kStoredEntryBytes = 512;
  bool has_dropped_entries() const { return !dropped_entries_.empty(); }
  DroppedEntries pop_dropped_entries();  // Removes and returns the oldest range.

  // Returns the size of the output that was added, including dropped output.
  std::uint64_t redacted_bytes(LogStream stream) const { return total_bytes_[stream == LogStream::err]; }

 private:
  void add(LogStream, std::string_view text, std::uint64_t now_ms);
  void add_partial_line(LogStream, std::size_t bytes, std::uint64_t now_ms);
  void append_to_tail(LogStream, std::string_view piece, std::uint64_t now_ms);
  void trim_tail();
  void drop_stored_entry();
  void emit_waiting_entry();
  void notify_sinks(const Log& entry) const {
    for (const auto& sink : sinks_) sink->add_entry(entry);
  }

  struct EmittedEntry {
    std::uint64_t seq = 0, cost = 0;
    std::uint64_t note_bytes = 0;  // estimated size in the store of the notes between this entry and the next
  };
  std::uint64_t head_cost_left_;  // cost that the head can still contain
  bool has_tail_ = false;         // true if the output is longer than the head
  std::uint64_t max_tail_cost_;
  std::uint64_t stored_cost_ = 0, waiting_cost_ = 0;  // total costs of stored_tail_ and waiting_tail_
  std::uint64_t total_bytes_[2] = {0, 0};             // by stream: size of the output that was added
  std::uint64_t last_seq_ = 0;                        // the latest sequence number in use
  std::uint64_t emitted_seq_ = 0;                     // sequence number of the latest emitted entry
  std::string partial_lines_[2];                      // by stream: text after the last line end
  std::deque<EmittedEntry> stored_tail_;              // emitted entries of the tail, without notes
  std::deque<Log> waiting_tail_;  // entries of the tail that were not emitted, and notes between them
  std::deque<DroppedEntries> dropped_entries_;
  std::vector<Log> entries_;  // emitted entries for pop_entries()
  std::vector<std::shared_ptr<LogSink>> sinks_;
};

// Redacts and captures the output of all stages of one run, and limits the rate at which the tail is stored.
class RunOutput {
 public:
  static constexpr std::uint64_t kMaxPartialWaitMs = 50;  // time after which an incomplete line is emitted
  // Maximum number of entries of a batch. A larger batch would delay other clients of the store's server.
  static constexpr std::size_t kMaxBatchEntries = 512;
  // Limits of the tail that is stored while the job runs, in units of cost. Without them, the output of a fast job
  // would fill the append-only file of Redis; with them, such a job loses output before it is stored. emit_tail() waits
  // until its budget covers all waiting output or reaches kTailQuantum, so that it stores few large batches.
  static constexpr std::uint64_t kTailBytesPerSecond = 64U << 10, kMaxTailBurst = 128U << 10, kTailQuantum = 16U << 10;

  // redactor: redacts the secrets of the job; null if the job has no secrets.
  RunOutput(std::uint64_t max_stored_bytes, std::shared_ptr<const Redactor> redactor);

  // Adds a sink, which receives the complete redacted output. REQUIRES: called before the first output.
  void add_sink(std::shared_ptr<LogSink> sink) { capture_.add_sink(std::move(sink)); }
  // Adds output of the job and returns the redacted text. Bytes that may be the beginning of a secret are held back,
  // and returned by a later call. The view is valid until the next call.
  std::string_view feed(LogStream, std::string_view bytes, std::uint64_t unix_ms);
  // Redacts a message of the agent and adds it as a note.
  void add_note(std::string_view text, std::uint64_t unix_ms);
  // Emits lines that have been incomplete for kMaxPartialWaitMs. Returns whether lines were emitted.
  bool flush_partial_lines(std::uint64_t boot_ms, std::uint64_t unix_ms);
  // Returns true if a later call of flush_partial_lines() or emit_tail() can emit output.
  bool has_pending_output() const { return capture_.has_partial_line() || capture_.waiting_cost() > 0; }
  // Emits waiting entries of the tail within the limit of the rate.
  void emit_tail(std::uint64_t boot_ms);
  // Ends the text of both streams, so that the sinks have received all of it. Notes may follow.
  void end_streams(std::uint64_t unix_ms);
  // Ends the output: emits all of the remaining output, regardless of the rate.
  void close(std::uint64_t unix_ms);
  // Removes and returns the emitted entries in batches.
  std::vector<std::vector<Log>> pop_batches();
  bool has_dropped_entries() const { return capture_.has_dropped_entries(); }
  // Returns a range of stored entries that a batch replaces. REQUIRES: the caller deletes them and stores a batch in
  // one call of the store; otherwise readers would miss output that is not replaced yet.
  OutputCapture::DroppedEntries pop_dropped_entries() { return capture_.pop_dropped_entries(); }

  // Replaces the secrets of the job in a text, or in the end of the job.
  std::string redact(const std::string& text) const { return redaction_ ? redaction_->redactor->redact(text) : text; }
  void redact(JobEnd& end) const {
    if (redaction_) mycojobs::redact(*redaction_->redactor, end);
  }
  // Returns the size of the redacted output, including dropped output.
  std::uint64_t redacted_bytes(LogStream stream) const { return capture_.redacted_bytes(stream); }
  std::uint64_t redacted_bytes() const { return redacted_bytes(LogStream::out) + redacted_bytes(LogStream::err); }

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
  std::uint64_t partial_since_ms_ = 0;          // boot time since which a line is incomplete; 0 if none is known
  TokenBucket tail_bucket_{kTailBytesPerSecond, kMaxTailBurst};
};

// Sets the status output_limit if the output exceeds max_bytes; 0 means unlimited. A job that ends before it is killed
// for its output has the same status as a slower job.
void apply_output_limit(Outcome&, std::uint64_t max_bytes);

}  // namespace mycojobs
