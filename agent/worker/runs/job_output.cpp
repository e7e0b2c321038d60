#include "worker/runs/job_output.h"

#include <algorithm>
#include <iterator>

#include "model/output_gap.h"
#include "text/utf8.h"
#include "text/utf8_cut.h"

namespace mycojobs {
namespace {
// An incomplete line of this size is emitted. Longer text is added to the tail in pieces of at most this size.
constexpr std::size_t kMaxPieceBytes = 8192;
constexpr std::uint64_t kMinEntryCost = 64;  // minimum cost of an entry with text
// A note of at least this size may have been cut within a secret: AnswerReader::kMaxNoteText is 1000 bytes, and up to 3
// bytes of an incomplete character are removed.
constexpr std::size_t kMinCutNoteBytes = 997;

std::uint64_t compute_cost(const Log& entry) {
  return entry.text.empty() ? 0 : std::max<std::uint64_t>(entry.text.size(), kMinEntryCost);
}
}  // namespace

OutputCapture::OutputCapture(std::uint64_t max_stored_bytes)
    : head_cost_left_(max_stored_bytes - max_stored_bytes / 2), max_tail_cost_(max_stored_bytes / 2) {}

void OutputCapture::add_note(std::string_view text, std::uint64_t now_ms) {
  std::string line(text);
  line.push_back('\n');
  if (has_tail_) {
    waiting_tail_.push_back(Log{now_ms, ++last_seq_, LogStream::system, std::move(line), 1});
    notify_sinks(waiting_tail_.back());
    if (waiting_tail_.size() == 1) emit_waiting_entry();
  } else {
    emitted_seq_ = ++last_seq_;
    entries_.push_back(Log{now_ms, last_seq_, LogStream::system, std::move(line)});
    notify_sinks(entries_.back());
  }
}

void OutputCapture::feed(LogStream stream, std::string_view bytes, std::uint64_t now_ms) {
  const int index = stream == LogStream::err;
  total_bytes_[index] += bytes.size();
  std::string& partial_line = partial_lines_[index];
  const std::size_t end = bytes.rfind('\n');
  if (end == std::string_view::npos) {
    partial_line.append(bytes);
  } else {
    if (partial_line.empty()) {
      add(stream, bytes.substr(0, end + 1), now_ms);
    } else {
      partial_line.append(bytes.substr(0, end + 1));
      add(stream, partial_line, now_ms);
    }
    partial_line.assign(bytes.substr(end + 1));
  }
  if (partial_line.size() >= kMaxPieceBytes) add_partial_line(stream, complete_characters(partial_line).size(), now_ms);
}

void OutputCapture::add(LogStream stream, std::string_view text, std::uint64_t now_ms) {
  const std::string_view head = whole_characters(text, std::min<std::uint64_t>(head_cost_left_, text.size()));
  head_cost_left_ -= std::min<std::uint64_t>(head_cost_left_, std::max<std::uint64_t>(head.size(), kMinEntryCost));
  if (!head.empty()) {
    emitted_seq_ = ++last_seq_;
    entries_.push_back(Log{now_ms, last_seq_, stream, std::string(head)});
    notify_sinks(entries_.back());
  }
  text.remove_prefix(head.size());
  if (text.empty()) return;
  head_cost_left_ = 0;  // otherwise later text could join the head, before the rest of this text
  has_tail_ = true;
  // The entries of the tail have a bounded size, so that dropping the oldest entry drops little more than necessary.
  while (!text.empty()) {
    const std::string_view piece = whole_characters(text, kMaxPieceBytes);
    append_to_tail(stream, piece, now_ms);
    text.remove_prefix(piece.size());
  }
  trim_tail();
}

void OutputCapture::append_to_tail(LogStream stream, std::string_view piece, std::uint64_t now_ms) {
  if (waiting_tail_.empty() || waiting_tail_.back().stream != stream ||
      waiting_tail_.back().text.size() >= kMaxPieceBytes) {
    waiting_tail_.push_back(Log{now_ms, 0, stream, {}});
  }
  Log& entry = waiting_tail_.back();
  waiting_cost_ -= compute_cost(entry);
  entry.text.append(piece);
  waiting_cost_ += compute_cost(entry);
  last_seq_ += piece.size();
  entry.seq = last_seq_;
  if (!sinks_.empty()) notify_sinks(Log{now_ms, last_seq_, stream, std::string(piece), piece.size()});
}

// Drops the oldest text of the tail until its cost is within the limit. Stored entries are older than waiting entries.
// A waiting note at the front is emitted, because notes are never dropped.
void OutputCapture::trim_tail() {
  while (stored_cost_ + waiting_cost_ > max_tail_cost_) {
    if (!stored_tail_.empty()) {
      drop_stored_entry();
      continue;
    }
    Log& oldest = waiting_tail_.front();
    if (oldest.stream == LogStream::system) {
      emit_waiting_entry();
      continue;
    }
    const std::uint64_t excess = waiting_cost_ - max_tail_cost_;
    waiting_cost_ -= compute_cost(oldest);
    const bool drops_entry = oldest.text.size() <= std::max(excess, kMinEntryCost);
    oldest.text.erase(0, drops_entry ? oldest.text.size() : character_boundary(oldest.text, excess));
    if (oldest.text.empty()) {
      waiting_tail_.pop_front();
    } else {
      waiting_cost_ += compute_cost(oldest);
    }
  }
}

void OutputCapture::drop_stored_entry() {
  const EmittedEntry& oldest = stored_tail_.front();
  const std::uint64_t bytes = oldest.cost + kStoredEntryBytes;
  if (dropped_entries_.empty() || dropped_entries_.back().bytes + bytes > kMaxDroppedBytes)
    dropped_entries_.push_back({oldest.seq, oldest.seq, 0});
  dropped_entries_.back().last = oldest.seq;
  dropped_entries_.back().bytes += bytes + oldest.note_bytes;
  stored_cost_ -= oldest.cost;
  stored_tail_.pop_front();
}

OutputCapture::DroppedEntries OutputCapture::pop_dropped_entries() {
  if (dropped_entries_.empty()) return {};
  const DroppedEntries range = dropped_entries_.front();
  dropped_entries_.pop_front();
  return range;
}

void OutputCapture::emit_waiting_entry() {
  Log& entry = waiting_tail_.front();
  emitted_seq_ = entry.seq;
  if (entry.stream != LogStream::system) {
    const std::uint64_t cost = compute_cost(entry);
    entry.size = entry.text.size();
    stored_tail_.push_back({entry.seq, cost, 0});
    stored_cost_ += cost;
    waiting_cost_ -= cost;
  } else if (!stored_tail_.empty()) {
    stored_tail_.back().note_bytes += entry.text.size() + kStoredEntryBytes;
  } else if (!dropped_entries_.empty()) {
    dropped_entries_.back().bytes += entry.text.size() + kStoredEntryBytes;
  }
  entries_.push_back(std::move(entry));
  waiting_tail_.pop_front();
}

std::uint64_t OutputCapture::emit_tail(std::uint64_t max_cost) {
  const std::uint64_t cost_before = waiting_cost_;
  while (!waiting_tail_.empty()) {
    const Log& entry = waiting_tail_.front();
    const bool is_note = entry.stream == LogStream::system;
    if (!is_note && cost_before - waiting_cost_ + compute_cost(entry) > max_cost) break;
    emit_waiting_entry();
  }
  return cost_before - waiting_cost_;
}

// Emits the first bytes of the stream's incomplete line.
void OutputCapture::add_partial_line(LogStream stream, std::size_t bytes, std::uint64_t now_ms) {
  std::string& partial_line = partial_lines_[stream == LogStream::err];
  if (bytes == 0) return;
  add(stream, std::string_view(partial_line).substr(0, bytes), now_ms);
  partial_line.erase(0, bytes);
}

bool OutputCapture::has_partial_line() const {
  return !complete_characters(partial_lines_[0]).empty() || !complete_characters(partial_lines_[1]).empty();
}

void OutputCapture::flush_partial_lines(std::uint64_t now_ms) {
  for (LogStream stream : {LogStream::out, LogStream::err})
    add_partial_line(stream, complete_characters(partial_lines_[stream == LogStream::err]).size(), now_ms);
}

void OutputCapture::flush_all(std::uint64_t now_ms) {
  for (LogStream stream : {LogStream::out, LogStream::err})
    add_partial_line(stream, partial_lines_[stream == LogStream::err].size(), now_ms);
}

void OutputCapture::close(std::uint64_t now_ms) {
  flush_all(now_ms);
  emit_tail(UINT64_MAX);
  if (last_seq_ == emitted_seq_) return;
  // Readers detect dropped bytes at the next entry, but no entry follows the last bytes.
  const std::uint64_t dropped_bytes = last_seq_ - std::exchange(emitted_seq_, last_seq_);
  entries_.push_back(Log{now_ms, last_seq_, LogStream::system, format_output_gap(dropped_bytes), dropped_bytes});
}

RunOutput::RunOutput(std::uint64_t max_stored_bytes, std::shared_ptr<const Redactor> redactor)
    : capture_(max_stored_bytes) {
  if (redactor) redaction_ = std::make_unique<StreamRedaction>(std::move(redactor));
}

std::string_view RunOutput::feed(LogStream stream, std::string_view bytes, std::uint64_t unix_ms) {
  const std::string_view redacted = redaction_ ? redaction_->get(stream).feed(bytes) : bytes;
  capture_.feed(stream, redacted, unix_ms);
  return redacted;
}

void RunOutput::add_note(std::string_view text, std::uint64_t unix_ms) {
  if (!redaction_) return capture_.add_note(text, unix_ms);
  capture_.add_note(redaction_->redactor->redact(text, text.size() >= kMinCutNoteBytes), unix_ms);
}

bool RunOutput::flush_partial_lines(std::uint64_t boot_ms, std::uint64_t unix_ms) {
  if (!capture_.has_partial_line()) {
    partial_since_ms_ = 0;
  } else if (partial_since_ms_ == 0) {
    partial_since_ms_ = boot_ms;
  } else if (boot_ms - partial_since_ms_ >= kMaxPartialWaitMs) {
    capture_.flush_partial_lines(unix_ms);
    partial_since_ms_ = 0;
    return true;
  }
  return false;
}

void RunOutput::emit_tail(std::uint64_t boot_ms) {
  const std::uint64_t budget = tail_bucket_.available(boot_ms);
  if (budget < std::min(capture_.waiting_cost(), kTailQuantum)) return;
  tail_bucket_.consume(capture_.emit_tail(budget), boot_ms);
}

void RunOutput::end_streams(std::uint64_t unix_ms) {
  for (LogStream stream : {LogStream::out, LogStream::err}) {
    if (redaction_) capture_.feed(stream, redaction_->get(stream).finish(), unix_ms);
  }
  capture_.flush_all(unix_ms);
}

void RunOutput::close(std::uint64_t unix_ms) {
  end_streams(unix_ms);
  capture_.close(unix_ms);
}

std::vector<std::vector<Log>> RunOutput::pop_batches() {
  std::vector<std::vector<Log>> batches;
  std::vector<Log> entries = capture_.pop_entries();
  if (entries.empty()) return batches;
  if (entries.size() <= kMaxBatchEntries) {
    batches.push_back(std::move(entries));
    return batches;
  }
  for (std::size_t begin = 0; begin < entries.size(); begin += kMaxBatchEntries) {
    const auto first = std::make_move_iterator(entries.begin() + static_cast<std::ptrdiff_t>(begin));
    const auto last = first + static_cast<std::ptrdiff_t>(std::min(kMaxBatchEntries, entries.size() - begin));
    batches.emplace_back(first, last);
  }
  return batches;
}

void apply_output_limit(Outcome& outcome, std::uint64_t max_bytes) {
  if (max_bytes == 0 || outcome.usage.stdout_bytes + outcome.usage.stderr_bytes <= max_bytes) return;
  if (outcome.status == RunStatus::ok || outcome.status == RunStatus::exit) outcome.status = RunStatus::output_limit;
  if (outcome.status != RunStatus::output_limit) return;
  outcome.reason = "over its output limit of " + std::to_string(max_bytes) + " bytes (policy.output.keep)";
}

}  // namespace mycojobs
