// Reads the access lists of a context for the table of rights (security/rights.h).
#pragma once

#include "security/rights.h"
#include "store/record_store.h"

namespace mycojobs {

// Reads the lists from the record of the context at each call. A context without a record has no lists. Error invalid:
// a list cannot be parsed; it is not treated as empty, because an empty list can permit more. Blocking; used by the
// thread of the store.
Result<AclContext> read_acl_context(RecordStore&, Id context, EntryPoint);

}  // namespace mycojobs
