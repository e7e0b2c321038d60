// Reads the frames that a script host sends (channel.h). The stream is untrusted: a script may have written it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executors/channel.h"
#include "executors/executor.h"
#include "model/records.h"

namespace mycojobs {

struct ScriptError {
  std::string type, message, traceback;
  std::uint32_t line = 0;            // in the script; 0: unknown
  std::optional<std::int32_t> exit;  // set if the script requested this exit code; not an exception
  // Retry instructions of the script for the job.
  bool retry_forbidden = false;
  std::optional<std::uint64_t> retry_after_ms = {};
  std::string stderr_tail = {};  // programs only: the last lines of stderr
};

struct ScriptAnswer {
  bool done = false;  // the `done` frame was received
  TextMap result;
  std::vector<std::string> result_json;  // keys of `result` with JSON text
  std::optional<ScriptError> error;
  std::string too_large;  // why the result was dropped; empty: the result was kept
  std::string problem;    // the first violation of the protocol; frames after it are ignored
};

// Memory is bounded for any input: one frame, one result, one error, kMaxPendingNotes lines, kMaxPendingCalls calls and
// their replies. Not thread-safe.
class AnswerReader {
 public:
  static constexpr std::size_t kMaxPendingNotes = 256;
  static constexpr std::size_t kMaxNotes = 1000;  // per run; the log says when further notes are omitted
  static constexpr std::size_t kMaxNoteText = 1000;
  static constexpr std::size_t kMaxResultKeys = 10000;
  static constexpr double kMaxRetrySeconds = 30.0 * 24 * 3600;  // longer pauses are reduced to this

  static constexpr std::size_t kMaxPendingCalls = 16;              // calls without a sent reply
  static constexpr std::size_t kMaxPendingReplyBytes = 32U << 20;  // larger replies are replaced by an error

  explicit AnswerReader(std::uint64_t max_result_bytes, ArtifactSink* sink = nullptr);
  void feed(std::string_view bytes);
  std::vector<std::string> take_notes();
  std::vector<std::string> take_calls();
  // Appends a reply frame to `output`. The call counts as pending until mark_answered(), so a job that sends calls
  // without reading the replies is stopped.
  void reply(std::string& output, std::string_view reply);
  void mark_answered() { unanswered_ -= std::min(unanswered_, std::exchange(replies_, 0)); }
  const ScriptAnswer& answer() const { return answer_; }
  std::uint64_t frames() const { return reader_.frames(); }

 private:
  void parse_frame(Frame&& frame);
  void take_note(const std::string& payload);
  void parse_result(const std::string& payload);
  void parse_error(const std::string& payload);
  void take_call(std::string&& payload);
  void take_artifact(const std::string& payload);
  void take_dropped(const std::string& payload);
  void broken(std::string problem);

  std::uint64_t max_result_bytes_;
  ArtifactSink* sink_;
  FrameReader reader_;
  ScriptAnswer answer_;
  bool has_result_ = false;
  std::vector<std::string> notes_;
  std::size_t notes_seen_ = 0, notes_left_out_ = 0;
  std::vector<std::string> calls_;
  std::size_t unanswered_ = 0, replies_ = 0;
  std::string artifact_;  // path of the artifact being received; empty if there is none
  bool artifact_wanted_ = false;
};

}  // namespace mycojobs
