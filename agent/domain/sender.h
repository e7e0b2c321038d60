// What somebody sends, against who sends it: the one place where ids inside of a payload are believed or not. Jobs of a
// call, of a batch, of a message, of a flow that a message carries, of a coordinator elsewhere. Pure; any thread.
//
// An id that is absent is filled in; one that is another's, or that only a store, an agent or a flow may write, is
// refused, and the message names the field.
#pragma once

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

// `detail` of the record of a job or a message that was written to be started or sent later. No entry of a list and no
// hint does that: other clients write those.
inline constexpr const char* kCreatedDetail = "created";

// As whom, and where. Who may name another caller has done so before.
struct Sender {
  Id caller = 0, context = 0;
};

// Errors: denied (another's id), invalid (what no client writes). Types and sizes are validate()'s.
Result<void> settle(Job&, const Sender&);
// Its jobs, and the flow that it carries: each as its own.
Result<void> settle(Message&, const Sender&);

}  // namespace mycojobs
