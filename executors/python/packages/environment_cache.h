// The Python environments of one context on this host. An environment is a folder with installed packages, which jobs
// see read-only. The cache has these files:
//
//   <state_dir>/contexts/<context>/packages/
//     <key>-<random>/     an environment; the key is a hash of its lock file and the Python ABI
//       site/             the installed packages
//       lock              the lock file
//       size              the size of the environment in bytes
//     .new-<random>/      an installation that is not committed
//       site/             the folder into which pip installs
//       tmp/              the temporary files of pip, deleted by commit_installation()
//     .old-<random>/      an environment or installation that is being deleted
//     .locks/<key>        the latest lock file for the requirements with this key, if the agents share no lock files
//     .failures/<key>     the error of the latest failed installation of the requirements with this key
//     .cleaned            an empty file; its modification time is the time of the latest clean-up by clean_up_if_due()
//
// Contexts never share a cache. Several agents and threads may use the folder of one context at the same time: an
// environment is renamed to its final path when it is complete and is not modified later. The users of an environment
// hold a shared flock of its folder, and a deletion needs an exclusive flock.
//
// Thread-safe. The functions block.
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

// An environment or an installation that is protected from deletion while this object exists.
struct EnvironmentFolder {
  std::string path;
  std::shared_ptr<const Fd> use_lock;  // the open folder, with a shared flock
  std::string site() const { return path + "/site"; }
};

struct FailedInstallation {
  std::string error;  // end of the output of pip, or another error message
  std::time_t seconds_ago = 0;
};

// Returns the cause of a failed installation as one line. output: the output of pip, or another error message. Returns
// the first line of the output if it contains no error of pip.
std::string extract_pip_error(const std::string& output);

class EnvironmentCache {
 public:
  struct Limits {
    std::uint64_t environment_bytes = 0;  // maximum size of one environment
    std::uint64_t cache_bytes = 0;        // maximum size of all environments
    std::uint64_t age_ms = 0;             // time without use after which an environment is deleted
  };
  // Delay after a failed installation before the same requirements may be installed again.
  static constexpr std::time_t kRetryDelaySeconds = 120;

  EnvironmentCache(const std::string& state_dir, Id context);

  // Returns the environment of a lock file, or no value if it is not installed. abi: version of Python, architecture
  // and C library, such as "cpython-3.11-x86_64-glibc2.36", since wheels depend on them.
  std::optional<EnvironmentFolder> find(const std::string& lock_file, const std::string& abi) const;
  // Creates a folder for an installation, writable for the user of a job. Error io.
  Result<EnvironmentFolder> begin_installation() const;
  // Turns a complete installation into the environment of the lock file, and calls clean_up(). Errors: invalid (the
  // folder contains something other than files and folders), too_large (the environment exceeds environment_bytes), io.
  // REQUIRES: all processes of the installation have ended.
  Result<EnvironmentFolder> commit_installation(EnvironmentFolder, const std::string& lock_file, const std::string& abi,
                                                const Limits&) const;
  // Deletes an installation that is not committed.
  static void remove_installation(const EnvironmentFolder&);

  // Returns the path of the file in which store_lock_file() stores the lock file.
  std::string get_lock_file_path(const std::string& key) const;
  // Returns the lock file for the requirements with this key, or an empty text if none is stored.
  std::string find_lock_file(const std::string& key) const;
  // Stores the lock file for the requirements with this key, and replaces an older one. A failure is only logged.
  void store_lock_file(const std::string& key, const std::string& lock_file) const;
  // Returns the latest failure for the requirements with this key if the retry delay has not ended.
  std::optional<FailedInstallation> find_failure(const std::string& key) const;
  // Stores a failure, which starts the retry delay. Deletes failures after the end of their delay.
  void store_failure(const std::string& key, const std::string& error) const;

  // Deletes unused installations and partly deleted environments, which remain after the early end of a job or an
  // agent.
  void remove_abandoned() const;
  // Calls remove_abandoned(), and deletes environments that were not used for age_ms. Then deletes the least recently
  // used environments until the size of the cache, including running installations, is at most cache_bytes.
  // Environments in use are not deleted.
  void clean_up(const Limits&) const;
  // Calls clean_up() unless a previous call of this function did so during the last hour.
  void clean_up_if_due(const Limits&) const;
  // Returns the sizes of all environments in bytes.
  std::vector<std::uint64_t> list_sizes() const;
  // Returns the failures with a running retry delay.
  std::vector<FailedInstallation> list_failures() const;

 private:
  std::string folder_;  // the folder "packages" of the context
};

}  // namespace mycojobs
