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

// The caller's rights to all resources of the context and to its own resources.
struct Rights {
  bool can_create = false, can_read_all = false, can_read_own = false, can_steer_all = false, can_steer_own = false,
       can_administer = false;
};
// Determines the rights without recording refusals.
Result<Rights> get_rights(const RequestContext&, Store&);

Result<Overview> read_overview(const RequestContext&, Store&);
// Verifies the context and then the keys of actors. Only for admins, since it reads all records.
Result<VerifyReport> verify(const RequestContext&, const VerifiedStores&);

// Checks the store, the coordinators of the context and its agents. own_server: the context has a Redis server of its
// own. Only for admins; only an operator sees the other contexts on the server.
Result<std::vector<Check>> run_doctor(const RequestContext&, Store&, FlowStore&, bool own_server,
                                      std::uint32_t wait_replicas);

// A question that waits for a person: a node of a flow (approval, pause, or a prerequisite approval:NAME), a job with
// the prerequisite approval:NAME, or an intent of a workflow instance.
struct OpenQuestion {
  Id flow = 0;          // 0: the question is of a job outside of flows, or of an instance
  std::string job_key;  // key of the node's job, or of the job
  std::string flow_name, node;
  std::string workflow, key;  // workflow of the instance, and its key as JSON; empty: the question is of a job or flow
  std::string name;           // argument of approve and reject; of an instance: its intent
  bool is_pause = false;      // the node waits to be resumed, not to be approved
  std::string text;           // text from the definition
  std::vector<Id> approvers;
  std::uint64_t since_ms = 0, until_ms = 0;
  bool can_answer = false;  // the caller can answer
};
struct Questions {
  std::vector<OpenQuestion> questions;
  Id after = 0;            // for the next call: continue with flows after this flow; 0: there are no more flows
  bool truncated = false;  // there are more waiting jobs outside of flows, or instances, than were read
};
class ApprovalCache;
// Returns the questions that the caller can read or answer. A call reads 200 flows; the first call also reads jobs
// outside of flows, and workflows.
Result<Questions> list_questions(const RequestContext&, const FlowStores&, WorkflowStore&, Id after,
                                 ApprovalCache* = nullptr);

}  // namespace mycojobs::service
