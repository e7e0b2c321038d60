// Every key of our own: all begin with "mj:" and lie in the context's database. The scripts spell the names out
// (scripts/*.lua); a test checks that each name there stands in this table.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct OwnKey {
  std::string_view pattern;  // <...> stands for a name
  std::string_view type;
  std::string_view what;
  std::string_view rebuilt;  // from what, or "journal": it is the authority itself
};
std::span<const OwnKey> own_keys();

inline std::string log_key(std::string_view job_key) { return "mj:log:" + std::string(job_key); }
inline std::string topic_key(std::string_view topic) { return "mj:topic:" + std::string(topic); }

// "job:<caller>:<id>", both from 1 to 4294967295 without leading zeros.
bool is_job_key(std::string_view key);
// Whose job it is, which the record's own field need not say. The key is one of a job.
Id caller_of_job(std::string_view job_key);
bool is_flow_key(std::string_view key);  // "flow:<id>"

// Of a record. Context 0 is what belongs to no context: it is not named.
Error not_there(Id context, const std::string& key);

}  // namespace mycojobs
