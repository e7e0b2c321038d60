#include "inspect/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "store/keys.h"
#include "store/redis/format_version.h"
#include "store/stored_usage.h"
#include "text/plural.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::string_view kUnreadable = "not readable: the server keeps it from this user";
constexpr std::string_view kAllowConfigRemedy =
    "allow CONFIG GET for the Redis user of the address, or check the setting on the server";

Check check_memory_policy(const std::string& policy) {
  Check check{"redis", "maxmemory-policy", CheckStatus::ok, policy, ""};
  if (policy.empty()) {
    check.status = CheckStatus::warning;
    check.detail = std::string(kUnreadable) + "; it must be noeviction";
    check.remedy = kAllowConfigRemedy;
  } else if (policy != "noeviction") {
    check.status = CheckStatus::error;
    check.detail = policy + ": Redis may evict queues and records when its memory is full";
    check.remedy = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf";
  }
  return check;
}

Check check_appendonly(const std::string& appendonly) {
  if (appendonly == "yes")
    return {"redis", "appendonly", CheckStatus::ok, "yes: acknowledged writes survive a crash of Redis", ""};
  if (appendonly.empty())
    return {"redis", "appendonly", CheckStatus::warning, std::string(kUnreadable), std::string(kAllowConfigRemedy)};
  return {"redis", "appendonly", CheckStatus::warning,
          appendonly + ": a crash or restart of Redis loses all that was accepted since its last snapshot",
          "redis-cli CONFIG SET appendonly yes, and the same in redis.conf"};
}

// Describes the risk and cost of each choice, the current choice first.
Check check_appendfsync(const StoreServerInfo& server_info) {
  Check check{"redis", "appendfsync", CheckStatus::ok, "", ""};
  if (server_info.appendonly == "no") {
    check.detail = server_info.appendfsync + ": without effect while appendonly is no";
  } else if (server_info.appendfsync == "always") {
    check.detail = "always: a power failure loses no acknowledged write; each step waits for the disk";
  } else if (server_info.appendfsync == "everysec") {
    check.detail =
        "everysec: a power failure may lose about the last second (always: no loss, but a disk write for each step)";
  } else if (server_info.appendfsync == "no") {
    check.status = CheckStatus::warning;
    check.detail = "no: a power failure may lose half a minute (everysec: about a second; always: no loss)";
    check.remedy = "redis-cli CONFIG SET appendfsync everysec, and the same in redis.conf";
  } else {
    check.status = CheckStatus::warning;
    check.detail = kUnreadable;
    check.remedy = kAllowConfigRemedy;
  }
  return check;
}

Check check_databases(const StoreServerInfo& server_info, Id max_context) {
  if (server_info.databases == 0) {
    return {"redis", "databases", CheckStatus::warning,
            fmt::format("{}; context {} needs more than {}", kUnreadable, max_context, max_context),
            std::string(kAllowConfigRemedy)};
  }
  if (server_info.databases > max_context)
    return {"redis", "databases", CheckStatus::ok, std::to_string(server_info.databases), ""};
  return {"redis", "databases", CheckStatus::error,
          fmt::format("{}: context {} needs a database of that number", server_info.databases, max_context),
          fmt::format("set `databases {}` or more in redis.conf and restart Redis, or give the context another server: "
                      "[contexts.{}] redis = \"redis://OTHER_HOST/0\"",
                      max_context + 1, max_context)};
}

// Returns "1, 3 (database 0)": the contexts, with their database if it has another number.
std::string format_contexts(const std::vector<std::pair<std::uint32_t, Id>>& used_databases) {
  std::string text;
  for (const auto& [database, stored_id] : used_databases) {
    const Id context = stored_id == 0 ? database : stored_id;
    if (context == 0) continue;  // database 0 with actors and no context
    text += (text.empty() ? "" : ", ") + std::to_string(context) +
            (context == database ? "" : fmt::format(" (database {})", database));
  }
  return text;
}

void check_sharing(const StoreServerInfo& server_info, std::vector<Check>& checks) {
  const std::string contexts = format_contexts(server_info.used_databases);
  if (contexts.find(',') == std::string::npos) return;
  const auto& used = server_info.used_databases;
  if (std::any_of(used.begin(), used.end(), [](const auto& entry) { return entry.first == 0 && entry.second != 0; })) {
    checks.push_back(
        {"redis", "sharing", CheckStatus::warning,
         fmt::format("contexts {} share this server, and each Redis user begins in database 0: the users of "
                     "the others can read and change the context there",
                     contexts),
         "give the context in database 0 a server of its own"});
    return;
  }
  checks.push_back(
      {"redis", "sharing", CheckStatus::ok,
       fmt::format("contexts {} share this server, and databases are not isolated from each other: contexts that "
                   "distrust each other need separate Redis servers (mycojobs context acl prints users for each role)",
                   contexts),
       ""});
}

void check_forbidden_commands(const StoreServerInfo& server_info, std::vector<Check>& checks) {
  for (const ForbiddenCommand& entry : server_info.forbidden_commands) {
    checks.push_back({"redis", fmt::format("command {}", entry.command), CheckStatus::warning,
                      fmt::format("forbidden by the server: {}", entry.lost_guarantee),
                      "docs/operations.md, \"Managed services\""});
  }
}

Check check_replication(const StoreServerInfo& server_info, std::uint32_t wait_replicas) {
  if (server_info.replica) {
    return {"redis", "replication", CheckStatus::error, "this server is a replica, which rejects writes",
            "give the address of its master, or of its sentinels: redis+sentinel://"};
  }
  if (wait_replicas == 0) {
    return {"redis", "replication", CheckStatus::ok,
            "master; redis_wait_replicas is 0: a failover may lose the latest acknowledged writes", ""};
  }
  return {
      "redis", "replication", CheckStatus::ok,
      fmt::format("master; redis_wait_replicas is {}: a submission or an end counts once {} {} it, so that a failover "
                  "to one of them keeps it; with fewer of them it is refused as unavailable",
                  wait_replicas, count_with_noun(wait_replicas, "replica"), wait_replicas == 1 ? "has" : "have"),
      ""};
}

}  // namespace

std::vector<Check> diagnose_server(const StoreServerInfo& server_info, Id max_context, std::uint32_t wait_replicas) {
  const std::string version = server_info.version.empty() ? "of unknown version" : server_info.version;
  std::vector<Check> checks{{"redis", "server", CheckStatus::ok, server_info.product + " " + version, ""}};
  checks.push_back(check_memory_policy(server_info.maxmemory_policy));
  checks.push_back(check_appendonly(server_info.appendonly));
  checks.push_back(check_appendfsync(server_info));
  if (max_context > 0) checks.push_back(check_databases(server_info, max_context));
  const bool has_failed = server_info.persistence_error;
  checks.push_back({"redis", "persistence", has_failed ? CheckStatus::error : CheckStatus::ok,
                    has_failed ? "failing: Redis cannot write its files, and may refuse every write" : "working",
                    has_failed ? "check the disk and the log of Redis" : ""});
  checks.push_back({"redis", "cluster", server_info.cluster ? CheckStatus::error : CheckStatus::ok,
                    server_info.cluster ? "on: the server-side scripts use keys that they do not declare" : "off",
                    server_info.cluster ? "use a Redis without cluster mode" : ""});
  checks.push_back(check_replication(server_info, wait_replicas));
  check_sharing(server_info, checks);
  check_forbidden_commands(server_info, checks);
  return checks;
}

Check diagnose_default_user(bool is_open) {
  if (!is_open) return {"redis", "default user", CheckStatus::ok, "closed: clients need a user and a password", ""};
  return {"redis", "default user", CheckStatus::warning,
          "open: clients without a password may do everything, in addition to the users mycojobs-*",
          "first ACL SETUSER admin on >PASSWORD ~* &* +@all; then as admin: ACL SETUSER default off, and ACL SAVE or "
          "CONFIG REWRITE (docs/operations.md, \"Redis\")"};
}

namespace {

constexpr std::int64_t kDayS = 86400;
constexpr std::int64_t kCertificateWarningDays = 14;

std::string renewal_remedy(const std::string& table) {
  return "renew the certificate before it expires; changed files of " + table +
         " are used by the next connections without a restart";
}

}  // namespace

Check diagnose_server_certificate(const std::string& table, std::int64_t expiry_s, std::int64_t now_s) {
  const std::int64_t days = (expiry_s - now_s) / kDayS;
  if (expiry_s <= now_s)
    return {table, "certificate", CheckStatus::error, "has expired: clients refuse it", "renew the certificate"};
  Check check{table, "certificate", CheckStatus::ok,
              "expires in " + count_with_noun(static_cast<std::uint64_t>(days), "day"), ""};
  if (days >= kCertificateWarningDays) return check;
  check.status = CheckStatus::warning;
  check.remedy = renewal_remedy(table);
  return check;
}

Check diagnose_tls(const TlsState& state, const TlsSettings& settings, std::int64_t now_s) {
  Check check{"redis", "tls", CheckStatus::ok, state.protocol, ""};
  const auto add_certificate = [&](const char* name, std::int64_t expiry_s) {
    if (expiry_s == 0) return;
    const std::int64_t days = (expiry_s - now_s) / kDayS;
    check.detail += fmt::format("; the certificate of the {} expires in {}", name,
                                count_with_noun(static_cast<std::uint64_t>(std::max<std::int64_t>(days, 0)), "day"));
    if (days >= kCertificateWarningDays) return;
    check.status = CheckStatus::warning;
    check.remedy = renewal_remedy(settings.table);
  };
  add_certificate("server", state.peer_expiry_s);
  add_certificate("client", state.own_expiry_s);
  if (settings.insecure) {
    check.status = CheckStatus::warning;
    check.detail += "; the certificate of the server is not verified";
    check.remedy = "set " + settings.table + ".ca and remove " + settings.table + ".insecure";
  }
  return check;
}

namespace {

Check check_sentinel_quorum(const SentinelOverview& overview) {
  Check check{"redis", "sentinels", CheckStatus::ok, "", ""};
  std::size_t answering = 0;
  std::string problems;
  const auto add_problem = [&](CheckStatus status, const std::string& text, const std::string& remedy) {
    problems += "; " + text;
    if (status <= check.status) return;
    check.status = status;
    check.remedy = remedy;
  };
  for (const SentinelOverview::Sentinel& sentinel : overview.sentinels) {
    if (!sentinel.problem.empty()) {
      add_problem(CheckStatus::warning, sentinel.problem, "check the sentinel, its address and [redis_sentinel]");
      continue;
    }
    ++answering;
    if (!overview.master.empty() && sentinel.master != overview.master)
      add_problem(CheckStatus::warning, fmt::format("{} announces {}", sentinel.address, sentinel.master),
                  "check whether the sentinel reaches the others");
    if (!sentinel.quorum_problem.empty())
      add_problem(CheckStatus::error, fmt::format("{}: {}", sentinel.address, sentinel.quorum_problem),
                  "without a quorum no failover starts: start the missing sentinels");
  }
  check.detail = fmt::format("{} of {} answer; quorum {}{}", answering, overview.sentinels.size(), overview.quorum,
                             to_printable(problems));
  return check;
}

// The settings that decide which writes a failover can lose.
void check_replication_settings(const SentinelOverview& overview, std::uint32_t wait_replicas, Check& check) {
  const std::size_t replicas = overview.replicas.size();
  if (wait_replicas > replicas) {
    check.status = CheckStatus::error;
    check.detail += fmt::format("; redis_wait_replicas is {}, so that every submission is rejected", wait_replicas);
    check.remedy = "add replicas, or lower redis_wait_replicas";
  } else if (check.status == CheckStatus::ok && wait_replicas > 0 && wait_replicas < replicas) {
    check.status = CheckStatus::warning;
    check.detail += fmt::format(
        "; redis_wait_replicas is {}: a failover to a replica that was late loses acknowledged writes", wait_replicas);
    check.remedy = fmt::format("redis_wait_replicas = {}", replicas);
  } else if (check.status == CheckStatus::ok && overview.min_replicas == 0U) {
    check.status = CheckStatus::warning;
    check.detail += "; min-replicas-to-write is 0: an isolated master accepts writes that a failover discards";
    check.remedy = "min-replicas-to-write 1 and min-replicas-max-lag 5 in redis.conf of all servers";
  }
}

Check check_replicas(const SentinelOverview& overview, std::uint32_t wait_replicas) {
  Check check{"redis", "master and replicas", CheckStatus::ok, "", ""};
  check.detail = fmt::format("master {} of {}, replication id {}; {}", overview.master, overview.master_name,
                             overview.replication_id, overview.replicas.empty() ? "no replica" : "replicas");
  for (const SentinelOverview::Replica& replica : overview.replicas) {
    const bool has_other_id = !replica.replication_id.empty() && replica.replication_id != overview.replication_id;
    check.detail += fmt::format("{} {}", &replica == &overview.replicas.front() ? "" : ",", replica.address);
    if (replica.problem.empty() && !has_other_id) continue;
    check.status = CheckStatus::warning;
    check.remedy = "check the log of the replica and its settings replicaof, masteruser and masterauth";
    check.detail +=
        " (" + (has_other_id ? "has the unknown replication id " + replica.replication_id : replica.problem) + ")";
  }
  check_replication_settings(overview, wait_replicas, check);
  check.detail = to_printable(check.detail);
  return check;
}

}  // namespace

std::vector<Check> diagnose_sentinels(const SentinelOverview& overview, std::uint32_t wait_replicas) {
  std::vector<Check> checks{check_sentinel_quorum(overview)};
  if (!overview.master.empty()) checks.push_back(check_replicas(overview, wait_replicas));
  return checks;
}

std::string_view to_string(CheckStatus status) {
  constexpr std::string_view kStatusNames[] = {"ok", "warning", "error"};
  return kStatusNames[static_cast<std::size_t>(status)];
}

nlohmann::json to_json(const Check& check) {
  return {{"area", check.area},
          {"name", check.name},
          {"state", to_string(check.status)},
          {"detail", to_utf8(check.detail)},
          {"remedy", check.remedy}};
}

std::vector<Check> diagnose_format(Store& store, Id context) {
  const auto format = store.load(context, kFormatKey);
  const std::string name = "format of context " + std::to_string(context);
  if (format) {
    const auto field = [&](std::string_view field_name) {
      const std::string_view value = field_of(*format, field_name);
      return value.empty() ? std::string("?") : to_printable(value);
    };
    return {{"redis", name, CheckStatus::ok,
             fmt::format("{}, of mycojobs {}, in database {}", field("version"), field("program"),
                         store.database_number(context)),
             ""}};
  }
  if (format.error().code == Code::unsupported)
    return {{"redis", name, CheckStatus::error, format.error().message, ""}};
  if (format.error().code != Code::denied) return {};
  return {{"redis", name, CheckStatus::error, format.error().message,
           is_other_context_error(format.error()) ? "docs/troubleshooting.md, \"A database of another context\""
                                                  : "docs/install.md, \"Downgrade\""}};
}

std::vector<Check> diagnose_writes(Store& store, Id context) {
  if (!store.load(context, kFormatKey)) return {};
  const auto now = store.now_ms();
  if (!now) return {};
  const auto saved = store.save(context, kHealthKey, {{"written_ms", std::to_string(*now)}});
  if (!saved && saved.error().code == Code::denied) return {};
  const std::string name = "writes to context " + std::to_string(context);
  if (saved) return {{"redis", name, CheckStatus::ok, "taken", ""}};
  return {{"redis", name, CheckStatus::error, "refused: " + saved.error().message,
           "docs/operations.md, \"When something fails\": jobs are neither claimed nor ended until then"}};
}

namespace {

// Compares usage with a quota. `remedy` is for usage above seven eighths of the quota.
Check check_usage(const std::string& name, std::uint64_t bytes, std::uint64_t quota, const std::string& setting,
                  const std::string& remedy) {
  Check check{"quota", name, CheckStatus::ok, fmt::format("{} bytes", bytes), ""};
  if (quota > 0) check.detail += fmt::format(" of {} ({})", quota, setting);
  if (quota == 0 || bytes <= quota - quota / 8) return check;
  check.status = CheckStatus::warning;
  check.remedy = remedy;
  return check;
}
Check check_memory_quota(const std::string& name, std::uint64_t bytes, std::uint64_t quota,
                         const std::string& setting) {
  return check_usage(name, bytes, quota, setting,
                     "ended jobs are deleted before the end of `retention`, and new jobs may be rejected: shorten "
                     "`retention`, or raise " +
                         setting + " where Redis has the memory");
}

}  // namespace

Check diagnose_artifact_quota(const std::string& name, std::uint64_t bytes, std::uint64_t quota,
                              const std::string& setting) {
  return check_usage(name, bytes, quota, setting,
                     "files of further jobs are dropped at the quota: shorten `retention`, or raise " + setting +
                         " where the disk has the space");
}

std::vector<Check> diagnose_quota(Store& store, Id context) {
  const auto usage = stored_usage(store, context);
  if (!usage || usage->bytes == 0) return {};
  const std::string number = std::to_string(context);
  std::vector<Check> checks{
      check_memory_quota("jobs of context " + number, usage->bytes, usage->context_quota, "quota.context_bytes")};
  const auto largest = largest_storage_user(store, context);
  if (largest && largest->second > 0) {
    checks.push_back(check_memory_quota(fmt::format("largest caller of context {}: {}", number, largest->first),
                                        largest->second, usage->caller_quota, "quota.caller_bytes"));
  }
  return checks;
}

namespace {

Result<Check> check_record(Store& store, Id context) {
  const std::string number = std::to_string(context);
  const auto record = store.load(context, "context:" + number);
  if (record) return Check{"context", "record", CheckStatus::ok, "exists: its lists define the roles of actors", ""};
  if (record.error().code == Code::unavailable) return tl::unexpected<Error>(record.error());
  return Check{"context", "record", CheckStatus::warning,
               record.error().code == Code::not_found ? "missing: only operators can use the context"
                                                      : to_printable(record.error().message),
               "mycojobs context grant " + number + " --admin ACTOR"};
}

Result<Check> check_leader(FlowStore& flows, Id context) {
  MJ_TRY(leader, flows.leader(context));
  if (!leader.first.empty())
    return Check{"coordinator", "leader", CheckStatus::ok, to_printable(leader.second) + " leads the context", ""};
  return Check{"coordinator", "leader", CheckStatus::error,
               "no coordinator is the leader of the context: flows, delayed jobs, schedules and messages wait",
               fmt::format("mycojobs coordinator --redis URL --context {}; after a crash, another coordinator takes "
                           "over when `coordinator.lease` has expired",
                           context)};
}

Check check_agent(const RunnerInfo& info, std::uint64_t now_ms) {
  const std::string id = std::to_string(info.runner.id);
  Check check{"agent", id, CheckStatus::ok, to_printable(describe(info, now_ms)), ""};
  const RunnerPresence presence = get_presence(info);
  if (presence == RunnerPresence::silent) {
    check.status = CheckStatus::warning;
    check.detail +=
        info.live_claim_count == 0 ? "" : fmt::format(", had {}", count_with_noun(info.live_claim_count, "job"));
    check.remedy = "check its host (`mycojobs doctor` there); if it is gone permanently: mycojobs runner delete " + id;
  } else if (presence == RunnerPresence::live && info.runner.version != kVersion) {
    check.status = CheckStatus::warning;
    check.detail += fmt::format("; it is of version {}, this is {}", to_printable(info.runner.version), kVersion);
    check.remedy = "update one of them: docs/install.md, \"Upgrade\"";
  }
  return check;
}

}  // namespace

Result<std::vector<Check>> diagnose_context(Store& store, FlowStore& flows, Id context) {
  std::vector<Check> checks;
  MJ_TRY(record, check_record(store, context));
  checks.push_back(std::move(record));
  MJ_TRY(leader, check_leader(flows, context));
  checks.push_back(std::move(leader));
  MJ_TRY(agents, store.runners(context));
  MJ_TRY(now_ms, store.now_ms());
  const auto is_live = [](const RunnerInfo& info) { return get_presence(info) == RunnerPresence::live; };
  if (const std::string queues = list_served_queues(agents); std::any_of(agents.begin(), agents.end(), is_live)) {
    checks.push_back({"agent", "queues", CheckStatus::ok, "live agents claim from " + to_printable(queues), ""});
  } else {
    checks.push_back({"agent", "queues", CheckStatus::error, "no agent is alive: no job runs",
                      fmt::format("mycojobs agent --redis URL --context {}", context)});
  }
  for (const RunnerInfo& info : agents) {
    if (get_presence(info) != RunnerPresence::signed_off) checks.push_back(check_agent(info, now_ms));
  }
  return checks;
}

}  // namespace mycojobs
