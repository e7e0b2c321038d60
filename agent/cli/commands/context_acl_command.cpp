// mycojobs context acl
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/request_arguments.h"
#include "cli/terminal.h"
#include "store/redis/redis_acl.h"
#include "store/redis/redis_endpoint.h"

namespace mycojobs {
namespace {

// Redis expects 64 hex digits after a # and rejects this placeholder, so that no user gets a password from a manual.
constexpr std::string_view kPasswordPlaceholder = "#PASSWORD";
constexpr std::size_t kPasswordBytes = 32;

Result<std::vector<Id>> get_contexts(const Invocation& call) {
  if (call.arguments.empty()) return call.settings.contexts;
  MJ_TRY(id, parse_id("context", call.arguments.at(0)));
  return std::vector<Id>{id};
}

bool is_selected_role(const Invocation& call, std::string_view role) {
  const auto& roles = call.get_all("role");
  return roles.empty() || std::find(roles.begin(), roles.end(), role) != roles.end();
}

// Prints the steps on stderr, because stdout is input of redis-cli. The order of the steps neither locks the operator
// out nor leaves the default user open after a restart of Redis.
void print_instructions(const Invocation& call) {
  if (!call.has("passwords"))
    print_message(fmt::format("replace {} by > and a password, or use --passwords: Redis rejects the lines unchanged",
                              kPasswordPlaceholder));
  print_message("type these in this order; in an aclfile a line begins with `user` instead of `ACL SETUSER`:");
  print_message(
      "1. an administrator, whose password redis-cli then reads from REDISCLI_AUTH: ACL SETUSER admin on >PASSWORD ~* "
      "&* +@all");
  const std::string& url = call.settings.redis;
  const std::string scheme = url.find("://") == std::string::npos ? "redis" : url.substr(0, url.find("://"));
  print_message(
      fmt::format("2. the lines above; then let each program name its user: {}://NAME:PASSWORD@HOST", scheme));
  print_message("3. redis-cli --user admin ACL SETUSER default off");
  print_message(
      "4. redis-cli --user admin ACL SAVE (with an aclfile), or CONFIG REWRITE: otherwise a restart opens it again");
  print_message(
      "5. check: `redis-cli ACL WHOAMI` without a password answers NOAUTH, and `mycojobs doctor` has no warning of it");
  print_message(
      "databases are not isolated from each other: contexts that distrust each other need separate Redis servers "
      "(docs/operations.md)");
}

}  // namespace

Result<int> context_acl_command(Invocation& call) {
  MJ_TRY(contexts, get_contexts(call));
  MJ_TRY(databases, databases_of_role(contexts, call.settings.context_redis, call.settings.redis));
  MJ_TRY(caller, parse_id_flag(call, "caller", 0));
  nlohmann::json users = nlohmann::json::array();
  for (const RedisRole& role : redis_roles()) {
    if (!is_selected_role(call, role.name)) continue;
    std::string name = fmt::format("{}{}-{}", kRedisUserPrefix, role.name, fmt::join(contexts, "-"));
    if (role.name == "submitter" && caller != 0) name += fmt::format("-actor{}", caller);
    const std::string password = call.has("passwords") ? random_hex(kPasswordBytes) : "";
    const auto rules = acl_rules(role.name, databases, caller);
    const std::string command =
        fmt::format("ACL SETUSER {} reset resetchannels on {} {}", name,
                    password.empty() ? std::string(kPasswordPlaceholder) : ">" + password, fmt::join(rules, " "));
    if (!call.json) print(command + "\n");
    users.push_back(
        {{"user", name}, {"role", role.name}, {"what", role.description}, {"rules", rules}, {"command", command}});
    if (!password.empty()) users.back()["password"] = password;
  }
  if (call.json) print_json(users);
  print_instructions(call);
  return 0;
}

}  // namespace mycojobs
