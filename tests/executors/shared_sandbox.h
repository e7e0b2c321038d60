// Real sandboxes, with all script hosts of the build.
#pragma once

#include <memory>
#include <vector>

#include "mycojobs/sandbox.h"

namespace mycojobs::test {

// One of the test's own, with these hosts besides.
std::unique_ptr<Sandbox> sandbox_with(std::vector<ScriptHost>, std::uint32_t warm_processes = 16);
// Of this process.
Sandbox& shared_sandbox();

}  // namespace mycojobs::test
