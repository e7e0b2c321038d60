#include "inspect/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "inspect/runner_view.h"
#include "store/kept_usage.h"
#include "text/plural.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::string_view kUnreadable = "not readable: the server keeps it from this user";
constexpr std::string_view kLetRead =
    "allow CONFIG GET for the Redis user of the address, or check the setting on the server";

Check memory_check(const std::string& policy) {
  Check check{"redis", "maxmemory-policy", Verdict::ok, policy, ""};
  if (policy.empty()) {
    check.verdict = Verdict::warning;
    check.detail = std::string(kUnreadable) + "; it must be noeviction";
    check.remedy = kLetRead;
  } else if (policy != "noeviction") {
    check.verdict = Verdict::missing;
    check.detail = policy + ": Redis may evict queues and records when its memory is full";
    check.remedy = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf";
  }
  return check;
}

Check append_check(const std::string& appendonly) {
  if (appendonly == "yes")
    return {"redis", "appendonly", Verdict::ok, "yes: acknowledged writes survive a crash of Redis", ""};
  if (appendonly.empty())
    return {"redis", "appendonly", Verdict::warning, std::string(kUnreadable), std::string(kLetRead)};
  return {"redis", "appendonly", Verdict::warning,
          appendonly + ": a crash or restart of Redis loses all that was accepted since its last snapshot",
          "redis-cli CONFIG SET appendonly yes, and the same in redis.conf"};
}

// Describes the risk and cost of each choice, the current choice first.
Check sync_check(const ServerFacts& facts) {
  Check check{"redis", "appendfsync", Verdict::ok, "", ""};
  if (facts.appendonly == "no") {
    check.detail = facts.appendfsync + ": without effect while appendonly is no";
  } else if (facts.appendfsync == "always") {
    check.detail = "always: a power failure loses no acknowledged write; each step waits for the disk";
  } else if (facts.appendfsync == "everysec") {
    check.detail =
        "everysec: a power failure may lose about the last second (always: no loss, but a disk write for each step)";
  } else if (facts.appendfsync == "no") {
    check.verdict = Verdict::warning;
    check.detail = "no: a power failure may lose half a minute (everysec: about a second; always: no loss)";
    check.remedy = "redis-cli CONFIG SET appendfsync everysec, and the same in redis.conf";
  } else {
    check.verdict = Verdict::warning;
    check.detail = kUnreadable;
    check.remedy = kLetRead;
  }
  return check;
}

Check databases_check(const ServerFacts& facts, Id highest) {
  if (facts.databases == 0) {
    return {"redis", "databases", Verdict::warning,
            fmt::format("{}; context {} needs more than {}", kUnreadable, highest, highest), std::string(kLetRead)};
  }
  if (facts.databases > highest) return {"redis", "databases", Verdict::ok, std::to_string(facts.databases), ""};
  return {
      "redis", "databases", Verdict::missing,
      fmt::format("{}: context {} needs a database of that number", facts.databases, highest),
      fmt::format("set `databases {}` or more in redis.conf and restart Redis, or use a separate Redis for the context",
                  highest + 1)};
}

Check sharing_check(const std::vector<Id>& contexts) {
  return {
      "redis", "sharing", Verdict::ok,
      fmt::format("contexts {} share this server, and databases are not isolated from each other: contexts that "
                  "distrust each other need separate Redis servers (mycojobs context acl prints users for each role)",
                  fmt::join(contexts, ", ")),
      ""};
}

Check replica_check(const ServerFacts& facts, std::uint32_t wait_replicas) {
  if (facts.replica) {
    return {"redis", "replication", Verdict::missing, "this server is a replica, which rejects writes",
            "give the address of its primary"};
  }
  if (wait_replicas == 0) {
    return {"redis", "replication", Verdict::ok,
            "primary; redis_wait_replicas is 0: a failover may lose the latest acknowledged writes", ""};
  }
  return {
      "redis", "replication", Verdict::ok,
      fmt::format("primary; redis_wait_replicas is {}: a submission or an end counts once {} {} it, so that a failover "
                  "to one of them keeps it; with fewer of them it is refused as unavailable",
                  wait_replicas, count_with_noun(wait_replicas, "replica"), wait_replicas == 1 ? "has" : "have"),
      ""};
}

}  // namespace

std::vector<Check> examine_server(const ServerFacts& facts, Id highest, std::uint32_t wait_replicas) {
  std::vector<Check> checks{{"redis", "server", Verdict::ok, facts.product + " " + facts.version, ""}};
  checks.push_back(memory_check(facts.maxmemory_policy));
  checks.push_back(append_check(facts.appendonly));
  checks.push_back(sync_check(facts));
  if (highest > 0) checks.push_back(databases_check(facts, highest));
  const bool failing = facts.persistence_error;
  checks.push_back({"redis", "persistence", failing ? Verdict::missing : Verdict::ok,
                    failing ? "failing: Redis cannot write its files, and may refuse every write" : "working",
                    failing ? "check the disk and the log of Redis" : ""});
  checks.push_back({"redis", "cluster", facts.cluster ? Verdict::missing : Verdict::ok,
                    facts.cluster ? "on: the server-side scripts use keys that they do not declare" : "off",
                    facts.cluster ? "use a Redis without cluster mode" : ""});
  checks.push_back(replica_check(facts, wait_replicas));
  if (facts.used.size() > 1) checks.push_back(sharing_check(facts.used));
  return checks;
}

Check default_user_check(bool open) {
  if (!open) return {"redis", "default user", Verdict::ok, "closed: clients need a user and a password", ""};
  return {"redis", "default user", Verdict::warning,
          "open: clients without a password may do everything, in addition to the users mycojobs-*",
          "first ACL SETUSER admin on >PASSWORD ~* &* +@all; then as admin: ACL SETUSER default off, and ACL SAVE or "
          "CONFIG REWRITE (docs/operations.md, \"Redis\")"};
}

std::string_view to_string(Verdict verdict) {
  constexpr std::string_view kWords[] = {"ok", "warning", "missing"};
  return kWords[static_cast<std::size_t>(verdict)];
}

nlohmann::json to_json(const Check& check) {
  return {{"area", check.area},
          {"name", check.name},
          {"state", to_string(check.verdict)},
          {"detail", to_utf8(check.detail)},
          {"remedy", check.remedy}};
}

std::vector<Check> examine_format(Store& store, Id context) {
  const auto format = store.load(context, "mj:format");
  const std::string name = "format of context " + std::to_string(context);
  if (format) {
    const auto field = [&](std::string_view wanted) {
      const std::string_view found = field_of(*format, wanted);
      return found.empty() ? std::string("?") : printable(found);
    };
    return {{"redis", name, Verdict::ok, field("version") + ", of mycojobs " + field("program"), ""}};
  }
  if (format.error().code != Code::denied) return {};
  return {{"redis", name, Verdict::missing, format.error().message, "docs/install.md, \"Downgrade\""}};
}

std::vector<Check> examine_writes(Store& store, Id context) {
  if (!store.load(context, "mj:format")) return {};
  const auto now = store.now_ms();
  if (!now) return {};
  const auto written = store.save(context, "mj:health", {{"written_ms", std::to_string(*now)}});
  if (!written && written.error().code == Code::denied) return {};
  const std::string name = "writes to context " + std::to_string(context);
  if (written) return {{"redis", name, Verdict::ok, "taken", ""}};
  return {{"redis", name, Verdict::missing, "refused: " + written.error().message,
           "docs/operations.md, \"When something fails\": jobs are neither claimed nor ended until then"}};
}

namespace {

// remedy: of usage above seven eighths of the quota.
Check usage_check(const std::string& name, std::uint64_t bytes, std::uint64_t quota, const std::string& setting,
                  const std::string& remedy) {
  Check check{"quota", name, Verdict::ok, fmt::format("{} bytes", bytes), ""};
  if (quota > 0) check.detail += fmt::format(" of {} ({})", quota, setting);
  if (quota == 0 || bytes <= quota - quota / 8) return check;
  check.verdict = Verdict::warning;
  check.remedy = remedy;
  return check;
}
Check quota_check(const std::string& name, std::uint64_t bytes, std::uint64_t quota, const std::string& setting) {
  return usage_check(name, bytes, quota, setting,
                     "ended jobs are deleted before the end of `retention`, and new jobs may be rejected: shorten "
                     "`retention`, or raise " +
                         setting + " where Redis has the memory");
}

}  // namespace

Check artifact_quota_check(const std::string& name, std::uint64_t bytes, std::uint64_t quota,
                           const std::string& setting) {
  return usage_check(name, bytes, quota, setting,
                     "files of further jobs are dropped at the quota: shorten `retention`, or raise " + setting +
                         " where the disk has the space");
}

std::vector<Check> examine_quota(Store& store, Id context) {
  const auto usage = stored_usage(store, context);
  if (!usage || usage->bytes == 0) return {};
  const std::string number = std::to_string(context);
  std::vector<Check> checks{
      quota_check("jobs of context " + number, usage->bytes, usage->context_quota, "quota.context_bytes")};
  const auto largest = largest_keeper(store, context);
  if (largest && largest->second > 0) {
    checks.push_back(quota_check(fmt::format("largest caller of context {}: {}", number, largest->first),
                                 largest->second, usage->caller_quota, "quota.caller_bytes"));
  }
  return checks;
}

namespace {

Result<Check> record_check(Store& store, Id context) {
  const std::string number = std::to_string(context);
  const auto record = store.load(context, "context:" + number);
  if (record) return Check{"context", "record", Verdict::ok, "exists: its lists define the roles of actors", ""};
  if (record.error().code == Code::unavailable) return tl::unexpected<Error>(record.error());
  return Check{"context", "record", Verdict::warning,
               record.error().code == Code::not_found ? "missing: only operators can use the context"
                                                      : printable(record.error().message),
               "mycojobs context grant " + number + " --admin ACTOR"};
}

Result<Check> leader_check(FlowStore& flows, Id context) {
  MJ_TRY(leader, flows.leader(context));
  if (!leader.first.empty())
    return Check{"coordinator", "leader", Verdict::ok, printable(leader.second) + " leads the context", ""};
  return Check{"coordinator", "leader", Verdict::missing,
               "no coordinator is the leader of the context: flows, delayed jobs, schedules and messages wait",
               fmt::format("mycojobs coordinator --redis URL --context {}; after a crash, another coordinator takes "
                           "over when `coordinator.lease` has expired",
                           context)};
}

Check agent_check(const RunnerInfo& info, std::uint64_t now_ms) {
  const std::string id = std::to_string(info.runner.id);
  Check check{"agent", id, Verdict::ok, printable(describe(info, now_ms)), ""};
  const RunnerPresence how = presence(info);
  if (how == RunnerPresence::silent) {
    check.verdict = Verdict::warning;
    check.detail += info.claims == 0 ? "" : fmt::format(", had {}", count_with_noun(info.claims, "job"));
    check.remedy = "check its host (`mycojobs doctor` there); if it is gone permanently: mycojobs runner delete " + id;
  } else if (how == RunnerPresence::live && info.runner.version != kVersion) {
    check.verdict = Verdict::warning;
    check.detail += fmt::format("; it is of version {}, this is {}", printable(info.runner.version), kVersion);
    check.remedy = "update one of them: docs/install.md, \"Upgrade\"";
  }
  return check;
}

}  // namespace

Result<std::vector<Check>> examine_context(Store& store, FlowStore& flows, Id context) {
  std::vector<Check> checks;
  MJ_TRY(record, record_check(store, context));
  checks.push_back(std::move(record));
  MJ_TRY(leader, leader_check(flows, context));
  checks.push_back(std::move(leader));
  MJ_TRY(agents, store.runners(context));
  MJ_TRY(now_ms, store.now_ms());
  const auto lives = [](const RunnerInfo& each) { return presence(each) == RunnerPresence::live; };
  if (const std::string served = served_by_live(agents); std::any_of(agents.begin(), agents.end(), lives)) {
    checks.push_back({"agent", "queues", Verdict::ok, "live agents claim from " + printable(served), ""});
  } else {
    checks.push_back({"agent", "queues", Verdict::missing, "no agent is alive: no job runs",
                      fmt::format("mycojobs agent --redis URL --context {}", context)});
  }
  for (const RunnerInfo& each : agents) {
    if (presence(each) != RunnerPresence::left) checks.push_back(agent_check(each, now_ms));
  }
  return checks;
}

}  // namespace mycojobs
