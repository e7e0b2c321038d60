// What records say of files that jobs leave: the field `artifacts` of a job, and its field `given`, what jobs elsewhere
// hand to it. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
