// The tables of attempts that must fail. A row has an attempt with its accepted results, and a positive control with
// its expected results.
#pragma once

#include <string>
#include <vector>

#include "sandbox/fixture.h"

namespace mycojobs::test {

struct DeniedRow {
  const char* id;  // Id in rows.txt, or a topic.
  std::string attempt;
  std::vector<std::string> accepted_results;  // Results of run_attempt() in the sandbox.
  // The positive control is an attempt in an environment that permits it (run_attempt_outside()):
  // - "": the same attempt, which must return "ok".
  // - "LINE": another attempt, which must return "ok".
  // - "LINE => A|B": another attempt, which must return A or B.
  // - "=> A|B": the same attempt, which must return A or B.
  // A "~" in the line is replaced by a writable folder. Rows that accept "ok" need no control.
  std::string control = {};
};

// All rows of a table run in one job. The rows of exec_rows() run in a job that may fork and exec.
const std::vector<DeniedRow>& file_rows();
const std::vector<DeniedRow>& network_rows();
const std::vector<DeniedRow>& kernel_rows();
const std::vector<DeniedRow>& capability_rows();
const std::vector<DeniedRow>& combined_rows();
const std::vector<DeniedRow>& exec_rows();

// Runs an attempt without the sandbox, but in new user, pid, mount, network, ipc and uts namespaces. There, only files
// in the attempt's own folder are writable, so an attempt that succeeds does no harm.
std::string run_attempt_outside(const std::string& line);

// Returns one text for each row with an unexpected result. All rows run in one job, because a denied attempt does not
// affect the next attempt.
std::vector<std::string> find_unexpected_results(Sandbox&, const std::vector<DeniedRow>&, bool can_exec = false);
// Returns one text for each positive control with an unexpected result.
std::vector<std::string> find_unexpected_control_results(const std::vector<DeniedRow>&);
void expect_denied(const std::vector<DeniedRow>&, bool can_exec = false);  // Checks rows and controls.

}  // namespace mycojobs::test
