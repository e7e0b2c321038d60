// A private Redis that can compute a digest of its data, and a store that uses it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chaos/client.h"
#include "e2e/world.h"
#include "store/store.h"
#include "store/workflow_store.h"

namespace mycojobs::test {

// Options of a Redis that permits DEBUG DIGEST, followed by the options in `more`.
std::vector<std::string> make_digest_options(std::vector<std::string> more);

// Returns the result of DEBUG DIGEST, which is equal for equal contents of all databases, including TTLs. Returns "" if
// there is no reply.
std::string read_digest(PlainRedis&);
// Returns the value of "field:value" in INFO.
std::string read_info(PlainRedis&, const std::string& section, const std::string& field);
std::unique_ptr<Store> open_store(const RedisServer&);
std::unique_ptr<WorkflowStore> open_deployments(const RedisServer&);
// Returns the violations that `mycojobs verify` finds; empty if there are none.
std::string find_violations(Store&, Id context);

}  // namespace mycojobs::test
