// Checks of a Redis server without the permissions of a user: whether a server with users of mycojobs (`mycojobs
// context acl`) still accepts clients without a password, and its TLS. Blocking and thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "net/tls.h"
#include "store/redis/redis_sentinel.h"

namespace mycojobs {

enum class DefaultUser { open, closed };

// Connects to the server of `url` without the user and password of the URL; the permissions of that user are not
// needed. Returns `open` if the server permits such a client to read keys, and nullopt if neither the URL nor the
// server has a user of mycojobs. Errors: invalid (the URL); those of a RedisConnection.
Result<std::optional<DefaultUser>> probe_default_user(const std::string& url, const std::shared_ptr<TlsContext>&,
                                                      const SentinelSettings& = {});

// Connects to the server of `url` without logging in. Returns the state of TLS, or nullopt if the URL does not use it.
// Errors: invalid (the URL); those of a RedisConnection.
Result<std::optional<TlsState>> probe_tls(const std::string& url, const std::shared_ptr<TlsContext>&,
                                          const SentinelSettings& = {});

}  // namespace mycojobs
