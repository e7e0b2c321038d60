// Where a command finds its store: the Redis that was named, or the embedded default on the state folder.
#pragma once

#include <memory>
#include <vector>

#include "cli/parts.h"
#include "coordinator/coordinator.h"
#include "worker/agent.h"

namespace mycojobs {

inline constexpr Id kDefaultCaller = 1;  // of a job whose submitter names none

struct Session {
  std::unique_ptr<EmbeddedServer> embedded;  // ours, if nobody else had one on the state folder
  std::unique_ptr<StoreFactory> stores;
  std::unique_ptr<Agent> agent;              // ours, if the server is
  std::unique_ptr<Coordinator> coordinator;  // beside the agent
};

// With a Redis named: that one, no agent. Else the embedded one of a running `mycojobs dev` or `run` on this state
// folder, else one of our own, with an agent and a coordinator if with_agent.
Result<Session> open_session(const Parts&, const Settings&, bool with_agent);

// The operator's folder of secrets, and the service manager's of credentials, if there is one.
SecretPlaces secret_places(const Settings&);

// An agent as the settings want it: sandbox, executors that work here, registration.
Result<std::unique_ptr<Agent>> start_agent(const Parts&, const Settings&, StoreFactory&);

// A coordinator as the settings want it. contexts: empty: those that it finds.
Result<std::unique_ptr<Coordinator>> start_coordinator(const Parts&, const Settings&, StoreFactory&,
                                                       std::vector<Id> contexts);

}  // namespace mycojobs
