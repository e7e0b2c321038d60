// The files that a job brings along: its standard input, and files that the run finds at /job/files/NAME. The record
// has only a description of each, in the fields `stdin` and `files`:
//
//   stdin {"bytes": 5, "sha256": "..."}     files {"data.csv": {"bytes": 20, "sha256": "..."}}
//
// The contents are stored under a key of their own, which only the start of a run and a restart read. A request has the
// contents in place of the descriptions: a text, or {"base64": text}. A file can also be an upload, which a coordinator
// has: {"upload": reference} (model/upload.h). Pure and thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/field_problem.h"
#include "model/records.h"
#include "model/upload.h"

namespace mycojobs {

inline constexpr std::size_t kMaxArgs = 1000;
inline constexpr std::size_t kMaxArgsBytes = 64U << 10;       // of all arguments together
inline constexpr std::size_t kMaxJobFiles = 100;              // without the standard input
inline constexpr std::size_t kMaxJobFileBytes = 1U << 20;     // of one file, and of the standard input
inline constexpr std::size_t kMaxAllJobFileBytes = 4U << 20;  // of these together; uploads are not limited by either

struct SubmittedFiles {
  std::optional<std::string> stdin_bytes;
  std::map<std::string, std::string, std::less<>> files;             // contents by name
  std::map<std::string, UploadReference, std::less<>> uploads = {};  // uploaded files by name
  bool is_empty() const { return !stdin_bytes && files.empty() && uploads.empty(); }
  bool operator==(const SubmittedFiles&) const = default;
};

// Sets the contents of a job and their descriptions. Errors: invalid (a name), too_large (a limit above); the message
// names the field and the remedy.
Result<void> set_submitted_files(Job&, SubmittedFiles);
// Parses the members `stdin` and `files` of a request. Null values count as missing. Error invalid: names the field.
Result<SubmittedFiles> parse_submitted_files(const nlohmann::json& object);
// Decodes a job of a request, whose `stdin` and `files` have contents. Errors as decode_json(), parse_submitted_files()
// and set_submitted_files().
Result<Job> decode_job_request(nlohmann::json object);

std::size_t count_submitted_bytes(const Job&);  // size of the contents without uploads; 0 if they are not set
// Returns whether the record of the job describes a standard input or files.
bool has_submitted_files(const Job&);
// Returns the name of the first field with a description, for a message. REQUIRES: has_submitted_files().
const char* get_file_field(const Job&);
// Returns the first problem of the descriptions in the fields `stdin` and `files`.
std::optional<FieldProblem> check_file_descriptions(const Job&);
// Error invalid: the job has descriptions without contents, which a new job must have.
Result<void> check_file_contents(const Job&);

// The contents as the fields of a hash: `stdin`, `file:<name>` for each file, and `upload:<sha256>` for each upload.
Fields encode_submitted_files(const SubmittedFiles&);
// Sets the contents of a job from the stored fields. Error invalid: the fields do not have a file of the description,
// or have it with another content.
Result<void> restore_submitted_files(Job&, Fields stored);

}  // namespace mycojobs
