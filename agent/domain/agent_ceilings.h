// The ceilings of agents, as their runner records publish them: a command without a configuration of its own then knows
// which policies the agents allow. Agents decide in any case, by their own configuration. Pure; any thread.
//
// The field `ceiling` of runner:<id> is a JSON object with the fields of a policy (domain/policy.h), but for
// output.kill. Folders and names of secrets stay with the agent: fs.read, fs.write and secrets are true (some are
// allowed) or false.
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/policy.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

inline constexpr std::string_view kPublishedCeiling = "ceiling";  // the field of a runner's record

// The value of that field.
std::string publish_ceiling(const Ceiling&);

struct PublishedCeiling {
  Ceiling ceiling;
  std::bitset<kPolicyFields> withheld;  // fields that allow something unknown: every request for them is let through
};
// nullopt: the text is empty or not understood, as of an agent of another version.
std::optional<PublishedCeiling> read_published_ceiling(std::string_view text, Id context);

// A live agent that takes jobs from queues.
struct AgentCeiling {
  Id runner = 0;
  std::vector<std::string> script_types;
  std::optional<PublishedCeiling> published;
};

// Error invalid: every agent that serves the job's script type would refuse the job's policy; names the field, the
// ceiling and the remedy of the first agent, and the number of agents. A type that no agent serves is not refused. A
// policy that is not well formed is always refused.
Result<void> check_policy(const Job&, const std::vector<AgentCeiling>&);

}  // namespace mycojobs
