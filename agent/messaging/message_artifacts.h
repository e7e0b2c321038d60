// Artifacts that belong to a message: files of local dependencies for the jobs of the message, and files that these
// jobs produce at the remote host. The files are transferred in pieces before the record that names them is stored, so
// that no job is visible before all its files are complete.
//
//   message or answer with files --> {"status": "files", "want": ...} --> pieces until the file is complete
//     --> the message or answer again --> stored
//
// The receiver requests one missing file and the offset of the next piece. It stores no state other than the files.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "artifacts/artifact_store.h"
#include "messaging/envelope.h"
#include "model/artifact.h"

namespace mycojobs {

struct MessageAttachments {
  std::shared_ptr<ArtifactStore> store;   // if null, no files are transferred
  std::uint64_t max_bytes = 64ULL << 20;  // limit for one message and for one job of its answer
};
inline constexpr const char* kMessageFilesSetting = "message.max_artifact_bytes";

// Returns the files that a field `artifacts` of a record lists, each content once. The field is JSON text.
std::vector<FileContent> parse_file_contents(const std::string& artifacts);
// Returns the files of dependencies for the jobs of a message, by the keys of the dependencies at the sender. Error
// `invalid`: a field `given` is malformed.
Result<std::vector<JobFiles>> find_dependency_files(const Message&);
// Returns the files of dependencies for one job, each content once. Error `invalid`: the field `given` is malformed.
Result<std::vector<FileContent>> parse_input_files(const Job&);
std::uint64_t sum_bytes(const std::vector<FileContent>&);
std::uint64_t sum_bytes(const std::vector<JobFiles>&);
// Returns the space that the files need during a transfer, as artifacts/artifact_store.h counts it.
std::uint64_t accounted_bytes(const std::vector<FileContent>&);

// Checks that all files of a message can be sent. Errors: too_large (names the limit); not_found (a file is not on this
// host); invalid.
Result<void> check_message_files(RecordStore&, const MessageAttachments&, Id context, const Message&);

// The sender of a message is the key of the actor that signed it; the sender of an answer is the key of the supervisor
// that delivers it.
InboundBundleId message_bundle_id(const MessageRef&, std::string signer);
InboundBundleId answer_bundle_id(const MessageRef&, std::string supervisor);

// A file that the receiver requests from the sender.
struct RequestedFile {
  std::string job_key, sha256;
  std::uint64_t received_bytes = 0;  // offset of the next piece
};
// Returns the first incomplete file, or no value if all files are complete. Reserves space for all files. Errors are
// those of ArtifactStore::reserve_files().
Result<std::optional<RequestedFile>> find_missing_file(ArtifactStore&, RecordStore&, Id context, const InboundBundleId&,
                                                       const std::vector<JobFiles>&);
// Converts a RequestedFile from and to JSON, for answers of a receiver, and text ("job:12:7 <sha256> 1024"), for the
// mark of a message.
nlohmann::json to_json(const RequestedFile&);
std::optional<RequestedFile> parse_requested_file(const nlohmann::json& answer);
std::string format_requested_file(const RequestedFile&);
std::optional<RequestedFile> parse_requested_file_text(std::string_view text);

// A piece of a file as the body of an envelope. As base64 a piece takes three quarters of the maximum size of a
// request.
inline constexpr std::size_t kMaxPieceBytes = 512U << 10;
nlohmann::json make_piece_body(const MessageRef&, const FileContent&, std::uint64_t offset, std::string_view piece);
struct FilePiece {
  FileContent file;
  std::uint64_t offset = 0;
  std::string bytes;
};
Result<FilePiece> parse_piece(const nlohmann::json& body);

}  // namespace mycojobs
