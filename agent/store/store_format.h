// The version of the formats of our own keys. A context's store says its own in `mj:format`.
//
// The rule. A change that an older program would misread or destroy makes the number one higher: a key with another
// type or meaning, a fact or a state that it does not know. A new key, field or kind of fact that it may pass over does
// not. A program with a higher number reads the former formats too, or migrates them before it raises the number
// (agree_on_format.lua). An older program that meets a higher number refuses the context and writes nothing. Absent:
// format 1.
#pragma once

#include <cstdint>

#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "store/link.h"

namespace mycojobs {

inline constexpr std::uint32_t kStoreFormat = 1;

// On each new connection to a context, before anything else: one step. Error denied: its format is newer than `own`.
Result<void> agree_on_format(Id context, Link&, std::uint32_t own = kStoreFormat);

}  // namespace mycojobs
