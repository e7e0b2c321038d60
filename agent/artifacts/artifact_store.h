// Transfers artifact files between coordinators. The sending side reads the files of a job on this host in pieces. The
// receiving side assembles the pieces and links complete files into the folder of a job.
//
//   reserve_files() --> add_piece(), add_piece(), ... --hash matches--> complete --retain_files()--> files of a job
//
// A bundle contains the files of one message. The bytes of all bundles are limited per host and per sender. Space for
// all files of a bundle is reserved at once, so that a started transfer can complete. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/record_store.h"

namespace mycojobs {

struct FileContent {
  std::string sha256;
  std::uint64_t bytes = 0;
};

struct JobFiles {
  std::string job_key;
  std::vector<FileContent> files;
};

// Identifies a bundle. Both fields must be valid as parts of a file name. The sender is a public key.
struct InboundBundleId {
  std::string name, sender;
};
inline constexpr const char* kIncomingBytesSetting = "message.max_incoming_bytes";
// Minimum accounted size of a file and of a bundle, because many small files also cost disk space.
inline constexpr std::uint64_t kMinAccountedFileBytes = 4U << 10, kMinAccountedBundleBytes = 256U << 10;
inline std::uint64_t accounted_bytes(std::uint64_t file_bytes) {
  return file_bytes < kMinAccountedFileBytes ? kMinAccountedFileBytes : file_bytes;
}

class ArtifactStore {
 public:
  virtual ~ArtifactStore() = default;

  // Reads a piece of a file that the job has stored on this host, or that was fetched from the runner of the job.
  // Errors: io (the file is being fetched: the caller repeats the call later), not_found (no host has the file with
  // this size).
  virtual Result<std::string> read_file(RecordStore&, Id context, const std::string& job_key, const FileContent&,
                                        std::uint64_t offset, std::size_t max_bytes) = 0;
  // Returns whether read_file() can read all files, now or later. Starts to fetch files that are not on this host.
  virtual Result<bool> has_files(RecordStore&, Id context, const std::string& job_key,
                                 const std::vector<FileContent>&) = 0;

  // Returns the number of received bytes, which is the size if the file is complete, or no value if no space is
  // reserved.
  virtual std::optional<std::uint64_t> received_bytes(Id context, const InboundBundleId&, const FileContent&) const = 0;
  // Reserves space for each file that has none. Errors: unavailable (there is no free space now), too_large (the files
  // exceed sender_limit()).
  virtual Result<void> reserve_files(RecordStore&, Id context, const InboundBundleId&,
                                     const std::vector<FileContent>&) = 0;
  // Returns the maximum number of bytes in all bundles of one sender.
  virtual std::uint64_t sender_limit() const = 0;
  // Adds a piece and returns the new value of received_bytes(). A repeated piece, or a piece after a gap, changes
  // nothing. Errors: not_found (no space is reserved), invalid (the file is too long, or complete with another hash;
  // its transfer restarts).
  virtual Result<std::uint64_t> add_piece(Id context, const InboundBundleId&, const FileContent&, std::uint64_t offset,
                                          std::string_view piece) = 0;

  // Protects files from clean_up() while the object exists. The caller destroys it after the records of the jobs that
  // own the files are stored.
  class RetainedFiles {
   public:
    virtual ~RetainedFiles() = default;
    // Returns the name of the folder of this coordinator, which sends the files to agents (model/file_holder.h).
    virtual std::string holder() const { return {}; }
  };
  // Links the files into the folders of the jobs. Error not_found: a file is incomplete or missing.
  virtual Result<std::unique_ptr<RetainedFiles>> retain_files(RecordStore&, Id context, const InboundBundleId&,
                                                              const std::vector<JobFiles>& job_files) = 0;
  // Deletes the files of the bundle. Files of jobs are not affected.
  virtual void remove_bundle(Id context, const InboundBundleId&) = 0;

  // Deletes bundles of all contexts that were not modified for an hour, and files of `context` that belong to no job.
  // The number of deletions in one call is limited. Returns the time in ms until the next call is due. An earlier call
  // does nothing. Returns the errors of the store. Can block on disk I/O, so call it on a background thread.
  virtual Result<std::uint64_t> clean_up(RecordStore&, Id context) = 0;
};

}  // namespace mycojobs
