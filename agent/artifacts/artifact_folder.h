// The folders and locks of artifacts (artifacts/job_artifacts.h describes the layout). Several agents may share them.
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class ArtifactFolder {
 public:
  ArtifactFolder(const std::string& state_dir, Id context)
      : state_dir_(state_dir), path_(state_dir + "/contexts/" + std::to_string(context)) {}
  const std::string& path() const { return path_; }
  std::string objects_folder() const { return path_ + "/objects"; }
  std::string spool_folder() const { return path_ + "/spool"; }
  std::string store_folder(const std::string& store) const { return path_ + "/jobs/" + store; }
  std::string job_folder(const std::string& store, const std::string& job_key) const;
  // The folders of files that were received from other hosts (artifacts/transfer/artifact_cache.h).
  std::string cache_folder() const { return path_ + "/cache"; }
  std::string cache_folder(const std::string& store) const { return cache_folder() + '/' + store; }
  std::string cache_folder(const std::string& store, const std::string& job_key) const;
  // The folders of spooled logs (artifacts/logs/spooled_log.h).
  std::string log_folder(const std::string& store) const { return path_ + "/logs/" + store; }
  std::string log_folder(const std::string& store, const std::string& job_key) const;
  // Creates all folders with mode 0700. Error io: a folder cannot be created.
  Result<void> create(const std::string& store) const;
  // Returns no value if the folder does not exist, or if another process holds a conflicting lock for longer than
  // timeout_ms. The lock is released when the descriptor is closed.
  std::optional<Fd> lock(bool is_exclusive, int timeout_ms) const;

 private:
  std::string state_dir_, path_;
};

// Locks a file, which is created if it does not exist. Returns the same values as ArtifactFolder::lock().
std::optional<Fd> lock_file(const std::string& path, bool is_exclusive, int timeout_ms);

// Returns the name of a job's folder: "12.2001" for the job key "job:12:2001".
std::string job_folder_name(const std::string& job_key);
// Returns the job key for the name of a job's folder, or an empty text if the name does not have this form.
std::string parse_job_folder_name(const std::string& name);

// The folder with the temporary files of a run. The destructor deletes the files. After a crash of the agent, the next
// agent deletes them (remove_orphaned_spools()).
class Spool {
 public:
  static Result<Spool> make(const std::string& folder);
  Spool(Spool&& other) noexcept : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}
  Spool& operator=(Spool&&) = delete;
  ~Spool();
  const std::string& path() const { return path_; }

 private:
  Spool(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  Fd lock_;
};
// Deletes the spools of runs that have ended: no process holds the locks of these spools.
void remove_orphaned_spools(const std::string& folder);

}  // namespace mycojobs
