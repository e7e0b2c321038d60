// Artifacts that belong to a message: files of local dependencies for the jobs of the message, and files that these
// jobs produce at the remote host. The files are transferred in pieces before the record that names them is stored, so
// that no job is visible before all its files are complete.
//
//   message or answer with files --> {"status": "files", "want": ...} --> pieces until the file is complete
//     --> the message or answer again --> stored
//
// The receiver names the file that is missing and the offset to continue from. It stores no state other than the files.
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
  std::shared_ptr<ArtifactStore> store;   // null: no files are transferred
  std::uint64_t max_bytes = 64ULL << 20;  // limit for one message and for one job of its answer
};
inline constexpr const char* kCarriedLimit = "message.max_artifact_bytes";

// Files of one job. The job is named as the sender names it.
struct JobFileList {
  std::string job_key;
  std::vector<FileContent> files;
};
std::vector<FileContent> file_contents(const std::string& artifacts);  // Each content once.
// files_of() returns the files of dependencies for the jobs of a message, with the keys of the dependencies at the
// sender. input_files() returns the files that one job was given. Error `invalid`: a field `given` is malformed.
Result<std::vector<JobFileList>> files_of(const Message&);
Result<std::vector<FileContent>> input_files(const Job&);
std::uint64_t bytes_of(const std::vector<FileContent>&);
std::uint64_t bytes_of(const std::vector<JobFileList>&);
// Returns the space that the files need during a transfer, as artifacts/artifact_store.h counts it.
std::uint64_t accounted_bytes(const std::vector<FileContent>&);

// Checks that all files of a message can be sent. Errors: too_large (names the limit); not_found (a file is not on this
// host); invalid.
Result<void> check_files(RecordStore&, const MessageAttachments&, Id context, const Message&);

// The sender of a message is the key of the actor that signed it; the sender of an answer is the key of the supervisor
// that delivers it.
InboundBundleId message_bundle_id(const MessageName&, std::string signer);
InboundBundleId answer_bundle_id(const MessageName&, std::string supervisor);

// first_missing() returns the first incomplete file and the number of bytes that are stored here. It reserves space for
// all files. Errors are those of ArtifactStore::expect().
struct RequestedFile {
  std::string job_key, sha256;
  std::uint64_t have = 0;
};
Result<std::optional<RequestedFile>> first_missing(ArtifactStore&, RecordStore&, Id context, const InboundBundleId&,
                                                   const std::vector<JobFileList>&);
// Formats of a RequestedFile in answers of a receiver (JSON) and in the mark of a message ("job:12:7 <sha256> 1024").
nlohmann::json to_json(const RequestedFile&);
std::optional<RequestedFile> parse_requested_file(const nlohmann::json& answer);
std::string text_of(const RequestedFile&);
std::optional<RequestedFile> requested_file(std::string_view text);

// A piece of a file as the body of an envelope. As base64 a piece takes three quarters of the maximum size of a
// request.
inline constexpr std::size_t kPieceBytes = 512U << 10;
nlohmann::json piece_json(const MessageName&, const FileContent&, std::uint64_t offset, std::string_view piece);
struct FilePiece {
  FileContent file;
  std::uint64_t offset = 0;
  std::string bytes;
};
Result<FilePiece> read_piece(const nlohmann::json& body);

}  // namespace mycojobs
