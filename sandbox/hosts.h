// Which program serves the scripts of which host. One row a host.
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
