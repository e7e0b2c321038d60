// Stores ends of jobs on the disk of the agent while EndUploads uploads the artifacts of the jobs to the object
// storage. After a crash, the next agent of the runner continues with the saved ends, if the leases of the jobs are
// still valid.
//
//   <state_dir>/contexts/<context>/ends/<store>.<runner>/<claim>     CBOR, mode 0600: it contains the claim's token
//
// <store> is the name of the Redis database (artifact_store_name()), since several databases can share the folder. The
// functions can block on a disk. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/claim_store.h"

namespace mycojobs {

struct SavedEnd {
  EndReport report;
  std::uint64_t started_unix_ms = 0;  // start of the first upload
};

class SavedEnds {
 public:
  SavedEnds(std::string state_dir, Id runner) : state_dir_(std::move(state_dir)), runner_(runner) {}
  // Stores an end, and waits until the disk has written it. Error io.
  Result<void> save(const std::string& store_name, const SavedEnd&) const;
  void remove(const std::string& store_name, const ClaimRef&) const;
  // Returns all ends of a context. Files that cannot be read are deleted, which is logged.
  std::vector<SavedEnd> load(Id context, const std::string& store_name) const;

 private:
  std::string format_folder(Id context, const std::string& store_name) const;

  const std::string state_dir_;
  const Id runner_;
};

}  // namespace mycojobs
