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
  auto default_options = connection_options(config, 0);
  if (!default_options) return;  // the error of each call
  default_server_ = default_options->endpoint.redacted_url();
  for (const auto& own_url : config.context_urls) {
    auto options = connection_options(config, own_url.first);
    if (!options) continue;
    own_addresses_[own_url.first] = {options->endpoint.redacted_url(), options->database,
                                     options->endpoint.server() == default_options->endpoint.server()};
  }
}

StoreConnection::ContextAddress StoreConnection::address(Id context) const {
  const auto own = own_addresses_.find(context);
  return own == own_addresses_.end() ? ContextAddress{default_server_, context} : own->second;
}

Id StoreConnection::find_context(std::uint32_t database, Id stored_id) const {
  if (stored_id != 0) return own_addresses_.contains(stored_id) || stored_id == database ? stored_id : 0;
  for (const auto& [context, own] : own_addresses_) {
    if (own.is_on_default_server && own.database == database) return context;
  }
  return database;  // database 0 has actors and perhaps no context
}

Result<std::vector<std::pair<std::uint32_t, Id>>> StoreConnection::read_stored_ids(
    Id context, std::vector<std::uint32_t> databases) {
  std::set<std::uint32_t>& denied = denied_databases_[context];
  std::erase_if(databases, [&](std::uint32_t database) { return denied.contains(database); });
  std::vector<std::pair<std::uint32_t, Id>> found;
  if (databases.empty()) return found;
  Arguments arguments;
  arguments.add(std::uint64_t{address(context).database}).add(std::uint64_t{databases.size()});
  for (const std::uint32_t database : databases) arguments.add(std::uint64_t{database});
  MJ_TRY(redis, link(context));
  MJ_TRY(reply, redis->run(scripts::database_contexts, arguments));
  for (std::size_t i = 0; i < databases.size(); ++i) {
    if (reply.at(i).text() == "denied")
      denied.insert(databases[i]);
    else
      found.emplace_back(databases[i], static_cast<Id>(reply.at(i).number()));
  }
  return found;
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
