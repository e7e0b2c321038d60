// Where a Redis server is: redis://[user:password@]host[:port][/db], unix:///path[?db=N][&...], unix:path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

struct RedisEndpoint {
  std::string host;
  std::uint16_t port = 6379;
  std::string unix_path;  // instead of host and port
  std::string user, password;
  std::optional<std::uint32_t> database;  // if the URL names one

  std::string shown() const;  // for messages and logs: without the password
  bool operator==(const RedisEndpoint&) const = default;
};

// %XX stands for a byte in user, password and path. Error: invalid; never repeats the password.
Result<RedisEndpoint> parse_redis_url(std::string_view url);

}  // namespace mycojobs
