#include "executors/script_answer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse.h"
#include "model/artifact.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// JSON encodes one byte in at most six ("\u0001"), and each entry adds six bytes; the empty map has two. A result
// within its limit therefore fits, except for thousands of empty texts.
std::uint32_t largest_result_frame(std::uint64_t max_result_bytes) {
  constexpr std::uint64_t kMaxAnswerBytes = 256U << 20;
  return static_cast<std::uint32_t>(std::min(kMaxAnswerBytes, max_result_bytes * 6 + (64U << 10)));
}

// The id 0 belongs to no call, so the script host fails with its own error message.
constexpr std::string_view kReplyTooLarge =
    R"({"id":0,"error":{"code":"too_large","message":"the reply is too large"}})";

std::string text_of(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A value that is neither false nor a number of seconds is ignored.
void take_retry(const nlohmann::json& values, ScriptError& error) {
  const auto retry = values.find("retry");
  if (retry == values.end()) return;
  error.retry_forbidden = retry->is_boolean() && !retry->get<bool>();
  if (!retry->is_number()) return;
  const auto seconds = retry->get<double>();
  if (!(seconds >= 0)) return;
  error.retry_after_ms = static_cast<std::uint64_t>(std::min(seconds, AnswerReader::kMaxRetrySeconds) * 1000);
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text;
}

}  // namespace

AnswerReader::AnswerReader(std::uint64_t max_result_bytes, ArtifactSink* sink)
    : max_result_bytes_(max_result_bytes),
      sink_(sink),
      reader_({{FrameKind::note, kMaxNoteBytes},
               {FrameKind::result, largest_result_frame(max_result_bytes)},
               {FrameKind::error, kMaxErrorBytes},
               {FrameKind::call, kMaxCallBytes},
               {FrameKind::artifact, kMaxArtifactFrameBytes},
               {FrameKind::dropped, kMaxDroppedBytes},
               {FrameKind::done, 0}}) {}

void AnswerReader::broken(std::string problem) {
  if (answer_.problem.empty()) answer_.problem = std::move(problem);
}

void AnswerReader::feed(std::string_view bytes) {
  // The stream cannot be trusted after the first invalid frame, and reading on would only cost time.
  if (!answer_.problem.empty()) return;
  reader_.feed(bytes, [this](Frame&& frame) { parse_frame(std::move(frame)); });
}

void AnswerReader::parse_frame(Frame&& frame) {
  const auto kind = static_cast<FrameKind>(frame.kind);
  if (!answer_.problem.empty()) return;
  if (answer_.done) return broken("a frame of kind " + std::to_string(frame.kind) + " after the last one");
  if (frame.fate == Frame::FrameStatus::unknown_kind)
    return broken("a frame of unknown kind " + std::to_string(frame.kind));
  if (kind == FrameKind::result && std::exchange(has_result_, true)) return broken("a second result");
  if (frame.fate == Frame::FrameStatus::too_large) {
    if (kind != FrameKind::result) return broken("a frame of kind " + std::to_string(frame.kind) + " over its limit");
    answer_.too_large = "the result takes " + std::to_string(frame.size) + " bytes as JSON";
    return;
  }
  if (kind == FrameKind::note) return take_note(frame.payload);
  if (kind == FrameKind::result) return parse_result(frame.payload);
  if (kind == FrameKind::error) return parse_error(frame.payload);
  if (kind == FrameKind::call) return take_call(std::move(frame.payload));
  if (kind == FrameKind::artifact) return take_artifact(frame.payload);
  if (kind == FrameKind::dropped) return take_dropped(frame.payload);
  if (artifact_wanted_) sink_->close();
  answer_.done = true;
}

void AnswerReader::take_note(const std::string& payload) {
  if (notes_seen_ > kMaxNotes) return;
  if (notes_.size() >= kMaxPendingNotes) {
    ++notes_left_out_;
    return;
  }
  if (++notes_seen_ > kMaxNotes) {
    notes_.push_back("no more notes are recorded for this run: it sent " + std::to_string(kMaxNotes));
    return;
  }
  const auto note = parse_json(payload, kMaxNoteBytes);
  if (!note || !note->is_object()) return broken("a note that is not a JSON object");
  std::string line = one_line(text_of(*note, "text"));
  line.resize(whole_characters(line, kMaxNoteText).size());
  const auto fraction = note->find("fraction");
  if (fraction != note->end() && fraction->is_number()) {
    const double share = std::clamp(fraction->get<double>(), 0.0, 1.0);
    const std::string percent = "progress " + std::to_string(std::lround(share * 100)) + " %";
    line = line.empty() ? percent : percent + ": " + line;
  }
  if (!line.empty()) notes_.push_back(std::move(line));
}

void AnswerReader::parse_result(const std::string& payload) {
  const auto values = parse_json(payload, payload.size());
  if (!values || !values->is_object()) return broken("a result that is not a JSON object");
  if (values->size() > kMaxResultKeys) {
    answer_.too_large = "the result has " + std::to_string(values->size()) + " keys; " +
                        std::to_string(kMaxResultKeys) + " are the most";
    return;
  }
  std::uint64_t bytes = 0;
  TextMap result;
  std::vector<std::string> json_keys;
  for (const auto& [key, value] : values->items()) {
    const bool typed = value.is_array() && value.size() == 1 && value[0].is_string();
    if (!typed && !value.is_string()) return broken("a result with a value that is neither text nor JSON");
    const auto& text = (typed ? value[0] : value).get_ref<const std::string&>();
    if (typed && !is_json(text)) return broken("a result with a value that is marked as JSON and is not JSON");
    bytes += key.size() + text.size();
    result.emplace(key, text);
    if (typed) json_keys.push_back(key);
  }
  if (bytes > max_result_bytes_) {
    answer_.too_large = "the result has " + std::to_string(bytes) + " bytes";
    return;
  }
  answer_.result = std::move(result);
  answer_.result_json = std::move(json_keys);
}

void AnswerReader::parse_error(const std::string& payload) {
  if (answer_.error) return broken("a second error");
  const auto values = parse_json(payload, kMaxErrorBytes);
  if (!values || !values->is_object()) return broken("an error that is not a JSON object");
  ScriptError error{
      one_line(text_of(*values, "type")), text_of(*values, "message"), text_of(*values, "traceback"), 0, {}, false, {}};
  const auto line = values->find("line");
  if (line != values->end() && line->is_number_unsigned()) {
    error.line = static_cast<std::uint32_t>(std::min<std::uint64_t>(line->get<std::uint64_t>(), UINT32_MAX));
  }
  const auto exit = values->find("exit");
  if (exit != values->end() && exit->is_number_unsigned()) {
    error.exit = static_cast<std::int32_t>(exit->get<std::uint64_t>() & 0xff);
  }
  take_retry(*values, error);
  if (error.type.empty()) error.type = "Error";
  answer_.error = std::move(error);
}

void AnswerReader::take_call(std::string&& payload) {
  if (++unanswered_ > kMaxPendingCalls) return broken("more calls than it waits for");
  calls_.push_back(std::move(payload));
}

void AnswerReader::take_artifact(const std::string& payload) {
  const std::size_t end = payload.find('\0');
  const std::size_t bytes = end == std::string::npos ? end : payload.find('\0', end + 1);
  if (bytes == std::string::npos || end == 0) return broken("an artifact without its name and mode");
  if (sink_ == nullptr) return;
  if (payload.compare(0, end, artifact_) != 0 || artifact_.size() != end) {
    if (artifact_wanted_) sink_->close();
    artifact_ = payload.substr(0, end);
    artifact_wanted_ = sink_->open(artifact_, std::string_view(payload).substr(end + 1, bytes - end - 1) == "755");
  }
  if (artifact_wanted_) sink_->write(std::string_view(payload).substr(bytes + 1));
}

void AnswerReader::take_dropped(const std::string& payload) {
  const std::size_t name_end = payload.find('\0');
  const std::size_t word_end = name_end == std::string::npos ? name_end : payload.find('\0', name_end + 1);
  if (word_end == std::string::npos) return broken("a dropped artifact without its name and reason");
  const std::string_view word = std::string_view(payload).substr(name_end + 1, word_end - name_end - 1);
  const auto* row = std::find_if(kDropReasons.begin(), kDropReasons.end(),
                                 [&](const DropReasonRow& each) { return each.word == word; });
  std::uint64_t limit = 0;
  if (row == kDropReasons.end() || !parse_u64(std::string_view(payload).substr(word_end + 1), limit))
    return broken("a dropped artifact with an unknown reason or limit");
  if (sink_ == nullptr) return;
  constexpr std::size_t kMaxName = 512;
  const std::string name = to_utf8(std::string_view(payload).substr(0, name_end));
  sink_->report_dropped(
      {std::string(whole_characters(name, kMaxName)), static_cast<DropReason>(row - kDropReasons.begin()), limit});
}

void AnswerReader::reply(std::string& output, std::string_view reply) {
  const bool fits = reply.size() <= kMaxReplyBytes && output.size() + reply.size() <= kMaxPendingReplyBytes;
  append_frame(output, FrameKind::reply, fits ? reply : kReplyTooLarge);
  ++replies_;
}

std::vector<std::string> AnswerReader::take_calls() { return std::exchange(calls_, {}); }

std::vector<std::string> AnswerReader::take_notes() {
  if (notes_left_out_ > 0) notes_.push_back(std::to_string(std::exchange(notes_left_out_, 0)) + " notes omitted");
  return std::exchange(notes_, {});
}

}  // namespace mycojobs
