// Runs a script through the real executor, the real host and the real sandbox: the whole way of a job but the store.
#pragma once

#include "mycojobs/sandbox.h"
#include "python_driver.h"

namespace mycojobs::test {

struct Confined {
  bool exec = false;
  std::uint64_t wall_ms = 30000;
  std::uint32_t pids = 64;
  Id context = 7;  // another one has another zygote
};
// Of this process, with all script hosts of the build.
Sandbox& shared_sandbox();
Ran run_python_confined(const std::string& script, const Confined& how = {});

}  // namespace mycojobs::test
