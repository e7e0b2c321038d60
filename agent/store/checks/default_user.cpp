#include "store/checks/default_user.h"

#include "store/keys.h"
#include "store/redis/redis_acl.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {
namespace {

// Returns whether the server has users of mycojobs. An open default user usually has the permission for `ACL USERS`; if
// the command is denied, the result is false.
bool server_has_own_users(RedisConnection& anonymous) {
  const auto users = anonymous.command({"ACL", "USERS"});
  if (!users) return false;
  for (std::size_t i = 0; i < users->size(); ++i) {
    if (users->at(i).text().starts_with(kRedisUserPrefix)) return true;
  }
  return false;
}

}  // namespace

Result<std::optional<DefaultUser>> probe_default_user(const std::string& url, const std::shared_ptr<TlsContext>& tls,
                                                      const SentinelSettings& sentinel) {
  RedisConnection::Options options;
  MJ_TRY(endpoint, parse_redis_url(url));
  options.endpoint = std::move(endpoint);
  options.tls = tls;
  options.sentinel = sentinel;
  const bool has_role_user = options.endpoint.user.starts_with(kRedisUserPrefix);
  options.endpoint.user.clear();
  options.endpoint.password.clear();
  RedisConnection anonymous(std::move(options));
  const auto read = anonymous.command({"EXISTS", kFormatKey});
  if (!read && read.error().code != Code::denied) return tl::unexpected(read.error());
  if (!has_role_user && (!read || !server_has_own_users(anonymous))) return std::nullopt;
  return read ? DefaultUser::open : DefaultUser::closed;
}

Result<std::optional<TlsState>> probe_tls(const std::string& url, const std::shared_ptr<TlsContext>& tls,
                                          const SentinelSettings& sentinel) {
  MJ_TRY(endpoint, parse_redis_url(url));
  if (!endpoint.is_tls) return std::nullopt;
  const RedisConnection::Options defaults;
  const Deadline deadline = deadline_after(defaults.connect_timeout_ms);
  std::optional<TlsState> state;
  const auto probe = [&](const RedisEndpoint& server, Deadline limit) -> Result<void> {
    MJ_TRY(stream, RedisStream::connect(server, tls, limit));
    state = stream.tls_state();
    return {};
  };
  if (endpoint.uses_sentinels()) {
    MJ_CHECK(SentinelGroup::find(endpoint, tls, sentinel)
                 ->connect_to_master(deadline, [&](const MasterCandidate& candidate, Deadline limit) {
                   return probe(endpoint.with_address(candidate.address), limit);
                 }));
  } else {
    MJ_CHECK(probe(endpoint, deadline));
  }
  return state;
}

}  // namespace mycojobs
