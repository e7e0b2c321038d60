// For `doctor`: each layer by itself, decided by trying.
#pragma once

#include <optional>
#include <vector>

#include "sandbox/cgroup.h"
#include "sandbox/idmap.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {

// `canary`: what the throw-away job met, nothing if it was refused everything.
std::vector<Layer> probed_layers(const IdRange&, const Cgroups&, const std::optional<SetupError>& canary);

}  // namespace mycojobs::sandbox
