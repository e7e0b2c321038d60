// What `mycojobs doctor` and context.doctor say of a Redis server and of a context: each thing that was looked at, and
// the remedy for what is wrong with it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/flows.h"
#include "mycojobs/store.h"

namespace mycojobs {

enum class Verdict { ok, warning, missing };  // missing: jobs may be lost, or do not run
std::string_view word(Verdict);

struct Check {
  std::string area, name;
  Verdict verdict = Verdict::ok;
  std::string detail, remedy;
};
nlohmann::json to_json(const Check&);

// What the server's settings cost (docs/protocol.md, Durability). highest: the largest context whose database is there;
// 0: none by its number. wait_replicas: as the option says. Pure.
std::vector<Check> examine_server(const ServerFacts&, Id highest, std::uint32_t wait_replicas);

// Whether the default user of the server is open beside users that `context acl` has made. Pure.
Check default_user_check(bool open);

// The format of a context's keys. Nothing: nothing has been written there, or it cannot be read now.
std::vector<Check> examine_format(Store&, Id context);

// Whether its server takes writes: one that answers may be full, read-only or without a disk. Only a write finds that
// out. Empty: nobody has used the context yet, or the user of Redis may not write there.
std::vector<Check> examine_writes(Store&, Id context);
// How much its jobs keep in Redis, and the caller that keeps most, beside the quotas. Empty: nothing is counted.
std::vector<Check> examine_quota(Store&, Id context);
// Whether somebody moves it on and somebody runs its jobs: its record, who leads it, its agents.
Result<std::vector<Check>> examine_context(Store&, FlowStore&, Id context);

}  // namespace mycojobs
