// mycojobs context acl
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/commands/command_table.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "store/redis/redis_acl.h"
#include "text/json.h"

namespace mycojobs {
namespace {

// Redis expects 64 hex digits after a # and rejects this placeholder, so that no user gets a password from a manual.
constexpr std::string_view kNoPassword = "#PASSWORD";
constexpr std::size_t kPasswordBytes = 32;

Result<std::vector<Id>> contexts_named(const Invocation& call) {
  if (call.arguments.empty()) return call.settings.contexts;
  MJ_TRY(id, typed_id("context", call.arguments.at(0)));
  return std::vector<Id>{id};
}

bool is_wanted(const Invocation& call, std::string_view role) {
  const auto given = call.flags.find("role");
  return given == call.flags.end() ||
         std::find(given->second.begin(), given->second.end(), role) != given->second.end();
}

// Prints the steps on stderr, because stdout is input of redis-cli. Their order neither locks the operator out nor
// leaves the default user open after a restart of Redis.
void explain(const Invocation& call) {
  if (!call.has("passwords"))
    print_message(fmt::format("replace {} by > and a password, or use --passwords: Redis rejects the lines unchanged",
                              kNoPassword));
  print_message("type these in this order; in an aclfile a line begins with `user` instead of `ACL SETUSER`:");
  print_message(
      "1. an administrator, whose password redis-cli then reads from REDISCLI_AUTH: ACL SETUSER admin on >PASSWORD ~* "
      "&* +@all");
  print_message("2. the lines above; then let each program name its user: redis://NAME:PASSWORD@HOST");
  print_message("3. redis-cli --user admin ACL SETUSER default off");
  print_message(
      "4. redis-cli --user admin ACL SAVE (with an aclfile), or CONFIG REWRITE: otherwise a restart opens it again");
  print_message(
      "5. check: `redis-cli ACL WHOAMI` without a password answers NOAUTH, and `mycojobs doctor` has no warning of it");
  print_message(
      "databases are not isolated from each other: contexts that distrust each other need separate Redis servers "
      "(docs/operations.md)");
}

Result<int> print_users(Invocation& call) {
  MJ_TRY(contexts, contexts_named(call));
  MJ_TRY(databases, databases_of_role(contexts, call.settings.context_redis));
  MJ_TRY(caller, id_flag(call, "caller", 0));
  nlohmann::json users = nlohmann::json::array();
  for (const RedisRole& role : redis_roles()) {
    if (!is_wanted(call, role.name)) continue;
    std::string name = fmt::format("{}{}-{}", kRedisUserPrefix, role.name, fmt::join(contexts, "-"));
    if (role.name == "submitter" && caller != 0) name += fmt::format("-actor{}", caller);
    const std::string password = call.has("passwords") ? random_hex(kPasswordBytes) : "";
    const auto rules = redis_rules(role.name, databases, caller);
    const std::string line =
        fmt::format("ACL SETUSER {} reset resetchannels on {} {}", name,
                    password.empty() ? std::string(kNoPassword) : ">" + password, fmt::join(rules, " "));
    if (!call.json) print(line + "\n");
    users.push_back({{"user", name}, {"role", role.name}, {"what", role.what}, {"rules", rules}, {"command", line}});
    if (!password.empty()) users.back()["password"] = password;
  }
  if (call.json) print(dump_json(users, 2) + "\n");
  explain(call);
  return 0;
}

}  // namespace

int context_acl_command(Invocation& call) { return finish(print_users(call)); }

}  // namespace mycojobs
