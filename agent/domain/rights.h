// Who may do what in a context: one table, asked by every way in. Lists as the context's record has them.
//
//   action       admins  submitters  executors           readers   who made it
//   create       all     all         -                   -         -
//   read         all     own         jobs that they run  all       own
//   steer        all     own         -                   -         - (own, while among the submitters)
//   answer       all     where the gate names them; a gate that names nobody: who may steer the flow
//   work         all     -           all                 -         -
//   administer   all     -           -                   -         -
//
// An operator (its token, the command line, `dev` on loopback) may do all of it. A context without a record is closed
// to actors that come by RPC or from a script, and open to what has been through the context's own Redis: whoever
// writes there needs nobody's leave. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

enum class Action {
  create,      // jobs, flows, messages, schedules
  read,        // any record, log, event
  steer,       // start, cancel, retry, pause, resume, signal, replay what is done
  answer,      // approve or reject
  work,        // claim jobs; write status, result, log
  administer,  // update or delete a record; lists, queues, runners, keys; objects of scripts
};

// By which way an actor comes: whether a context without a record is open to it.
enum class WayIn {
  rpc,      // JSON-RPC of coordinator and supervisor: closed
  script,   // a job's calls on the object store: closed
  command,  // a command with --actor: open
  message,  // a message that lies in the context's Redis: open
  claim,    // an agent: open
};

struct Place {
  Id context = 0;
  std::optional<Context> record;  // nothing: there is none
  WayIn way = WayIn::rpc;
};

// What it is about. Its name stands in the refusal, which must not say whether it exists: what is not there is asked
// about as somebody else's.
struct Thing {
  std::string name = {};                        // "flow 7"; empty: all of the context
  Id maker = 0;                                 // 0: nobody in particular
  bool runs_here = false;                       // a job, on a runner of this actor
  bool names_others = false, names_it = false;  // a gate, and whom it names
};

struct Refusal {
  Id actor = 0;
  Action action = Action::read;
  Id context = 0;
  std::string thing;
  std::string_view list;  // the least of the lists that would allow it: "readers"
  bool recorded = true;   // the context has a record
};
Error refusal_error(const Refusal&);  // denied: names actor, action, context and list, and what an operator may type

// Nothing: allowed.
std::optional<Refusal> refused(Id actor, Action, const Place&, const Thing& = {});
Result<void> may(Id actor, Action, const Place&, const Thing& = {});

std::string_view word(Action);

}  // namespace mycojobs
