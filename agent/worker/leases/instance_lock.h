// Lock files that prove that no process of a previous agent is left. Each instance of a runner locks a file of its own,
//   <state_dir>/runners/<runner id>-<instance>.lock
// through one open file description. The agent and all processes below it except the jobs keep the description open
// (SandboxConfig::alive_fd). Jobs do not receive the descriptor, since they could unlock the file. So a process that
// acquires the lock of an instance knows that all processes of the instance are gone, however they ended, and even if
// their process ids have no meaning here (another container, another boot). The file is kept after its instance has
// ended, so that the next instance learns the name of the previous one.
//
// Limitation: if the guardian of the jobs (sandbox/launcher/guardian.h) is killed too, the kernel closes the files of a
// killed init shortly before it ends the rest of its namespace. The lock can then be free while a job is about to be
// killed.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class InstanceLock {
 public:
  InstanceLock() = default;  // holds no lock; fd() is -1
  // Creates and locks the file of the instance. Error io: the folder or the file cannot be created or locked.
  static Result<InstanceLock> acquire(const std::string& state_dir, Id runner, const std::string& instance);
  int fd() const { return fd_.get(); }  // close-on-exec; the sandbox passes it on to its processes

 private:
  explicit InstanceLock(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// Returns the instances of the runner that have a file here, including the current instance. Returns an empty list if
// the folder cannot be read.
std::vector<std::string> list_instances(const std::string& state_dir, Id runner);

// Returns the lock of the instance if it is free, which proves that the instance is gone. Returns no value if the
// instance is alive or has no file here.
std::optional<Fd> try_lock_dead_instance(const std::string& state_dir, Id runner, const std::string& instance);
// Deletes the file of the instance. REQUIRES: the caller holds its lock.
void delete_instance_file(const std::string& state_dir, Id runner, const std::string& instance);

// The instances that a runner has had on this host: the lock files, or a simulation. Not thread-safe.
class InstanceRecords {
 public:
  virtual ~InstanceRecords() = default;
  virtual std::vector<std::string> list() const = 0;              // may include the current instance
  virtual bool has_ended(const std::string& instance) const = 0;  // true only if no process of the instance is left
  // Removes the instance from list() if it has ended.
  virtual void forget_if_ended(const std::string& instance) const = 0;
};

class InstanceFiles final : public InstanceRecords {
 public:
  InstanceFiles(std::string state_dir, Id runner) : state_dir_(std::move(state_dir)), runner_(runner) {}
  std::vector<std::string> list() const override;
  bool has_ended(const std::string& instance) const override;
  void forget_if_ended(const std::string& instance) const override;

 private:
  std::string state_dir_;  // if empty, no instance is known
  Id runner_;
};

}  // namespace mycojobs
