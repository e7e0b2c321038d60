// The script hosts that come with the agent, for every context. One row a host; what a context has of its own is in
// SandboxConfig::hosts.
#pragma once

#include <string>

namespace mycojobs::sandbox {

struct HostRow {
  const char* host;
  const char* program;  // in the libexec folder
};
inline constexpr HostRow kHosts[] = {
    {"python", "mycojobs-pyhost"},
    {"lua", "mycojobs-luahost"},
    {"exec", "mycojobs-exechost"},
};
inline constexpr const char* kLauncherProgram = "mycojobs-launcher";

}  // namespace mycojobs::sandbox
