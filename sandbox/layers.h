// The layers around a run, by the names that its outcome has for them (landlock with its ABI behind a colon).
#pragma once

#include <string_view>

namespace mycojobs::sandbox {

inline constexpr std::string_view kLayers[] = {"userns",   "pidns",    "mountns",       "netns",      "ipcns",
                                               "utsns",    "cgroupns", "seccomp",       "caps",       "nnp",
                                               "landlock", "uid",      "cgroup:memory", "cgroup:pids"};

}  // namespace mycojobs::sandbox
