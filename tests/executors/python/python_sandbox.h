// Runs a script with the real executor, the real host and the real sandbox: the whole path of a job except for the
// store.
#pragma once

#include <memory>
#include <vector>

#include "executors/shared_sandbox.h"
#include "python_driver.h"
#include "sandbox/sandbox.h"

namespace mycojobs::test {

struct PythonRunOptions {
  bool exec = false;
  std::uint64_t wall_ms = 30000;
  std::uint32_t pids = 64;
  Id context = 7;                     // each context has its own zygote
  Sandbox* sandbox = nullptr;         // null: the shared sandbox
  std::vector<std::string> net = {};  // reachable addresses; empty: no network
  WarmReuse warm = {};                // without a key: the common key of all such runs
  std::uint64_t memory_bytes = 256ULL << 20;
  std::uint64_t cpu_ms = 0;  // 0: no limit
};
RunResult run_python_confined(const JobFacts&, const PythonRunOptions& options = {});
RunResult run_python_confined(const std::string& script, const PythonRunOptions& options = {});

}  // namespace mycojobs::test
