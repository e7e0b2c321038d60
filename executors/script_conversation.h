// A conversation with a script host about one job: sends the request and reads the answer. Used by all executors with a
// built-in script host.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executors/executor.h"
#include "executors/job_end_builder.h"
#include "model/flow_data.h"

namespace mycojobs {

// A file that is sent with a job.
struct ScriptFile {
  std::string path, bytes;  // path: below /job
  unsigned mode = 0555;     // executable by default
};

// Values that an executor adds to the request of a job.
struct ScriptExtras {
  std::string_view executor;              // facts.executor
  std::string_view profile;               // the name of the sandbox profile, for messages
  std::vector<std::string> command = {};  // facts.command: command line that mycojobs-exechost starts
  std::string script_file = {};           // facts.script_file: file name below /job, if the script must be a file
  TextMap environment = {};               // values of the job take precedence
  bool replaces_environment = false;      // whether `environment` is complete, so that no values of the job are added
  std::vector<ScriptFile> programs = {};
  std::string encoded_files = {};  // more files, as frames of the request (append_file())
  // facts.attached: path below /job of the file that is sent as a descriptor (Conversation::attachment())
  std::string attached_path = {};
};

// Errors invalid and too_large name the field; the job can never run.
Result<std::string> encode_script_request(const JobFacts&, const ScriptExtras&);
Result<std::unique_ptr<Conversation>> begin_script(const JobFacts&, const ScriptExtras&, ArtifactSink*);

// The inputs of a job as its script sees them. The results of a node with `each` form one list under that node's name;
// every other result has one entry, as in JobFacts::inputs. The pointers refer to the facts.
struct ScriptInputs {
  std::vector<std::pair<std::string, const JobInput*>> single;
  std::map<std::string, std::vector<const JobInput*>> joined;  // ordered by instance; null if an instance has no result
};
ScriptInputs arrange_inputs(const JobFacts&, const FlowData&);

EndContext make_end_context(const JobFacts&, std::string_view profile);

// Returns the environment of a job as a JSON object. From highest to lowest precedence:
//   - MYCOJOBS_JOB_ID, _CALLER_ID, _CONTEXT_ID, _JOB_NAME, _ATTEMPT, _DELIVERIES, _EPOCH, _DEADLINE_UNIX_MS,
//     _RUNNER_ID, _ARTIFACTS, _SECRETS, _INPUTS_DIR
//   - env_vars of the flow and the job, merged
//   - `executor_variables`
//   - HOME, LANG, LOGNAME, PATH and USER
// Variables of the agent are never included.
std::string environment_json(const JobFacts&, const FlowData&, const TextMap& executor_variables = {});

}  // namespace mycojobs
