// Files of jobs on this host, for whoever carries them from one coordinator to another: read in pieces where a job has
// left them, put together from pieces where they arrive, and handed to a job there once they are whole.
//
//   expect() --> add(), add(), ... --hash holds--> whole --hand_over()--> the files of a job
//
// A parcel is what belongs to one message, by a name that is a plain file name. Any thread.
#pragma once

#include <cstdint>
#include <memory>
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

class ArtifactStore {
 public:
  virtual ~ArtifactStore() = default;

  // Of a file that the job has left here. Error not_found: it is not on this host, or has another size.
  virtual Result<std::string> read(RecordStore&, Id context, const std::string& job_key, const FileContent&,
                                   std::uint64_t offset, std::size_t max) = 0;
  // Whether all of them are here.
  virtual Result<bool> has(RecordStore&, Id context, const std::string& job_key, const std::vector<FileContent>&) = 0;

  // Makes a place for it. How many of its bytes are there; all of them: it is whole.
  virtual Result<std::uint64_t> expect(RecordStore&, Id context, const std::string& parcel, const FileContent&) = 0;
  // The same, after it; a piece that comes again, or leaves a gap, changes nothing. Errors: not_found (nobody expects
  // it), invalid (whole, it has another hash, or it is longer: it is gone, and begins anew).
  virtual Result<std::uint64_t> add(Id context, const std::string& parcel, const FileContent&, std::uint64_t offset,
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
  virtual Result<std::unique_ptr<HandedOver>> hand_over(RecordStore&, Id context, const std::string& parcel,
                                                        const std::vector<ForJob>& to) = 0;
  virtual void drop(Id context, const std::string& parcel) = 0;

  // Takes away parcels that nobody has touched for an hour, and files that no job has any more: a small part in each
  // call. Error: of the store.
  virtual Result<void> tidy(RecordStore&, Id context) = 0;
};

}  // namespace mycojobs
