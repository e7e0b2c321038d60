// Users of Redis, one for each role of those who reach it: the commands and keys that the role needs, and no more. What
// `mycojobs context acl` prints. Pure; any thread.
//
//   agent        claims, runs and ends jobs; reads the lists of the context, and no journal of a flow
//   coordinator  the records of the contexts, their flows and messages; serves JSON-RPC
//   operator     what the commands of `mycojobs` do
//   reader       reads with the commands of `mycojobs`, or with any client
//   submitter    any client that writes records, pushes their keys, and takes what comes back
//
// No role has a command that names another database (COPY, MOVE, SWAPDB), and SELECT names those of its contexts alone.
// A connection begins in database 0, which a user cannot be kept out of: its keys there are those that its role may
// touch anywhere. Channels know no databases at all.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::string_view kRedisUserPrefix = "mycojobs-";  // of every user that `context acl` prints

struct RedisRole {
  std::string_view name, what;
};
std::span<const RedisRole> redis_roles();

// Whose database is which. urls: of contexts with a server of their own, which may name a database. Error: invalid.
Result<std::vector<std::uint32_t>> databases_of(std::span<const Id> contexts, const std::map<Id, std::string>& urls);

// What follows the name and the password of `ACL SETUSER`. caller: the only actor whose records a submitter writes;
// 0: any actor's. role: one of redis_roles().
std::vector<std::string> redis_rules(std::string_view role, std::span<const std::uint32_t> databases, Id caller);

}  // namespace mycojobs
