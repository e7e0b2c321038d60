// The internal keys of mycojobs. Their names start with "mj:". Keys are in the database of their context, unless their
// description names database 0. The scripts (scripts/*.lua) contain the names as literals; a contract test checks that
// this table has each name. Thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

struct InternalKey {
  std::string_view pattern;         // <...> is a placeholder
  std::string_view type;            // type of Redis: string, list, hash, set, zset, stream
  std::string_view description;     // description of the content
  std::string_view rebuild_source;  // source from which the key can be restored; "journal": the key is authoritative
};
std::span<const InternalKey> internal_keys();

inline std::string log_key(std::string_view job_key) { return "mj:log:" + std::string(job_key); }
inline std::string topic_key(std::string_view topic) { return "mj:topic:" + std::string(topic); }

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
