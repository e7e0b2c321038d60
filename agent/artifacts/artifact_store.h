// Artifact files on this host, for their transfer between coordinators. The sending side reads the files of a job in
// pieces. The receiving side assembles the pieces and passes complete files to a job.
//
//   expect() --> add(), add(), ... --hash matches--> complete --retain_files()--> files of a job
//
// A parcel contains the files of one message. The bytes of all parcels are limited per host and per sender. Space for
// all files of a parcel is reserved at once, so that a started transfer can complete. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/store.h"

namespace mycojobs {

struct FileContent {
  std::string sha256;
  std::uint64_t bytes = 0;
};

// Plain file names. Each sender, identified by its key, has a share of the space.
struct InboundBundleId {
  std::string name, sender;
};
inline constexpr const char* kIncomingLimit = "message.max_incoming_bytes";
// Minimum accounted size of a file and of a parcel, because many small files also cost disk space.
inline constexpr std::uint64_t kMinAccountedFileBytes = 4U << 10, kMinAccountedBundleBytes = 256U << 10;
inline std::uint64_t accounted_bytes(std::uint64_t file_bytes) {
  return file_bytes < kMinAccountedFileBytes ? kMinAccountedFileBytes : file_bytes;
}

class ArtifactStore {
 public:
  virtual ~ArtifactStore() = default;

  // Reads from a file that the job has stored here. Error not_found: the file is not on this host or has another size.
  virtual Result<std::string> read(RecordStore&, Id context, const std::string& job_key, const FileContent&,
                                   std::uint64_t offset, std::size_t max) = 0;
  // Returns true if all files are on this host.
  virtual Result<bool> has(RecordStore&, Id context, const std::string& job_key, const std::vector<FileContent>&) = 0;

  // Returns the number of received bytes; equal to the size if the file is complete; nullopt if no space is reserved.
  virtual std::optional<std::uint64_t> is_complete(Id context, const InboundBundleId&, const FileContent&) const = 0;
  // Reserves space for each file that has none. Errors: unavailable (there is no free space now), too_large (the files
  // exceed the share of one sender).
  virtual Result<void> expect(RecordStore&, Id context, const InboundBundleId&, const std::vector<FileContent>&) = 0;
  virtual std::uint64_t share() const = 0;
  // Adds a piece and returns the new value of is_complete(). A repeated piece, or a piece after a gap, changes nothing.
  // Errors: not_found (no space is reserved), invalid (the file is too long, or complete with another hash; its
  // transfer restarts).
  virtual Result<std::uint64_t> add(Id context, const InboundBundleId&, const FileContent&, std::uint64_t offset,
                                    std::string_view piece) = 0;

  // Protects files from sweep() while it exists. The caller keeps it until the records name the files' jobs.
  class RetainedFiles {
   public:
    virtual ~RetainedFiles() = default;
  };
  struct ForJob {
    std::string job_key;
    std::vector<FileContent> files;
  };
  // Error not_found: a file is incomplete or missing.
  virtual Result<std::unique_ptr<RetainedFiles>> retain_files(RecordStore&, Id context, const InboundBundleId&,
                                                              const std::vector<ForJob>& to) = 0;
  virtual void drop(Id context, const InboundBundleId&) = 0;

  // Deletes parcels of all contexts that were not used for an hour, and files without a job, a bounded number in each
  // call. Returns the time until more work exists, in ms; an earlier call is cheap. Errors: of the store. May block on
  // disk I/O, so call it on a background thread.
  virtual Result<std::uint64_t> sweep(RecordStore&, Id context) = 0;
};

}  // namespace mycojobs
