// Port: an executor turns a job into a sandbox run, and the sandbox's outcome into the job's end. It knows the
// sandbox's interface and the domain; never the store, namespaces or threads. One row in one table per executor
// (executors/table.h).
//
//   begin(facts) --> Conversation --> request() goes down the run's channel
//                                 --> feed(bytes) with what comes up, in any pieces
//                                 --> finish(outcome) once the run has ended --> JobEnd
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/job_end.h"
#include "mycojobs/outcome.h"
#include "mycojobs/policy.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct JobFacts {
  Job job;  // env_vars already merged with the flow's
  std::uint64_t deadline_unix_ms = 0;
  std::uint64_t max_result_bytes = 1ULL << 20;  // keys and values together
  bool proxy = false;                           // its network leads through kProxyUrl
};

// Owned and called by one thread.
class Conversation {
 public:
  virtual ~Conversation() = default;
  virtual const std::string& request() const = 0;
  // What the job sent. Hostile: bounded memory whatever comes.
  virtual void feed(std::string_view bytes) = 0;
  // Lines for the job's log, stream "system", since the last call (progress and the like).
  virtual std::vector<std::string> take_notes() = 0;
  virtual JobEnd finish(const Outcome&) const = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  virtual std::vector<std::string> script_types() const = 0;  // it serves queue:<each>
  virtual std::string_view host() const = 0;                  // RunSpec::host
  virtual Policy profile() const = 0;                         // what a job has that asks for nothing
  // One line about what runs the scripts ("CPython 3.11.2"), or why this host cannot and what to install.
  virtual Result<std::string> probe() const = 0;
  // Error invalid: the job can never run; the message names the field.
  virtual Result<std::unique_ptr<Conversation>> begin(const JobFacts&) const = 0;
};

}  // namespace mycojobs
