// Real sandboxes with all script hosts of the build.
#pragma once

#include <memory>
#include <vector>

#include "sandbox/sandbox.h"

namespace mycojobs::test {

// A sandbox for one test, with these additional hosts.
std::unique_ptr<Sandbox> sandbox_with(std::vector<ScriptHost>, std::uint32_t warm_processes = 16);
// The sandbox that all tests of this process share.
Sandbox& shared_sandbox();

}  // namespace mycojobs::test
