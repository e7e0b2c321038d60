#include "store/redis/redis_acl.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

#include "store/keys.h"
#include "store/redis/key_tracking.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {
namespace {

constexpr std::array kRoles{
    RedisRole{"agent", "agents: claim, run and end jobs"},
    RedisRole{"coordinator", "coordinators: flows, schedules, messages, JSON-RPC"},
    RedisRole{"operator", "the commands of mycojobs"},
    RedisRole{"reader", "reads with the commands of mycojobs, or with any client"},
    RedisRole{"submitter", "any client that sends jobs and messages and reads its answers"},
};

// Commands by role: a(gent), c(oordinator), o(perator), r(eader). A script runs with the permissions of its caller, so
// the commands of all scripts are included. tests/unit/store/access_test.cpp compares this table with the scripts.
struct CommandRow {
  std::string_view command, roles;
};
constexpr std::array kCommands{
    // Connections and the server.
    CommandRow{"ping", "acor"},
    CommandRow{"info", "acor"},
    CommandRow{"time", "acor"},
    CommandRow{"client|setname", "acor"},
    CommandRow{"client|id", "acor"},
    CommandRow{"client|kill", "aco"},     // ends an abandoned connection, so that its pending commands are not executed
    CommandRow{"client|tracking", "ac"},  // reports changes of lists that plain clients write
    CommandRow{"bgrewriteaof", "aco"},
    CommandRow{"wait", "aco"},
    CommandRow{"config|get", "o"},  // for `doctor` only, because it also returns requirepass and masterauth
    CommandRow{"eval", "acor"},
    CommandRow{"evalsha", "acor"},
    CommandRow{"publish", "aco"},
    CommandRow{"subscribe", "acor"},
    // Keys of any type.
    CommandRow{"exists", "acor"},
    CommandRow{"type", "acor"},
    CommandRow{"scan", "acor"},
    CommandRow{"dbsize", "co"},
    CommandRow{"memory|usage", "acor"},
    CommandRow{"del", "aco"},
    CommandRow{"unlink", "aco"},
    // Strings.
    CommandRow{"get", "acor"},
    CommandRow{"getrange", "a"},  // bounds the size of lock files, which other clients can write
    CommandRow{"set", "aco"},
    // Hashes.
    CommandRow{"hexists", "acor"},
    CommandRow{"hget", "acor"},
    CommandRow{"hgetall", "acor"},
    CommandRow{"hkeys", "acor"},
    CommandRow{"hlen", "acor"},
    CommandRow{"hmget", "acor"},
    CommandRow{"hstrlen", "acor"},
    CommandRow{"hdel", "aco"},
    CommandRow{"hset", "aco"},
    CommandRow{"hsetnx", "aco"},
    // Lists.
    CommandRow{"lindex", "acor"},
    CommandRow{"llen", "acor"},
    CommandRow{"lpos", "acor"},
    CommandRow{"lrange", "acor"},
    CommandRow{"lmove", "aco"},
    CommandRow{"blmove", "ac"},  // intake and router wait for work with it
    CommandRow{"lpop", "aco"},
    CommandRow{"lpush", "aco"},
    CommandRow{"lrem", "aco"},
    CommandRow{"rpop", "aco"},
    CommandRow{"rpush", "aco"},
    // Sets.
    CommandRow{"scard", "acor"},
    CommandRow{"sismember", "acor"},
    CommandRow{"smembers", "acor"},
    CommandRow{"srandmember", "acor"},
    CommandRow{"sadd", "aco"},
    CommandRow{"srem", "aco"},
    // Sorted sets.
    CommandRow{"zcard", "acor"},
    CommandRow{"zlexcount", "acor"},
    CommandRow{"zrange", "acor"},
    CommandRow{"zrangebylex", "acor"},
    CommandRow{"zrangebyscore", "acor"},
    CommandRow{"zscore", "acor"},
    CommandRow{"zadd", "aco"},
    CommandRow{"zrem", "aco"},
    // Streams.
    CommandRow{"xinfo|stream", "acor"},
    CommandRow{"xlen", "cor"},
    CommandRow{"xrange", "acor"},
    CommandRow{"xread", "cor"},
    CommandRow{"xrevrange", "acor"},
    CommandRow{"xadd", "aco"},
    CommandRow{"xdel", "aco"},
};

constexpr std::array<std::string_view, 9> kRecords{"job:*",   "flow:*",  "message:*", "runner:*", "context:*",
                                                   "actor:*", "queue:*", "msg_in",    "msg_out"};

// Returns the fixed prefix of a pattern: "mj:claim:<job key>" -> "mj:claim:".
std::string_view fixed_prefix(const InternalKey& key) { return key.pattern.substr(0, key.pattern.find('<')); }

void add_channels(std::vector<std::string>& rules, std::initializer_list<std::string_view> channels) {
  for (const std::string_view channel : channels) rules.push_back('&' + std::string(channel));
}

void add_agent_keys(std::vector<std::string>& rules) {
  for (const std::string_view key : {"job:*", "flow:*", "message:*", "runner:*", "queue:*", "msg_in"})
    rules.push_back("~" + std::string(key));
  rules.insert(rules.end(), {"%R~context:*", "%R~actor:*"});
  for (const InternalKey& key : internal_keys()) {
    if (key.agent_access == AgentAccess::none) continue;
    const std::string_view prefix = fixed_prefix(key);
    rules.push_back((key.agent_access == AgentAccess::read ? "%R~" : "~") + std::string(prefix) +
                    (prefix.size() == key.pattern.size() ? "" : "*"));
  }
}

void add_key_rules(std::vector<std::string>& rules, const std::string& permission) {
  for (const std::string_view key : kRecords) rules.push_back(permission + std::string(key));
  rules.insert(rules.end(), {permission + "msg_out_coordinator", permission + std::string(kInternalKeyPrefix) + '*'});
}

// Each rule in parentheses is a selector of Redis: it permits its commands on its own keys only, in addition to the
// user's other rules.
void add_submitter_rules(std::vector<std::string>& rules, Id caller) {
  const std::string owner_pattern = caller == 0 ? "*" : std::to_string(caller) + ":*";
  rules.insert(rules.end(), {"+ping", "+publish", "&runner*"});
  rules.push_back("(+hset +hget +hmget +hgetall ~job:" + owner_pattern + " ~message:" + owner_pattern + ")");
  rules.insert(rules.end(), {"(+lpush ~queue:* ~msg_out)", "(+rpop ~msg_in)"});
}

}  // namespace

std::span<const RedisRole> redis_roles() { return kRoles; }

Result<std::vector<std::uint32_t>> databases_of_role(std::span<const Id> contexts,
                                                     const std::map<Id, std::string>& urls,
                                                     const std::string& default_url) {
  std::vector<std::uint32_t> databases;
  std::optional<RedisEndpoint> first_server;
  for (const Id context : contexts) {
    RedisEndpoint endpoint;
    endpoint.database = context;  // the default server may have no address
    if (urls.contains(context) || !default_url.empty()) {
      MJ_TRY(found, find_context_endpoint(default_url, urls, context));
      endpoint = std::move(found);
    }
    databases.push_back(*endpoint.database);
    const RedisEndpoint server = endpoint.server();
    if (!first_server) first_server = server;
    if (server == *first_server) continue;
    return fail(Code::invalid, "contexts " + std::to_string(contexts.front()) + " and " + std::to_string(context) +
                                   " are on different Redis servers, and a user of one must not select the databases "
                                   "of the other: call `context acl` once for each server");
  }
  return databases;
}

std::vector<std::string> acl_rules(std::string_view role, std::span<const std::uint32_t> databases, Id caller) {
  std::vector<std::string> rules{"-@all"};
  // The script that deletes actors selects other databases and then returns to database 0.
  const bool has_database_0 = std::find(databases.begin(), databases.end(), 0U) != databases.end();
  if (!has_database_0 && (role == "operator" || role == "coordinator")) rules.emplace_back("+select|0");
  for (const std::uint32_t database : databases) rules.push_back("+select|" + std::to_string(database));
  if (role == "submitter") {
    add_submitter_rules(rules, caller);
    return rules;
  }
  for (const CommandRow& row : kCommands) {
    if (row.roles.find(role[0]) != std::string_view::npos) rules.push_back("+" + std::string(row.command));
  }
  if (role == "agent") {
    add_agent_keys(rules);
    add_channels(rules, {kWakeChannel, kQueueFilledChannel, kNoticeChannel, kFlowDueChannel, kReplicationChannel,
                         kMailboxChangedChannel, kDeploymentChannel, kInvalidateChannel, "runner*"});
    for (const std::uint32_t database : databases)
      rules.push_back('&' + std::string(kTransferChannel) + std::to_string(database) + ":*");
  } else if (role == "reader") {
    add_key_rules(rules, "%R~");
    add_channels(rules, {kFlowChangedChannel, kWakeChannel, kDeploymentChannel});
  } else {
    add_key_rules(rules, "~");
    add_channels(rules, {std::string(kInternalKeyPrefix) + '*', "runner*"});
    if (role == "coordinator") add_channels(rules, {kInvalidateChannel});
  }
  return rules;
}

}  // namespace mycojobs
