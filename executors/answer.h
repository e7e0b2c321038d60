// What a script host handed back over its channel, read from a stream that a stranger's script may have written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executors/channel.h"
#include "mycojobs/executor.h"
#include "mycojobs/records.h"

namespace mycojobs {

struct ScriptError {
  std::string type, message, traceback;
  std::uint32_t line = 0;            // in the script; 0: unknown
  std::optional<std::int32_t> exit;  // the script itself asked to leave with this code: no exception
  // What the failure says about another attempt of the job.
  bool retry_forbidden = false;
  std::optional<std::uint64_t> retry_after_ms = {};
  std::string stderr_tail = {};  // of a program: the last lines that it wrote there
};

struct Answer {
  bool done = false;  // the host handed back everything, and the last frame came
  TextMap result;
  std::vector<std::string> result_json;  // keys of `result` whose text is JSON
  std::optional<ScriptError> error;
  std::string too_large;  // why the result was not kept; empty: it was
  std::string problem;    // the first thing that broke the protocol; nothing behind it is read
};

// Memory is bounded whatever comes: one frame, one result, one error, kMaxPendingNotes lines, kMaxPendingCalls calls
// and their replies.
class AnswerReader {
 public:
  static constexpr std::size_t kMaxPendingNotes = 256;
  static constexpr std::size_t kMaxNotes = 1000;  // in one run; the log says when the rest is left out
  static constexpr std::size_t kMaxNoteText = 1000;
  static constexpr std::size_t kMaxResultKeys = 10000;
  static constexpr double kMaxRetrySeconds = 30.0 * 24 * 3600;  // a longer pause is cut to this

  static constexpr std::size_t kMaxPendingCalls = 16;              // without an answer that has been taken
  static constexpr std::size_t kMaxPendingReplyBytes = 32U << 20;  // a reply that goes beyond is an error instead

  explicit AnswerReader(std::uint64_t max_result_bytes, ArtifactSink* sink = nullptr);
  void feed(std::string_view bytes);
  std::vector<std::string> take_notes();
  std::vector<std::string> take_calls();
  // Adds the frame of a reply to what goes down. Its call counts as pending until the reply has been taken, so that a
  // job which asks and does not read gets no further.
  void reply(std::string& output, std::string_view reply);
  void taken() { unanswered_ -= std::min(unanswered_, std::exchange(replies_, 0)); }
  const Answer& answer() const { return answer_; }
  std::uint64_t frames() const { return reader_.frames(); }

 private:
  void take(Frame&& frame);
  void take_note(const std::string& payload);
  void take_result(const std::string& payload);
  void take_error(const std::string& payload);
  void take_call(std::string&& payload);
  void take_artifact(const std::string& payload);
  void take_dropped(const std::string& payload);
  void broken(std::string problem);

  std::uint64_t max_result_bytes_;
  ArtifactSink* sink_;
  FrameReader reader_;
  Answer answer_;
  bool has_result_ = false;
  std::vector<std::string> notes_;
  std::size_t notes_seen_ = 0, notes_left_out_ = 0;
  std::vector<std::string> calls_;
  std::size_t unanswered_ = 0, replies_ = 0;
  std::string artifact_;  // the path of the one that is coming; empty: none
  bool artifact_wanted_ = false;
};

}  // namespace mycojobs
