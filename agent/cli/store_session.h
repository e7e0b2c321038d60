// Opens the store of a command: the Redis of the settings, or the embedded Redis of the state folder.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/commands/command_table.h"
#include "coordinator/coordinator.h"
#include "service/service_caller.h"
#include "worker/agent.h"

namespace mycojobs {

inline constexpr Id kDefaultCaller = 1;  // for jobs without a named submitter

// Connection factory of a command, with the services that this process runs for it.
struct Session {
  std::unique_ptr<EmbeddedServer> embedded;  // set if this process runs the server
  std::unique_ptr<StoreFactory> stores;
  std::unique_ptr<Agent> agent;              // set if this process runs the server and an agent was requested
  std::unique_ptr<Coordinator> coordinator;  // set together with `agent`
};

// With a Redis in the settings, opens only that. Otherwise uses the embedded server of a running `mycojobs dev` or
// `run` on this state folder, or starts one, with an agent and a coordinator if with_agent.
Result<Session> open_session(const ProgramDependencies&, const Settings&, bool with_agent);

// Returns the operator's folder of secrets and the credentials folder of the service manager, if it exists.
SecretSources secret_states(const Settings&);

// Returns the path of a signing key: NAME is NAME.key in keys_dir; a text with '/' is a path. Error invalid.
Result<std::string> key_file(const Settings&, const std::string& name);
// Returns the public key of --key: hex digits, or the name or path of a key file of `key new`.
Result<std::string> typed_public_key(const Invocation&, const std::string& text);

// A setting with a valid type that a service would reject at its start, with the reason.
struct RejectedSetting {
  std::string name;
  Error error;
};
std::vector<RejectedSetting> refused_settings(const Settings&);
Result<void> check_trace_endpoint(const std::string& url);

// Key that identifies this coordinator to supervisors on other hosts. Null: the setting is empty.
Result<std::shared_ptr<const SigningKey>> coordinator_key(const Settings&);
MessageAttachments carried_files(const Settings&, const Clock&);  // the clock must outlive it

// Starts an agent with the sandbox, the working executors and the registration of the settings. try_again: as in
// Agent::Dependencies.
Result<std::unique_ptr<Agent>> start_agent(
    const ProgramDependencies&, const Settings&, StoreFactory&,
    std::function<bool(const Error&)> try_again = [](const Error&) { return false; });

// Creates a coordinator from the settings; the caller calls begin(). Empty contexts: serves all contexts that it finds.
Result<std::unique_ptr<Coordinator>> make_coordinator(const ProgramDependencies&, const Settings&, StoreFactory&,
                                                      std::vector<Id> contexts);

// The open store of a command.
struct OpenedStore {
  Session session;
  std::unique_ptr<Store> store;  // destroyed before its session
};

Result<OpenedStore> open_store(const Invocation&, bool with_agent);
// For commands that print a result and exit.
Result<OpenedStore> open_to_answer(const Invocation&);
// Restores the default action of stop signals, which end the process (see block_stop_signals()).
void exit_on_stop_signals();
// Called when the store is unavailable. If the embedded server of another process has ended, starts one on the same
// state folder. Otherwise changes nothing. Errors are reported by the next store call.
void reopen(const Invocation&, OpenedStore&, bool with_agent);

// Returns the first context of the settings, which commands on a single job or queue use.
Id context_of(const Invocation&);
// Parses a flag as a whole number above 0.
Result<std::uint64_t> count_flag(const Invocation&, std::string_view flag, std::uint64_t otherwise);
// Parses a flag as an id.
Result<Id> id_flag(const Invocation&, std::string_view flag, Id otherwise);
// Parses an id. Error invalid: "actor: "x" is no id ...".
Result<Id> typed_id(std::string_view what, std::string_view text);
// Returns the contexts of the settings and those whose database contains a key.
Result<std::vector<Id>> contexts_of_store(const Invocation&, Store&);
void print_deleted(const Invocation&, const std::string& key);  // output of every `delete` command
// Returns true if the configuration has a ceiling for the command's context. Otherwise the live agents of the context
// decide about policies (RequestContext::agents_decide).
bool has_own_ceiling(const Invocation&);
// Prints a warning if agents decide and no live agent serves one of these types, which are those of jobs with a policy.
Result<void> warn_without_agents(const Invocation&, Store&, const std::set<std::string>& types);
// Returns the caller for records of this actor, without authentication, with the limits of the settings.
service::RequestContext requested_owner(const Invocation&, Id actor);
// Returns the caller of the command: the operator, or the actor of --actor, whose rights are checked.
Result<service::RequestContext> request_context(const Invocation&);
// Converts an error of a service for the command line: a field is replaced by its flag, and `conflict`, which a retry
// cannot resolve, becomes `invalid`.
Error with_original_arguments(const Invocation&, Error);
template <class T>
Result<T> with_original_arguments(const Invocation& call, Result<T> answer) {
  if (!answer) return tl::unexpected<Error>(with_original_arguments(call, std::move(answer).error()));
  return answer;
}

// Parses the argument "12:2001"; an id without a caller uses the default caller.
Result<std::string> job_argument(const Invocation&);

}  // namespace mycojobs
