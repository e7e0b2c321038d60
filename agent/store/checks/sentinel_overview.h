// The state of a group of servers with sentinels, for `mycojobs doctor`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/tls.h"
#include "store/redis/redis_sentinel.h"

namespace mycojobs {

struct SentinelOverview {
  struct Sentinel {
    std::string address;
    std::string problem;         // why the sentinel cannot be used; empty: it answers
    std::string master;          // address of the master that it announces
    std::string quorum_problem;  // why the sentinels that it knows cannot start a failover; empty: they can
  };
  struct Replica {
    std::string address;
    std::string problem;         // why the replica is not usable for a failover; empty: it is linked to the master
    std::string replication_id;  // empty: not readable
  };
  std::string master_name;
  std::string master;  // address of the verified master; empty: there is none
  std::string replication_id;
  std::uint64_t quorum = 0;  // number of sentinels that must agree that the master is down
  std::vector<Sentinel> sentinels;
  std::vector<Replica> replicas;              // those that the first answering sentinel knows
  std::optional<std::uint64_t> min_replicas;  // setting min-replicas-to-write; nullopt: not readable
};

// Returns nullopt if the URL uses no sentinels. Error: invalid (the URL).
Result<std::optional<SentinelOverview>> load_sentinel_overview(const std::string& url,
                                                               const std::shared_ptr<TlsContext>&,
                                                               const SentinelSettings&);

}  // namespace mycojobs
