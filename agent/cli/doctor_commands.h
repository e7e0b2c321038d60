// What `mycojobs doctor` says of a Redis server. Pure.
#pragma once

#include <string>
#include <vector>

#include "mycojobs/store.h"

namespace mycojobs {

enum class Verdict { ok, warning, missing };  // missing: jobs may be lost, or do not run

struct Check {
  std::string area, name;
  Verdict verdict = Verdict::ok;
  std::string detail, remedy;
};

// What the server's settings cost (docs/protocol.md, Durability). highest: the largest context whose database is there;
// 0: none by its number. wait_replicas: as the option says.
std::vector<Check> examine_server(const ServerFacts&, Id highest, std::uint32_t wait_replicas);

}  // namespace mycojobs
