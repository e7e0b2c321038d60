// The channel between an agent and a script host (mycojobs-pyhost, -luahost, -exechost): frames, down on a stream
// socket and up on a pipe (JobChannel in sandbox/zygote.h says why).
//
//   frame = length of the payload, u32 little-endian | kind, u8 | payload
//
//   down, in this order
//     facts        JSON object: executor, id, caller_id, context_id, name, attempt, deliveries, epoch,
//                  deadline_unix_ms, runner_id, command and script_file (programs only), attached (a path
//                  below /job: a program whose bytes come as a sealed file, its descriptor along with the first
//                  byte), flow (of a flow's job: inputs, signals, each, those that there are), max_result_bytes,
//                  max_artifact_bytes, input_names (only if there are any: the ids of the jobs that `inputs` has under
//                  their names), warm (only if it is: true; its process serves main(job), again and again), and
//                  granted: what its policy came to, as
//                  {"exec": bool, "net": "none" | "loopback" | [entries], "memory": bytes, "fs.read": [..],
//                  "fs.write": [..], "secrets": [..]}
//     environment  JSON object, text -> text: the whole environment of the job
//     inputs       JSON object: what a job is called -> its result, each value as it was handed back. Each job once.
//     file         path below /job, NUL, mode in octal, NUL, bytes. Any number of them; a path that is named again
//                  goes on where its last bytes ended.
//     script       the bytes as the author wrote them, UTF-8. The job starts when it is there.
//     reply        JSON object: id of the call, and result, or error {code, message}. One for each call, in any order.
//   up, in any order, `done` last
//     note         JSON object: text, fraction (0 to 1, or absent). A line for the job's log. Any number of them.
//     call         JSON object: id (the host's own, above 0), method, params. The agent answers each with a reply.
//     artifact     path, NUL, mode in octal, NUL, bytes. A path that is named again at once goes on where its last
//                  bytes ended. An artifact is whole when another one begins, or with `done`.
//     dropped      path, NUL, reason, NUL, limit in decimal (0: none): a file that is not handed over. The reasons are
//                  the words of kDropReasons (domain/artifact_list.h). Any number of them.
//     result       JSON object. A value that is text: text; any other: an array of one text, which is the value's JSON.
//                  At most once.
//     error        JSON object: type, message, traceback, line (0: unknown), exit (only if the script itself asked
//                  to leave with that code), retry (only if the failure says so: false, no further attempt; a number,
//                  the next one after so many seconds). At most once.
//     done         empty: the script has ended and nothing was held back. Without it no run is a success.
//
// What comes up was written by a process that runs a stranger's script: lengths and kinds are not to be believed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

enum class FrameKind : std::uint8_t {
  facts = 1,
  environment = 2,
  inputs = 3,
  file = 4,
  script = 5,
  reply = 6,
  note = 16,
  result = 17,
  error = 18,
  done = 19,
  call = 20,
  artifact = 21,
  dropped = 22,
};

inline constexpr std::uint32_t kMaxFactsBytes = 4U << 20;
inline constexpr std::uint32_t kMaxEnvironmentBytes = 4U << 20;
inline constexpr std::uint32_t kMaxInputsBytes = 64U << 20;
inline constexpr std::uint32_t kMaxFileFrameBytes = 256U << 10;  // of one frame; a file may take many
inline constexpr std::uint32_t kMaxScriptBytes = 16U << 20;
inline constexpr std::uint32_t kMaxReplyBytes = 16U << 20;
inline constexpr std::uint32_t kMaxNoteBytes = 8U << 10;
inline constexpr std::uint32_t kMaxErrorBytes = 512U << 10;
inline constexpr std::uint32_t kMaxCallBytes = 2U << 20;
inline constexpr std::uint32_t kMaxArtifactFrameBytes = 256U << 10;
inline constexpr std::uint32_t kMaxDroppedBytes = 8U << 10;

// What a job finds in its folder. Made before its script starts, as far as there is something to put there; the first
// one always.
inline constexpr const char* kArtifactsFolder = "/job/artifacts";
inline constexpr const char* kArtifactsName = "artifacts";
inline constexpr const char* kSecretsFolder = "/job/secrets";  // a file for each secret, mode 0400
inline constexpr const char* kInputsFolder = "/job/inputs";    // <job name>/<artifact>: of the jobs that it depends on
// Programs only: the payload of `inputs`; the same by the ids of the jobs, if it has any under their names; `flow` of
// the facts, if it is there.
inline constexpr const char* kInputsFile = "/job/inputs.json";
inline constexpr const char* kInputsByIdName = "inputs_by_id.json";
inline constexpr const char* kInputsByIdFile = "/job/inputs_by_id.json";
inline constexpr const char* kFlowFile = "/job/flow.json";

// payload.size() must fit in 32 bits.
void append_frame(std::string& out, FrameKind, std::string_view payload);
// In as many frames as it takes. path: below /job, without NUL.
void append_file(std::string& out, std::string_view path, unsigned mode, std::string_view bytes);

struct FrameLimit {
  FrameKind kind;
  std::uint32_t max_bytes;
};

struct Frame {
  enum class Fate { whole, too_large, unknown_kind };
  Fate fate = Fate::whole;
  std::uint8_t kind = 0;
  std::uint32_t size = 0;  // as the header claims
  std::string payload;     // only if whole
};

// Takes frames out of a stream that comes in any pieces. Holds one payload at most, and never more than has come.
// A frame over its limit or of an unknown kind is reported once, when its header is there; its payload is skipped.
class FrameReader {
 public:
  explicit FrameReader(std::vector<FrameLimit> known) : known_(std::move(known)) {}
  void feed(std::string_view bytes, const std::function<void(Frame&&)>& sink);
  bool inside_frame() const { return !header_.empty(); }  // the stream may not end here
  std::uint64_t frames() const { return frames_; }        // that have begun so far

 private:
  void open_frame(const std::function<void(Frame&&)>& sink);

  std::vector<FrameLimit> known_;
  std::string header_;  // bytes of the header so far; empty between frames
  Frame frame_;
  std::uint32_t missing_ = 0;  // bytes of the payload still to come
  std::uint64_t frames_ = 0;
};

}  // namespace mycojobs
