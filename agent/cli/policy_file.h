// Policies from files, and what they mean under the settings of this host.
#pragma once

#include <string>
#include <string_view>

#include "cli/config/options.h"
#include "domain/profiles.h"

namespace mycojobs {

// FILE.toml or FILE.json. Problems name file, line and field. Error: io, too_large; invalid (neither, or not TOML).
Result<PolicyRead> read_policy_file(const std::string& path);

// What a job of this script type (or profile) has that asks for nothing, before the ceiling.
Policy own_profile(const Settings&, std::string_view type);

}  // namespace mycojobs
