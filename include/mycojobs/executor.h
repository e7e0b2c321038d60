// Port: an executor turns a job into sandbox runs, and the sandbox's outcomes into the job's end. It knows the
// sandbox's interface and the domain; never the store, namespaces or threads. One row in one table per executor
// (executors/table.h).
//
//   begin(facts) --> Conversation --> take_output() goes down the run's channel
//                                 --> feed(bytes) with what comes up, in any pieces; answer(reply) to what it asks
//                                 --> go_on(outcome) once the run has ended: another run (compile, then run), or
//                                 --> finish(outcome) --> JobEnd
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/dropped_artifact.h"
#include "mycojobs/job_end.h"
#include "mycojobs/outcome.h"
#include "mycojobs/policy.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct SecretValue {
  std::string name, value;
};

// An artifact as it lies on this host.
struct StoredArtifact {
  std::string name;  // a relative path without "..": as the job named it
  std::string sha256;
  std::uint64_t bytes = 0;
  std::string path;  // on this host
  bool executable = false;
};

// What a job that this one depends on has handed back.
struct JobInput {
  Id id = 0;
  TextMap result = {};
  std::vector<std::string> result_json = {};
};

struct JobFacts {
  Job job;  // env_vars already merged with the flow's
  std::uint64_t deadline_unix_ms = 0;
  std::uint64_t max_result_bytes = 1ULL << 20;  // keys and values together
  Policy granted;                               // of its last run
  std::shared_ptr<const std::string> grant;  // the same for the receipt (grant_members()); null: it says nothing of it
  std::map<std::string, JobInput> inputs;    // each once: by the job's name, or by its id
  std::vector<SecretValue> secrets;
  std::vector<std::pair<std::string, StoredArtifact>> files;  // job name, artifact: what it asked for of its inputs
  std::uint64_t max_artifact_bytes = 64ULL << 20;             // of all its artifacts
};

// What a job leaves, while it comes: the sink belongs to whoever started the run.
class ArtifactSink {
 public:
  virtual ~ArtifactSink() = default;
  // False: refused (name, count, size); the rest of it is passed over. True: taken, and may still be refused later.
  // Whoever refuses says why in the job's log.
  virtual bool open(const std::string& name, bool executable) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void close() = 0;  // it is whole
  // The script host does not hand over this file.
  virtual void report_dropped(const DroppedArtifact&) {}
};

// Called by one thread at a time.
class Conversation {
 public:
  virtual ~Conversation() = default;
  // Which of the executor's stages the run is to be: asked before the first run, and after go_on() answered true.
  virtual std::size_t stage() const { return 0; }
  // What waits to go down the channel; empty: nothing now. Whoever takes it sends all of it, in order.
  virtual std::string take_output() = 0;
  // A descriptor that goes along with the first byte of a run, and stays the conversation's; -1: none.
  virtual int attachment() const { return -1; }
  // What the job sent. Hostile: bounded memory whatever comes.
  virtual void feed(std::string_view bytes) = 0;
  virtual std::uint64_t frames() const { return 0; }  // that feed() has seen so far: each costs the agent some CPU
  // Its stdout and stderr as they were written, without secrets.
  virtual void saw_stdout(std::string_view) {}
  virtual void saw_stderr(std::string_view) {}
  // Lines for the job's log, stream "system", since the last call (progress and the like).
  virtual std::vector<std::string> take_notes() = 0;
  // What the script asks of the agent, as JSON {id, method, params}; each is to be answered with {id, result | error}.
  virtual std::vector<std::string> take_calls() { return {}; }
  virtual void answer(std::string_view /*reply_json*/) {}
  // The run has ended. True: the job goes on with another run (stage(), take_output()); false: finish() tells its end.
  // Waits for nobody after another outcome than ok.
  virtual bool go_on(const Outcome&) { return false; }
  virtual JobEnd finish(const Outcome&) const = 0;
};

// One kind of run that an executor makes. Most have one.
struct Stage {
  std::string profile;    // its name, for messages: python, v.compile
  std::string host;       // RunSpec::host
  Policy policy;          // what a job has that asks for nothing
  bool programs = false;  // its jobs are programs of their own: without exec none can run
  // From us or the operator: it stands where no ceiling was written. Otherwise it is lowered to the ceiling, but for
  // exec.
  bool trusted = true;
  // What it makes is kept for other jobs: of what a job asks for, only limits reach it.
  bool kept = false;
  // Folders of the host that it reads whatever policies say: the operator has named what lies there.
  std::vector<std::string> tools = {};
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  virtual std::vector<std::string> script_types() const = 0;  // it serves queue:<each>
  virtual std::vector<Stage> stages() const = 0;              // in the order of their runs
  // Whether its scripts may call the context's object store. What a job of another executor asks for is answered as
  // denied by whoever carries it: a job can write to its channel what it likes.
  virtual bool calls_objects() const { return false; }
  // One line about what runs the scripts ("CPython 3.11.2"), or why this host cannot and what to install.
  virtual Result<std::string> probe() const = 0;
  // Whether begin(), and go_on() and finish() of its conversations, may wait for somebody outside (a plugin, a disk).
  // They are called from any thread then, for several jobs at a time.
  virtual bool may_wait() const { return false; }
  // False: finish() may not, though others may. A job's end is reported after it.
  virtual bool finish_may_wait() const { return may_wait(); }
  // True while begin() fails for jobs of this caller alone, so that jobs of others may begin. Any thread; never blocks.
  virtual bool holds_back(Id /*context*/, Id /*caller*/) const { return false; }
  // sink: for its artifacts; lives as long as the conversation; null: they are passed over.
  // Error invalid: the job can never run; the message names the field.
  virtual Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const = 0;
};

}  // namespace mycojobs
