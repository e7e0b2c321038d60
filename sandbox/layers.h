// The layers around a run, by the names that its outcome has for them (landlock with its ABI behind a colon).
#pragma once

#include <string_view>

namespace mycojobs::sandbox {

// Those that a zygote is started in: namespaces.
inline constexpr const char* kNamespaceLayers[] = {"userns", "pidns", "mountns", "netns", "ipcns", "utsns"};

inline constexpr std::string_view kLayers[] = {"userns",   "pidns",    "mountns",       "netns",      "ipcns",
                                               "utsns",    "cgroupns", "seccomp",       "caps",       "nnp",
                                               "landlock", "uid",      "cgroup:memory", "cgroup:pids"};

}  // namespace mycojobs::sandbox
