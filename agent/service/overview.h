// A context as a whole: who may do what in it, how it is, whether it holds what is promised, what waits for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/context_verify.h"
#include "inspect/doctor.h"
#include "inspect/overview.h"
#include "mycojobs/workflows.h"
#include "service/caller.h"
#include "service/flows.h"

namespace mycojobs::service {

// What the caller may do with everything in the context, and with what it made itself. Nothing is noted as a refusal.
struct Rights {
  bool create = false, read_all = false, read_own = false, steer_all = false, steer_own = false, administer = false;
};
Result<Rights> rights(const Caller&, Store&);

Result<Overview> overview(const Caller&, Store&);
// The context and, at the end, the keys of actors. For admins: it looks at everything that there is.
Result<VerifyReport> verify(const Caller&, const VerifiedStores&);

// The store, who moves the context on, its agents. own_server: the context has a Redis of its own. For admins; only
// an operator sees which other contexts share the server.
Result<std::vector<Check>> doctor(const Caller&, Store&, FlowStore&, bool own_server, std::uint32_t wait_replicas);

// What waits for a person: a node of a flow (approval, pause, approval:NAME before it), or a job that names
// approval:NAME, or an intent of a workflow's instance.
struct Question {
  Id flow = 0;          // 0: a job outside of flows
  std::string job_key;  // of the node's job, or the job
  std::string flow_name, node;
  std::string workflow, key;  // of an instance, and its key as JSON; empty: of none
  std::string name;           // what approve and reject are called with; of an instance its intent
  bool pause = false;         // to be resumed, not approved
  std::string asks;           // what the definition says of it
  std::vector<Id> approvers;
  std::uint64_t since_ms = 0, until_ms = 0;
  bool answers = false;  // the caller may answer it
};
struct Questions {
  std::vector<Question> all;
  Id after = 0;            // of the next call: flows after this one; 0: there are no more
  bool truncated = false;  // more jobs wait outside of flows, or instances, than were looked at
};
// Of those that the caller may read or answer. Looks at 200 flows a call, at jobs outside of flows and at workflows in
// the first one.
class ApprovalCache;
Result<Questions> list_questions(const Caller&, const FlowStores&, WorkflowStore&, Id after, ApprovalCache* = nullptr);

}  // namespace mycojobs::service
