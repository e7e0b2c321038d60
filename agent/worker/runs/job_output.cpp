#include "worker/runs/job_output.h"

#include <algorithm>
#include <iterator>

#include "text/utf8.h"
#include "text/utf8_cut.h"

namespace mycojobs {
namespace {
constexpr std::size_t kMaxPart = 8192;    // a line longer than this is stored in parts
constexpr std::uint64_t kEntryCost = 64;  // minimum cost of an entry, so that single bytes are not cheap
// A note of this size may have been cut: the limit of 1000 bytes (AnswerReader::kMaxNoteText) less a partial character.
constexpr std::size_t kCutNote = 997;

std::uint64_t cost(const Log& piece) {
  return piece.text.empty() ? 0 : std::max<std::uint64_t>(piece.text.size(), kEntryCost);
}
}  // namespace

OutputCapture::OutputCapture(std::uint64_t max_stored_bytes)
    : head_left_(max_stored_bytes - max_stored_bytes / 2), tail_max_(max_stored_bytes / 2) {}

void OutputCapture::emit(LogStream stream, std::string text, std::uint64_t now_ms) {
  ready_.push_back(Log{now_ms, next_seq_++, stream, std::move(text)});
}

void OutputCapture::note(std::string_view text, std::uint64_t now_ms) {
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
  if (partial.size() >= kMaxPart) add_partial(stream, complete_characters(partial).size(), now_ms);
}

void OutputCapture::add(LogStream stream, std::string_view text, std::uint64_t now_ms) {
  const std::string_view head = whole_characters(text, std::min<std::uint64_t>(head_left_, text.size()));
  head_left_ -= std::min<std::uint64_t>(head_left_, std::max<std::uint64_t>(head.size(), kEntryCost));
  if (!head.empty()) emit(stream, std::string(head), now_ms);
  text.remove_prefix(head.size());
  if (text.empty()) return;
  head_left_ = 0;  // otherwise later text would be stored before the rest of this one
  // The tail holds pieces of bounded size, so that dropping the oldest never drops much more than is needed.
  while (!text.empty()) {
    if (tail_.empty() || tail_.back().stream != stream || tail_.back().text.size() >= kMaxPart) {
      tail_.push_back(Log{now_ms, 0, stream, {}});
    }
    const std::string_view piece = whole_characters(text, kMaxPart);
    tail_cost_ -= cost(tail_.back());
    tail_.back().text.append(piece);
    tail_cost_ += cost(tail_.back());
    text.remove_prefix(piece.size());
  }
  trim_tail();
}

// Drops the oldest text of the tail until its cost is within the limit.
void OutputCapture::trim_tail() {
  while (tail_cost_ > tail_max_) {
    Log& oldest = tail_.front();
    const std::uint64_t over = tail_cost_ - tail_max_;
    tail_cost_ -= cost(oldest);
    const bool whole = oldest.text.size() <= std::max(over, kEntryCost);
    const std::uint64_t cut = whole ? oldest.text.size() : character_boundary(oldest.text, over);
    dropped_ += cut;
    oldest.text.erase(0, cut);
    if (oldest.text.empty()) {
      tail_.pop_front();
    } else {
      tail_cost_ += cost(oldest);
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
  if (dropped_ > 0) note(std::to_string(dropped_) + " bytes of output dropped here", now_ms);
  dropped_ = 0;
  for (Log& piece : std::exchange(tail_, {})) emit(piece.stream, std::move(piece.text), piece.ts_ms);
  tail_cost_ = 0;
}

RunOutput::RunOutput(std::uint64_t max_stored_bytes, std::shared_ptr<const Redactor> redactor)
    : capture_(max_stored_bytes) {
  if (redactor) clean_ = std::make_unique<StreamRedaction>(std::move(redactor));
}

std::string_view RunOutput::feed(LogStream stream, std::string_view bytes, std::uint64_t unix_ms) {
  const std::string_view clean = clean_ ? clean_->of(stream).feed(bytes) : bytes;
  capture_.feed(stream, clean, unix_ms);
  return clean;
}

void RunOutput::note(std::string_view text, std::uint64_t unix_ms) {
  if (!clean_) return capture_.note(text, unix_ms);
  capture_.note(clean_->redactor->redact(text, text.size() >= kCutNote), unix_ms);
}

bool RunOutput::flush_partial(std::uint64_t boot_ms, std::uint64_t unix_ms) {
  if (!capture_.has_partial()) {
    partial_since_ms_ = 0;
  } else if (partial_since_ms_ == 0) {
    partial_since_ms_ = boot_ms;
  } else if (boot_ms - partial_since_ms_ >= kPartialMs) {
    capture_.flush_partial(unix_ms);
    partial_since_ms_ = 0;
    return true;
  }
  return false;
}

void RunOutput::close(std::uint64_t unix_ms) {
  for (LogStream stream : {LogStream::out, LogStream::err}) {
    if (clean_) capture_.feed(stream, clean_->of(stream).finish(), unix_ms);
  }
  capture_.close(unix_ms);
}

std::vector<std::vector<Log>> RunOutput::take() {
  std::vector<std::vector<Log>> portions;
  std::vector<Log> lines = capture_.take();
  if (lines.empty()) return portions;
  if (lines.size() <= kMaxLinesBatch) {
    portions.push_back(std::move(lines));
    return portions;
  }
  for (std::size_t from = 0; from < lines.size(); from += kMaxLinesBatch) {
    const auto first = std::make_move_iterator(lines.begin() + static_cast<std::ptrdiff_t>(from));
    const auto last = first + static_cast<std::ptrdiff_t>(std::min(kMaxLinesBatch, lines.size() - from));
    portions.emplace_back(first, last);
  }
  return portions;
}

void apply_output_limit(Outcome& outcome, std::uint64_t max) {
  if (max == 0 || outcome.usage.stdout_bytes + outcome.usage.stderr_bytes <= max) return;
  if (outcome.status == RunStatus::ok || outcome.status == RunStatus::exit) outcome.status = RunStatus::output_limit;
  if (outcome.status != RunStatus::output_limit) return;
  outcome.reason = "over its output limit of " + std::to_string(max) + " bytes (policy.output.keep)";
}

}  // namespace mycojobs
