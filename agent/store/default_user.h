// Finds out whether a Redis server with users of mycojobs (`mycojobs context acl`) still accepts clients without a
// password. Blocking; any thread.
#pragma once

#include <optional>
#include <string>

#include "mycojobs/result.h"

namespace mycojobs {

enum class DefaultUser { open, closed };

// Connects to the server of `url` without its user and password. `open`: the server lets such a client read keys. Needs
// no rights of the user in the URL. nullopt: neither the URL nor the server names a user of mycojobs. Errors: invalid
// for the URL, else those of a connection.
Result<std::optional<DefaultUser>> probe_default_user(const std::string& url);

}  // namespace mycojobs
