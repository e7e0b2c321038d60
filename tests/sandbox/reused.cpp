#include "reused.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace mycojobs::test {

SandboxConfig make_single_sandbox_config() {
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 1;
  return config;
}

bool can_reset_memory_peak() {
  if (!can_limit_by_cgroup() || std::filesystem::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes")) return true;
  utsname system{};
  ::uname(&system);
  int major_number = 0, minor_number = 0;
  std::sscanf(system.release, "%d.%d", &major_number, &minor_number);
  return major_number > 6 || (major_number == 6 && minor_number >= 12);
}

int parse_pid(const RunResult& result) { return std::atoi(result.get_result("getpid").c_str()); }
bool is_reused(const RunResult& result) { return parse_pid(result) > 2; }

RunResult run_with_getpid(DedicatedSandbox& dedicated_sandbox, const std::string& lines) {
  return run_attempts(*dedicated_sandbox.sandbox, make_spec(), lines + "\ngetpid");
}

void wait_for_reuse(DedicatedSandbox& dedicated_sandbox) {
  ASSERT_TRUE(eventually([&] { return is_reused(run_with_getpid(dedicated_sandbox, "")); }));
}

bool next_run_uses_same_sandbox(DedicatedSandbox& dedicated_sandbox, const std::string& lines) {
  wait_for_reuse(dedicated_sandbox);
  run_attempts(*dedicated_sandbox.sandbox, make_spec(), lines);
  return is_reused(run_with_getpid(dedicated_sandbox, ""));
}

}  // namespace mycojobs::test
