// The proof that no process of a former agent is left. Each instance of a runner locks a file of its own,
//   <state_dir>/runners/<runner id>-<instance>.lock
// through one open file description that the agent and everything below it but the jobs keep open
// (SandboxConfig::alive_fd). A job could unlock it. Whoever gets the lock of an instance knows that all of them are
// gone, whatever ended them and whether or not their process ids mean anything here (another container, another boot).
// The file outlives its instance, so that the next one finds its name.
//
// Not promised: if the guardian of the jobs (sandbox/guardian.h) is killed too, the kernel closes the files of a killed
// init a moment before it ends the rest of its namespace: a job may then be in its last instant.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

class InstanceLock {
 public:
  InstanceLock() = default;  // none: fd() is -1
  // Error io: the folder or the file cannot be made.
  static Result<InstanceLock> hold(const std::string& state_dir, Id runner, const std::string& instance);
  int fd() const { return fd_.get(); }  // close-on-exec; to be handed down

 private:
  explicit InstanceLock(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// Instances of the runner that have a file here, ours among them. None if the folder cannot be read.
std::vector<std::string> known_instances(const std::string& state_dir, Id runner);

// Their lock, if it is free and so they are gone; nothing if they live, or have no file here.
std::optional<Fd> lock_of_the_dead(const std::string& state_dir, Id runner, const std::string& instance);
// Only under that lock.
void forget_instance(const std::string& state_dir, Id runner, const std::string& instance);

// What tells of the instances that a runner has had here: those files, or a simulation. One thread at a time.
class InstanceRecords {
 public:
  virtual ~InstanceRecords() = default;
  virtual std::vector<std::string> known() const = 0;                  // ours may be among them
  virtual bool is_gone(const std::string& instance) const = 0;         // it is certain, of all of its processes
  virtual void forget_if_gone(const std::string& instance) const = 0;  // it is known no more
};

class InstanceFiles final : public InstanceRecords {
 public:
  InstanceFiles(std::string state_dir, Id runner) : state_dir_(std::move(state_dir)), runner_(runner) {}
  std::vector<std::string> known() const override;
  bool is_gone(const std::string& instance) const override;
  void forget_if_gone(const std::string& instance) const override;

 private:
  std::string state_dir_;  // empty: none is known
  Id runner_;
};

}  // namespace mycojobs
