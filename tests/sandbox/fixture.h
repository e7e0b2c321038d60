// A real launcher with the attempt host, and one line to run attempts in a fresh sandbox.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sandbox/client.h"
#include "support/process.h"

namespace mycojobs::test {

struct Ran {
  Outcome outcome;
  std::string out, err;                        // what the job wrote
  std::map<std::string, std::string> answers;  // attempt -> result
  std::string answer(const std::string& line) const;
};

SandboxConfig test_config();
bool may_limit_by_cgroup();  // on this host, by trying once

// One for a test program: starting it takes longer than any run.
Sandbox& shared_sandbox();

std::uint64_t next_run();
RunSpec spec_with(std::uint64_t wall_ms = 20000);

// Runs to the end. `lines`: attempts, one a line.
Ran run_attempts(Sandbox&, RunSpec, const std::string& lines);
Ran run_attempts(const std::string& lines, std::uint64_t wall_ms = 20000);
Ran run_with_exec(const std::string& lines, std::uint64_t wall_ms = 20000);

// By hand: launch, then wait for it.
struct Started {
  RunSpec spec;
  RunPipes pipes;
  std::string out;  // read so far
};
Started start_attempts(Sandbox&, RunSpec, const std::string& lines);
Ran wait_for(Sandbox&, Started&);
void wait_for_output(Started&, const std::string& text);  // on stdout

std::uint64_t now_boot_ms();

// Not those that have ended and are waited for.
std::vector<pid_t> children_of(pid_t parent);
std::string name_of(pid_t);  // as ps shows it; empty: it has gone
std::vector<pid_t> descendants_of(pid_t parent);
bool gone(pid_t);  // and waited for
// Groups of runs below this launcher's folders, wherever they are.
std::size_t groups_of(pid_t launcher);

// A sandbox of the test's own, and who serves it.
struct OwnSandbox {
  std::unique_ptr<Sandbox> sandbox;
  pid_t guardian = -1, launcher = -1;
  std::size_t prewarmed = SandboxConfig().prewarmed;  // at most, of each zygote
};
OwnSandbox own_sandbox(const SandboxConfig& config = test_config());

std::string violation_of(const Ran&);  // "ptrace", or "" and the test has failed

}  // namespace mycojobs::test
