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

struct RunResult {
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
RunResult run_attempts(Sandbox&, RunSpec, const std::string& lines);
RunResult run_attempts(const std::string& lines, std::uint64_t wall_ms = 20000);
RunResult run_with_exec(const std::string& lines, std::uint64_t wall_ms = 20000);

// A run in two steps: start_attempts() launches it, and wait_for() waits for its end.
struct StartedRun {
  RunSpec spec;
  RunPipes pipes;
  std::string out;  // output that was read so far
};
StartedRun start_attempts(Sandbox&, RunSpec, const std::string& lines);
RunResult wait_for(Sandbox&, StartedRun&);
void wait_for_output(StartedRun&, const std::string& text);  // waits for `text` on stdout

std::uint64_t now_boot_ms();

// Returns the children that are not zombies.
std::vector<pid_t> find_children(pid_t parent);
std::string read_process_name(pid_t);  // as printed by ps; empty if the process does not exist
std::vector<pid_t> find_descendants(pid_t parent);
bool is_reaped(pid_t);
// Counts the cgroups of runs below the folders of this launcher, in all hierarchies.
std::size_t count_groups(pid_t launcher);

// A sandbox of a single test, and the processes that serve it.
struct OwnSandbox {
  std::unique_ptr<Sandbox> sandbox;
  pid_t guardian = -1, launcher = -1;
  std::size_t prewarmed = SandboxConfig().prewarmed;  // maximum number of prewarmed sandboxes of each zygote
};
OwnSandbox own_sandbox(const SandboxConfig& config = test_config());

// Returns the name of the violation, such as "ptrace". Fails the test and returns "" if there was no violation.
std::string get_violation(const RunResult&);

}  // namespace mycojobs::test
