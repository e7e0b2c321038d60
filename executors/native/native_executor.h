// Runs prebuilt programs of a context: <state_dir>/contexts/<context>/programs/<sha256>, added with `mycojobs program
// add`. The script of such a job is
//
//   <sha256, or its first 8 or more digits>
//   an argument
//   another argument
//
// Script types: native and rust. The executed bytes always have the hash of the script (ProgramCache).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "executors/executor.h"

namespace mycojobs {

// Cache of native programs. Each program is a sealed file in memory whose bytes were hashed after sealing, so a job
// runs exactly the hashed bytes, and a program is read and hashed once instead of once per run. Thread-safe.
class ProgramCache {
 public:
  static constexpr std::uint64_t kMaxBytes = 64ULL << 20;

  // max_stored_bytes: limit of all cached bytes. The least recently used program is evicted; a larger program is read
  // for each run.
  explicit ProgramCache(std::uint64_t max_stored_bytes = kMaxBytes) : max_stored_bytes_(max_stored_bytes) {}

  // Returns the program as a sealed file in memory. path: a file named by its hash. Errors: invalid if the file has
  // more than max_bytes or another hash; unsupported if the file is unreadable; unavailable during a temporary lack of
  // resources. A file whose times, size or inode have changed is read again.
  Result<std::shared_ptr<const Fd>> load(const std::string& path, const std::string& hash, std::uint64_t max_bytes);

 private:
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    std::int64_t modified_ns = 0, changed_ns = 0;
    bool operator==(const Identity&) const = default;
  };
  struct Entry {
    std::string path;
    Identity identity;
    std::shared_ptr<const Fd> file;
  };
  std::shared_ptr<const Fd> find(const std::string& path, const Identity&);
  void store(Entry);

  const std::uint64_t max_stored_bytes_;
  std::mutex mutex_;
  std::list<Entry> entries_;        // most recently used first
  std::uint64_t stored_bytes_ = 0;  // bytes of all entries
};

class NativeExecutor final : public Executor {
 public:
  explicit NativeExecutor(std::string state_dir) : state_dir_(std::move(state_dir)) {}

  std::string_view name() const override { return "native"; }
  std::vector<std::string> script_types() const override { return {"native", "rust"}; }
  std::vector<Stage> stages() const override;
  Result<std::string> probe() const override;
  // begin() may wait for the disk of the context's programs.
  bool can_block() const override { return true; }
  bool can_block_in_finish() const override { return false; }
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  std::string state_dir_;
  mutable ProgramCache programs_;
};

}  // namespace mycojobs
