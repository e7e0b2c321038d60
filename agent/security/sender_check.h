// Checks the ids within a payload against its sender. This is the only place that accepts or rejects such ids: for jobs
// of a call, of a batch, of a message, of a flow in a message, and of another coordinator. An absent id is filled in.
// An id of another actor, or a field that only a store, an agent or a flow may write, is rejected; the error names the
// field. Pure and thread-safe.
#pragma once

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// `detail` of the record of a job or message that was created to be started or sent later. Entries of lists and hints
// do not start it, because other clients write them.
inline constexpr const char* kCreatedDetail = "created";

// The caller and context of a payload. The right to name another caller must have been checked before.
struct Sender {
  Id caller = 0, context = 0;
};

// Sets absent ids to those of the sender and checks all other fields that depend on the sender. Error denied: an id of
// another actor or context. Error invalid: a field that clients must not write. validate() checks types and sizes.
Result<void> fill_and_check_sender(Job&, const Sender&);
// Does the same for a message, its jobs and the flow in it.
Result<void> fill_and_check_sender(Message&, const Sender&);

}  // namespace mycojobs
