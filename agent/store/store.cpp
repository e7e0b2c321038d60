#include "store/store.h"

#include "base/parse.h"
#include "store/redis/store_connection.h"

namespace mycojobs {

Store::Store(const RedisStoreConfig& config) : Store(std::make_unique<StoreConnection>(config)) {}
Store::Store(std::unique_ptr<StoreConnection> connection)
    : RedisClaims(*connection),
      LeaseStore(*connection),
      PrerequisiteStore(*connection),
      NoticeStore(*connection),
      SubmitStore(*connection),
      QueueStore(*connection),
      RunnerStore(*connection),
      JournalStore(*connection),
      RecordStore(*connection),
      MessageStore(*connection),
      connection_(std::move(connection)) {}
Store::~Store() = default;

Result<StoreServerInfo> Store::server_info(Id context) {
  MJ_TRY(redis, connection_->link(context));
  MJ_TRY(reply, redis->command({"INFO"}));
  const std::string_view text = reply.text();
  const auto has_line = [&](std::string_view line) { return text.find(line) != std::string_view::npos; };
  const auto field = [&](std::string_view name) {
    const auto at = text.find("\n" + std::string(name) + ":");
    if (at == std::string_view::npos) return std::string();
    const auto begin = at + name.size() + 2;
    return std::string(text.substr(begin, text.find_first_of("\r\n", begin) - begin));
  };
  bool is_config_denied = false;  // CONFIG is not repeated after a refusal, because the server logs each refusal
  const auto setting = [&](std::string_view name) {
    if (is_config_denied) return std::string();
    auto setting_reply = redis->command({"CONFIG", "GET", name});
    is_config_denied = !setting_reply && setting_reply.error().code == Code::denied;
    return setting_reply ? std::string(setting_reply->at(1).text()) : std::string();
  };
  StoreServerInfo info;
  info.product = has_line("valkey_version:") ? "valkey" : "redis";
  info.version = field(info.product + "_version");
  info.run_id = redis->server_run_id();
  std::uint64_t databases = 0;
  parse_u64(setting("databases"), databases);
  info.databases = static_cast<std::uint32_t>(databases);
  // Parses lines such as "db3:keys=12,...".
  for (std::size_t at = text.find("\ndb"); at != std::string_view::npos; at = text.find("\ndb", at + 1)) {
    std::uint64_t database = 0;
    const std::string_view line = text.substr(at + 3);
    if (!parse_u64(line.substr(0, line.find(':')), database) || database == 0 || database > UINT32_MAX) continue;
    MJ_TRY(has_access, connection_->can_access_database(static_cast<std::uint32_t>(database)));
    if (has_access) info.used_databases.push_back(static_cast<Id>(database));
  }
  info.appendonly = setting("appendonly");
  info.appendfsync = setting("appendfsync");
  info.maxmemory_policy = setting("maxmemory-policy");
  info.persistence_error = has_line("rdb_last_bgsave_status:err") || has_line("aof_last_write_status:err") ||
                           has_line("aof_last_bgrewrite_status:err");
  info.cluster = has_line("cluster_enabled:1");
  info.replica = has_line("role:slave");
  return info;
}

Result<std::uint64_t> Store::now_ms() {
  MJ_TRY(redis, connection_->link(0));
  MJ_TRY(time, redis->command({"TIME"}));
  return time.at(0).number() * 1000 + time.at(1).number() / 1000;
}

}  // namespace mycojobs
