// A command and the store that it works on.
#pragma once

#include <memory>

#include "cli/commands.h"
#include "cli/session.h"
#include "service/caller.h"

namespace mycojobs {

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
Result<Id> id_flag(const Invocation&, std::string_view flag, Id otherwise);
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
