// The internal keys of mycojobs, and the parts of other keys. keys.toml is the source: key_names.h is generated from it
// and has a constant for each internal key, such as kClaimKey. The constant of a key with placeholders is the part in
// front of the first placeholder ("mj:claim:"). Keys are in the database of their context, unless their description
// names database 0. Thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/records.h"
#include "store/key_names.h"

namespace mycojobs {

enum class AgentAccess { none, read, write };

// A section of keys.toml, which explains the fields.
struct InternalKey {
  std::string_view pattern;
  std::string_view type;
  std::string_view content;
  std::string_view rebuilt_from;  // empty: the key is authoritative
  std::string_view loss;          // empty: `verify` detects the loss, and `doctor --rebuild` restores the key
  AgentAccess agent_access;
};
std::span<const InternalKey> internal_keys();

inline std::string job_files_key(std::string_view job_key) { return kJobFilesKey + std::string(job_key); }
inline std::string log_key(std::string_view job_key) { return kLogKey + std::string(job_key); }
inline std::string topic_key(std::string_view topic) { return kTopicKey + std::string(topic); }
inline std::string message_state_key(std::string_view message_key) { return kMessageKey + std::string(message_key); }
// Returns the catalog of the flows with this definition name; without a name, the catalog of all flows.
inline std::string flow_catalog_key(const std::string& name) {
  return name.empty() ? kFlowCatalogKey : kFlowNameCatalogKey + name;
}
// Returns the common part of the claims of all jobs.
inline std::string job_claims_prefix() { return kClaimKey + std::string("job:"); }

// Returns true for "job:<caller>:<id>" with numbers from 1 to 4294967295 without leading zeros.
bool is_job_key(std::string_view key);
// Returns the caller in the key of a job. The field caller_id of the record may be wrong, since any client may write
// the record. REQUIRES: is_job_key(job_key).
Id parse_job_caller(std::string_view job_key);
bool is_flow_key(std::string_view key);  // "flow:<id>"

// Returns the error not_found for a record. The message names the context, except for context 0, which contains records
// without a context.
Error record_not_found(Id context, const std::string& key);

}  // namespace mycojobs
