// A private Redis that may be asked for a digest of all that it holds, and a store on it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chaos/client.h"
#include "e2e/world.h"
#include "mycojobs/store.h"
#include "mycojobs/workflows.h"

namespace mycojobs::test {

// Options of a Redis whose data can be digested. more: further ones.
std::vector<std::string> digest_options(std::vector<std::string> more);

// DEBUG DIGEST: equal for equal content of all databases, TTLs included. Empty: no answer.
std::string digest(PlainRedis&);
// "field:value" of INFO.
std::string info(PlainRedis&, const std::string& section, const std::string& field);
std::unique_ptr<Store> open_store(const RedisServer&);
std::unique_ptr<WorkflowStore> open_worlds(const RedisServer&);
// What `mycojobs verify` finds; empty: nothing.
std::string violations(Store&, Id context);

}  // namespace mycojobs::test
