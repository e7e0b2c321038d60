// For the operator: which processes keep a run from ending.
#pragma once

#include <sys/types.h>

#include <string>

namespace mycojobs::sandbox {

// "process 4243 (python, state D)", and so on for the processes below init, or init itself if none is seen; a few at
// most. States as in proc(5): D waits in the kernel, Z is dead and held by a tracer.
std::string describe_survivors(pid_t init);

}  // namespace mycojobs::sandbox
