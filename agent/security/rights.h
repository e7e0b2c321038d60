// Access control of a context: one table, used by every entry point. The lists are those of the context's record.
// agent/security/rights.toml has the table. A gate that names no actors may be answered by actors that may steer its
// flow. If the record lists no executors, any agent may run jobs.
//
// An operator (token, command line, `dev` on loopback) may perform all actions. A context without a record is closed to
// actors that use RPC or a script. It is open to requests through the context's own Redis, because a client that can
// write there needs no permission. Pure and thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

enum class Action {
  create,      // jobs, flows, messages, schedules
  read,        // any record, log, event
  steer,       // start, cancel, retry, pause, resume, signal, replay completed work
  answer,      // approve or reject
  work,        // claim jobs; write status, result, log
  administer,  // update or delete a record; lists, queues, runners, keys; objects of scripts
};

// The entry point of a request. It decides whether a context without a record is open.
enum class EntryPoint {
  rpc,      // JSON-RPC of coordinator and supervisor: closed
  script,   // calls of a job on the object store: closed
  command,  // a command with --actor: open
  message,  // a message in the context's Redis: open
  claim,    // an agent: open
};

struct AclContext {
  Id context = 0;
  std::optional<Context> record;  // no value if the context has no record
  EntryPoint entry_point = EntryPoint::rpc;
};

// The resource of a request. A refusal contains the name, but must not reveal whether the resource exists: a resource
// that does not exist is checked like one of another actor.
struct Resource {
  std::string name = {};   // "flow 7", or empty for the whole context
  Id creator = 0;          // the actor that created it, or 0 if there is no particular actor
  bool runs_here = false;  // whether it is a job that runs on a runner of the requesting actor
  // For a gate: whether it has a list of actors, and whether the list has the requesting actor.
  bool names_actors = false, names_caller = false;
};

struct Refusal {
  Id actor = 0;
  Action action = Action::read;
  Id context = 0;
  std::string resource;
  std::string_view list;  // the lowest list that would allow the action: "readers"
  bool has_context_record = true;
};
// Error denied: names actor, action, context and list, and the command with which an operator can allow the action.
Error make_refusal_error(const Refusal&);

// Returns no value if the action is allowed.
std::optional<Refusal> find_refusal(Id actor, Action, const AclContext&, const Resource& = {});
Result<void> check_permission(Id actor, Action, const AclContext&, const Resource& = {});

std::string_view to_string(Action);

}  // namespace mycojobs
