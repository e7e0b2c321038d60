// Finds the folders of uploaded files for the pieces that agents request from a coordinator. An upload is sent only if
// the store names it for the requested job. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "artifacts/artifact_folder.h"
#include "artifacts/artifact_store.h"
#include "base/clock.h"
#include "base/result.h"
#include "store/record_store.h"

namespace mycojobs {

class UploadFinder {
 public:
  // holder: name of the folder (artifacts/transfer/holder_name.h). REQUIRES: store and clock outlive the object.
  UploadFinder(RecordStore& store, const Clock& clock, ArtifactFolder folder, std::string holder)
      : store_(store), clock_(clock), folder_(std::move(folder)), holder_(std::move(holder)) {}

  // Returns the folder of the upload that is this file of the job, or an empty text if the job has no such upload at
  // this coordinator. Does not read the disk. Errors: those of the store.
  Result<std::string> find(Id context, const std::string& job_key, const FileContent&);

 private:
  static constexpr std::size_t kMaxCached = 1000;
  static constexpr std::uint64_t kCacheMs = 10000;
  struct Entry {
    std::string folder;
    std::uint64_t until_ms = 0;
  };
  Result<std::string> look_up(Id context, const std::string& job_key, const FileContent&);

  RecordStore& store_;
  const Clock& clock_;
  const ArtifactFolder folder_;
  const std::string holder_;
  std::map<std::string, Entry> cache_;  // found uploads by job key and hash
};

}  // namespace mycojobs
