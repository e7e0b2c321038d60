// A real launcher with the attempt host, and functions that run attempts in a fresh sandbox.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sandbox/launcher_client.h"
#include "support/process.h"

namespace mycojobs::test {

struct Ran {
  Outcome outcome;
  std::string out, err;                        // output of the job
  std::map<std::string, std::string> answers;  // attempt -> result
  std::string answer(const std::string& line) const;
};

SandboxConfig test_config();
bool may_limit_by_cgroup();  // tries once whether this host permits it

// One sandbox for the whole test program, because starting a launcher takes longer than a run.
Sandbox& shared_sandbox();

std::uint64_t next_run();
RunSpec spec_with(std::uint64_t wall_ms = 20000);

// Runs the attempts in `lines` (one per line) until the run ends.
Ran run_attempts(Sandbox&, RunSpec, const std::string& lines);
Ran run_attempts(const std::string& lines, std::uint64_t wall_ms = 20000);
Ran run_with_exec(const std::string& lines, std::uint64_t wall_ms = 20000);

// A run in two steps: start_attempts() launches it, and wait_for() waits for its end.
struct Started {
  RunSpec spec;
  RunPipes pipes;
  std::string out;  // output that was read so far
};
Started start_attempts(Sandbox&, RunSpec, const std::string& lines);
Ran wait_for(Sandbox&, Started&);
void wait_for_output(Started&, const std::string& text);  // waits for `text` on stdout

std::uint64_t now_boot_ms();

// Zombies are not included.
std::vector<pid_t> children_of(pid_t parent);
std::string name_of(pid_t);  // as shown by ps; empty if the process does not exist
std::vector<pid_t> descendants_of(pid_t parent);
bool gone(pid_t);  // true if the process has ended and was reaped
// Counts the cgroups of runs below the folders of this launcher, in all hierarchies.
std::size_t groups_of(pid_t launcher);

// A sandbox of a single test, and the processes that serve it.
struct OwnSandbox {
  std::unique_ptr<Sandbox> sandbox;
  pid_t guardian = -1, launcher = -1;
  std::size_t prewarmed = SandboxConfig().prewarmed;  // maximum number of prewarmed sandboxes of each zygote
};
OwnSandbox own_sandbox(const SandboxConfig& config = test_config());

std::string violation_of(const Ran&);  // "ptrace", for example; "" if there was no violation, which also fails the test

}  // namespace mycojobs::test
