// Prebuilt programs of a context, by what they are: <state_dir>/contexts/<context>/programs/<sha256>, put there with
// `mycojobs program add`. The script of such a job is
//
//   <sha256, or the beginning of one, at least 8 digits>
//   an argument
//   another argument
//
// Script types native and rust. What is run is what has that hash (ProgramCache).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "mycojobs/executor.h"
#include "mycojobs/result.h"

namespace mycojobs {

// The programs of native jobs, each as a sealed file in memory whose bytes have the hash of its name: what a job is
// given is what was hashed, and it is read and hashed once, not for each run.
// Thread-safe.
class ProgramCache {
 public:
  static constexpr std::uint64_t kMostBytes = 64ULL << 20;

  // max_kept: of all that is kept; what was used longest ago goes first, and a program above it is read for each run.
  explicit ProgramCache(std::uint64_t max_kept = kMostBytes) : max_kept_(max_kept) {}

  // path: a file named by its hash. Error invalid: it has more than `most` bytes, or another hash; unsupported: it
  // cannot be read here; unavailable: it cannot be read now. A file that was touched since (its times, its size, its
  // inode) is read again.
  Result<std::shared_ptr<const Fd>> sealed(const std::string& path, const std::string& hash, std::uint64_t most);

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
  void keep(Entry);

  const std::uint64_t max_kept_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the one that was used last is the first
  std::uint64_t kept_ = 0;    // bytes of all entries
};

class NativeExecutor final : public Executor {
 public:
  explicit NativeExecutor(std::string state_dir) : state_dir_(std::move(state_dir)) {}

  std::string_view name() const override { return "native"; }
  std::vector<std::string> script_types() const override { return {"native", "rust"}; }
  std::vector<Stage> stages() const override;
  Result<std::string> probe() const override;
  // For the disk of the context, which the program lies on.
  bool may_wait() const override { return true; }
  bool finish_may_wait() const override { return false; }
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  std::string state_dir_;
  mutable ProgramCache programs_;
};

}  // namespace mycojobs
