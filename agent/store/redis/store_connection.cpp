#include "store/redis/store_connection.h"

#include <algorithm>
#include <set>

#include "store/keys.h"
#include "store/redis/redis_connection.h"
#include "store/redis/redis_stores.h"

namespace mycojobs {

StoreConnection::StoreConnection(const RedisStoreConfig& config)
    : ContextLinks(link_opener(config), config.instrumentation),
      journal_heads_(config.journal_heads),
      wait_replicas_(config.wait_replicas) {
  for (const auto& own_url : config.context_urls) contexts_with_own_server_.insert(own_url.first);
  auto options = connection_options(config, 0);
  if (!options || options->endpoint.user.empty()) return;
  // The result is cached for each database, because the server adds an entry to its ACL log at each refusal.
  check_database_access_ = [options = std::move(*options),
                            cached = std::map<std::uint32_t, bool>()](std::uint32_t database) mutable -> Result<bool> {
    if (const auto entry = cached.find(database); entry != cached.end()) return entry->second;
    options.database = database;
    const auto result = RedisConnection(options).connect();
    if (!result && result.error().code != Code::denied) return tl::unexpected<Error>(result.error());
    return cached[database] = result.has_value();
  };
}

Result<void> StoreConnection::await_replicas(Id context) {
  if (wait_replicas_ == 0) return {};
  constexpr std::uint32_t kTimeoutMs = 2000;
  MJ_TRY(redis, link(context));
  const std::string run_id = redis->server_run_id();
  // WAIT only waits for writes of its connection. If the change was made on another connection, PUBLISH is the write
  // that replicas must confirm, which they do after all previous writes.
  MJ_TRY(replicas,
         command_pair(context, {"PUBLISH", kReplicationChannel, ""},
                      Arguments{"WAIT"}.add(std::uint64_t{wait_replicas_}).add(std::uint64_t{kTimeoutMs}), kTimeoutMs));
  // After a failover the acknowledgement is for the data of another server, which may not have the change.
  if (redis->server_run_id() != run_id)
    return fail(Code::unavailable, "redis: the server has changed since the write: repeat the call");
  if (replicas.number() >= wait_replicas_) return {};
  return fail(Code::unavailable, "redis: " + std::to_string(replicas.number()) +
                                     " replicas have the write, redis_wait_replicas requires " +
                                     std::to_string(wait_replicas_) + ": check the replicas and repeat the call");
}

void StoreConnection::record_heads(Id context, const Reply& heads) {
  if (!journal_heads_) return;
  for (std::size_t i = 0; i + 1 < heads.size(); i += 2)
    journal_heads_->observe_head(context, std::string(heads.at(i).text()), heads.at(i + 1).number());
}

Result<std::vector<std::string>> StoreConnection::scan_keys(Id context, const Arguments& filter, std::size_t max) {
  MJ_TRY(redis, link(context));
  std::set<std::string> found_keys;
  std::string cursor = "0";
  do {
    Arguments call{"SCAN", cursor, "COUNT", "1000"};
    for (std::string_view argument : filter.list()) call.add(argument);
    MJ_TRY(page, redis->command(call));
    cursor = page.at(0).text();
    const Reply names = page.at(1);
    for (std::size_t i = 0; i < names.size() && found_keys.size() < max; ++i) found_keys.emplace(names.at(i).text());
  } while (cursor != "0" && found_keys.size() < max);
  return std::vector<std::string>(found_keys.begin(), found_keys.end());
}

}  // namespace mycojobs
