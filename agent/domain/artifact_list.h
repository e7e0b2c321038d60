// What records say of files that jobs leave: the field `artifacts` of a job, and its field `given`, what jobs elsewhere
// hand to it. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/dropped_artifact.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::size_t kMostArtifacts = 1000;  // of a job
inline constexpr int kMostArtifactFolders = 32;      // in a path

// A relative path of plain parts: no "..", no empty part or one over 255 bytes, no control character, at most 512 bytes
// of UTF-8, at most 32 folders deep.
bool is_artifact_name(std::string_view name);
// Which of these it is not; empty: a name. What is said does not hold the name.
std::string problem_with_artifact_name(std::string_view name);

struct ListedArtifact {
  std::string name, sha256;
  std::uint64_t bytes = 0;
  bool executable = false;
};
// Of the field `artifacts`. Unreadable or empty text has none, and what is no artifact in it is passed over.
std::vector<ListedArtifact> read_artifact_list(const std::string& json);

// What the record says of a reason; rows in the order of DropReason.
struct DropReasonRow {
  std::string_view word;     // member `reason`
  std::string_view setting;  // member `setting`: whose other value keeps the file; empty: none
  bool loses_data;           // false: a link or a FIFO has no bytes of its own
  std::string_view meaning;  // for people, behind the name of the file
};
inline constexpr std::array kDropReasons = std::to_array<DropReasonRow>({
    {"bytes", "job.max_artifact_bytes", true, "over the limit of {} bytes for all artifacts of a job"},
    {"files", "", true, "over the limit of {} files; others that follow were dropped, too"},
    {"folders", "", true, "more than {} folders deep"},
    {"name", "", true, "its name is not valid for an artifact"},
    {"link", "", false, "a link, or a file with a second name"},
    {"special", "", false, "neither a file nor a folder"},
    {"unreadable", "", true, "it cannot be read to its end"},
    {"incomplete", "", true, "the run ended while it was handed over"},
    {"disk", "state_dir", true, "the host cannot store it"},
    {"caller_quota", "quota.caller_artifact_bytes", true,
     "the caller has {} bytes of artifacts on the host, or almost"},
    {"context_quota", "quota.context_artifact_bytes", true,
     "the context has {} bytes of artifacts on the host, or almost"},
});
inline constexpr const DropReasonRow& row_of(DropReason reason) {
  return kDropReasons[static_cast<std::size_t>(reason)];
}

// Files that were dropped, in bounded number: at most 100 that lose data, and 100 others.
class DroppedArtifacts {
 public:
  static constexpr std::size_t kMax = 100;
  void add(DroppedArtifact);
  const std::vector<DroppedArtifact>& all() const { return all_; }

 private:
  std::vector<DroppedArtifact> all_;
  std::size_t losing_data_ = 0;
};

// The field `artifacts_dropped`: [{"name": "big.bin", "reason": "bytes", "limit": 67108864,
// "setting": "job.max_artifact_bytes", "optional": true}]. limit and setting only if there are; optional, only if true:
// the file loses no data, or the job's policy says artifacts.optional. Empty without dropped files.
std::string dropped_json(const std::vector<DroppedArtifact>&, bool optional);
// One line a file, for people. Unreadable text has none.
std::vector<std::string> dropped_lines(const std::string& json);
// Whether a file that is not optional was dropped.
bool has_lost_artifacts(const std::string& json);

// What a dependency that ran elsewhere has left. In the record by its id there:
//   {"7": {"name": "build", "result": {...}, "result_json": [...], "artifacts": {...}}}
struct GivenInput {
  Id id = 0;
  std::string name;
  TextMap result = {};
  std::vector<std::string> result_json = {};
  std::string artifacts = {};  // as of a job
};
// Error invalid: what is not of that form.
Result<std::vector<GivenInput>> read_given(const std::string& json);
std::string given_json(const std::vector<GivenInput>&);  // "" if there are none

}  // namespace mycojobs
