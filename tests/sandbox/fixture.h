// Runs test jobs in a real sandbox. The script host of the tests (attempt_host) executes an attempt per line of its
// input: an action of a job that the sandbox may forbid. It reports the result of each attempt.
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

// A folder to grant. All users may enter and write it, because jobs have user ids of their own.
class GrantedFolder : public TempDir {
 public:
  GrantedFolder();
};

struct RunResult {
  Outcome outcome;
  std::string stdout_text, stderr_text;        // Output of the job.
  std::map<std::string, std::string> results;  // By attempt.
  // Returns the result of the attempt, or "no answer" with the reason of the end.
  std::string get_result(const std::string& attempt) const;
};

SandboxConfig make_test_config();
// Returns whether this host permits cgroups with limits. The first call probes the host.
bool can_limit_by_cgroup();

// Returns the sandbox of the whole test program, because starting a launcher takes longer than a run.
Sandbox& shared_sandbox();

std::uint64_t next_run_id();
// Returns a run of the attempt host in context 1.
RunSpec make_spec(std::uint64_t wall_ms = 20000);

// Runs the attempts (one per line) and waits for the end of the run. wall_ms is the wall-clock limit. Without a
// sandbox, runs them in shared_sandbox().
RunResult run_attempts(Sandbox&, RunSpec, const std::string& attempts);
RunResult run_attempts(const std::string& attempts, std::uint64_t wall_ms = 20000);
// The same for a run that may call fork and exec.
RunResult run_attempts_with_exec(const std::string& attempts, std::uint64_t wall_ms = 20000);

// A run in two steps: start_attempts() launches it, and wait_for_end() waits for its end.
struct StartedRun {
  RunSpec spec;
  RunPipes pipes;
  std::string stdout_text;  // The output that was read so far.
};
StartedRun start_attempts(Sandbox&, RunSpec, const std::string& attempts);
RunResult wait_for_end(Sandbox&, StartedRun&);
void wait_for_output(StartedRun&, const std::string& text);  // Waits for `text` on stdout.

std::uint64_t now_boot_ms();

// Returns the children that are not zombies.
std::vector<pid_t> find_children(pid_t parent);
std::vector<pid_t> find_descendants(pid_t parent);
bool is_reaped(pid_t);
// Counts the cgroups of runs below the folders of this launcher, in all hierarchies.
std::size_t count_cgroups(pid_t launcher);

// A sandbox that only one test uses, and the processes that serve it.
struct DedicatedSandbox {
  std::unique_ptr<Sandbox> sandbox;
  pid_t guardian = -1, launcher = -1;
  std::size_t max_prewarmed = SandboxConfig().max_prewarmed;  // Maximum for each zygote in the default configuration.
};
// Aborts the test program if the launcher cannot be started.
DedicatedSandbox start_dedicated_sandbox(const SandboxConfig& config = make_test_config());

// Returns the name of the violation, such as "ptrace". Fails the test and returns "" if there was no violation.
std::string get_violation(const RunResult&);

}  // namespace mycojobs::test
