// Compares the Redis users that `mycojobs context acl` prints with the scripts and the key table.
// tests/e2e/access_test.cpp tests the users with a real server.
#include "store/redis/redis_acl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "store/keys.h"
#include "store/lua_scripts.h"

namespace mycojobs {
namespace {

std::vector<std::string> get_acl_rules(std::string_view role) {
  const std::uint32_t databases[] = {3};
  return acl_rules(role, databases, 0);
}

bool grants(const std::vector<std::string>& rules, const std::string& rule) {
  return std::find(rules.begin(), rules.end(), rule) != rules.end();
}

// Returns "+hset" for each redis.call('HSET', ...), and the same for command names that a script builds.
std::set<std::string> find_commands(const Script& script) {
  static const std::regex called(
      "(?:redis\\.p?call|call_index)\\('([A-Z]+)'(?:, '(STREAM|USAGE)')?|'(RPUSH|LPUSH|ZADD|ZREM)'");
  const std::string text(script.text);
  std::set<std::string> all;
  for (std::sregex_iterator at(text.begin(), text.end(), called), end; at != end; ++at) {
    std::string command = "+" + ((*at)[1].matched ? (*at)[1].str() : (*at)[3].str());
    if ((*at)[2].matched) command += "|" + (*at)[2].str();
    std::transform(command.begin(), command.end(), command.begin(), [](unsigned char c) { return std::tolower(c); });
    all.insert(command);
  }
  return all;
}

void expect_calls_allowed(std::string_view role, const std::vector<const Script*>& called) {
  const auto rules = get_acl_rules(role);
  for (const Script* script : called) {
    const auto commands = find_commands(*script);
    EXPECT_GT(commands.size(), 0U) << script->name;
    for (const std::string& command : commands)
      EXPECT_TRUE(grants(rules, command)) << role << " calls " << script->name << ", which needs " << command;
  }
}

using namespace scripts;

const std::vector<const Script*> kOfAgents{&note_refusal,
                                           &agree_on_format,
                                           &claim,
                                           &expire,
                                           &expire_instance,
                                           &grant,
                                           &hold_runner,
                                           &leases,
                                           &load,
                                           &object_declare,
                                           &object_ids,
                                           &object_index,
                                           &object_kinds,
                                           &object_page,
                                           &object_reindex,
                                           &object_release,
                                           &object_search,
                                           &object_write,
                                           &close_message,
                                           &release_runner,
                                           &renew,
                                           &report,
                                           &take_message,
                                           &tick,
                                           &pending_messages,
                                           &unclaim,
                                           &prerequisites_due,
                                           &prerequisites_settled};
const std::vector<const Script*> kOfOthers{&hold_files,
                                           &upload_begin,
                                           &upload_complete,
                                           &upload_expire,
                                           &actor_of_key,
                                           &index_actors,
                                           &answer_message,
                                           &arrive_message,
                                           &cancel_message,
                                           &follow_log,
                                           &mail_due,
                                           &reserve_jobs,
                                           &retire_messages,
                                           &route_message,
                                           &settle_mail,
                                           &cancel,
                                           &change_record,
                                           &create_record,
                                           &delete_job,
                                           &delete_record,
                                           &flow_adopt,
                                           &flow_await,
                                           &ended_job,
                                           &flow_commit,
                                           &flow_create,
                                           &flow_due,
                                           &flow_jobs,
                                           &flow_lead,
                                           &flow_list,
                                           &flow_places,
                                           &flow_put,
                                           &flow_put_jobs,
                                           &flow_raise,
                                           &flow_read,
                                           &flow_repair,
                                           &flow_reserve,
                                           &flow_retire,
                                           &flow_schedule_put,
                                           &flow_schedule_remove,
                                           &flow_stop_leading,
                                           &job_list,
                                           &journal_at,
                                           &notices_due,
                                           &places,
                                           &prerequisite_answer,
                                           &purge_queue,
                                           &repair,
                                           &requeue,
                                           &settle_dead_letter,
                                           &settle_notice,
                                           &start_job,
                                           &submit,
                                           &topic_send,
                                           &world_cell,
                                           &world_collect,
                                           &world_commit,
                                           &world_due,
                                           &world_facts,
                                           &world_glance,
                                           &world_mail,
                                           &world_places,
                                           &world_post,
                                           &world_put_manifest,
                                           &world_read,
                                           &world_repair};

TEST(Access, EachRoleMayCallTheCommandsOfItsScripts) {
  for (const char* role : {"agent", "coordinator", "operator"}) expect_calls_allowed(role, kOfAgents);
  for (const char* role : {"coordinator", "operator"}) expect_calls_allowed(role, kOfOthers);
  expect_calls_allowed("reader", {&load, &journal_at, &job_list, &flow_list, &flow_read, &flow_jobs, &places,
                                  &flow_places, &leases, &object_page, &object_search, &object_kinds, &world_cell,
                                  &world_facts, &world_glance, &world_mail, &world_read, &world_places});
}

TEST(Access, AgentScriptsUseNoForbiddenKeys) {
  const auto rules = get_acl_rules("agent");
  const std::regex comparison("(== |#)'[^']*'");  // a name that is only compared or measured is not accessed
  std::map<std::string_view, std::string> texts;
  for (const Script* script : kOfAgents)
    texts.emplace(script->name, std::regex_replace(std::string(script->text), comparison, ""));
  std::size_t closed = 0;
  for (const InternalKey& key : internal_keys()) {
    const bool is_exact = key.pattern.find('<') == std::string_view::npos;
    const std::string prefix(key.pattern.substr(0, key.pattern.find('<'))), pattern = prefix + (is_exact ? "" : "*");
    if (grants(rules, "~" + pattern) || grants(rules, "%R~" + pattern)) continue;
    ++closed;
    // Attempted without the permission: a refusal that cannot be recorded is still a refusal.
    if (key.pattern == "mj:refusals") continue;
    for (const auto& [name, text] : texts)
      EXPECT_EQ(text.find("'" + prefix + (is_exact ? "'" : "")), std::string::npos) << name << prefix;
  }
  EXPECT_GT(closed, 15U);
}

TEST(Access, NoRoleHasACommandBeyondItsKeys) {
  for (const RedisRole& role : redis_roles()) {
    const auto rules = get_acl_rules(role.name);
    EXPECT_EQ(rules.front(), "-@all");
    for (const std::string& rule : rules) {
      EXPECT_FALSE(rule.starts_with("+@") || rule == "~*" || rule == "&*" || rule == "allkeys" || rule == "+select")
          << role.name << ' ' << rule;
      for (const char* command : {"copy", "move", "swapdb", "keys", "flushdb", "flushall", "sort", "acl", "monitor",
                                  "restore", "migrate", "script", "function", "fcall", "debug", "shutdown", "rename"})
        EXPECT_FALSE(rule.starts_with("+" + std::string(command))) << role.name << ' ' << rule;
    }
  }
}

TEST(Access, AgentsReachEachKeyPrefixOfTheTable) {
  std::size_t closed = 0;
  const auto rules = get_acl_rules("agent");
  for (const InternalKey& key : internal_keys()) {
    const std::string prefix(key.pattern.substr(0, key.pattern.find('<')));
    const std::string pattern = prefix + (prefix.size() == key.pattern.size() ? "" : "*");
    if (!grants(rules, "~" + pattern) && !grants(rules, "%R~" + pattern)) ++closed;
  }
  EXPECT_EQ(closed, 40U) << "the number of keys with agent_access = \"none\" in keys.toml has changed";
  EXPECT_FALSE(grants(rules, "~mj:*"));
}

TEST(Access, AgentsTransferArtifactsOfTheirDatabasesOnly) {
  const auto rules = get_acl_rules("agent");
  EXPECT_TRUE(grants(rules, "&mj:transfer:3:*"));
  for (const std::string& rule : rules) EXPECT_FALSE(rule.starts_with("&mj:t") && rule != "&mj:transfer:3:*") << rule;
  for (const char* role : {"reader", "submitter"}) {
    const auto others = get_acl_rules(role);
    EXPECT_FALSE(grants(others, "&mj:transfer:3:*")) << role;
    EXPECT_FALSE(grants(others, "&mj:*")) << role;
  }
}

// An agent runs code of its tenant, which must not be able to close the database with another format or owner.
TEST(Access, AgentsCannotChangeTheFormat) {
  const auto rules = get_acl_rules("agent");
  EXPECT_TRUE(grants(rules, "%R~mj:format"));
  EXPECT_FALSE(grants(rules, "~mj:format"));
}

TEST(Access, ContextWithAServerUsesItsAddressDatabase) {
  const Id contexts[] = {1, 3, 4};
  const auto databases =
      databases_of_role(contexts, {{3, "redis://host/0"}, {4, "redis://host"}}, "redis://me:secret@host");
  ASSERT_TRUE(databases) << databases.error().message;
  EXPECT_EQ(*databases, (std::vector<std::uint32_t>{1, 0, 4}));
  EXPECT_FALSE(databases_of_role(contexts, {{3, "no address"}}, ""));
}

TEST(Access, ContextsOnSeveralServersShareNoUser) {
  const Id contexts[] = {3, 4};
  for (const char* default_url : {"", "redis://host"}) {
    const auto refused = databases_of_role(contexts, {{4, "redis://other"}}, default_url);
    ASSERT_FALSE(refused) << default_url;
    EXPECT_EQ(refused.error().code, Code::invalid);
    EXPECT_NE(refused.error().message.find("call `context acl` once for each server"), std::string::npos)
        << refused.error().message;
    EXPECT_TRUE(databases_of_role(contexts, {}, default_url));
  }
  EXPECT_TRUE(databases_of_role(contexts, {{3, "redis://a:b@other"}, {4, "redis://other/9"}}, ""));
}

}  // namespace
}  // namespace mycojobs
