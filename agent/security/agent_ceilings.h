// Ceilings of agents, as their runner records publish them. A command without a configuration of its own uses them to
// learn which policies the agents allow. Each agent still decides by its own configuration. Pure and thread-safe.
//
// The field `ceiling` of runner:<id> is a JSON object with the fields of a policy (model/policy_json.h), except
// output.kill. Names of folders and secrets are not published: fs.read, fs.write and secrets are true (some are
// allowed) or false.
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/policy_json.h"
#include "model/records.h"
#include "security/ceilings.h"

namespace mycojobs {

inline constexpr std::string_view kPublishedCeiling = "ceiling";  // field of a runner record

// Returns the value of that field as JSON text.
std::string format_published_ceiling(const Ceiling&);

struct PublishedCeiling {
  Ceiling ceiling;
  // Fields that allow values which are not published. Every request for such a field passes.
  std::bitset<kPolicyFields> withheld;
};
// Parses the value of that field in a runner record of the context. `context` appears only in error messages of later
// checks. Returns no value if the text is empty or cannot be parsed, for example because the agent has another version.
std::optional<PublishedCeiling> read_published_ceiling(std::string_view text, Id context);

// A live agent that claims jobs from queues.
struct AgentCeiling {
  Id runner = 0;
  std::vector<std::string> script_types;
  std::optional<PublishedCeiling> published;  // no value: unknown, so the agent counts as one that allows every policy
};

// Error invalid: every agent that serves the job's script type would reject the job's policy. The message names the
// field, the ceiling and the remedy of the first agent, and the number of agents. A script type that no agent serves,
// or that an agent without a published ceiling serves, passes. A malformed policy is always rejected.
Result<void> check_policy_against_agents(const Job&, const std::vector<AgentCeiling>&);

}  // namespace mycojobs
