// A context as the table of rights wants it (domain/rights.h): its record, read anew for each question.
#pragma once

#include "domain/rights.h"
#include "mycojobs/store.h"

namespace mycojobs {

// Error invalid: its lists cannot be read; they would be taken for empty ones.
Result<Place> read_place(RecordStore&, Id context, WayIn);

}  // namespace mycojobs
