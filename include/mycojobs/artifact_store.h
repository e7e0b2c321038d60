// Files of jobs on this host, for whoever carries them from one coordinator to another: read in pieces where a job has
// left them, put together from pieces where they arrive, and handed to a job there once they are whole.
//
//   expect() --> add(), add(), ... --hash holds--> whole --hand_over()--> the files of a job
//
// A parcel is what belongs to one message. What may lie in parcels is bounded, on the host and of each sender: room is
// made for all files of a parcel at once, so that what was begun can end. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct FileContent {
  std::string sha256;
  std::uint64_t bytes = 0;
};

// Plain file names. Each sender, by its key, has a share of the room.
struct ParcelName {
  std::string name, sender;
};
inline constexpr const char* kIncomingLimit = "message.max_incoming_bytes";
// What a file takes of the room, and a parcel at least: many small ones are no less to a disk.
inline constexpr std::uint64_t kLeastFileRoom = 4U << 10, kLeastParcelRoom = 256U << 10;
inline std::uint64_t room_of(std::uint64_t file_bytes) {
  return file_bytes < kLeastFileRoom ? kLeastFileRoom : file_bytes;
}

class ArtifactStore {
 public:
  virtual ~ArtifactStore() = default;

  // Of a file that the job has left here. Error not_found: it is not on this host, or has another size.
  virtual Result<std::string> read(RecordStore&, Id context, const std::string& job_key, const FileContent&,
                                   std::uint64_t offset, std::size_t max) = 0;
  // Whether all of them are here.
  virtual Result<bool> has(RecordStore&, Id context, const std::string& job_key, const std::vector<FileContent>&) = 0;

  // How many of its bytes are there; all of them: it is whole. Nothing: it has no place.
  virtual std::optional<std::uint64_t> have(Id context, const ParcelName&, const FileContent&) const = 0;
  // Makes a place for each of them that has none. Errors: unavailable (there is no room now), too_large (it is more
  // than one sender's share).
  virtual Result<void> expect(RecordStore&, Id context, const ParcelName&, const std::vector<FileContent>&) = 0;
  virtual std::uint64_t share() const = 0;
  // As have(), after it; a piece that comes again, or leaves a gap, changes nothing. Errors: not_found (it has no
  // place), invalid (whole, it has another hash, or it is longer: it begins anew).
  virtual Result<std::uint64_t> add(Id context, const ParcelName&, const FileContent&, std::uint64_t offset,
                                    std::string_view piece) = 0;

  // Nothing of what was handed over is taken away while it lives: until the records say whose it is.
  class HandedOver {
   public:
    virtual ~HandedOver() = default;
  };
  struct ForJob {
    std::string job_key;
    std::vector<FileContent> files;
  };
  // Error not_found: one is not whole, or not there.
  virtual Result<std::unique_ptr<HandedOver>> hand_over(RecordStore&, Id context, const ParcelName&,
                                                        const std::vector<ForJob>& to) = 0;
  virtual void drop(Id context, const ParcelName&) = 0;

  // Takes away parcels that nobody has touched for an hour, of all contexts, and files that no job has any more: a
  // small part in each call. Answers how long until there is more to do, in ms: cheap to call sooner. Error: of the
  // store. It may have to wait for a disk: for a thread that nobody waits for.
  virtual Result<std::uint64_t> tidy(RecordStore&, Id context) = 0;
};

}  // namespace mycojobs
