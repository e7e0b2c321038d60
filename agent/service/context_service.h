// Views of a whole context: rights, state, verification, and questions that wait for a person.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/doctor.h"
#include "inspect/overview.h"
#include "inspect/verify/context_verify.h"
#include "service/flow_service.h"
#include "service/service_caller.h"
#include "store/workflow_store.h"

namespace mycojobs::service {

// The caller's rights to all resources of the context and to its own resources. No refusal is recorded.
struct Rights {
  bool create = false, read_all = false, read_own = false, steer_all = false, steer_own = false, administer = false;
};
Result<Rights> rights(const RequestContext&, Store&);

Result<Overview> read_overview(const RequestContext&, Store&);
// Verifies the context and then the keys of actors. Only for admins, since it reads all records.
Result<VerifyReport> verify(const RequestContext&, const VerifiedStores&);

// Checks the store, the coordinators of the context and its agents. own_server: the context has a Redis server of its
// own. Only for admins; only an operator sees the other contexts on the server.
Result<std::vector<Check>> doctor(const RequestContext&, Store&, FlowStore&, bool own_server,
                                  std::uint32_t wait_replicas);

// A question that waits for a person: a node of a flow (approval, pause, or a prerequisite approval:NAME), a job with
// the prerequisite approval:NAME, or an intent of a workflow instance.
struct OpenQuestion {
  Id flow = 0;          // 0: a job outside of flows
  std::string job_key;  // key of the node's job, or of the job
  std::string flow_name, node;
  std::string workflow, key;  // workflow of the instance and its key as JSON; empty: not an instance
  std::string name;           // argument of approve and reject; for an instance its intent
  bool pause = false;         // the node waits for resume, not for an approval
  std::string asks;           // text from the definition
  std::vector<Id> approvers;
  std::uint64_t since_ms = 0, until_ms = 0;
  bool answers = false;  // the caller can answer
};
struct Questions {
  std::vector<OpenQuestion> all;
  Id after = 0;            // for the next call: continue with flows after this flow; 0: there are no more flows
  bool truncated = false;  // there are more waiting jobs outside of flows, or instances, than were read
};
// Returns the questions that the caller can read or answer. A call reads 200 flows; the first call also reads jobs
// outside of flows and workflows.
class ApprovalCache;
Result<Questions> list_questions(const RequestContext&, const FlowStores&, WorkflowStore&, Id after,
                                 ApprovalCache* = nullptr);

}  // namespace mycojobs::service
