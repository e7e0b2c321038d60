// Addresses of Redis servers, and their parser.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// Host and TCP port of a server or a sentinel.
struct RedisAddress {
  std::string host;
  std::uint16_t port = 6379;

  std::string text() const;  // "host:6379", "[::1]:6379"
  bool operator==(const RedisAddress&) const = default;
};

// Returns nullopt if the host is empty or the port is not from 1 to 65535.
std::optional<RedisAddress> parse_redis_address(std::string_view host, std::string_view port);

// Address of a Redis server: redis://[user:password@]host[:port][/db], with TLS rediss://..., unix:///path[?db=N],
// unix:/path; or of a group of servers with sentinels: redis+sentinel://[user:password@]host[:port],.../MASTER[/db],
// with TLS rediss+sentinel://...
struct RedisEndpoint {
  bool is_tls = false;
  std::string host;
  std::uint16_t port = 6379;
  std::string unix_path;  // if set, host and port are not used
  // If set, the sentinels announce the address of the master, and host, port and unix_path are not used. User and
  // password are those of the servers.
  std::vector<RedisAddress> sentinels;
  std::string master_name;  // name by which the sentinels know the master
  std::string user, password;
  std::optional<std::uint32_t> database;  // set if the URL names a database

  bool uses_sentinels() const { return !sentinels.empty(); }
  RedisAddress address() const { return {host, port}; }
  // Returns the address without user, password and database. It is equal for all contexts on a server.
  RedisEndpoint server() const;
  // Returns the address of a server of the group, with the user, password and TLS of this address.
  RedisEndpoint with_address(const RedisAddress&) const;
  std::string redacted_url() const;  // address for messages and logs, without user and password
  bool operator==(const RedisEndpoint&) const = default;
};

// Parses a URL. User, password and path may contain bytes as %XX. Error: invalid. No message contains the password.
Result<RedisEndpoint> parse_redis_url(std::string_view url);

// Like parse_redis_url(), for a server of several contexts. Each context uses the database with its id, so a URL that
// names a database other than 0 is invalid.
Result<RedisEndpoint> parse_shared_redis_url(std::string_view url);

// Returns the server and the database of a context: those of the context's own URL, or of the shared URL. The database
// is the id of the context, if its own URL names no other. Error: invalid (the URL).
Result<RedisEndpoint> find_context_endpoint(const std::string& shared_url, const std::map<Id, std::string>& own_urls,
                                            Id context);

// Returns true if connections to the address use TLS. The address may be invalid.
bool is_tls_redis_url(std::string_view url);

}  // namespace mycojobs
