// Port: an executor translates a job into sandbox runs, and the outcomes of the runs into the job's end. It depends
// only on the interface of the sandbox and on the model, not on the store, namespaces or threads. The executors are
// listed in executors/executor_table.h.
//
//   begin(facts) --> Conversation
//     consume_output()     bytes that the caller sends on the channel of the run
//     feed(bytes)          bytes that the run has sent, in pieces of any size
//     consume_calls()      calls of the script; answer(reply) answers them
//     next_stage(outcome)  after the end of the run: whether another run follows (compile, then run)
//     finish(outcome)      after the last run: the JobEnd
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/artifact.h"
#include "model/job_end.h"
#include "model/records.h"
#include "sandbox/outcome.h"
#include "sandbox/sandbox_policy.h"
#include "sandbox/volume.h"
#include "security/secret.h"

namespace mycojobs {

// Result of a job that this job depends on.
struct JobInput {
  Id id = 0;
  TextMap result = {};
  std::vector<std::string> result_json = {};
};

// Input of an executor for one job.
struct JobFacts {
  Job job;  // env_vars include those of the flow
  std::uint64_t deadline_unix_ms = 0;
  std::uint64_t max_result_bytes = 1ULL << 20;  // limit of keys and values together
  Policy granted_policy;                        // policy of the last run
  // The granted policy as text for the receipt (format_grant_members()); omitted if null.
  std::shared_ptr<const std::string> grant_json;
  std::map<std::string, JobInput> inputs;  // each dependency once, by its name, or by its id if the name is not unique
  std::vector<Secret> secrets;
  // The requested artifacts of the inputs, each with the name of its job.
  std::vector<std::pair<std::string, StoredArtifact>> files;
  std::vector<StoredArtifact> uploads;             // uploaded files of the job, for /job/files/NAME
  std::uint64_t max_artifact_bytes = 64ULL << 20;  // maximum of all artifacts together
};

// The state of one job's run. Not thread-safe: calls must not overlap.
class Conversation {
 public:
  virtual ~Conversation() = default;
  // Index of the executor's stage for the next run. Called before the first run, and after next_stage() returned true.
  virtual std::size_t stage() const { return 0; }
  // Removes and returns the bytes for the channel; empty if there are none now. The caller sends all of them, in order.
  virtual std::string consume_output() = 0;
  // Descriptor to send with the first byte of a run. The conversation owns it. -1 if there is none.
  virtual int attachment() const { return -1; }
  // Processes bytes from the job, which are untrusted. Memory use is bounded for any input.
  virtual void feed(std::string_view bytes) = 0;
  // Returns the number of received frames, each of which costs the agent CPU time.
  virtual std::uint64_t frame_count() const { return 0; }
  // The job's stdout and stderr as written, with secrets redacted. Merged output (RunSpec::merge_output) counts as
  // stderr, whose last part is in the error of the job.
  virtual void on_stdout(std::string_view) {}
  virtual void on_stderr(std::string_view) {}
  // Packages for the run of stage(). Their folder must exist until the run has ended.
  virtual PackagesFolder packages() const { return {}; }
  // Removes and returns lines for the job's log (stream "system"), such as progress.
  virtual std::vector<std::string> consume_notes() = 0;
  // Removes and returns calls of the script to the agent as JSON {id, method, params}. The caller passes one reply
  // {id, result | error} for each call to answer().
  virtual std::vector<std::string> consume_calls() { return {}; }
  virtual void answer(std::string_view /*reply_json*/) {}
  // Called after the end of a run. Returns whether the job continues with another run (stage(), consume_output()). If
  // not, finish() returns the end of the job. Blocks only if can_block_in_next_stage() returns true.
  virtual bool next_stage(const Outcome&) { return false; }
  virtual bool can_block_in_next_stage(const Outcome& outcome) const { return outcome.status == RunStatus::ok; }
  virtual JobEnd finish(const Outcome&) const = 0;
};

// One kind of run of an executor. Most executors have one stage.
struct Stage {
  std::string profile;      // name in messages, such as "python" or "v.compile"
  std::string host;         // RunSpec::host
  Policy policy;            // policy of a job that requests nothing
  bool needs_exec = false;  // whether the run starts a program and needs the exec permission
  // Whether the profile is part of this project or set by the operator. A trusted profile applies unchanged if no
  // ceiling is configured. An untrusted profile is limited by the default ceiling, except for exec.
  bool is_trusted = true;
  // The output is cached for other jobs, so only the limits of a job's request apply.
  bool is_cached = false;
  // The settings of the operator define the policy: neither the request of a job nor a ceiling changes it.
  bool is_operator_defined = false;
  // Folders of the host, named by the operator, that are readable regardless of policies.
  std::vector<std::string> tool_folders = {};
};

class LockFileRegistry;  // executors/python/packages/lock_file_registry.h

// Implementation of one or more script types.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  virtual std::vector<std::string> script_types() const = 0;  // the executor serves queue:<type> of each type
  virtual std::vector<Stage> stages() const = 0;              // in the order of their runs
  // The stages for jobs of a context, whose settings can add stages. The last stage is that of stages().
  virtual std::vector<Stage> get_context_stages(Id /*context*/) const { return stages(); }
  // Returns whether scripts of the executor may call the object store of their context. Otherwise calls are answered
  // with `denied`, since a job can write anything to its channel.
  virtual bool uses_object_store() const { return false; }
  // Returns one line about the interpreter ("CPython 3.11.2"). Error: the reason why this host cannot run scripts, and
  // the packages to install.
  virtual Result<std::string> probe() const = 0;
  // Returns whether begin(), or next_stage() and finish() of its conversations, may block on a plugin or a disk. These
  // functions are then called on any thread, for several jobs at the same time.
  virtual bool can_block() const { return false; }
  // The same for one job, if can_block() returns false.
  virtual bool can_block_for(const JobFacts&) const { return false; }
  // Returns whether finish() may block. The end of a job is reported after finish().
  virtual bool can_block_in_finish() const { return can_block(); }
  // Returns whether begin() fails now for jobs of this caller only, so that jobs of other callers can start.
  // Thread-safe; never blocks.
  virtual bool is_paused(Id /*context*/, Id /*caller*/) const { return false; }
  // Sets the registry of the lock files that the agents of a context share. Called before the first begin().
  virtual void set_lock_file_registry(std::shared_ptr<LockFileRegistry>) {}
  // sink: receives artifacts, and must outlive the conversation; if null, artifacts are ignored. Error invalid: the job
  // can never run; the message names the field.
  virtual Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const = 0;
};

}  // namespace mycojobs
