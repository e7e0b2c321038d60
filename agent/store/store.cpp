#include "store/store.h"

#include <utility>

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
      TransferStore(*connection),
      LockFileStore(*connection),
      UploadStore(*connection),
      TicketKeyStore(*connection),
      connection_(std::move(connection)) {}
Store::~Store() = default;

namespace {

// Returns the numbers of lines such as "db3:keys=12,..." of INFO.
std::vector<std::uint32_t> parse_keyspace(std::string_view info) {
  std::vector<std::uint32_t> databases;
  for (std::size_t at = info.find("\ndb"); at != std::string_view::npos; at = info.find("\ndb", at + 1)) {
    std::uint64_t database = 0;
    const std::string_view line = info.substr(at + 3);
    if (parse_u64(line.substr(0, line.find(':')), database) && database <= UINT32_MAX)
      databases.push_back(static_cast<std::uint32_t>(database));
  }
  return databases;
}

// Returns the text of INFO, or an empty text if the server forbids the command.
Result<std::string> read_info(Link& redis, const std::string& server, const Arguments& command) {
  auto reply = redis.command(command);
  if (reply) return std::string(reply->text());
  if (!is_forbidden_command(reply.error().message)) return tl::unexpected<Error>(std::move(reply).error());
  note_forbidden_command(server, "INFO", reply.error().message);
  return std::string();
}

}  // namespace

Result<StoreServerInfo> Store::server_info(Id context) {
  MJ_TRY(redis, connection_->link(context));
  const std::string server = connection_->address(context).server;
  MJ_TRY(text, read_info(*redis, server, {"INFO"}));
  const auto has_line = [&](std::string_view line) { return text.find(line) != std::string_view::npos; };
  const auto field = [&](std::string_view name) {
    const auto at = text.find("\n" + std::string(name) + ":");
    if (at == std::string_view::npos) return std::string();
    const auto begin = at + name.size() + 2;
    return std::string(text.substr(begin, text.find_first_of("\r\n", begin) - begin));
  };
  bool is_config_forbidden = false;  // CONFIG is not repeated after a refusal, because the server logs each refusal
  const auto setting = [&](std::string_view name) {
    if (is_config_forbidden) return std::string();
    auto setting_reply = redis->command({"CONFIG", "GET", name});
    if (setting_reply) return std::string(setting_reply->at(1).text());
    is_config_forbidden = is_forbidden_command(setting_reply.error().message);
    // The roles of `context acl` have no CONFIG on purpose.
    if (is_config_forbidden && setting_reply.error().code != Code::denied)
      note_forbidden_command(server, "CONFIG", setting_reply.error().message);
    return std::string();
  };
  StoreServerInfo info;
  info.product = has_line("valkey_version:") ? "valkey" : "redis";
  info.version = field(info.product + "_version");
  info.run_id = redis->server_run_id();
  std::uint64_t databases = 0;
  parse_u64(setting("databases"), databases);
  info.databases = static_cast<std::uint32_t>(databases);
  MJ_TRY(stored_ids, connection_->read_stored_ids(context, parse_keyspace(text)));
  info.used_databases = std::move(stored_ids);
  info.appendonly = setting("appendonly");
  info.appendfsync = setting("appendfsync");
  info.maxmemory_policy = setting("maxmemory-policy");
  info.persistence_error = has_line("rdb_last_bgsave_status:err") || has_line("aof_last_write_status:err") ||
                           has_line("aof_last_bgrewrite_status:err");
  info.cluster = has_line("cluster_enabled:1");
  info.replica = has_line("role:slave");
  info.forbidden_commands = forbidden_commands(server);
  return info;
}

Result<std::vector<Id>> Store::find_contexts() {
  MJ_TRY(redis, connection_->link(0));
  MJ_TRY(text, read_info(*redis, connection_->address(0).server, {"INFO", "keyspace"}));
  MJ_TRY(stored_ids, connection_->read_stored_ids(0, parse_keyspace(text)));
  std::vector<Id> contexts;
  for (const auto& [database, stored_id] : stored_ids) {
    if (const Id context = connection_->find_context(database, stored_id); context != 0) contexts.push_back(context);
  }
  return contexts;
}

std::uint32_t Store::database_number(Id context) const { return connection_->address(context).database; }

Result<std::uint64_t> Store::now_ms() {
  MJ_TRY(redis, connection_->link(0));
  MJ_TRY(time, redis->command({"TIME"}));
  return time.at(0).number() * 1000 + time.at(1).number() / 1000;
}

}  // namespace mycojobs
