// Who has which policy: what each kind of run has by default, what an operator allows at most, and what a run's policy
// means to the sandbox.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "domain/policy.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

struct Profile {
  std::string_view name;  // python, v.compile, v.run, sal, osis, command, native
  Policy policy;
  bool warm = false;  // its host can serve many jobs with one script in one process
};
std::span<const Profile> profiles();
// Of a name that profiles() has.
const Policy& profile(std::string_view name);
// The profile of the runs of a script type: v.run for v; command for a type that an operator made up.
std::string_view profile_of(std::string_view script_type);

// Error invalid: the policy asks for a warm process, and scripts of this profile have none.
Result<void> check_warm(std::string_view profile, const Policy&);

// What the profiles need, and nothing beyond the job's own folder: no network, no programs, no folders, no secrets, no
// warm processes.
Policy default_ceiling();

// The operator's ceilings: one for each context that has its own, and one for all others.
struct Ceilings {
  Policy standard = default_ceiling();
  std::map<Id, Policy> contexts;
  std::map<Id, std::bitset<kPolicyFields>> written;  // as in Ceiling; 0: of the standard one, which all inherit
  std::vector<std::string> own_folders;              // as in Ceiling
  Ceiling of(Id context) const;
  bool operator==(const Ceilings&) const = default;
};

// The one place where a policy becomes a run: fills limits and grants. timeout_ms: of the job; wall is the smaller.
void give(RunSpec&, const Policy&, std::uint64_t timeout_ms);

}  // namespace mycojobs
