// What people say to a job, outside of a flow, that waits for approval:NAME.
#pragma once

#include <string>
#include <string_view>

#include "mycojobs/store.h"

namespace mycojobs {

struct PrerequisiteAnswer {
  std::string name;  // of the approval: 1 to 64 letters, digits, '.', '_' and '-'
  bool approved = true;
  Id actor = 0;
  std::string comment;  // the job's log repeats it, or its error
};

// The job goes on once all that it waits for is met, or ends as error, detail prerequisite. false: it had been approved
// before. Who may say so, and how much, is the caller's to check (service/jobs.h). Errors: invalid (name), not_found
// (no such job, or it waits for no such approval), conflict (it has ended, or is a flow's: the message says what to
// type).
Result<bool> answer_prerequisite(Store&, Id context, const std::string& job_key, const PrerequisiteAnswer&);

}  // namespace mycojobs
