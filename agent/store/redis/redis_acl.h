// ACL rules of Redis users for `mycojobs context acl`. Each role gets only the commands and keys that it needs.
// Thread-safe: the functions have no side effects.
//
//   agent        claims, runs and ends jobs; reads the access lists of the context, but no journal of a flow
//   coordinator  manages records, flows and messages of the contexts; serves JSON-RPC
//   operator     runs all commands of `mycojobs`
//   reader       runs the reading commands of `mycojobs`, or reads with any other client
//   submitter    any client that writes records, pushes their keys, and reads the answers
//
// No role may run a command that names another database (COPY, MOVE, SWAPDB), and SELECT is limited to the databases of
// the role's contexts. Database 0 cannot be denied, because every connection starts in it: there a user can access the
// keys that match the patterns of its role. Channels are shared by all databases.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

inline constexpr std::string_view kRedisUserPrefix = "mycojobs-";  // prefix of every user name of `context acl`

// A role and its description for users.
struct RedisRole {
  std::string_view name, description;
};
std::span<const RedisRole> redis_roles();

// Returns the database number of each context. `urls` has the Redis URLs of contexts with a server of their own; such a
// URL may name a database. default_url: the server of the other contexts; may be empty. Error: invalid (a URL, or
// contexts on different servers).
Result<std::vector<std::uint32_t>> databases_of_role(std::span<const Id> contexts,
                                                     const std::map<Id, std::string>& urls,
                                                     const std::string& default_url);

// Returns the arguments of `ACL SETUSER` after the user name and the password. `caller` is the only actor whose records
// a submitter may write; 0 permits the records of any actor. REQUIRES: role is a name in redis_roles().
std::vector<std::string> acl_rules(std::string_view role, std::span<const std::uint32_t> databases, Id caller);

}  // namespace mycojobs
