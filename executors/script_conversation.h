// The conversation with a script host about one job: the request is sent as frames (channel.h), and the answer is read.
// Used by all executors whose jobs run in a script host of the project. The functions are thread-safe; a conversation
// is not.
#pragma once

#include <map>
#include <memory>
#include <optional>
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
  std::string path;  // path below /job
  std::string bytes;
  unsigned mode = 0555;
};

// Values that an executor adds to the request of a job.
struct ScriptExtras {
  std::string_view executor;
  std::string_view profile;                  // name of the sandbox profile, for messages
  std::vector<std::string> command = {};     // command line that mycojobs-exechost starts; empty for other hosts
  std::string script_file = {};              // name of the file below /job, if the script must be a file
  TextMap environment = {};                  // additional variables; variables of the job take precedence
  bool replaces_environment = false;         // if true, `environment` is the whole environment of the job
  std::vector<ScriptFile> files = {};        // files that are sent with the job
  std::string encoded_files = {};            // more files, which append_file() has encoded as frames
  std::optional<std::string> packages = {};  // folder of the job's packages; empty if it has none (channel.h)
  std::size_t stage = 0;                     // result of Conversation::stage()
  std::string attached_path = {};            // path below /job of the file that Conversation::attachment() returns
};

// Returns the frames of the request. Errors: invalid, too_large (the message names the field, and the job can never
// run), unavailable (an input artifact cannot be read).
Result<std::string> encode_script_request(const JobFacts&, const ScriptExtras&);
// Encodes the request and returns a conversation that sends it. Errors: those of encode_script_request().
Result<std::unique_ptr<Conversation>> begin_script(const JobFacts&, const ScriptExtras&, ArtifactSink*);

// The inputs of a job in the form that its script receives. The pointers refer to JobFacts::inputs.
struct ScriptInputs {
  // One entry for each result that is not part of a list, with the name of its job.
  std::vector<std::pair<std::string, const JobInput*>> single;
  // The results of each flow node with `each`, by the name of the node. The list is ordered by instance, and its entry
  // is null if the instance has no result.
  std::map<std::string, std::vector<const JobInput*>> lists;
};
ScriptInputs arrange_inputs(const JobFacts&, const FlowData&);

// Returns the facts of the job that build_job_end() needs.
EndContext make_end_context(const JobFacts&, std::string_view profile);

// Returns the environment of a job as a JSON object. From highest to lowest precedence:
//   - MYCOJOBS_JOB_ID, _CALLER_ID, _CONTEXT_ID, _JOB_NAME, _ATTEMPT, _DELIVERIES, _EPOCH, _DEADLINE_UNIX_MS,
//     _RUNNER_ID, _ARTIFACTS, _SECRETS, _INPUTS_DIR, _FILES_DIR if the job has files, _TRACEPARENT if the job
//     belongs to a trace, and _FLOW_ID, _FLOW_NAME and _NODE if the job belongs to a flow
//   - inputs of the flow and the item of `each` (flow_environment())
//   - env_vars of the job, which include those of its flow
//   - `executor_variables`
//   - defaults of HOME, LANG, LOGNAME, PATH and USER, and of the proxy variables if the job uses an allow-list
// Variables of the agent are never included.
std::string encode_environment(const JobFacts&, const FlowData&, const TextMap& executor_variables = {});

}  // namespace mycojobs
