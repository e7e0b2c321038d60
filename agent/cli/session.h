// Where a command finds its store: the Redis that was named, or the embedded default on the state folder.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "coordinator/coordinator.h"
#include "service/caller.h"
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

// Where a key that signs is: NAME is NAME.key in keys_dir; what has a '/' is a path. Error invalid.
Result<std::string> key_file(const Settings&, const std::string& name);
// The public key that --key names: its hex, or the name or path of a file that `key new` has made.
Result<std::string> typed_public_key(const Invocation&, const std::string& text);

// What a program would refuse at its start, though each value is of its type: the setting, and why.
struct RefusedSetting {
  std::string name;
  Error error;
};
std::vector<RefusedSetting> refused_settings(const Settings&);
Result<void> check_trace_endpoint(const std::string& url);

// By which supervisors elsewhere know this coordinator. Null: the setting is empty.
Result<std::shared_ptr<const SigningKey>> coordinator_key(const Settings&);
CarriedFiles carried_files(const Settings&, const Clock&);  // as long as the clock

// An agent as the settings want it: sandbox, executors that work here, registration.
// try_again: as in Agent::Parts.
Result<std::unique_ptr<Agent>> start_agent(
    const Parts&, const Settings&, StoreFactory&,
    std::function<bool(const Error&)> try_again = [](const Error&) { return false; });

// A coordinator as the settings want it; begin() is the caller's. contexts: empty: those that it finds.
Result<std::unique_ptr<Coordinator>> make_coordinator(const Parts&, const Settings&, StoreFactory&,
                                                      std::vector<Id> contexts);

// A command and the store that it works on.
struct Opened {
  Session session;
  std::unique_ptr<Store> store;  // goes before its session
};

Result<Opened> open_store(const Invocation&, bool with_agent);
// For a command that answers and ends.
Result<Opened> open_to_answer(const Invocation&);
// From now on a stop signal ends this process at once, as it would any program (see block_stop_signals()).
void leave_at_stop_signals();
// Once the store is unavailable: the embedded server may have been that of another process and have left with it; then
// there is one of our own on the same state folder. Otherwise nothing changes. Errors are for the next call to meet.
void reopen(const Invocation&, Opened&, bool with_agent);

// The first context of the settings: what commands about one job or queue speak of.
Id context_of(const Invocation&);
// A whole number above 0 of a flag.
Result<std::uint64_t> count_flag(const Invocation&, std::string_view flag, std::uint64_t otherwise);
// An id of a flag.
Result<Id> id_flag(const Invocation&, std::string_view flag, Id otherwise);
// An id that was typed. Error invalid: "actor: "x" is no id ...".
Result<Id> typed_id(std::string_view what, std::string_view text);
// Contexts that may be there: those of the settings, and those whose database holds a key.
Result<std::vector<Id>> contexts_of_store(const Invocation&, Store&);
void tell_deleted(const Invocation&, const std::string& key);  // the answer of every `delete`
// Whether the configuration has a ceiling for the command's context. Without it the live agents of the context decide
// which policies are refused (Caller::agents_decide).
bool has_own_ceiling(const Invocation&);
// Warns where agents decide and no live agent takes jobs of one of these types. types: of the jobs that have a policy.
Result<void> warn_without_agents(const Invocation&, Store&, const std::set<std::string>& types);
// Whose thing a command makes, taken at its word, with the limits of its settings.
service::Caller maker_at_its_word(const Invocation&, Id actor);
// Who asks for what the command does: the operator, or as whom it does (--actor), who is asked for its rights.
Result<service::Caller> who_asks(const Invocation&);
// What a service answers to what was typed: a field that a flag gave is called by the flag, and a conflict, which time
// does not mend, is invalid.
Error as_typed(const Invocation&, Error);
template <class T>
Result<T> as_typed(const Invocation& call, Result<T> answer) {
  if (!answer) return tl::unexpected<Error>(as_typed(call, std::move(answer).error()));
  return answer;
}

// "12:2001" of the argument; an id alone is of the default caller.
Result<std::string> job_argument(const Invocation&);

}  // namespace mycojobs
