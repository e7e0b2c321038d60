// The environments of one context on this host: folders with installed packages, which jobs see read-only.
//
//   <state_dir>/contexts/<context>/packages/
//     <key of the lock file>-<random>/site   the packages
//     <key of the lock file>-<random>/lock   the lock file
//     .new-<random>                          an installation that has not ended
//     .locks/<key>                           the latest lock file of requirements on this host
//     .failures/<key>                        the error of the latest installation that failed
//     .cleaned                               its time is that of the latest deletion of old environments
//
// The cache is never shared between contexts. Several agents and threads may use a folder at the same time:
// environments are renamed into place and never modified, and a lock of the file system protects an environment from
// deletion while it is in use. Thread-safe. The functions block.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// An environment or an installation that is protected from deletion while the object exists.
struct EnvironmentFolder {
  std::string path;
  std::shared_ptr<const Fd> lock;
  std::string site() const { return path + "/site"; }
};

struct FailedInstallation {
  std::string error;
  std::time_t seconds_ago = 0;
};

// Returns the first error in the output of pip, or in another error of an installation.
std::string find_pip_error(const std::string& output);

// An environment for reports.
struct EnvironmentInfo {
  std::string name;  // of its folder
  std::uint64_t bytes = 0;
  std::size_t packages = 0;
  std::time_t last_use = 0;
};

class EnvironmentCache {
 public:
  struct Limits {
    std::uint64_t environment_bytes = 0, cache_bytes = 0, age_ms = 0;
  };
  static constexpr std::time_t kFailureSeconds = 120;  // a failed installation is not repeated for this time

  EnvironmentCache(const std::string& state_dir, Id context);

  // Returns the environment of a lock file. abi: see get_python_abi().
  std::optional<EnvironmentFolder> find(const std::string& lock, const std::string& abi) const;
  // Creates a folder for an installation, writable for the user of a job. Error io.
  Result<EnvironmentFolder> begin_installation() const;
  // Makes a complete installation the environment of the lock file, and deletes old environments. Errors: invalid (the
  // folder contains other things than files and folders), too_large, io. REQUIRES: no process of the installation is
  // left.
  Result<EnvironmentFolder> finish_installation(EnvironmentFolder, const std::string& lock, const std::string& abi,
                                                const Limits&) const;
  static void remove_installation(const EnvironmentFolder&);

  std::string find_lock(const std::string& key) const;
  void store_lock(const std::string& key, const std::string& lock) const;
  // Returns the failure of an installation that must not be repeated yet.
  std::optional<FailedInstallation> find_failure(const std::string& key) const;
  void store_failure(const std::string& key, const std::string& error) const;

  // Deletes environments that were not used for the maximum age, and then those with the longest time since their last
  // use until the cache has its size. Environments in use stay.
  void remove_old(const Limits&) const;
  // The same, at most once in an hour.
  void remove_old_if_due(const Limits&) const;
  std::vector<EnvironmentInfo> list() const;
  std::vector<FailedInstallation> list_failures() const;

 private:
  std::string folder_;
};

}  // namespace mycojobs
