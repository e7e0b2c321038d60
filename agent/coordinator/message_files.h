// Artifacts that belong to a message: what dependencies here have left for its jobs, and what its jobs leave there.
// They cross in pieces before what names them is stored, so that nobody meets a job whose files are still on their way.
//
//   message or answer --files--> {"status": "files", "want": ...} --pieces, until it is whole--> the same again -->
//   stored
//
// Whoever receives says what is missing, and from where on; nothing is kept of it but the files.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/artifact_list.h"
#include "domain/envelope.h"
#include "mycojobs/artifact_store.h"

namespace mycojobs {

struct CarriedFiles {
  std::shared_ptr<ArtifactStore> store;   // null: none are carried
  std::uint64_t max_bytes = 64ULL << 20;  // of one message, and of one job of its answer
};
inline constexpr const char* kCarriedLimit = "message.max_artifact_bytes";

// Of one job, as whoever sends them names it.
struct FilesOf {
  std::string job_key;
  std::vector<FileContent> files;
};
std::vector<FileContent> contents_of(const std::string& artifacts);  // each once
// What dependencies left for the jobs of a message, by the keys of the dependencies where it comes from; what the
// message's job at that index was given. Error invalid: a field `given`.
Result<std::vector<FilesOf>> files_of(const Message&);
Result<std::vector<FileContent>> given_to(const Job&);
std::uint64_t bytes_of(const std::vector<FileContent>&);
std::uint64_t bytes_of(const std::vector<FilesOf>&);
std::uint64_t room_of(const std::vector<FileContent>&);  // on their way, as artifact_store.h counts it

// Errors: too_large, naming the limit; not_found: one is not on this host; invalid.
Result<void> check_files(RecordStore&, const CarriedFiles&, Id context, const Message&);

// Its sender is the actor that has signed it, of an answer the supervisor that brings it: their keys.
ParcelName parcel_of_message(const MessageName&, std::string signer);
ParcelName parcel_of_answer(const MessageName&, std::string supervisor);

// The first that is not whole here, and how much of it is. All of them have places then: errors of expect().
struct WantedFile {
  std::string job_key, sha256;
  std::uint64_t have = 0;
};
Result<std::optional<WantedFile>> first_missing(ArtifactStore&, RecordStore&, Id context, const ParcelName&,
                                                const std::vector<FilesOf>&);
// In answers of a receiver, and in the mark of a message ("job:12:7 <sha256> 1024").
nlohmann::json to_json(const WantedFile&);
std::optional<WantedFile> read_wanted(const nlohmann::json& answer);
std::string text_of(const WantedFile&);
std::optional<WantedFile> wanted_of(std::string_view text);

// A piece, as it travels: the body of an envelope.
inline constexpr std::size_t kPieceBytes = 512U << 10;  // three quarters of a request, as base64
nlohmann::json piece_json(const MessageName&, const FileContent&, std::uint64_t offset, std::string_view piece);
struct FilePiece {
  FileContent file;
  std::uint64_t offset = 0;
  std::string bytes;
};
Result<FilePiece> read_piece(const nlohmann::json& body);

}  // namespace mycojobs
