// Default policies of each kind of run, and the conversion of a policy to the limits and grants of a run. Pure and
// thread-safe.
#pragma once

#include <span>
#include <string_view>

#include "model/policy_json.h"
#include "sandbox/sandbox.h"

namespace mycojobs {

struct Profile {
  std::string_view name;  // python, v.compile, v.run, sal, osis, command, native
  Policy policy;
  bool supports_warm = false;  // the script host can serve many jobs with the same script in one process
};
std::span<const Profile> profiles();
// REQUIRES: profiles() has this name.
const Policy& profile(std::string_view name);
// Returns the profile for a script type: v.run for v; command for a type that an operator has defined.
std::string_view get_profile_name(std::string_view script_type);

// Error invalid: the policy requests a warm process, and the profile with this name does not support it.
Result<void> check_warm(std::string_view name, const Policy&);

// Sets the limits and grants of a run, without volumes. Every run gets its policy here. The wall limit is the smaller
// of timeout_ms and the policy's limit.
void apply_policy(RunSpec&, const Policy&, std::uint64_t timeout_ms);

}  // namespace mycojobs
