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
  // If state_dir is empty, only records are deleted. The clock must outlive the object.
  UploadCleanup(const Clock& clock, std::string state_dir) : clock_(clock), state_dir_(std::move(state_dir)) {}
  static constexpr std::size_t kMaxExamined = 100;  // files on the disk, at each call

  // Returns the time in ms until the next call is due. An earlier call does nothing. Returns the first error of the
  // store, after the other steps. Can block on a disk.
  Result<std::uint64_t> run_step(Store&, Id context);

 private:
  Result<void> delete_files_without_record(Store&, Id context);

  const Clock& clock_;
  const std::string state_dir_;
  std::uint64_t next_ms_ = 0;
  std::string last_examined_;  // path of an upload; the next call continues behind it
};

}  // namespace mycojobs
