#include "store/redis/redis_acl.h"

#include <algorithm>
#include <array>

#include "store/keys.h"
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
    CommandRow{"client|kill", "aco"},  // ends an abandoned connection, so that its pending commands are not executed
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

// Internal keys that agents cannot access: flows, schedules, workflows, id counters of new records, owners of public
// keys, received messages, the order of the inbox, and denied requests. Agents have no access to mj:refusals because a
// client that may write there can also delete entries; a claim that was denied to an agent with such a user is noted in
// the record of its runner.
constexpr std::array<std::string_view, 34> kHiddenFromAgents{
    "mj:run:",        "mj:checkpoint:",      "mj:catalog",         "mj:catalog:",
    "mj:definition:", "mj:definition-uses:", "mj:schedules",       "mj:schedule:",
    "mj:coordinator", "mj:flow-keys:",       "mj:flow-waits:",     "mj:flows:active",
    "mj:flows:ended", "mj:queue:router:",    "mj:next:",           "mj:next:actor",
    "mj:next:runner", "mj:next:message:",    "mj:next:flow",       "mj:queue:router",
    "mj:refusals",    "mj:health",           "mj:actor-keys",      "mj:actor-looks",
    "mj:world:",      "mj:world-blobs:",     "mj:world-head:",     "mj:world-manifests:",
    "mj:world-full:", "mj:world-keys:",      "mj:world-key-ages:", "mj:came",
    "mj:inbox-turns", "mj:world-applies"};
constexpr std::array<std::string_view, 3> kReadOnlyForAgents{"mj:looking", "mj:paused", "mj:worlds"};

// Returns the fixed prefix of a pattern: "mj:claim:<job key>" -> "mj:claim:".
std::string_view fixed_prefix(const InternalKey& key) { return key.pattern.substr(0, key.pattern.find('<')); }

bool contains(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

void add_agent_keys(std::vector<std::string>& rules) {
  for (const std::string_view key : {"job:*", "flow:*", "message:*", "runner:*", "queue:*", "msg_in"})
    rules.push_back("~" + std::string(key));
  rules.insert(rules.end(), {"%R~context:*", "%R~actor:*"});
  for (const InternalKey& key : internal_keys()) {
    const std::string_view prefix = fixed_prefix(key);
    if (contains(kHiddenFromAgents, prefix)) continue;
    rules.push_back((contains(kReadOnlyForAgents, prefix) ? "%R~" : "~") + std::string(prefix) +
                    (prefix.size() == key.pattern.size() ? "" : "*"));
  }
}

void add_key_rules(std::vector<std::string>& rules, const std::string& permission) {
  for (const std::string_view key : kRecords) rules.push_back(permission + std::string(key));
  rules.insert(rules.end(), {permission + "msg_out_coordinator", permission + "mj:*"});
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
                                                     const std::map<Id, std::string>& urls) {
  std::vector<std::uint32_t> databases;
  for (const Id context : contexts) {
    const auto url = urls.find(context);
    if (url == urls.end()) {
      databases.push_back(context);
      continue;
    }
    MJ_TRY(endpoint, parse_redis_url(url->second));
    databases.push_back(endpoint.database.value_or(context));
  }
  return databases;
}

std::vector<std::string> acl_rules(std::string_view role, std::span<const std::uint32_t> databases, Id caller) {
  std::vector<std::string> rules{"-@all"};
  // The script that deletes actors selects other databases and then returns to database 0.
  if (role == "operator" || role == "coordinator") rules.emplace_back("+select|0");
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
    rules.insert(rules.end(),
                 {"&mj:wake", "&mj:notices", "&mj:flows:due", "&mj:replicas", "&mj:mail", "&mj:worlds", "&runner*"});
  } else if (role == "reader") {
    add_key_rules(rules, "%R~");
    rules.emplace_back("&mj:flows:moved");
    rules.emplace_back("&mj:wake");
    rules.emplace_back("&mj:worlds");
  } else {
    add_key_rules(rules, "~");
    rules.insert(rules.end(), {"&mj:*", "&runner*"});
  }
  return rules;
}

}  // namespace mycojobs
