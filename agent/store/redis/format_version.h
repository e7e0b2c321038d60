// The version of the formats of the internal keys. The database of a context has its version in `mj:format`; without
// this key the version is 1.
//
// Rule: a change that an older program would misread or destroy increments the version, for example a key with another
// type or meaning, or an unknown fact or state. A new key, field or kind of fact that an older program can ignore does
// not. A program with a higher version also reads the former formats, or migrates the data before it raises the version
// (store/scripts/check_format.lua). An older program rejects a context with a higher version and writes nothing to it.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "model/records.h"
#include "store/redis/redis_link.h"

namespace mycojobs {

inline constexpr std::uint32_t kStoreFormat = 1;

// Checks the format and raises it to `own`, in one step. Called on each new connection to a context before any other
// command. Error denied: the format of the context is newer than `own`.
Result<void> agree_on_format(Id context, Link&, std::uint32_t own = kStoreFormat);

}  // namespace mycojobs
