// Policies from files, and what they mean under the settings of this host.
#pragma once

#include <string>
#include <string_view>

#include "cli/config/options.h"
#include "domain/profiles.h"

namespace mycojobs {

// FILE.toml or FILE.json. Problems name file, line and field. Error: io, too_large; invalid (neither, or not TOML).
Result<PolicyRead> read_policy_file(const std::string& path);

}  // namespace mycojobs
