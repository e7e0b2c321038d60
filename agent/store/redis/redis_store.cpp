#include "store/redis/redis_store.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "base/parse.h"
#include "model/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/redis/format_version.h"
#include "store/redis/redis_flows.h"
#include "store/redis/redis_objects.h"
#include "store/redis/redis_waiter.h"
#include "store/redis/redis_workflows.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

// Parses an entry of a log. Returns false if the entry is not a log line: it marks an end, or another client wrote it.
bool read_line(const Reply& entry, Log& line) {
  const std::string id(entry.at(0).text());
  const Reply body = entry.at(1);
  bool has_text = false;
  parse_u64(id.substr(0, id.find('-')), line.seq);
  for (const auto& [name, value] : body.fields()) {
    if (name == "ts") parse_u64(value, line.ts_ms);
    if (name == "stream") line.stream = parse<LogStream>(value).value_or(LogStream::system);
    if (name == "text") line.text = value, has_text = true;
  }
  return has_text;
}

std::string glob_escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// Rewrites the append-only file after a start. If the file was truncated within a step, Redis (7.0) keeps the first
// half of the step in the file, and executes it together with the following step at its next start. A rewritten file
// does not contain it.
void seal_append_only_file(RedisConnection& link) {
  auto info = link.command({"INFO", "persistence"});
  if (!info) return;
  const auto has_line = [&](std::string_view line) { return info->text().find(line) != std::string_view::npos; };
  if (!has_line("aof_enabled:1") || !has_line("aof_rewrites:0\r") || has_line("aof_rewrite_in_progress:1")) return;
  if (auto start_result = link.command({"BGREWRITEAOF"}); !start_result)
    log(LogLevel::debug, "store", "BGREWRITEAOF: {}", start_result.error().message);
}

// Prepares a new connection. A database with a newer format is rejected before any write. After a restart of the
// server, each live claim gets a lease of full length, and lost facts are recorded as an anomaly.
Result<void> prepare_connection(Id context, JournalHeads& heads, LogLevel restart_level, RedisConnection& link) {
  MJ_CHECK(agree_on_format(context, link));
  MJ_TRY(reply, link.run(scripts::grant, Arguments{link.server_run_id()}));
  if (reply.at(0).number() > 0) {
    log(restart_level, "store", "context {}: Redis was restarted; {} received a new lease", context,
        count_with_noun(static_cast<std::uint64_t>(reply.at(0).number()), "live claim"));
  }
  if (reply.at(1).number() == 1) seal_append_only_file(link);
  const std::string lost_queues = heads.find_lost_queues(context, link.server_run_id(), reply.at(2).fields());
  if (lost_queues.empty()) return {};
  const std::string text = "Redis was started without the end of its data: " + lost_queues +
                           "; the latest acknowledged writes are lost, and their jobs may run again: after their ends, "
                           "repair the rest with `mycojobs doctor --rebuild`";
  log(LogLevel::error, "store", "context {}: {}", context, text);
  (void)link.command({"XADD", kAnomaliesKey, "MAXLEN", "~", "10000", "*", "text", text});
  return {};
}

class RedisStores final : public StoreFactory {
 public:
  explicit RedisStores(RedisStoreConfig config) : config_(std::move(config)) {}

  // Error: invalid (a URL).
  Result<std::unique_ptr<Store>> open() override {
    MJ_CHECK(connection_options(config_, 0));
    for (const auto& own_url : config_.context_urls) MJ_CHECK(connection_options(config_, own_url.first));
    return std::make_unique<RedisStore>(config_);
  }
  Result<std::unique_ptr<Store>> open_reader() override {
    MJ_CHECK(open());
    RedisStoreConfig config = config_;
    config.connect_timeout_ms = std::min(config.connect_timeout_ms, config.reader_timeout_ms);
    config.command_timeout_ms = std::min(config.command_timeout_ms, config.reader_timeout_ms);
    return std::make_unique<RedisStore>(config);
  }
  Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic) override {
    return RedisWaiter::open(config_, queues, topic);
  }
  Result<std::unique_ptr<ObjectStore>> open_objects() override {
    return std::make_unique<RedisObjects>(link_opener(config_), config_.instrumentation);
  }
  Result<std::unique_ptr<FlowStore>> open_flows() override {
    return make_redis_flows(link_opener(config_), config_.instrumentation);
  }
  Result<std::unique_ptr<WorkflowStore>> open_workflows() override {
    return make_redis_workflows(link_opener(config_), config_.instrumentation);
  }

 private:
  RedisStoreConfig config_;
};

}  // namespace

Result<RedisConnection::Options> connection_options(const RedisStoreConfig& config, Id context) {
  const auto own_url = config.context_urls.find(context);
  const bool has_own_url = own_url != config.context_urls.end();
  MJ_TRY(endpoint, has_own_url ? parse_redis_url(own_url->second) : parse_shared_redis_url(config.default_url));
  RedisConnection::Options options;
  options.database = has_own_url ? endpoint.database.value_or(context) : context;
  options.endpoint = std::move(endpoint);
  options.client_name = config.client_name;
  options.connect_timeout_ms = config.connect_timeout_ms;
  options.command_timeout_ms = config.command_timeout_ms;
  return options;
}

OpenLink link_opener(const RedisStoreConfig& config) {
  return [config](Id context) -> Result<std::unique_ptr<Link>> {
    MJ_TRY(options, connection_options(config, context));
    if (context != 0) {
      const LogLevel restart_level = config.is_intermittent ? LogLevel::info : LogLevel::warn;
      options.on_connect = [context, restart_level, heads = config.journal_heads](RedisConnection& link) {
        return prepare_connection(context, *heads, restart_level, link);
      };
    }
    return std::make_unique<RedisConnection>(std::move(options));
  };
}

RedisStore::RedisStore(const RedisStoreConfig& config)
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

void JournalHeads::observe_head(Id context, const std::string& queue, std::uint64_t head) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& latest_head = observed_by_context_[context].heads[queue];
  latest_head = std::max(latest_head, head);
}

std::string JournalHeads::find_lost_queues(Id context, const std::string& server_run_id, const Fields& heads_at_start) {
  const std::lock_guard lock(mutex_);
  ObservedHeads& observed = observed_by_context_[context];
  if (observed.server_run_id == server_run_id) return {};
  observed.server_run_id = server_run_id;
  std::string lost_queues;
  for (const auto& [queue, head] : observed.heads) {
    const std::uint64_t at_start = number_of(heads_at_start, queue);
    if (at_start >= head) continue;
    lost_queues += (lost_queues.empty() ? "" : ", ") + queue + " is at revision " + std::to_string(at_start) +
                   ", and was seen at " + std::to_string(head);
  }
  observed.heads.clear();
  return lost_queues;
}

Result<void> RedisStore::await_replicas(Id context) {
  if (wait_replicas_ == 0) return {};
  constexpr std::uint32_t kTimeoutMs = 2000;
  // WAIT only waits for writes of this connection. If the change was made on an earlier connection, PUBLISH is the
  // write that replicas must confirm, which they do after all previous writes.
  MJ_CHECK(command(context, {"PUBLISH", kReplicationChannel, ""}));
  MJ_TRY(replicas, command(context, Arguments{"WAIT"}.add(std::uint64_t{wait_replicas_}).add(std::uint64_t{kTimeoutMs}),
                           kTimeoutMs));
  if (replicas.number() >= wait_replicas_) return {};
  return fail(Code::unavailable, "redis: " + std::to_string(replicas.number()) +
                                     " replicas have the write, redis_wait_replicas requires " +
                                     std::to_string(wait_replicas_) + ": check the replicas and repeat the call");
}

Result<Fields> RedisStore::load(Id context, const std::string& key) { return load_fields(context, key, {}); }

Result<void> RedisStore::save(Id context, const std::string& key, const Fields& fields) {
  if (fields.empty()) return {};
  Arguments arguments{"HSET", key};
  for (const auto& [name, value] : fields) arguments.add(name).add(value);
  MJ_CHECK(command(context, arguments));
  return {};
}

Result<void> check_load_reply(const Reply& reply, Id context, const std::string& key) {
  if (reply.at(0).number() == 0) return {};
  if (reply.at(0).number() == 1) return tl::unexpected<Error>(record_not_found(context, key));
  return fail(Code::too_large, key + ": " + std::string(reply.at(1).text()) + ": " + std::string(reply.at(2).text()) +
                                   " bytes are more than is read of a record: shorten it");
}

Result<Fields> RedisStore::load_fields(Id context, const std::string& key, std::span<const std::string_view> names) {
  MJ_TRY(redis, link(context));
  // Database 0 contains actors. Single fields of other records can be read there too, since `explain` detects a job
  // that a client has written to the wrong database.
  const bool is_global = context == 0 && (key.starts_with("actor:") || key == kActorKeysKey || !names.empty());
  Arguments arguments{key};
  arguments.add(kMaxLoadBytes).add(std::uint64_t{names.size()});
  for (std::string_view name : names) arguments.add(name);
  auto reply = is_global ? redis->run(scripts::load, arguments) : run(context, scripts::load, arguments);
  if (!reply) return fail(std::move(reply).error(), key);
  MJ_CHECK(check_load_reply(*reply, context, key));
  return reply->at(1).fields();
}

Result<std::vector<Fields>> RedisStore::load_batch(Id context, std::span<const std::string> keys,
                                                   std::span<const std::string_view> names) {
  constexpr std::size_t kMaxKeysBatch = 200;
  std::vector<Fields> records;
  while (records.size() < keys.size()) {
    const auto batch = keys.subspan(records.size(), std::min(kMaxKeysBatch, keys.size() - records.size()));
    Arguments arguments;
    arguments.add(std::uint64_t{batch.size()});
    for (const std::string& key : batch) arguments.add(key);
    arguments.add(std::uint64_t{names.size()});
    for (const std::string_view name : names) arguments.add(name);
    MJ_TRY(reply, run(context, scripts::load_some, arguments));
    for (std::size_t i = 0; i < reply.size(); ++i) records.push_back(reply.at(i).fields());
  }
  return records;
}

Result<std::vector<std::string>> RedisStore::scan(Id context, const Arguments& filter, std::size_t max) {
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

Result<std::vector<std::string>> RedisStore::keys(Id context, std::string_view prefix, std::size_t max) {
  if (context == 0 && prefix != "actor:") return fail(Code::invalid, "only actors live in context 0");
  const std::string pattern = glob_escaped(prefix) + "*";
  return scan(context, {"MATCH", pattern}, max);
}

Result<std::uint64_t> RedisStore::queue_length(Id context, const std::string& queue) {
  MJ_TRY(reply, command(context, {"LLEN", queue}));
  return reply.number();
}

// Reads entries until there is a line, since the log of a job that ran often can contain many marks of earlier ends.
// LogPage::ended is set if the last entry that was read marks an end.
Result<LogPage> RedisStore::read_log(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                                     std::uint32_t wait_ms) {
  const std::string key = log_key(job_key);
  max = std::max<std::size_t>(max, 1);
  LogPage page;
  for (std::uint64_t last_seq = after_seq;; wait_ms = 0) {
    Arguments arguments{"XREAD", "COUNT"};
    arguments.add(std::uint64_t{max});
    if (wait_ms > 0) arguments.add("BLOCK").add(std::uint64_t{wait_ms});
    arguments.add("STREAMS").add(key).add(std::to_string(last_seq) +
                                          "-18446744073709551615");  // also skips 7-1 after 7
    MJ_TRY(reply, command(context, arguments, wait_ms));
    const Reply entries = reply.at(0).at(1);
    const std::uint64_t seq_before = last_seq;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Log line;
      const bool is_line = read_line(entries.at(i), line);
      last_seq = line.seq;
      if (is_line)
        page.lines.push_back(std::move(line));
      else
        page.skipped_seqs.push_back(last_seq);
      page.ended = entries.at(i).at(1).at(0).text() == "end";
    }
    if (!page.lines.empty() || entries.size() < max || last_seq <= seq_before) return page;
  }
}

Result<LogPage> RedisStore::logs(Id context, const std::string& job_key, std::uint64_t after_seq, std::size_t max,
                                 std::uint32_t wait_ms) {
  MJ_TRY(page, read_log(context, job_key, after_seq, max, wait_ms));
  if (!page.lines.empty() && !page.ended) return page;
  // A mark of an end is not final if the job was queued again, so the state of the job decides. Without a mark, another
  // client has ended the job, or it has not ended.
  MJ_TRY(status, command(context, {"HMGET", job_key, "status", "script"}));
  if (status.at(0).is_nil() && status.at(1).is_nil()) return fail(Code::not_found, job_key + " does not exist");
  MJ_TRY(state, command(context, {"HGET", kClaimKey + job_key, "state"}));
  const std::string_view status_text = status.at(0).text();
  const bool ended = state.text() == kJobStateEnded ||
                     (state.is_nil() && (status_text == kJobStatusFinished || status_text == kJobStatusError));
  if (ended && !page.ended) {  // lines may have been added between the two reads
    MJ_TRY(new_page, read_log(context, job_key, after_seq, max, 0));
    page = std::move(new_page);
  }
  page.ended = ended && (page.ended || page.lines.empty());
  return page;
}

Result<StoreServerInfo> RedisStore::server_info(Id context) {
  MJ_TRY(redis, link(context));
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
    bool has_access = true;
    if (check_database_access_) {
      MJ_TRY(result, check_database_access_(static_cast<std::uint32_t>(database)));
      has_access = result;
    }
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

Result<std::uint64_t> RedisStore::now_ms() {
  MJ_TRY(redis, link(0));
  MJ_TRY(time, redis->command({"TIME"}));
  return time.at(0).number() * 1000 + time.at(1).number() / 1000;
}

std::unique_ptr<StoreFactory> make_redis_stores(RedisStoreConfig config) {
  return std::make_unique<RedisStores>(std::move(config));
}

}  // namespace mycojobs
