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
  std::uint32_t line = 0;                 // line of the script; 0 if unknown
  std::optional<std::int32_t> exit_code;  // set if the script requested an exit code and did not raise an exception
  // Retry instructions of the script for the job.
  bool retry_forbidden = false;
  std::optional<std::uint64_t> retry_after_ms = {};
  std::string stderr_tail = {};  // programs only: the last lines of stderr
};

struct ScriptAnswer {
  bool is_complete = false;  // whether the `done` frame was received
  TextMap result;
  std::vector<std::string> result_json;  // keys of the values in `result` that are JSON text
  std::optional<ScriptError> error;
  std::string result_problem;  // reason why the result was dropped; empty if it is valid
  std::string problem;         // the first violation of the protocol; later frames are ignored
};

// Parses the byte stream of a script host. The memory use is bounded for any input: one frame, one result, one error,
// kMaxPendingNotes notes, and kMaxPendingCalls calls with their replies. Not thread-safe.
class AnswerReader {
 public:
  static constexpr std::size_t kMaxPendingNotes = 256;
  static constexpr std::size_t kMaxNotes = 1000;  // limit of one run; the log reports the number of omitted notes
  static constexpr std::size_t kMaxNoteText = 1000;
  static constexpr std::size_t kMaxResultKeys = 10000;
  static constexpr double kMaxRetrySeconds = 30.0 * 24 * 3600;  // upper limit of the pause before a retry

  static constexpr std::size_t kMaxPendingCalls = 16;              // calls without a sent reply
  static constexpr std::size_t kMaxPendingReplyBytes = 32U << 20;  // larger replies are replaced by an error

  explicit AnswerReader(std::uint64_t max_result_bytes, ArtifactSink* sink = nullptr);
  void feed(std::string_view bytes);
  std::vector<std::string> consume_notes();
  std::vector<std::string> consume_calls();
  // Appends a reply frame to `output`. The call counts as pending until on_replies_sent(), so a job that sends calls
  // without reading the replies reaches kMaxPendingCalls.
  void append_reply(std::string& output, std::string_view reply);
  // Must be called when the replies that append_reply() has appended were sent.
  void on_replies_sent() { pending_calls_ -= std::min(pending_calls_, std::exchange(queued_replies_, 0)); }
  const ScriptAnswer& answer() const { return answer_; }
  std::uint64_t frame_count() const { return reader_.frame_count(); }

 private:
  void process_frame(Frame&& frame);
  void process_note(const std::string& payload);
  void process_result(const std::string& payload);
  void process_error(const std::string& payload);
  void process_call(std::string&& payload);
  void process_artifact(const std::string& payload);
  void process_dropped(const std::string& payload);
  void set_problem(std::string problem);

  std::uint64_t max_result_bytes_;
  ArtifactSink* sink_;
  FrameReader reader_;
  ScriptAnswer answer_;
  bool has_result_ = false;
  std::vector<std::string> notes_;
  std::size_t note_count_ = 0, omitted_notes_ = 0;
  std::vector<std::string> calls_;
  std::size_t pending_calls_ = 0, queued_replies_ = 0;
  std::string artifact_path_;  // path of the artifact being received; empty if there is none
  bool is_artifact_accepted_ = false;
};

}  // namespace mycojobs
