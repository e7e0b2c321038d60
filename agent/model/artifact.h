// The artifact fields of job records: `artifacts` and `artifacts_dropped` of a job, and `given`, which holds the
// results of dependencies that ran on another supervisor. Pure and thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/dropped_artifact.h"
#include "model/records.h"

namespace mycojobs {

inline constexpr std::size_t kMaxArtifacts = 1000;  // per job
inline constexpr int kMaxArtifactFolders = 32;      // per path

// Returns whether the name is a valid artifact name: a relative path of at most 512 bytes of UTF-8 and at most 32
// folders, without control characters, without "..", and without parts that are empty or longer than 255 bytes.
bool is_artifact_name(std::string_view name);
// Returns the rule that the name violates, or an empty text if the name is valid. The text does not contain the name.
std::string find_artifact_name_problem(std::string_view name);

struct ListedArtifact {
  std::string name, sha256;
  std::uint64_t bytes = 0;
  bool executable = false;
  bool is_text = false;
  std::string object_store = {};  // member `store`: the setting artifacts.store of the agent; empty: on its host only
};
// Parses the field `artifacts`. Returns an empty list for unreadable or empty text, and skips invalid entries.
std::vector<ListedArtifact> read_artifact_list(const std::string& text);
// Sets the member `store` of all artifacts in the text of a field `artifacts`, or removes it if object_store is empty.
// Messages between tenants are sent without it, since tenants share no object storage. Returns other text unchanged.
std::string set_object_store(const std::string& text, const std::string& object_store);

// An artifact file on this host.
struct StoredArtifact {
  std::string name;  // a relative path without "..", as the job named it
  std::string sha256;
  std::uint64_t bytes = 0;
  std::string path;  // on this host
  bool executable = false;
  std::string object_store = {};  // as in ListedArtifact
};

// Texts for one DropReason. The rows are in the order of DropReason.
struct DropReasonRow {
  std::string_view word;     // value of the member `reason`
  std::string_view setting;  // value of the member `setting`: the setting to change to keep the file; may be empty
  bool loses_data;           // false for links and FIFOs, which have no content of their own
  std::string_view meaning;  // message for people, printed after the file name
};
inline constexpr std::array kDropReasons = std::to_array<DropReasonRow>({
    {"bytes", "job.max_artifact_bytes", true, "over the limit of {} bytes for all artifacts of a job"},
    {"files", "", true, "over the limit of {} files; the following files were dropped, too"},
    {"folders", "", true, "more than {} folders deep"},
    {"name", "", true, "its name is not valid for an artifact"},
    {"link", "", false, "a link, or a file with a second name"},
    {"special", "", false, "neither a file nor a folder"},
    {"unreadable", "", true, "it cannot be read to its end"},
    {"incomplete", "", true, "the run ended during its transfer"},
    {"disk", "state_dir", true, "the host cannot store it"},
    {"caller_quota", "quota.caller_artifact_bytes", true,
     "the caller has {} bytes of artifacts on the host, or almost"},
    {"context_quota", "quota.context_artifact_bytes", true,
     "the context has {} bytes of artifacts on the host, or almost"},
});
inline constexpr const DropReasonRow& get_drop_reason_row(DropReason reason) {
  return kDropReasons[static_cast<std::size_t>(reason)];
}

// A bounded list of dropped files: at most 100 that lose data, and at most 100 others.
class DroppedArtifacts {
 public:
  static constexpr std::size_t kMaxPerKind = 100;
  void add(DroppedArtifact);
  const std::vector<DroppedArtifact>& all() const { return all_; }

 private:
  std::vector<DroppedArtifact> all_;
  std::size_t data_loss_count_ = 0;
};

// Receives the artifacts of a job during the run. The component that started the run owns the sink.
class ArtifactSink {
 public:
  virtual ~ArtifactSink() = default;
  // Returns false if the artifact is rejected (name, count, size); the rest of its data is then ignored. An accepted
  // artifact may still be rejected later. The sink logs each rejection to the job's log.
  virtual bool open(const std::string& name, bool executable) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void close() = 0;  // the artifact is complete
  // Reports a file that the script host does not send.
  virtual void report_dropped(const DroppedArtifact&) {}
};

// Returns the field `artifacts_dropped`: [{"name": "big.bin", "reason": "bytes", "limit": 67108864, "setting":
// "job.max_artifact_bytes", "optional": true}]. `limit` and `setting` are present only if they apply. `optional` is
// present only if it is true: the file loses no data, or the job's policy sets artifacts.optional. Returns an empty
// text without dropped files.
std::string dropped_artifacts_to_json(const std::vector<DroppedArtifact>&, bool optional);
// Returns one line per file, for people. Returns no lines for unreadable text.
std::vector<std::string> format_dropped_artifacts(const std::string& text);
// Returns whether a file that is not optional was dropped.
bool has_lost_artifacts(const std::string& text);

// The results of a dependency that ran on another supervisor. The record holds them by the job's id on that supervisor:
//   {"7": {"name": "build", "result": {...}, "result_json": [...], "artifacts": {...}}}
struct RemoteInput {
  Id id = 0;
  std::string name;
  TextMap result = {};
  std::vector<std::string> result_json = {};
  std::string artifacts = {};  // same format as the field `artifacts` of a job
};
// Error invalid: the text does not have this form. An empty text has no inputs.
Result<std::vector<RemoteInput>> parse_remote_inputs(const std::string& text);
std::string remote_inputs_to_json(const std::vector<RemoteInput>&);  // "" for an empty list

}  // namespace mycojobs
