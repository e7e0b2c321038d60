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
std::uint32_t max_result_frame_bytes(std::uint64_t max_result_bytes) {
  constexpr std::uint64_t kMaxAnswerBytes = 256U << 20;
  return static_cast<std::uint32_t>(std::min(kMaxAnswerBytes, max_result_bytes * 6 + (64U << 10)));
}

// No call has the id 0, so the script host fails with its own error message.
constexpr std::string_view kReplyTooLarge =
    R"({"id":0,"error":{"code":"too_large","message":"the reply is too large"}})";

// A value that is neither false nor a number of seconds is ignored.
void read_retry(const nlohmann::json& values, ScriptError& error) {
  const auto retry = values.find("retry");
  if (retry == values.end()) return;
  error.retry_forbidden = retry->is_boolean() && !retry->get<bool>();
  if (!retry->is_number()) return;
  const auto seconds = retry->get<double>();
  if (!(seconds >= 0)) return;
  error.retry_after_ms = static_cast<std::uint64_t>(std::min(seconds, AnswerReader::kMaxRetrySeconds) * 1000);
}

std::string to_single_line(std::string text) {
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
               {FrameKind::result, max_result_frame_bytes(max_result_bytes)},
               {FrameKind::error, kMaxErrorBytes},
               {FrameKind::call, kMaxCallBytes},
               {FrameKind::artifact, kMaxArtifactFrameBytes},
               {FrameKind::dropped, kMaxDroppedBytes},
               {FrameKind::done, 0}}) {}

void AnswerReader::set_problem(std::string problem) {
  if (answer_.problem.empty()) answer_.problem = std::move(problem);
}

void AnswerReader::feed(std::string_view bytes) {
  // The stream cannot be trusted after the first invalid frame, so the remaining bytes are not parsed.
  if (!answer_.problem.empty()) return;
  reader_.feed(bytes, [this](Frame&& frame) { process_frame(std::move(frame)); });
}

void AnswerReader::process_frame(Frame&& frame) {
  const auto kind = static_cast<FrameKind>(frame.kind);
  if (!answer_.problem.empty()) return;
  if (answer_.is_complete) return set_problem("a frame of kind " + std::to_string(frame.kind) + " after the last one");
  if (frame.status == Frame::FrameStatus::unknown_kind)
    return set_problem("a frame of unknown kind " + std::to_string(frame.kind));
  if (kind == FrameKind::result && std::exchange(has_result_, true)) return set_problem("a second result");
  if (frame.status == Frame::FrameStatus::too_large) {
    if (kind != FrameKind::result)
      return set_problem("a frame of kind " + std::to_string(frame.kind) + " over its limit");
    answer_.result_problem = "the result takes " + std::to_string(frame.size) + " bytes as JSON";
    return;
  }
  if (kind == FrameKind::note) return process_note(frame.payload);
  if (kind == FrameKind::result) return process_result(frame.payload);
  if (kind == FrameKind::error) return process_error(frame.payload);
  if (kind == FrameKind::call) return process_call(std::move(frame.payload));
  if (kind == FrameKind::artifact) return process_artifact(frame.payload);
  if (kind == FrameKind::dropped) return process_dropped(frame.payload);
  if (is_artifact_accepted_) sink_->close();
  answer_.is_complete = true;
}

void AnswerReader::process_note(const std::string& payload) {
  if (note_count_ > kMaxNotes) return;
  if (notes_.size() >= kMaxPendingNotes) {
    ++omitted_notes_;
    return;
  }
  if (++note_count_ > kMaxNotes) {
    notes_.push_back("no more notes are recorded for this run: it sent " + std::to_string(kMaxNotes));
    return;
  }
  const auto note = parse_json(payload, kMaxNoteBytes);
  if (!note || !note->is_object()) return set_problem("a note that is not a JSON object");
  std::string line = to_single_line(text_field(*note, "text"));
  line.resize(whole_characters(line, kMaxNoteText).size());
  const auto fraction = note->find("fraction");
  if (fraction != note->end() && fraction->is_number()) {
    const double share = std::clamp(fraction->get<double>(), 0.0, 1.0);
    const std::string percent = "progress " + std::to_string(std::lround(share * 100)) + " %";
    line = line.empty() ? percent : percent + ": " + line;
  }
  if (!line.empty()) notes_.push_back(std::move(line));
}

void AnswerReader::process_result(const std::string& payload) {
  const auto values = parse_json(payload, payload.size());
  if (!values || !values->is_object()) return set_problem("a result that is not a JSON object");
  if (values->size() > kMaxResultKeys) {
    answer_.result_problem = "the result has " + std::to_string(values->size()) + " keys; " +
                             std::to_string(kMaxResultKeys) + " are the most";
    return;
  }
  std::uint64_t bytes = 0;
  TextMap result;
  std::vector<std::string> json_keys;
  for (const auto& [key, value] : values->items()) {
    const bool is_json_value = value.is_array() && value.size() == 1 && value[0].is_string();
    if (!is_json_value && !value.is_string()) return set_problem("a result with a value that is neither text nor JSON");
    const auto& text = (is_json_value ? value[0] : value).get_ref<const std::string&>();
    if (is_json_value && !is_json(text))
      return set_problem("a result with a value that is marked as JSON and is not JSON");
    bytes += key.size() + text.size();
    result.emplace(key, text);
    if (is_json_value) json_keys.push_back(key);
  }
  if (bytes > max_result_bytes_) {
    answer_.result_problem = "the result has " + std::to_string(bytes) + " bytes";
    return;
  }
  answer_.result = std::move(result);
  answer_.result_json = std::move(json_keys);
}

void AnswerReader::process_error(const std::string& payload) {
  if (answer_.error) return set_problem("a second error");
  const auto values = parse_json(payload, kMaxErrorBytes);
  if (!values || !values->is_object()) return set_problem("an error that is not a JSON object");
  ScriptError error{to_single_line(text_field(*values, "type")),
                    text_field(*values, "message"),
                    text_field(*values, "traceback"),
                    0,
                    {},
                    false,
                    {}};
  const auto line = values->find("line");
  if (line != values->end() && line->is_number_unsigned()) {
    error.line = static_cast<std::uint32_t>(std::min<std::uint64_t>(line->get<std::uint64_t>(), UINT32_MAX));
  }
  const auto exit_code = values->find("exit");
  if (exit_code != values->end() && exit_code->is_number_unsigned()) {
    error.exit_code = static_cast<std::int32_t>(exit_code->get<std::uint64_t>() & 0xff);
  }
  read_retry(*values, error);
  if (error.type.empty()) error.type = "Error";
  answer_.error = std::move(error);
}

void AnswerReader::process_call(std::string&& payload) {
  if (++pending_calls_ > kMaxPendingCalls) return set_problem("more calls than it waits for");
  calls_.push_back(std::move(payload));
}

void AnswerReader::process_artifact(const std::string& payload) {
  const std::size_t name_end = payload.find('\0');
  const std::size_t mode_end = name_end == std::string::npos ? name_end : payload.find('\0', name_end + 1);
  if (mode_end == std::string::npos || name_end == 0) return set_problem("an artifact without its name and mode");
  if (sink_ == nullptr) return;
  if (payload.compare(0, name_end, artifact_path_) != 0 || artifact_path_.size() != name_end) {
    if (is_artifact_accepted_) sink_->close();
    artifact_path_ = payload.substr(0, name_end);
    is_artifact_accepted_ =
        sink_->open(artifact_path_, std::string_view(payload).substr(name_end + 1, mode_end - name_end - 1) == "755");
  }
  if (is_artifact_accepted_) sink_->write(std::string_view(payload).substr(mode_end + 1));
}

void AnswerReader::process_dropped(const std::string& payload) {
  const std::size_t name_end = payload.find('\0');
  const std::size_t reason_end = name_end == std::string::npos ? name_end : payload.find('\0', name_end + 1);
  if (reason_end == std::string::npos) return set_problem("a dropped artifact without its name and reason");
  const std::string_view reason = std::string_view(payload).substr(name_end + 1, reason_end - name_end - 1);
  const auto* row = std::find_if(kDropReasons.begin(), kDropReasons.end(),
                                 [&](const DropReasonRow& candidate) { return candidate.word == reason; });
  std::uint64_t limit = 0;
  if (row == kDropReasons.end() || !parse_u64(std::string_view(payload).substr(reason_end + 1), limit))
    return set_problem("a dropped artifact with an unknown reason or limit");
  if (sink_ == nullptr) return;
  constexpr std::size_t kMaxName = 512;
  const std::string name = to_utf8(std::string_view(payload).substr(0, name_end));
  sink_->report_dropped(
      {std::string(whole_characters(name, kMaxName)), static_cast<DropReason>(row - kDropReasons.begin()), limit});
}

void AnswerReader::append_reply(std::string& output, std::string_view reply) {
  const bool fits = reply.size() <= kMaxReplyBytes && output.size() + reply.size() <= kMaxPendingReplyBytes;
  append_frame(output, FrameKind::reply, fits ? reply : kReplyTooLarge);
  ++queued_replies_;
}

std::vector<std::string> AnswerReader::consume_calls() { return std::exchange(calls_, {}); }

std::vector<std::string> AnswerReader::consume_notes() {
  if (omitted_notes_ > 0) notes_.push_back(std::to_string(std::exchange(omitted_notes_, 0)) + " notes omitted");
  return std::exchange(notes_, {});
}

}  // namespace mycojobs
