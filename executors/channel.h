// The channel between an agent and a script host (mycojobs-pyhost, -luahost, -exechost) transfers frames: down (agent
// to host) on a stream socket, up (host to agent) on a pipe. JobChannel in sandbox/zygote/zygote.h explains the choice.
//
//   frame = length of the payload, u32 little-endian | kind, u8 | payload
//
//   down, in this order
//     facts        JSON object: executor, id, caller_id, context_id, name, attempt, deliveries, epoch,
//                  deadline_unix_ms, runner_id, command and script_file (programs only; the arguments of the job are
//                  part of the command), args (other hosts, only if not empty: the arguments of the job), attached (a
//                  path below /job: a program that is sent as a sealed file; its descriptor arrives with the first
//                  byte), flow (jobs of a flow only: inputs, signals and each, as far as they exist), max_result_bytes,
//                  max_artifact_bytes, input_names (only if not empty: the ids of the jobs whose results `inputs`
//                  contains by name), packages (Python in a context with packages only: the folder of the job's
//                  packages, or empty), warm (only if true: the process calls main(job) repeatedly), and granted, the
//                  effective policy:
//                  {"exec": bool, "net": "none" | "loopback" | [entries], "memory": bytes, "fs.read": [..],
//                  "fs.write": [..], "secrets": [..]}
//     environment  JSON object, text -> text: the whole environment of the job
//     inputs       JSON object: name of a job -> its result, with each value as the job returned it. Each job once.
//     file         path below /job, NUL, mode in octal, NUL, bytes. Any number of frames; a frame with the path of the
//                  previous frame appends to that file.
//     script       the script as its author wrote it, UTF-8. The job starts when this frame is complete.
//     reply        JSON object: id of the call, and result, or error {code, message}. One for each call, in any order.
//   up, in any order, `done` last
//     note         JSON object: text, fraction (0 to 1, or absent). A line for the job's log. Any number of frames.
//     call         JSON object: id (assigned by the host, above 0), method, params. The agent answers with a reply.
//     artifact     path, NUL, mode in octal, NUL, bytes. A frame with the path of the previous artifact frame appends
//                  to that artifact. An artifact is complete when the next one begins, or with `done`.
//     dropped      path, NUL, reason, NUL, limit in decimal (0: no limit): a file that is not stored. The reasons are
//                  the words of kDropReasons (model/artifact.h). Any number of frames.
//     result       JSON object. A text value is a text; any other value is an array of one text, the JSON of the value.
//                  At most once.
//     error        JSON object: type, message, traceback, line (0: unknown), exit (only if the script requested this
//                  exit code), retry (optional: false forbids another attempt; a number is the delay of the next
//                  attempt in seconds). At most once.
//     done         empty: the script has ended and the host has sent everything. A run without this frame never
//                  succeeds.
//
// The frames from the host are written by a process that runs an untrusted script: their lengths and kinds are checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
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
inline constexpr std::uint32_t kMaxFileFrameBytes = 256U << 10;  // per frame; a file may need several frames
inline constexpr std::uint32_t kMaxScriptBytes = 16U << 20;
inline constexpr std::uint32_t kMaxReplyBytes = 16U << 20;
inline constexpr std::uint32_t kMaxNoteBytes = 8U << 10;
inline constexpr std::uint32_t kMaxErrorBytes = 512U << 10;
inline constexpr std::uint32_t kMaxCallBytes = 2U << 20;
inline constexpr std::uint32_t kMaxArtifactFrameBytes = 256U << 10;
inline constexpr std::uint32_t kMaxDroppedBytes = 8U << 10;

// Paths in the job's folder. They are created before the script starts, if they have contents; the artifacts folder is
// always created.
inline constexpr const char* kArtifactsFolder = "/job/artifacts";
inline constexpr const char* kArtifactsName = "artifacts";
inline constexpr const char* kSecretsFolder = "/job/secrets";  // one file per secret, mode 0400
inline constexpr const char* kInputsFolder = "/job/inputs";    // <job name>/<artifact>, for each dependency
inline constexpr const char* kFilesFolder = "/job/files";      // files that the job brings along, mode 0444
inline constexpr const char* kFilesName = "files";
// The standard input of the job. The host opens the file as descriptor 0 and removes its name before the script starts.
inline constexpr const char* kStdinName = ".stdin";
// Files for programs: the payload of `inputs`; the same payload keyed by job id, if some inputs have names; the `flow`
// member of the facts, if present.
inline constexpr const char* kInputsFile = "/job/inputs.json";
inline constexpr const char* kInputsByIdName = "inputs_by_id.json";
inline constexpr const char* kInputsByIdFile = "/job/inputs_by_id.json";
inline constexpr const char* kFlowFile = "/job/flow.json";

// REQUIRES: payload.size() fits in 32 bits.
void append_frame(std::string& out, FrameKind, std::string_view payload);
// Splits the file into as many frames as necessary. path: below /job, without NUL.
void append_file(std::string& out, std::string_view path, unsigned mode, std::string_view content);
// The same for a file of this size whose content `read_part` writes into consecutive buffers. Returns false as soon as
// `read_part` returns false; `out` is incomplete then.
bool append_file(std::string& out, std::string_view path, unsigned mode, std::uint64_t bytes,
                 const std::function<bool(std::span<char>)>& read_part);
// Returns the number of bytes that append_file() appends.
std::uint64_t encoded_file_bytes(std::string_view path, unsigned mode, std::uint64_t bytes);

struct FrameLimit {
  FrameKind kind;
  std::uint32_t max_bytes;
};

struct Frame {
  enum class FrameStatus { accepted, too_large, unknown_kind };
  FrameStatus status = FrameStatus::accepted;  // accepted: the kind has a limit and the payload is within it
  std::uint8_t kind = 0;
  std::uint32_t size = 0;  // size in the header
  std::string payload;     // only if status is `accepted`
};

// Extracts frames from a byte stream in pieces of any size. Buffers at most one payload. A frame that exceeds its limit
// or has an unknown kind is reported once, after its header; its payload is skipped. Not thread-safe.
class FrameReader {
 public:
  explicit FrameReader(std::vector<FrameLimit> limits) : limits_(std::move(limits)) {}
  // Passes each complete frame and each rejected frame to the sink.
  void feed(std::string_view bytes, const std::function<void(Frame&&)>& sink);
  bool is_frame_incomplete() const { return !header_.empty(); }  // whether the fed bytes end within a frame
  std::uint64_t frame_count() const { return frame_count_; }     // number of frames with a complete header

 private:
  void begin_frame(const std::function<void(Frame&&)>& sink);

  std::vector<FrameLimit> limits_;
  std::string header_;  // bytes of the header so far; empty between frames
  Frame frame_;
  std::uint32_t missing_bytes_ = 0;  // bytes of the payload that were not received yet
  std::uint64_t frame_count_ = 0;
};

}  // namespace mycojobs
