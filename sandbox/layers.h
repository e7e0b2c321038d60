// The layers around a run: their names, whether this host has them, and what to do where one is missing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/outcome.h"

namespace mycojobs::sandbox {

class Cgroups;
struct IdRange;
struct Layer;

// By the names that a run's outcome has for them (landlock with its ABI behind a colon). First
// those that a zygote is started in: namespaces.
inline constexpr const char* kNamespaceLayers[] = {"userns", "pidns", "mountns", "netns", "ipcns", "utsns"};

inline constexpr std::string_view kLayers[] = {"userns",   "pidns",    "mountns",       "netns",      "ipcns",
                                               "utsns",    "cgroupns", "seccomp",       "caps",       "nnp",
                                               "landlock", "uid",      "cgroup:memory", "cgroup:pids"};

// What an operator can do when a step of the set-up fails, or a layer is missing.
std::string remedy_for_step(std::string_view step, int error);
std::string remedy_for_layer(std::string_view layer);  // empty: no such layer
bool is_layer_that_may_miss(std::string_view layer);   // sandbox.allow_missing takes these

// For `doctor`: each layer by itself, decided by trying. `canary`: what the throw-away job met, nothing if it was
// refused everything.
std::vector<Layer> probed_layers(const IdRange&, const Cgroups&, const std::optional<SetupError>& canary);

}  // namespace mycojobs::sandbox
