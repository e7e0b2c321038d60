// Whether a store holds what reliability promises of every job: the invariants checker, over a live or a stopped store.
// Reads, changes nothing. What looks wrong is looked at again, each job in one atomic step and once more after a pause,
// so that jobs that move while it reads are no findings.
//
// Not seen: members of indexes that name neither a record nor a claim, a lease or a fact (the port does not list them;
// they are dropped when they are met), the reverse index of waiting jobs (a rebuild checks it).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/verify_facts.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct Finding {
  bool violation = true;  // false: a note: clients may do so, and nothing is lost by it
  std::string rule;       // a row of verify_rules()
  std::string subject;    // a job's key, a queue's, ...
  std::string text;       // one line
};

struct VerifyReport {
  std::vector<Finding> findings;  // by subject, of one subject the cause first
  std::uint64_t jobs = 0, facts = 0, queues = 0;
};

struct VerifyRule {
  std::string_view name;
  bool violation;
  std::string_view meaning;
};
std::span<const VerifyRule> verify_rules();

// Errors of the store. Takes about 300 bytes a job and 8 a fact.
Result<VerifyReport> verify(Store&, Id context, const Progress&);

}  // namespace mycojobs
