// The checks of `mycojobs doctor` and context.doctor for a Redis server and a context. A check that finds a problem
// gives a remedy.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "net/tls.h"
#include "store/checks/sentinel_overview.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

// `error` means that jobs may be lost or do not run.
enum class CheckStatus { ok, warning, error };
std::string_view to_string(CheckStatus);

struct Check {
  std::string area, name;
  CheckStatus status = CheckStatus::ok;
  std::string detail, remedy;
};
nlohmann::json to_json(const Check&);

// Checks the durability settings of the server (docs/protocol.md, Durability), its number of databases and the commands
// that it forbids. A context without an address of its own uses the database of its number, so the server needs more
// databases than max_context, the largest of these contexts; if max_context is 0, the number is not checked.
// wait_replicas: the setting redis_wait_replicas. No side effects.
std::vector<Check> diagnose_server(const StoreServerInfo&, Id max_context, std::uint32_t wait_replicas);

// Checks whether the default user of the server is open although `context acl` has created users. No side effects.
Check diagnose_default_user(bool is_open);

// Checks the verification and the expiry of certificates. now_s: the time of this host since the Unix epoch. No side
// effects.
Check diagnose_tls(const TlsState&, const TlsSettings&, std::int64_t now_s);

// Checks the expiry of the certificate of a server of this host. table: the table of its settings, such as "api.tls".
// No side effects.
Check diagnose_server_certificate(const std::string& table, std::int64_t expiry_s, std::int64_t now_s);

// Checks the sentinels, the master and its replicas. wait_replicas: the setting redis_wait_replicas. No side effects.
std::vector<Check> diagnose_sentinels(const SentinelOverview&, std::uint32_t wait_replicas);

// Checks the format of a context's keys. The result is empty if no key was written yet or the format cannot be read.
std::vector<Check> diagnose_format(Store&, Id context);

// Checks with a write whether the server of the context accepts writes, since a server that answers may be full,
// read-only or without a disk. The result is empty if the context is not in use yet or the Redis user may not write
// there.
std::vector<Check> diagnose_writes(Store&, Id context);
// Compares the memory in Redis that the jobs of the context use, and that of the largest caller, with the quotas. The
// result is empty if no usage is counted.
std::vector<Check> diagnose_quota(Store&, Id context);
// Compares the disk space of artifacts with `quota` (0: no limit). No side effects.
Check diagnose_artifact_quota(const std::string& name, std::uint64_t bytes, std::uint64_t quota,
                              const std::string& setting);
// Checks the record of the context, its leader and its agents: whether flows are advanced and jobs are run.
Result<std::vector<Check>> diagnose_context(Store&, FlowStore&, Id context);

}  // namespace mycojobs
