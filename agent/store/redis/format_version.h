// The version of the formats of the internal keys, and the owner of a database. The database of a context has its
// version and the id of the context in `mj:format`. Without this key, no program has used the context. Addresses that
// look different can lead to the same database, so the stored id decides which context a database belongs to.
//
// Rule: a change that an older program would misread or destroy increments the version, for example a key with another
// type or meaning, or an unknown fact or state. A new key, field or kind of fact that an older program can ignore does
// not. A program with a higher version reads a former format, migrates its data, or rejects it and writes nothing
// (store/scripts/check_format.lua). An older program rejects a context with a higher version and writes nothing to it.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/records.h"
#include "store/redis/redis_link.h"

namespace mycojobs {

// The formats that this program supports. In format 1, many keys had other names.
inline constexpr std::uint32_t kStoreFormat = 2, kOldestStoreFormat = 2;
struct SupportedFormats {
  std::uint32_t oldest = kOldestStoreFormat;
  std::uint32_t newest = kStoreFormat;
};

// Checks the format and raises it to the newest supported format, and stores the context if the database has none, in
// one step. Called before any other command of a context, once for each process and start of the server. database: the
// number of the database. Error denied: the program does not support the format of the context, or the database belongs
// to another context.
Result<void> agree_on_format(Id context, Link&, std::uint32_t database, SupportedFormats = {});

// Return whether an error of a call is that of agree_on_format(): for a database of another context, or for any reason.
bool is_other_context_error(const Error&);
bool is_rejected_database_error(const Error&);

// Returns the message of an error for clients and other hosts. The errors of agree_on_format() name another context and
// the address of its server; they are replaced and logged, each at most once a minute.
std::string describe_to_client(const Error&);

}  // namespace mycojobs
