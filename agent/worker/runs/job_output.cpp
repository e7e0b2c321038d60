#include "worker/runs/job_output.h"

#include <algorithm>
#include <iterator>

#include "text/utf8.h"
#include "text/utf8_cut.h"

namespace mycojobs {
namespace {
constexpr std::size_t kMaxPartBytes = 8192;  // a line longer than this is stored in parts
constexpr std::uint64_t kMinEntryCost = 64;  // minimum cost of an entry, so that single bytes are not cheap
// A note of this size may be truncated: AnswerReader::kMaxNoteText is 1000 bytes, and a partial character is removed.
constexpr std::size_t kMinCutNoteBytes = 997;

std::uint64_t get_cost(const Log& piece) {
  return piece.text.empty() ? 0 : std::max<std::uint64_t>(piece.text.size(), kMinEntryCost);
}
}  // namespace

OutputCapture::OutputCapture(std::uint64_t max_stored_bytes)
    : head_bytes_left_(max_stored_bytes - max_stored_bytes / 2), tail_max_(max_stored_bytes / 2) {}

void OutputCapture::emit(LogStream stream, std::string text, std::uint64_t now_ms) {
  lines_.push_back(Log{now_ms, next_seq_++, stream, std::move(text)});
}

void OutputCapture::add_note(std::string_view text, std::uint64_t now_ms) {
  std::string line(text);
  line.push_back('\n');
  emit(LogStream::system, std::move(line), now_ms);
}

void OutputCapture::feed(LogStream stream, std::string_view bytes, std::uint64_t now_ms) {
  const int index = stream == LogStream::err;
  total_[index] += bytes.size();
  std::string& partial = partial_[index];
  const std::size_t end = bytes.rfind('\n');
  if (end == std::string_view::npos) {
    partial.append(bytes);
  } else {
    if (partial.empty()) {
      add(stream, bytes.substr(0, end + 1), now_ms);
    } else {
      partial.append(bytes.substr(0, end + 1));
      add(stream, partial, now_ms);
    }
    partial.assign(bytes.substr(end + 1));
  }
  if (partial.size() >= kMaxPartBytes) add_partial(stream, complete_characters(partial).size(), now_ms);
}

void OutputCapture::add(LogStream stream, std::string_view text, std::uint64_t now_ms) {
  const std::string_view head = whole_characters(text, std::min<std::uint64_t>(head_bytes_left_, text.size()));
  head_bytes_left_ -= std::min<std::uint64_t>(head_bytes_left_, std::max<std::uint64_t>(head.size(), kMinEntryCost));
  if (!head.empty()) emit(stream, std::string(head), now_ms);
  text.remove_prefix(head.size());
  if (text.empty()) return;
  head_bytes_left_ = 0;  // otherwise later text would be stored before the rest of this text
  // The tail holds pieces of bounded size, so that dropping the oldest piece drops little more than is needed.
  while (!text.empty()) {
    if (tail_.empty() || tail_.back().stream != stream || tail_.back().text.size() >= kMaxPartBytes) {
      tail_.push_back(Log{now_ms, 0, stream, {}});
    }
    const std::string_view piece = whole_characters(text, kMaxPartBytes);
    tail_cost_ -= get_cost(tail_.back());
    tail_.back().text.append(piece);
    tail_cost_ += get_cost(tail_.back());
    text.remove_prefix(piece.size());
  }
  trim_tail();
}

// Drops the oldest text of the tail until its cost is within the limit.
void OutputCapture::trim_tail() {
  while (tail_cost_ > tail_max_) {
    Log& oldest = tail_.front();
    const std::uint64_t excess = tail_cost_ - tail_max_;
    tail_cost_ -= get_cost(oldest);
    const bool drops_entry = oldest.text.size() <= std::max(excess, kMinEntryCost);
    const std::uint64_t cut = drops_entry ? oldest.text.size() : character_boundary(oldest.text, excess);
    dropped_ += cut;
    oldest.text.erase(0, cut);
    if (oldest.text.empty()) {
      tail_.pop_front();
    } else {
      tail_cost_ += get_cost(oldest);
    }
  }
}

// Emits the first bytes of the incomplete line.
void OutputCapture::add_partial(LogStream stream, std::size_t bytes, std::uint64_t now_ms) {
  std::string& partial = partial_[stream == LogStream::err];
  if (bytes == 0) return;
  add(stream, std::string_view(partial).substr(0, bytes), now_ms);
  partial.erase(0, bytes);
}

bool OutputCapture::has_partial() const {
  return !complete_characters(partial_[0]).empty() || !complete_characters(partial_[1]).empty();
}

void OutputCapture::flush_partial(std::uint64_t now_ms) {
  for (LogStream stream : {LogStream::out, LogStream::err})
    add_partial(stream, complete_characters(partial_[stream == LogStream::err]).size(), now_ms);
}

void OutputCapture::close(std::uint64_t now_ms) {
  for (LogStream stream : {LogStream::out, LogStream::err})
    add_partial(stream, partial_[stream == LogStream::err].size(), now_ms);
  if (dropped_ > 0) add_note(std::to_string(dropped_) + " bytes of output dropped here", now_ms);
  dropped_ = 0;
  for (Log& piece : std::exchange(tail_, {})) emit(piece.stream, std::move(piece.text), piece.ts_ms);
  tail_cost_ = 0;
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

bool RunOutput::flush_partial(std::uint64_t boot_ms, std::uint64_t unix_ms) {
  if (!capture_.has_partial()) {
    partial_since_ms_ = 0;
  } else if (partial_since_ms_ == 0) {
    partial_since_ms_ = boot_ms;
  } else if (boot_ms - partial_since_ms_ >= kMaxPartialWaitMs) {
    capture_.flush_partial(unix_ms);
    partial_since_ms_ = 0;
    return true;
  }
  return false;
}

void RunOutput::close(std::uint64_t unix_ms) {
  for (LogStream stream : {LogStream::out, LogStream::err}) {
    if (redaction_) capture_.feed(stream, redaction_->get(stream).finish(), unix_ms);
  }
  capture_.close(unix_ms);
}

std::vector<std::vector<Log>> RunOutput::pop_batches() {
  std::vector<std::vector<Log>> batches;
  std::vector<Log> lines = capture_.pop_lines();
  if (lines.empty()) return batches;
  if (lines.size() <= kMaxBatchLines) {
    batches.push_back(std::move(lines));
    return batches;
  }
  for (std::size_t begin = 0; begin < lines.size(); begin += kMaxBatchLines) {
    const auto first = std::make_move_iterator(lines.begin() + static_cast<std::ptrdiff_t>(begin));
    const auto last = first + static_cast<std::ptrdiff_t>(std::min(kMaxBatchLines, lines.size() - begin));
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
