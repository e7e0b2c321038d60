// A command and the store that it works on.
#pragma once

#include <memory>

#include "cli/commands.h"
#include "cli/session.h"

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
// "12:2001" of the argument; an id alone is of the default caller.
Result<std::string> job_argument(const Invocation&);

}  // namespace mycojobs
