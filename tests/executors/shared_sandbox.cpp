#include "shared_sandbox.h"

#include <gtest/gtest.h>

#include "sandbox/launcher_client.h"
#include "support/build_paths.h"

namespace mycojobs::test {

std::unique_ptr<Sandbox> start_test_sandbox(std::vector<ScriptHost> hosts, std::uint32_t warm_processes) {
  SandboxConfig config;
  config.libexec_dir = mj::test::programs_folder();
  config.allow_missing = {"cgroup:memory", "cgroup:pids"};
  config.hosts = std::move(hosts);
  config.max_warm_processes = warm_processes;
  auto started = start_sandbox(config);
  if (!started) {
    ADD_FAILURE() << started.error().message;
    std::abort();
  }
  return std::move(*started);
}

Sandbox& shared_sandbox() {
  static const std::unique_ptr<Sandbox> kSandbox = start_test_sandbox({});
  return *kSandbox;
}

}  // namespace mycojobs::test
