// The checks of `mycojobs doctor` and context.doctor for a Redis server and a context. Each check has a remedy if it
// finds a problem.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

enum class Verdict { ok, warning, missing };  // missing: jobs may be lost or do not run
std::string_view to_string(Verdict);

struct Check {
  std::string area, name;
  Verdict verdict = Verdict::ok;
  std::string detail, remedy;
};
nlohmann::json to_json(const Check&);

// Checks the durability settings of the server (docs/protocol.md, Durability). highest: the largest context whose
// database exists; 0: no context has a database by its number. wait_replicas: value of the option. No side effects.
std::vector<Check> examine_server(const ServerFacts&, Id highest, std::uint32_t wait_replicas);

// Checks whether the default user of the server is open although `context acl` has created users. No side effects.
Check default_user_check(bool open);

// Checks the format of a context's keys. Empty: no key was written yet, or the format cannot be read now.
std::vector<Check> examine_format(Store&, Id context);

// Checks with a write whether the server of the context accepts writes, since a server that answers may be full,
// read-only or without a disk. Empty: the context is not in use yet, or the Redis user has no right to write there.
std::vector<Check> examine_writes(Store&, Id context);
// Compares the memory that the jobs of the context use in Redis, and the caller that uses most, with the quotas. Empty:
// usage is not counted.
std::vector<Check> examine_quota(Store&, Id context);
// Compares disk space of artifacts with its quota (0: no limit). No side effects.
Check artifact_quota_check(const std::string& name, std::uint64_t bytes, std::uint64_t quota,
                           const std::string& setting);
// Checks the record of the context, its leader and its agents: whether flows are advanced and jobs are run.
Result<std::vector<Check>> examine_context(Store&, FlowStore&, Id context);

}  // namespace mycojobs
