// Opens the store of a command: the Redis of the settings, or the embedded Redis of the state folder. Sessions are not
// thread-safe.
#pragma once

#include <memory>

#include "artifacts/transfer/job_log_reader.h"
#include "cli/invocation.h"
#include "coordinator/coordinator.h"
#include "messaging/message_artifacts.h"
#include "store/redis/embedded_redis.h"
#include "worker/agent.h"

namespace mycojobs {

// Factory of store connections, with the services that this process runs for a command.
struct SessionServices {
  std::unique_ptr<EmbeddedRedis> embedded;  // set if this process runs the server
  std::unique_ptr<StoreFactory> stores;
  std::unique_ptr<JobLogReader> logs;        // uses `stores`
  MessageAttachments files;                  // of the coordinator, and of an API in the same process
  std::unique_ptr<Agent> agent;              // set if this process runs the server and an agent was requested
  std::unique_ptr<Coordinator> coordinator;  // set together with `agent`
};

// Opens only the Redis of the settings, if one is configured. Otherwise uses the embedded server of a running `mycojobs
// dev` or `run` on this state folder, or starts one, with an agent and a coordinator if with_agent.
Result<SessionServices> open_services(const ProgramDependencies&, const Settings&, bool with_agent);

// An open store with the services that it needs.
struct StoreSession {
  SessionServices services;
  std::unique_ptr<Store> store;  // destroyed before `services`
};

Result<StoreSession> open_store(const Invocation&, bool with_agent);
// Opens the store without an agent, for a command that prints a result and exits: stop signals end the process.
Result<StoreSession> open_store_for_query(const Invocation&);
// To be called when the store is unavailable. If the embedded server of another process has ended, starts a server on
// the same state folder; otherwise changes nothing. Errors are reported by the next store call.
void reopen_store(const Invocation&, StoreSession&, bool with_agent);

}  // namespace mycojobs
