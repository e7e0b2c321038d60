// Ceilings: the operator's maximum for the policies of jobs. Combines the profile of a kind of run, the job's request
// and the ceiling to the policy of a run:
//
//   apply_ceiling(profile, request, ceiling) --> Policy: no field is above the ceiling
//
// Pure and thread-safe. The text form of requests and ceilings is in model/policy_json.h.
#pragma once

#include <bitset>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/policy_json.h"
#include "model/records.h"
#include "sandbox/sandbox_policy.h"
#include "sandbox/volume.h"

namespace mycojobs {

// The maximum policy for jobs of a context.
struct Ceiling {
  Policy max;
  Id context = 0;                          // used in messages
  std::vector<std::string> agent_folders;  // folders of the agent: nothing above or below them is ever granted
  // Fields for which an operator has written a ceiling. In any other field a profile keeps its value, even above
  // `max`; there, `max` restricts only requests.
  std::bitset<kPolicyFields> written_fields = std::bitset<kPolicyFields>().set();
  std::vector<Volume> volumes = {};  // volumes of the context; max.volumes has their names
};

// Returns a ceiling with the limits that the profiles need. Jobs may not request networks, programs, folders, secrets
// or warm processes under it.
Policy default_ceiling();

// The operator's ceilings: one per context with a ceiling of its own, and one for all other contexts.
struct Ceilings {
  Policy standard = default_ceiling();
  std::map<Id, Policy> contexts;
  // As in Ceiling. Key 0 has the standard ceiling, which all contexts inherit.
  std::map<Id, std::bitset<kPolicyFields>> written_fields;
  std::vector<std::string> agent_folders;     // as in Ceiling
  std::map<Id, std::vector<Volume>> volumes;  // by context, sorted by name
  Ceiling get(Id context) const;
  bool operator==(const Ceilings&) const = default;
};

// Returns the profile with the request applied, without a ceiling.
Policy apply_request(const Policy& profile, const PolicyRequest&);

struct GrantedPolicy {
  Policy policy;                       // contains everything that was not rejected
  std::vector<FieldProblem> problems;  // all rejections, each with field, value, ceiling and remedy
};
// Rejects requested values above the ceiling, and lowers values of the profile to the written ceiling.
GrantedPolicy apply_ceiling(const Policy& profile, const PolicyRequest&, const Ceiling&);
// As apply_ceiling(). Error invalid: has the first eight rejections and the number of further ones. An empty request is
// never rejected.
Result<Policy> apply_ceiling_or_fail(const Policy& profile, const PolicyRequest&, const Ceiling&);

struct PolicyDifference {
  PolicyField field;
  std::string before, after;  // as in format_policy_value()
  bool operator==(const PolicyDifference&) const = default;
};
std::vector<PolicyDifference> diff(const Policy& before, const Policy& after);

}  // namespace mycojobs
