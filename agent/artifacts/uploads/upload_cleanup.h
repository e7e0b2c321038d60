// Deletes uploaded files that have expired and that no job uses, and incomplete files of uploads that were given up. A
// file exists as long as the record of the upload in the store. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "store/store.h"

namespace mycojobs {

class UploadCleanup {
 public:
  static constexpr std::uint64_t kIntervalMs = 30000;

  // The clock must outlive the object.
  UploadCleanup(const Clock& clock, std::string state_dir) : clock_(clock), state_dir_(std::move(state_dir)) {}
  // Returns the time in ms until the next call is due. An earlier call does nothing. Returns the errors of the store.
  // Can block on a disk.
  Result<std::uint64_t> run_step(Store&, Id context);

 private:
  Result<void> delete_files_without_record(Store&, Id context) const;

  const Clock& clock_;
  const std::string state_dir_;
  std::uint64_t next_ms_ = 0;
};

}  // namespace mycojobs
