// Port: an executor translates a job into sandbox runs, and the outcomes of the runs into the job's end. It depends on
// the sandbox's interface and the domain only, never on the store, namespaces or threads. executors/executor_table.h
// has one row per executor.
//
//   begin(facts) --> Conversation --> take_output() is sent down the run's channel
//                                 --> feed(bytes) receives the replies, in pieces of any size; answer(reply) to calls
//                                 --> next_stage(outcome) after the end of the run: another run (compile, then run), or
//                                 --> finish(outcome) --> JobEnd
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
  std::uint64_t max_result_bytes = 1ULL << 20;  // keys and values together
  Policy granted;                               // policy of the last run
  // The granted policy as text for the receipt (grant_members()); null: omitted.
  std::shared_ptr<const std::string> grant;
  std::map<std::string, JobInput> inputs;  // each dependency once, by the job's name or else by its id
  std::vector<Secret> secrets;
  // Job name and artifact: the requested artifacts of its inputs.
  std::vector<std::pair<std::string, StoredArtifact>> files;
  std::uint64_t max_artifact_bytes = 64ULL << 20;  // maximum of all artifacts together
};

// The state of one job's run. Not thread-safe: calls must not overlap.
class Conversation {
 public:
  virtual ~Conversation() = default;
  // Index of the executor's stage for the next run. Called before the first run, and after next_stage() returned true.
  virtual std::size_t stage() const { return 0; }
  // Returns bytes for the channel; empty: none now. The caller sends all of them, in order.
  virtual std::string take_output() = 0;
  // Descriptor to send with the first byte of a run. The conversation keeps ownership. -1: none.
  virtual int attachment() const { return -1; }
  // Processes bytes from the job, which are untrusted. Memory use is bounded for any input.
  virtual void feed(std::string_view bytes) = 0;
  virtual std::uint64_t frames() const { return 0; }  // received so far; each costs the agent CPU time
  // The job's stdout and stderr as written, with secrets redacted.
  virtual void on_stdout(std::string_view) {}
  virtual void on_stderr(std::string_view) {}
  // Returns lines for the job's log, stream "system", since the last call, such as progress.
  virtual std::vector<std::string> take_notes() = 0;
  // Returns calls of the script to the agent as JSON {id, method, params}. Each is answered with {id, result | error}.
  virtual std::vector<std::string> take_calls() { return {}; }
  virtual void answer(std::string_view /*reply_json*/) {}
  // Called after the end of a run. True: the job continues with another run (stage(), take_output()). False: finish()
  // returns the job's end. Does not block unless the outcome is ok.
  virtual bool next_stage(const Outcome&) { return false; }
  virtual JobEnd finish(const Outcome&) const = 0;
};

// One kind of run of an executor. Most executors have one stage.
struct Stage {
  std::string profile;    // name for messages: python, v.compile
  std::string host;       // RunSpec::host
  Policy policy;          // policy of a job that requests nothing
  bool programs = false;  // its jobs are programs and need the exec permission
  // The profile comes from this project or from the operator, so it applies unchanged if no ceiling is configured. An
  // untrusted profile is lowered to the default ceiling, except for exec.
  bool trusted = true;
  // The output is cached for other jobs, so only the limits of a job's request apply.
  bool kept = false;
  // Folders of the host, named by the operator, that are readable regardless of policies.
  std::vector<std::string> tools = {};
};

// Implementation of one or more script types.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  virtual std::vector<std::string> script_types() const = 0;  // the executor serves queue:<each>
  virtual std::vector<Stage> stages() const = 0;              // in the order of their runs
  // Returns true if its scripts may call the context's object store. Calls of other executors' jobs are answered with
  // `denied`, since a job can write anything to its channel.
  virtual bool calls_objects() const { return false; }
  // Returns one line about the interpreter ("CPython 3.11.2"). Error: the reason why this host cannot run scripts, and
  // the packages to install.
  virtual Result<std::string> probe() const = 0;
  // True if begin(), or next_stage() and finish() of its conversations, may block on a plugin or a disk. They are then
  // called on any thread, for several jobs at the same time.
  virtual bool can_block() const { return false; }
  // False if finish() does not block although the others may. A job's end is reported after finish().
  virtual bool can_finish_block() const { return can_block(); }
  // True while begin() fails for jobs of this caller only, so that jobs of other callers can start. Thread-safe; never
  // blocks.
  virtual bool is_paused(Id /*context*/, Id /*caller*/) const { return false; }
  // sink: receives artifacts and must outlive the conversation; null: artifacts are ignored. Error invalid: the job can
  // never run; the message names the field.
  virtual Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const = 0;
};

}  // namespace mycojobs
