#include "reused.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace mycojobs::test {

SandboxConfig one_sandbox() {
  SandboxConfig config = test_config();
  config.prewarmed = 1;
  return config;
}

bool a_peak_begins_anew() {
  if (!may_limit_by_cgroup() || std::filesystem::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes")) return true;
  utsname system{};
  ::uname(&system);
  int major_number = 0, minor_number = 0;
  std::sscanf(system.release, "%d.%d", &major_number, &minor_number);
  return major_number > 6 || (major_number == 6 && minor_number >= 12);
}

int parse_pid(const RunResult& ran) { return std::atoi(ran.answer("getpid").c_str()); }
bool is_reused(const RunResult& ran) { return parse_pid(ran) > 2; }

RunResult run_in(OwnSandbox& own, const std::string& lines) {
  return run_attempts(*own.sandbox, spec_with(), lines + "\ngetpid");
}

void wait_for_reuse(OwnSandbox& own) {
  ASSERT_TRUE(eventually([&] { return is_reused(run_in(own, "")); }));
}

bool next_is_in_the_same(OwnSandbox& own, const std::string& lines) {
  wait_for_reuse(own);
  run_attempts(*own.sandbox, spec_with(), lines);
  return is_reused(run_in(own, ""));
}

}  // namespace mycojobs::test
