// Reports of Redis about changed keys: CLIENT TRACKING. The server reports the names of changed keys of all databases,
// without the database, as messages on a channel.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {

inline constexpr const char* kInvalidateChannel = "__redis__:invalidate";

// Requests the reports for keys that begin with one of the names. The caller then subscribes to kInvalidateChannel on
// this connection. Returns the reason if the server or the rights of the user do not permit it. Error: the connection
// has failed.
Result<std::optional<Error>> track_keys(RedisConnection&, const std::set<std::string>& names);
// Requests one report for the next change of each key after each time at which `reader` has read it. The caller then
// subscribes to kInvalidateChannel on `receiver`. Results like track_keys().
Result<std::optional<Error>> track_read_keys(RedisConnection& reader, RedisConnection& receiver);

}  // namespace mycojobs
