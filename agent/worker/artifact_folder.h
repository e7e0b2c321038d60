// The folders and locks of artifacts (worker/artifacts.h has their layout). Several agents may share them.
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

class ArtifactFolder {
 public:
  ArtifactFolder(const std::string& state_dir, Id context)
      : state_dir_(state_dir), path_(state_dir + "/contexts/" + std::to_string(context)) {}
  const std::string& path() const { return path_; }
  std::string objects() const { return path_ + "/objects"; }
  std::string spool() const { return path_ + "/spool"; }
  std::string store_folder(const std::string& store) const { return path_ + "/jobs/" + store; }
  std::string job(const std::string& store, const std::string& job_key) const;
  // All of them, 0700. Error io.
  Result<void> make(const std::string& store) const;
  // None: another has it that does not fit beside ours, for longer than wait_ms, or there is no folder.
  std::optional<Fd> lock(bool exclusive, int wait_ms) const;

 private:
  std::string state_dir_, path_;
};

// The same of any file, which is made.
std::optional<Fd> lock_file(const std::string& path, bool exclusive, int wait_ms);

// "12.2001" of job:12:2001, and back; empty: it is neither.
std::string job_folder_name(const std::string& job_key);
std::string job_key_of_folder(const std::string& name);

// Files of one run while it goes on. They go with this, or with the next agent that looks (remove_dead_spools()).
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
void remove_dead_spools(const std::string& folder);

}  // namespace mycojobs
