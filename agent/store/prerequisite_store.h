// External prerequisites of jobs. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// A job with external prerequisites.
struct AwaitedPrerequisites {
  std::string job_key;
  std::vector<std::string> conditions;  // the job's `prerequisites`
  std::uint64_t waited_ms = 0;          // since the job began to wait, by the store's clock
  // Set for agents only: a coordinator has checked prerequisites in this context before. The coordinator may have
  // permissions that the agent lacks.
  bool coordinator_checks = false;
};

// Role that checks prerequisites. Agents check them only if no coordinator has checked for 5 s.
enum class CheckerRole { agent, coordinator };

// Answer to a job without a flow that waits for the prerequisite approval:NAME.
struct PrerequisiteAnswer {
  std::string name;  // name of the approval: 1 to 64 letters, digits, '.', '_' and '-'
  bool approved = true;
  Id actor = 0;
  std::string comment;  // is written to the job's log (approved) or error (rejected)
};

// Jobs with external prerequisites.
class PrerequisiteStore {
 public:
  explicit PrerequisiteStore(StoreConnection& connection) : connection_(connection) {}

  // Returns at most max jobs whose prerequisites are to be checked now. Each job is returned to one caller, and again
  // after redelivery_delay_ms.
  Result<std::vector<AwaitedPrerequisites>> due_prerequisites(Id context, std::uint32_t max,
                                                              std::uint32_t redelivery_delay_ms, CheckerRole);
  // Stores the result of a check. If failure_reason is empty, the prerequisites are met and the job is queued.
  // Otherwise they can never be met, and the job ends as error with the detail `prerequisite`.
  Result<void> complete_prerequisites(Id context, const std::string& job_key, const std::string& failure_reason);
  // Stores the answer to an approval. An approved job continues when its other prerequisites are met; a rejected job
  // ends as error with the detail `prerequisite`. Returns false if the approval was given before. The caller checks the
  // right to answer and the length of the comment (service/job_service.h). Errors: invalid (name); not_found (no such
  // job, or it does not wait for this approval); conflict (the job has ended, waits no longer, has not been checked by
  // an agent yet, or belongs to a flow, in which case the message contains the command to use).
  Result<bool> answer_prerequisite(Id context, const std::string& job_key, const PrerequisiteAnswer&);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
