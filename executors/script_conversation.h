// One job with a script host: the request that goes down its channel, the answer that comes up. Every executor whose
// scripts run in a host of ours uses it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "domain/flow_data.h"
#include "executors/outcome_to_end.h"
#include "mycojobs/executor.h"

namespace mycojobs {

// A file that comes with a job.
struct ScriptFile {
  std::string path, bytes;  // path: below /job
  unsigned mode = 0555;     // it may be executed
};

// What an executor adds to a job's request.
struct ScriptExtras {
  std::string_view executor;              // facts.executor
  std::string_view profile;               // the name of the sandbox profile, for messages
  std::vector<std::string> command = {};  // facts.command: what mycojobs-exechost is to start
  std::string script_file = {};           // facts.script_file: its name below /job, if it is to be a file
  TextMap environment = {};               // below the job's own
  bool whole_environment = false;         // it is all there is: nothing of the job's
  std::vector<ScriptFile> programs = {};
  std::string encoded_files = {};  // more files, as frames of the request (append_file())
  std::string attached = {};  // facts.attached: below /job, what comes as a descriptor (Conversation::attachment())
};

// Error invalid or too_large: names the field; the job can never run.
Result<std::string> script_request(const JobFacts&, const ScriptExtras&);
Result<std::unique_ptr<Conversation>> begin_script(const JobFacts&, const ScriptExtras&, ArtifactSink*);

// The inputs of a job as its script sees them. Results of a node with `each` stand as one list, under that node's name;
// each of the others stands once, as in JobFacts::inputs. Points into the facts.
struct SeenInputs {
  std::vector<std::pair<std::string, const JobInput*>> single;
  std::map<std::string, std::vector<const JobInput*>> joined;  // in order; null: it has left nothing
};
SeenInputs seen_inputs(const JobFacts&, const FlowData&);

EndContext end_context(const JobFacts&, std::string_view profile);

// The environment of a job, a JSON object: env_vars (the flow's and the job's, merged), over them MYCOJOBS_JOB_ID,
// _CALLER_ID, _CONTEXT_ID, _JOB_NAME, _ATTEMPT, _DELIVERIES, _EPOCH, _DEADLINE_UNIX_MS, _RUNNER_ID, _ARTIFACTS,
// _SECRETS, _INPUTS_DIR; under them HOME, LANG, LOGNAME, PATH and USER. Nothing of the agent's.
// more: of the executor; under the job's own, over HOME and the like.
std::string environment_json(const JobFacts&, const FlowData&, const TextMap& more = {});

}  // namespace mycojobs
