#include "cli/doctor.h"

#include <fmt/format.h>

#include "base/counted.h"

namespace mycojobs {
namespace {

constexpr std::string_view kUnreadable = "not readable: the server keeps it from this user";
constexpr std::string_view kLetRead = "let the user of the address run CONFIG GET, or look there yourself";

Check memory_check(const std::string& policy) {
  Check check{"redis", "maxmemory-policy", Verdict::ok, policy, ""};
  if (policy.empty()) {
    check.verdict = Verdict::warning;
    check.detail = std::string(kUnreadable) + "; it must be noeviction";
    check.remedy = kLetRead;
  } else if (policy != "noeviction") {
    check.verdict = Verdict::missing;
    check.detail = policy + ": Redis may throw away queues and records when its memory is full";
    check.remedy = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf";
  }
  return check;
}

Check append_check(const std::string& appendonly) {
  if (appendonly == "yes")
    return {"redis", "appendonly", Verdict::ok, "yes: what was acknowledged survives a crash of Redis", ""};
  if (appendonly.empty())
    return {"redis", "appendonly", Verdict::warning, std::string(kUnreadable), std::string(kLetRead)};
  return {"redis", "appendonly", Verdict::warning,
          appendonly + ": a crash or restart of Redis loses all that was accepted since its last snapshot",
          "redis-cli CONFIG SET appendonly yes, and the same in redis.conf"};
}

// What each choice costs, the present one first.
Check sync_check(const ServerFacts& facts) {
  Check check{"redis", "appendfsync", Verdict::ok, "", ""};
  if (facts.appendonly == "no") {
    check.detail = facts.appendfsync + ": without effect while appendonly is no";
  } else if (facts.appendfsync == "always") {
    check.detail = "always: a power cut loses nothing that was acknowledged; each step waits for the disk";
  } else if (facts.appendfsync == "everysec") {
    check.detail =
        "everysec: a power cut may lose about the last second (always: nothing, at the price of a disk write "
        "for each step)";
  } else if (facts.appendfsync == "no") {
    check.verdict = Verdict::warning;
    check.detail = "no: a power cut may lose half a minute (everysec: about a second; always: nothing)";
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
      fmt::format("set `databases {}` or more in redis.conf and restart Redis, or give the context a Redis of its own",
                  highest + 1)};
}

Check replica_check(const ServerFacts& facts, std::uint32_t wait_replicas) {
  if (facts.replica) {
    return {"redis", "replication", Verdict::missing, "this server is a replica, which takes no writes",
            "give the address of its primary"};
  }
  if (wait_replicas == 0) {
    return {"redis", "replication", Verdict::ok,
            "primary; redis_wait_replicas is 0: a failover may lose what was just acknowledged", ""};
  }
  return {
      "redis", "replication", Verdict::ok,
      fmt::format("primary; redis_wait_replicas is {}: a submission or an end counts once {} {} it, so that a failover "
                  "to one of them keeps it; with fewer of them it is refused as unavailable",
                  wait_replicas, counted(wait_replicas, "replica"), wait_replicas == 1 ? "has" : "have"),
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
                    failing ? "look at the disk and at Redis' log" : ""});
  checks.push_back({"redis", "cluster", facts.cluster ? Verdict::missing : Verdict::ok,
                    facts.cluster ? "on: the server-side scripts use keys that they do not declare" : "off",
                    facts.cluster ? "use a Redis without cluster mode" : ""});
  checks.push_back(replica_check(facts, wait_replicas));
  return checks;
}

}  // namespace mycojobs
