// Real sandboxes with all script hosts of the build.
#pragma once

#include <memory>
#include <vector>

#include "sandbox/sandbox.h"

namespace mycojobs::test {

// Starts a sandbox for one test, with additional hosts. Aborts the test program if it cannot be started.
std::unique_ptr<Sandbox> start_test_sandbox(std::vector<ScriptHost>, std::uint32_t warm_processes = 16);
// Returns the sandbox that all tests of this process share.
Sandbox& shared_sandbox();

}  // namespace mycojobs::test
